"""The page at /: files that need no build and ask nothing of any other origin.

They are read once, when the server starts, so that no path of a request ever becomes a path of the
file system. Everybody may have them; what they then ask for needs a key if the server has keys.
"""

import hashlib
import pathlib

from aiohttp import web

FILES = pathlib.Path(__file__).resolve().parent / "page"

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript",
          ".svg": "image/svg+xml"}

# Scripts and styles from our files alone, never from text in the page; data: is for pictures that
# people attach. Trusted types: nothing in the page can turn a string into elements.
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
          "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
          "require-trusted-types-for 'script'; trusted-types 'none'")

_HEADERS = {
    "Cache-Control": "no-cache",  # kept, and asked for again by its tag: an update is seen at once
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class StaticFile:
    """One file, and the handler that answers with it."""

    def __init__(self, path):
        self.kind, self.body = _KINDS[path.suffix], path.read_bytes()
        self.headers = {**_HEADERS, "ETag": f'"{hashlib.sha256(self.body).hexdigest()[:24]}"'}

    async def __call__(self, request):
        known = request.http.headers.get("If-None-Match", "")
        if self.headers["ETag"] in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return web.Response(status=304, headers=self.headers)
        return web.Response(body=self.body, headers=self.headers, content_type=self.kind,
                            charset="utf-8")


def table():
    """Handlers by path, as Routes.table has them."""
    paths = sorted(p for p in FILES.iterdir() if p.suffix in _KINDS)
    found = {f"/page/{p.name}": {"GET": StaticFile(p)} for p in paths}
    found["/"] = found.pop("/page/index.html")
    return found
