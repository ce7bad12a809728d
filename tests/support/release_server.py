"""A repository of weights on this machine, on a server that does everything servers do."""

import contextlib
import hashlib
import http.server
import json
import random
import struct
import threading
import time
import urllib.parse

REPO = "acme/tiny"
COMMIT, NEXT = "1" * 40, "2" * 40
INDEX = "model.safetensors.index.json"
TOKEN = "hf_SecretThatIsNeverPrinted"
LIST = "?blobs=true"
SHARDS = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]


def shard(seed, size):
    header = b'{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    body = random.Random(seed).randbytes(size - 8 - len(header))
    return struct.pack("<Q", len(header)) + header + body


def release():
    """The files of a repository by name."""
    files = {name: shard(i, 150_000 + 7 * i) for i, name in enumerate(SHARDS)}
    files[INDEX] = json.dumps({"metadata": {"total_size": 1}, "weight_map": {
        f"t{i}": name for i, name in enumerate(SHARDS)}}).encode()
    files["config.json"] = b'{"model_type":"kimi_linear"}'
    files["tiktoken.model"] = b"IQ== 0\n" * 100
    files["inference/model.py"] = b"import torch\n"
    files[".gitattributes"] = b"*.safetensors lfs\n"
    files["pytorch_model.bin"] = b"the same again"
    return files


class Server:
    """A repository on an ephemeral port. `plan[file]` is a list of misdeeds, one for each request
    for it; the last one stays if `forever` holds the file. `raw[end of a path]` is the whole
    answer, head and body, in pieces."""

    def __init__(self):
        self.files, self.commit = release(), COMMIT
        self.plan, self.forever, self.requests, self.auth = {}, set(), [], []
        self.raw = {}
        self.lists, self.hashes, self.redirect_to, self.delay = True, True, None, 0
        self.etags = False
        self.lock = threading.Lock()
        handler = type("Bound", (Handler,), {"server_of": self})
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02},
                         daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def misdeed(self, name):
        with self.lock:
            todo = self.plan.get(name)
            if not todo:
                return None
            return todo[0] if name in self.forever and len(todo) == 1 else todo.pop(0)

    def listing(self):
        siblings = []
        for name, data in self.files.items():
            entry = {"rfilename": name, "size": len(data), "blobId":
                     hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
            if name.endswith((".safetensors", ".model")) and self.hashes:
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
            if not self.hashes:
                del entry["blobId"]
            siblings.append(entry)
        return json.dumps({"id": REPO, "sha": self.commit, "siblings": siblings}).encode()

    def asked(self, name):
        """The Range headers of the requests for a file."""
        return [r for path, r in self.requests if path.endswith("/" + name)]


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", headers=(), length=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for key, value in headers:
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = lambda self: self.do_GET()

    def do_GET(self):
        s, path = self.server_of, urllib.parse.unquote(self.path)
        with s.lock:
            s.requests.append((path, self.headers.get("Range")))
            s.auth.append(self.headers.get("Authorization"))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for end, pieces in s.raw.items():
                if path.endswith(end):
                    for piece in pieces:
                        self.wfile.write(piece)
                    return None
            if path.startswith(f"/api/models/{REPO}/revision/"):
                revision = path.rsplit("/", 1)[1].split("?")[0]
                if not s.lists or revision not in ("main", s.commit):
                    return self.answer(404)
                return self.answer(200, s.listing(), [("Content-Type", "application/json")])
            if path.startswith(f"/{REPO}/resolve/"):
                revision, name = path[len(f"/{REPO}/resolve/"):].split("/", 1)
                if revision not in ("main", s.commit) or name not in s.files:
                    return self.answer(404)
                return self.file(name, s.files[name], s.misdeed(name))
            self.answer(401)

    def file(self, name, data, misdeed):
        s, asked = self.server_of, self.headers.get("Range")
        if s.redirect_to and self.command == "GET":
            return self.answer(302, headers=[("Location", s.redirect_to + self.path)])
        start = int(asked[len("bytes="):-1]) if asked else 0
        if misdeed == "replaced":
            data = s.files[name] = shard(77, len(data))
        page = b"<html><body>Service unavailable</body></html>"
        extra = [("X-Repo-Commit", s.commit)]
        if s.etags:
            extra.append(("ETag", f'"{hashlib.sha1(data).hexdigest()}"'))
        if misdeed in (500, 503, 404, 403):
            return self.answer(misdeed, headers=[("Retry-After", "0")])
        if misdeed == "html":
            return self.answer(200, page, [("Content-Type", "text/html; charset=utf-8")])
        if misdeed == "html of the right length":
            return self.answer(200, page.ljust(len(data)))
        if misdeed == "no ranges":
            start, asked = 0, None
        if misdeed == "cut without ranges":
            return self.answer(200, data[:len(data) // 2], extra, len(data))
        body, length = data[start:], len(data) - start
        if misdeed == "another length":
            length += 1000
        content_range = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if misdeed == "wrong range":  # from the start, and says so
            body, length = data, len(data)
            content_range = f"bytes 0-{len(data) - 1}/{len(data)}"
        if misdeed == "lying range":  # other bytes than it says
            body = data[:length]
        if misdeed == "wrong total":
            content_range = f"bytes {start}-{len(data) - 1}/{len(data) + 5}"
        if misdeed == "flip":
            body = bytes([body[0]]) + bytes([body[1] ^ 1]) + body[2:]
        if misdeed in ("chunked", "chunked and longer"):
            self.send_response(200)
            self.end_headers()  # no length; the connection's end is the body's
            return self.wfile.write(data + b"x" * (1000 if "longer" in misdeed else 0))
        headers = extra + ([("Content-Range", content_range)] if asked else [])
        if misdeed == "cut":
            body = body[:20_000]
        if misdeed == "hang" or s.delay:
            return self.slowly(body, length, headers, asked, misdeed)
        self.answer(206 if asked else 200, body, headers, length)

    def slowly(self, body, length, headers, asked, misdeed):
        s = self.server_of
        self.answer(206 if asked else 200, b"", headers, length)
        for at in range(0, len(body), 4096):
            self.wfile.write(body[at:at + 4096])
            time.sleep(s.delay)
            if misdeed == "hang":
                time.sleep(3)
