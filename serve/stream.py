"""From jobs to HTTP: an answer at once or as an event stream, with signs of life in between.

An Exchange is one request's work. Its pump turns what the engine's thread says of its jobs into the
values of the answer, for everybody who listens: one client, or with an Idempotency-Key also those
who ask again. When nobody listens any more the jobs are cancelled.
"""

import asyncio
import json
import logging

from aiohttp import web

from serve.connection import is_last, json_response
from serve.errors import ApiError, busy
from serve.scheduler import Ended, Failed, Fed, More, Queued

HEAD_WAITS = 0.3  # seconds for a failure that can still be a status
_GONE, _OVER = object(), object()


class ClientGone(ConnectionResetError):
    pass


def failure(failed, limited_by=None):
    """A Failed as an error of the interface. limited_by: the member that the grammar comes from."""
    if failed.kind == "request":
        param = limited_by if failed.param == "grammar" else failed.param
        return ApiError(400, failed.message, param)
    if failed.kind == "deadline":
        return ApiError(504, failed.message, code="deadline")
    if failed.kind == "closing":
        return busy(failed.message, 5)
    return ApiError(500, failed.message, code=failed.kind)


class Listener:
    """One client's view of an exchange, from its beginning on."""

    def __init__(self, history):
        self.queue = asyncio.Queue()
        for values in history:
            self.queue.put_nowait(values)

    def gone(self):
        self.queue.put_nowait(_GONE)

    async def get(self, seconds=None):
        """The next values of the answer; None: it is over; []: nothing came in that time."""
        try:
            values = await asyncio.wait_for(self.queue.get(), seconds)
        except asyncio.TimeoutError:
            return []
        if values is _GONE:
            raise ClientGone("the client has gone")
        return None if values is _OVER else values


class Exchange:
    """One request: its jobs, its answer, who listens."""

    def __init__(self, answer, *, cancel, grace=None, pictures=None, grammar=None):
        """grace: None, or seconds that the work goes on for a client that may ask again; then
        everything that was said is remembered. pictures: the jobs', until their prompts are in.
        grammar: what the text of theirs holds of a budget, until they are over."""
        self.answer, self.cancel, self.grace = answer, cancel, grace
        self.jobs, self.error, self.over = [], None, False
        self.pictures, self.grammar, self.unfed = pictures, grammar, set()
        self.status = {}  # where the jobs are, for signs of life
        self.listeners, self.history = set(), []
        self.loop, self.events = asyncio.get_running_loop(), asyncio.Queue()
        self.timer = self.deadline = self.task = None

    def sink(self, index):
        """What the scheduler tells of one job; called on the engine's thread."""
        def put(event):
            try:
                self.loop.call_soon_threadsafe(self.events.put_nowait, (index, event))
            except RuntimeError:
                pass  # the loop is closed: nobody listens any more
        return put

    def start(self, jobs, seconds):
        """seconds: None, or until the time is up."""
        self.jobs, self.unfed = jobs, set(range(len(jobs)))
        if seconds:
            self.deadline = self.loop.call_later(
                seconds, self._abandon, Failed("deadline", "the request's time was up"))
        self.task = asyncio.create_task(self._pump(len(jobs)))

    def attach(self):
        if self.timer:
            self.timer.cancel()
            self.timer = None
        listener = Listener(self.history)
        if self.over:
            listener.queue.put_nowait(_OVER)
        self.listeners.add(listener)
        return listener

    def detach(self, listener):
        self.listeners.discard(listener)
        if self.listeners or self.over:
            return
        if self.grace:
            self.timer = self.loop.call_later(self.grace, self._abandon)
        else:
            self._abandon()

    def _abandon(self, failed=None):
        for job in self.jobs:
            self.cancel(job, failed)

    def _tell(self, values):
        for listener in self.listeners:
            listener.queue.put_nowait(values)

    async def _pump(self, left):
        try:
            await self._pump_all(left)
        except Exception:  # pylint: disable=broad-except  # a mistake of ours, but somebody waits
            logging.getLogger("serve").exception("an answer failed")
            self.error = ApiError(500, "the server made a mistake; its log says more")
        self.over = True
        if self.deadline:
            self.deadline.cancel()
        self._abandon()  # of several, those that go on after one has failed
        self.jobs = []  # who asks again is told the answer, and needs nothing of how it was made
        self._fed_all()
        if self.grammar:
            self.grammar.release()
        self._tell(_OVER)

    async def _pump_all(self, left):
        while left and not self.error:
            events = [await self.events.get()]
            while not self.events.empty():
                events.append(self.events.get_nowait())
            values = []
            for index, event in events:
                values += self._take(index, event)
                left -= isinstance(event, Ended)
            if values:
                self._tell(values)
                if self.grace:
                    self.history.append(values)

    def _fed_all(self):
        if self.pictures:
            self.pictures.release()

    def _take(self, index, event):
        """What an event is in the answer's words."""
        answer, out = self.answer, []
        if isinstance(event, More):
            for delta in event.deltas:
                out += answer.more(index, delta)
        elif isinstance(event, Ended):
            out = answer.end(index, event)
        elif isinstance(event, Failed):
            self.error = failure(event, answer.options.limited_by)
        elif isinstance(event, Fed):
            self.status[index] = f"prompt {event.done}/{event.total}"
            if event.done == event.total:
                self.unfed.discard(index)
                if not self.unfed:
                    self._fed_all()
            out = answer.progress(event) if answer.options.progress else []
        elif isinstance(event, Queued):
            self.status[index] = f"queued behind {event.position}"
            out = answer.queued(event.position) if answer.options.progress else []
        return out


async def at_once(exchange, listener):
    while await listener.get() is not None:
        pass
    if exchange.error:
        raise exchange.error
    return json_response(exchange.answer.whole())


class Sse:
    """Frames of an event stream."""

    last = b"data: [DONE]\n\n"

    def frame(self, value):
        return b"data: " + json.dumps(value, ensure_ascii=False).encode(errors="replace") + b"\n\n"

    def alive(self, status):
        return f": {status}\n\n".encode()

    def error(self, error):
        return self.frame(error.body())


class Writer:
    """A response that is written as it comes, to a client that has to read."""

    def __init__(self, request, headers, seconds):
        self.request, self.seconds = request, seconds
        self.response = web.StreamResponse(headers={
            "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no", **headers})
        if is_last(request):
            self.response.force_close()

    async def begin(self):
        await self.response.prepare(self.request)

    async def write(self, data):
        try:
            await asyncio.wait_for(self.response.write(data), self.seconds)
        except asyncio.TimeoutError:
            if self.request.transport:
                self.request.transport.abort()
            raise ClientGone("the client does not read") from None
        except ConnectionError:
            raise ClientGone("the client has gone") from None


async def streamed(exchange, listener, request, *, headers, sse, keep_alive, write_seconds):
    """The answer in chunks. What fails before the first of them is an ordinary error."""
    values = await listener.get(HEAD_WAITS)
    if values is None and exchange.error:
        raise exchange.error
    writer = Writer(request, headers, write_seconds)
    await writer.begin()
    frames = [sse.frame(v) for v in exchange.answer.begin()]
    while values is not None:
        if not values and not frames:
            frames = [sse.alive("; ".join(exchange.status.values()) or "waiting")]
        await writer.write(b"".join(frames) + b"".join(map(sse.frame, values)))
        frames = []
        values = await listener.get(keep_alive)
    if exchange.error:
        frames.append(sse.error(exchange.error))
    else:
        frames += map(sse.frame, exchange.answer.done())
    await writer.write(b"".join(frames) + sse.last)
    return writer.response
