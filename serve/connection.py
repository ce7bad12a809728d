"""One client's connection: aiohttp's protocol with time limits, a count, and JSON for its errors.

aiohttp bounds lines and fields of a head, and knows how long an idle connection may stay once it
had a request. Here: how long a head may take, how many connections there may be, what becomes of a
body that nobody reads, and who wants to hear that the client has gone.
"""

import asyncio
import http
import json

from aiohttp import HttpVersion10, HttpVersion11, web

from serve.errors import ApiError

SLICE = 4096  # elements of a long list
HEAD_BYTES = 1 << 20  # of a head, or of requests that do not wait for the answer to the one before
# Of a body that nobody reads: for how long it may come, how long nothing of it, and how much.
DROP_SECONDS, DROP_SILENCE, DROP_BYTES = 10, 2, 64 << 20


def json_response(value, status=200, headers=None):
    return web.Response(body=json.dumps(value, ensure_ascii=False).encode(errors="replace"),
                        status=status, headers=headers, content_type="application/json")


def list_response(member, array, made=None, **more):
    """A JSON object with a list that may have millions of elements: made(element), if given. It is
    written in slices, between which other threads run."""
    slices = (array[at:at + SLICE] for at in range(0, len(array), SLICE))
    parts = (json.dumps(part if made is None else [made(x) for x in part], ensure_ascii=False)
             [1:-1] for part in slices)
    text = json.dumps({**more, member: []}, ensure_ascii=False)
    text = "".join((text[:-2], ", ".join(parts), "]}"))
    return web.Response(body=text.encode(errors="replace"), content_type="application/json")


def is_last(request):
    """Nothing more is read from this connection. What comes in chunks may end with trailers, and
    aiohttp 3.8 takes the last of them for a field of the next head, which may be somebody else's
    where a proxy stands before us."""
    return "Transfer-Encoding" in request.headers


def check_head(request):
    """Refuse what two programs can read in two ways, of which one may stand before us."""
    why, coding = None, request.headers.getall("Transfer-Encoding", ())
    lengths = request.headers.getall("Content-Length", ())
    if request.version not in (HttpVersion10, HttpVersion11):
        why = "HTTP/%d.%d: only 1.0 and 1.1 are spoken here" % request.version
    elif any(name != name.strip() for name, _ in request.raw_headers):
        why = "white space before the colon of a header"
    elif len(request.headers.getall("Host", ())) > 1:
        why = "more than one Host"
    elif request.version == HttpVersion11 and "Host" not in request.headers:
        why = "no Host, which HTTP/1.1 asks for"
    elif not all(n.isascii() and n.isdigit() for n in lengths):  # "y5", of a field without a name
        why = "a Content-Length that is no number"
    elif coding and (request.version == HttpVersion10 or ",".join(coding).lower() != "chunked"):
        why = "Transfer-Encoding: nothing but chunked, in HTTP/1.1"
    if why:
        raise ApiError(400, why, headers={"Connection": "close"})


class Connection(web.RequestHandler):
    def __init__(self, manager, head_seconds, **kwargs):
        super().__init__(manager, **kwargs)
        self.head_seconds = head_seconds
        self.refused = self.busy = self.answering = False
        self.leaving = None  # the transport, once the last is said and no request is read any more
        self.ahead = 0  # bytes that came before they were wanted
        self.timer = self.on_gone = None

    def connection_made(self, transport):
        if not self._manager.admit():
            self.refused, self.transport = True, transport
            self._refuse(ApiError(503, "too many connections", code="overloaded"),
                         "Retry-After: 1")
            transport.close()
            return
        super().connection_made(transport)
        self._await_head()

    def _refuse(self, error, *headers):
        """Before there is a request."""
        body = json.dumps(error.body())
        lines = (f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}",
                 "Content-Type: application/json", f"Content-Length: {len(body)}",
                 "Connection: close", *headers, "", body)
        self.transport.write("\r\n".join(lines).encode())

    def _leave(self):
        """Nothing more is said, and what comes is dropped for a while: see `drop`."""
        self._cancel_timer()
        self.leaving, self.transport = self.transport, None
        self.force_close()  # aiohttp's side of it, which has no transport any more
        self.ahead = 0
        self.leaving.write_eof()
        self.timer = asyncio.get_running_loop().call_later(DROP_SILENCE, self.leaving.abort)

    async def drop(self, content, most):
        """Behind the last answer: the rest of its request's body, at most so many bytes. Closed with
        bytes unread, a connection is reset, and a client that writes before it reads is told nothing."""
        self.answering = False  # what comes is this request's
        if self.transport:
            self.transport.write_eof()
        loop = asyncio.get_running_loop()
        until = loop.time() + DROP_SECONDS
        try:
            while not content.is_eof() and most > 0:
                most -= len(await asyncio.wait_for(content.readany(),
                                                   min(DROP_SILENCE, until - loop.time())))
        except (asyncio.TimeoutError, web.RequestPayloadError):
            pass  # it was told

    def connection_lost(self, exc):
        if self.refused:
            return
        self._manager.release()
        self._cancel_timer()
        super().connection_lost(exc)
        if self.on_gone:
            self.on_gone()

    def data_received(self, data):
        if self.refused:
            return
        if self.leaving:
            self.ahead += len(data)
            if self.ahead > DROP_BYTES:
                self.leaving.abort()
            return
        if not self.busy or self.answering:
            self.ahead += len(data)
            if self.ahead > HEAD_BYTES:
                self.transport.abort()
                return
        if not self.busy and not self.timer:
            self._await_head()
        try:
            super().data_received(data)
        except ValueError as e:  # of an address that is none, such as http://[
            if self.busy:  # an answer may have begun
                self.transport.abort()
            else:
                self._refuse(ApiError(400, f"not HTTP: {e}"))
                self._leave()

    def _await_head(self):
        self.timer = asyncio.get_running_loop().call_later(self.head_seconds, self.force_close)

    def _cancel_timer(self):
        if self.timer:
            self.timer.cancel()
            self.timer = None

    def begin(self):
        """A request's head is complete."""
        self.busy, self.answering, self.ahead = True, False, 0
        self._cancel_timer()

    def body_is_read(self):
        """What comes from here on is the next request's."""
        self.answering = True

    def end(self):
        self.busy, self.on_gone = False, None

    def handle_error(self, request, status=500, exc=None, message=None):
        """What aiohttp could not parse, or a mistake of ours."""
        if status < 500:
            if self.transport:
                self._refuse(ApiError(status, message or "not HTTP"))
                self._leave()
            return web.Response(status=499)  # to nobody
        self.log_exception("a request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        response = json_response(
            ApiError(status, "the server made a mistake; its log says more").body(), status)
        response.force_close()
        return response


class Front(web.Server):
    """Makes a Connection for each client, as long as there are not too many."""

    def __init__(self, handler, *, connections, head_seconds, **kwargs):
        super().__init__(handler)
        self.most, self.n, self.head_seconds, self.kwargs = connections, 0, head_seconds, kwargs

    def __call__(self):
        return Connection(self, self.head_seconds, loop=asyncio.get_running_loop(), **self.kwargs)

    def admit(self):
        if self.n >= self.most:
            return False
        self.n += 1
        return True

    def release(self):
        self.n -= 1
