"""From jobs to HTTP: an answer at once or as an event stream, with signs of life in between.

The events of all jobs of one request come through one Feed, in the order of the engine's thread. A
client that goes, or that does not read, ends its jobs.
"""

import asyncio
import json
import time

from aiohttp import web

from serve.connection import json_response
from serve.errors import ApiError, busy
from serve.scheduler import Ended, Failed, Fed, More, Queued

GONE = object()
HEAD_WAITS = 0.3  # seconds for a failure that can still be a status


class Feed:
    """Events of a request's jobs, for one coroutine."""

    def __init__(self):
        self.loop, self.queue = asyncio.get_running_loop(), asyncio.Queue()

    def sink(self, index):
        """For the scheduler: called on the engine's thread."""
        def put(event):
            try:
                self.loop.call_soon_threadsafe(self.queue.put_nowait, (index, event))
            except RuntimeError:
                pass  # the loop is closed: nobody listens any more
        return put

    def gone(self):
        self.queue.put_nowait((None, GONE))

    async def get(self, seconds=None):
        """All events there are, at least one; [] when the time is up."""
        try:
            events = [await asyncio.wait_for(self.queue.get(), seconds)]
        except asyncio.TimeoutError:
            return []
        while not self.queue.empty():
            events.append(self.queue.get_nowait())
        return events


class ClientGone(ConnectionResetError):
    pass


def failure(failed):
    """A Failed as an error of the interface."""
    if failed.kind == "request":
        return ApiError(400, failed.message)
    if failed.kind == "deadline":
        return ApiError(504, failed.message, code="deadline")
    if failed.kind == "closing":
        return busy(failed.message, 5)
    return ApiError(500, failed.message, code=failed.kind)


class Exchange:
    """One request: its jobs, its answer, what of it has ended."""

    def __init__(self, answer, jobs, feed, cancel):
        self.answer, self.jobs, self.feed, self.cancel = answer, jobs, feed, cancel
        self.left = len(jobs)
        self.error = None
        self.status = {}  # where the jobs are, for signs of life

    def take(self, events):
        """What these events are in the answer's words."""
        out = []
        for index, event in events:
            if event is GONE:
                raise ClientGone("the client has gone")
            if isinstance(event, More):
                for delta in event.deltas:
                    out += self.answer.more(index, delta)
            elif isinstance(event, Ended):
                self.left -= 1
                out += self.answer.end(index, event)
            elif isinstance(event, Failed):
                self.error = failure(event)
            elif isinstance(event, Fed):
                self.status[index] = f"prompt {event.done}/{event.total}"
                if self.answer.options.progress:
                    out += self.answer.progress(event)
            elif isinstance(event, Queued):
                self.status[index] = f"queued, {event.position} before"
                if self.answer.options.progress:
                    out += self.answer.queued(event.position)
        return out

    @property
    def over(self):
        return self.error or not self.left

    def abandon(self):
        for job in self.jobs:
            self.cancel(job)


async def at_once(exchange):
    try:
        while not exchange.over:
            exchange.take(await exchange.feed.get())
    finally:
        exchange.abandon()
    if exchange.error:
        raise exchange.error
    return json_response(exchange.answer.whole())


class Sse:
    """Frames of an event stream."""

    last = b"data: [DONE]\n\n"

    def frame(self, value):
        return b"data: " + json.dumps(value, ensure_ascii=False).encode(errors="replace") + b"\n\n"

    def error(self, error):
        return self.frame(error.body())


class Writer:
    """A response that is written as it comes, to a client that has to read."""

    def __init__(self, request, headers, seconds):
        self.request, self.seconds = request, seconds
        self.response = web.StreamResponse(headers={
            "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no", **headers})

    async def begin(self):
        await self.response.prepare(self.request)

    async def write(self, data):
        try:
            await asyncio.wait_for(self.response.write(data), self.seconds)
        except asyncio.TimeoutError:
            if self.request.transport:
                self.request.transport.abort()
            raise ClientGone("the client does not read") from None


async def streamed(exchange, request, *, headers, sse, keep_alive, write_seconds):
    """The answer in chunks. What fails before the first of them is an ordinary error."""
    writer = Writer(request, headers, write_seconds)
    try:
        events = await first_events(exchange)
        if exchange.error:
            raise exchange.error
        await writer.begin()
        frames = [sse.frame(v) for v in exchange.answer.begin()]
        while True:
            frames += [sse.frame(v) for v in events]
            if exchange.over:
                break
            if frames:
                await writer.write(b"".join(frames))
            frames = []
            got = await exchange.feed.get(keep_alive)
            events = exchange.take(got)
            if not got:
                status = "; ".join(exchange.status.values()) or "waiting"
                frames = [f": {status}\n\n".encode()]
        if exchange.error:
            frames.append(sse.error(exchange.error))
        else:
            frames += [sse.frame(v) for v in exchange.answer.done()]
        await writer.write(b"".join(frames) + sse.last)
    finally:
        exchange.abandon()
    return writer.response


async def first_events(exchange):
    """Events until one shows that the jobs were accepted, or for a moment."""
    events, until = [], time.monotonic() + HEAD_WAITS
    while not events and not exchange.over:
        left = until - time.monotonic()
        if left <= 0:
            break
        got = await exchange.feed.get(left)
        events += exchange.take(got)
        if any(isinstance(e, (Fed, More)) for _, e in got):
            break
    return events
