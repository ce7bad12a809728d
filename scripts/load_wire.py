"""HTTP/1.1 as scripts/load_server needs it: over a socket whose every byte the caller decides."""

import asyncio
import contextlib
import json
import socket
import struct
import urllib.parse


class Cut(Exception):
    """The server ended the connection where an answer should have been."""


class Wire:
    """A connection. In tests of patience its receive buffer is small."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.status, self.headers = None, {}

    @classmethod
    async def open(cls, url, receive_bytes=None):
        at = urllib.parse.urlsplit(url)
        s = socket.socket(socket.AF_INET6 if ":" in at.hostname else socket.AF_INET)
        s.setblocking(False)
        limit = 1 << 16
        if receive_bytes:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            limit = 512
        try:
            await asyncio.get_running_loop().sock_connect(s, (at.hostname, at.port))
            return cls(*await asyncio.open_connection(sock=s, limit=limit))
        except BaseException:
            s.close()
            raise

    def send_raw(self, data):
        self.writer.write(data)

    def send(self, method, path, body=b"", headers=()):
        lines = [f"{method} {path} HTTP/1.1", "Host: load", *headers]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def head(self):
        """Status and headers of the next answer."""
        try:
            line = await self.reader.readuntil(b"\r\n")
            lines = []
            while (more := await self.reader.readuntil(b"\r\n")) != b"\r\n":
                lines.append(more)
        except (asyncio.IncompleteReadError, ConnectionError) as e:
            raise Cut(f"before the head: {e or type(e).__name__}") from None
        self.status = int(line.split()[1])
        self.headers = {k.strip().lower(): v.strip() for k, v in
                        (x.decode("latin-1").split(":", 1) for x in lines)}
        return self.status

    async def parts(self, most=1 << 16, pause=None):
        """The body, as it comes; pause() is awaited between reads of at most `most` bytes."""
        try:
            if self.headers.get("transfer-encoding") == "chunked":
                while n := int(await self.reader.readuntil(b"\r\n"), 16):
                    async for part in self._exactly(n, most, pause):
                        yield part
                    await self.reader.readexactly(2)
                await self.reader.readexactly(2)
            else:
                async for part in self._exactly(int(self.headers["content-length"]), most, pause):
                    yield part
        except (asyncio.IncompleteReadError, ConnectionError) as e:
            raise Cut(f"in the body: {e or type(e).__name__}") from None

    async def _exactly(self, n, most, pause):
        while n:
            part = await self.reader.readexactly(min(n, most))
            n -= len(part)
            yield part
            if pause:
                await pause()

    async def body(self, **how):
        return b"".join([part async for part in self.parts(**how)])

    async def events(self, **how):
        """The objects of an event stream; comments are left out, [DONE] ends it."""
        left = b""
        async for part in self.parts(**how):
            *blocks, left = (left + part).split(b"\n\n")
            for block in blocks:
                for line in block.split(b"\n"):
                    if line.startswith(b"data: ") and line != b"data: [DONE]":
                        yield json.loads(line[6:])
        if left:
            raise Cut("an event has no end")

    @property
    def reusable(self):
        return self.headers.get("connection", "").lower() != "close"

    async def gone(self):
        """Until the server ends the connection, whatever else it says."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass

    def close(self):
        self.writer.close()

    def abort(self):
        """As when a process dies: with a reset."""
        s = self.writer.get_extra_info("socket")
        if s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def ask(url, method, path, body=b"", headers=()):
    """(status, headers, body) of one request on a connection of its own."""
    wire = await Wire.open(url)
    try:
        wire.send(method, path, body, headers)
        await wire.head()
        return wire.status, wire.headers, await wire.body()
    finally:
        wire.close()
