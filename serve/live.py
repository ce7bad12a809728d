"""What the engine is doing, for those who look.

The context belongs to the engine's thread, so that thread looks, between passes: counters after
each pass, the map of experts twice a second. While nobody watches it does neither.
"""

import asyncio
import collections
import contextlib
import threading
import time

from serve.connection import json_response
from serve.scheduler import CLOSED, FAILED
from serve.stream import Sse, Writer

PERIOD = 0.5  # seconds between samples
KEPT = 256    # passes that a viewer can be behind

# Members of waste_counters that sum up to a pass's time, in seconds.
PARTS = ("io", "experts", "mix", "mlp", "route", "checks", "head", "other")
COLUMNS = ("n", "at", "prefill_rows", "decode_rows", "ms", "bytes_read", *PARTS)


class Watch:
    def __init__(self, scheduler):
        self.scheduler, self.viewers = scheduler, 0
        self.lock = threading.Lock()  # for what follows
        self.passes, self.n = collections.deque(maxlen=KEPT), 0
        self.layers = {}  # by number: (engine.LayerUse, map as digits)
        self.looked = 0   # times
        # the engine's thread alone:
        self.last, self.uses, self.swept = None, None, 0.0

    # ---- the engine's thread ----

    def look(self, ctx):
        """Called between passes, and when woken."""
        if not self.viewers:
            self.last = self.uses = None
            return
        now, counters = time.monotonic(), ctx.counters()
        row = self.last and _pass_of(self.last, counters)
        self.last = counters
        uses = (counters.hits_resident, counters.hits_prefetch, counters.misses,
                counters.bytes_read)
        layers = None
        if now - self.swept >= PERIOD and uses != self.uses:
            layers = {n: use for n in range(ctx.model.n_layers)
                      if (use := ctx.layer_use(n))[0].n_experts}
            self.swept, self.uses = time.monotonic(), uses
        with self.lock:
            self.looked += 1
            if row:
                self.n += 1
                self.passes.append([self.n, round(now, 3), *row])
            if layers is not None:
                self.layers = layers

    # ---- the server's thread ----

    @contextlib.contextmanager
    def watching(self):
        self.viewers += 1
        try:
            yield
        finally:
            self.viewers -= 1

    async def glance(self):
        """Wait for one look, or a period if a pass takes longer."""
        was, until = self.looked, time.monotonic() + PERIOD
        while self.looked == was and time.monotonic() < until:
            self.scheduler.wake()
            await asyncio.sleep(0.01)


def _pass_of(was, now):
    """What happened between two looks, in the order of COLUMNS from prefill_rows on, or None."""
    def grown(member):
        return getattr(now, member) - getattr(was, member)

    rows = grown("prefill_tokens"), grown("decode_tokens")
    if not any(rows):
        return None
    ms = (grown("sec_prefill") + grown("sec_decode")) * 1e3
    return [*rows, round(ms, 3), grown("bytes_read"),
            *(round(grown("sec_" + part) * 1e3, 3) for part in PARTS)]


class View:
    """What one viewer has been told already."""

    def __init__(self, watch, about):
        self.watch, self.about = watch, about
        self.n, self.layers, self.new = 0, {}, True

    def sample(self):
        """A value for JSON: everything at first, then what has changed."""
        s = self.watch.scheduler
        queued, feeding, speaking = s.counts()
        value = {"now": round(time.monotonic(), 3), "phase": s.phase, "queued": queued,
                 "prefilling": feeding, "answering": speaking, "sessions": s.n_sessions,
                 "totals": s.snapshot}
        if self.new and s.ctx:
            value["engine"], value["columns"] = self.about(s.ctx), COLUMNS
            self.new = False
        with self.watch.lock:
            passes, layers = list(self.watch.passes), self.watch.layers
        value["passes"] = [p for p in passes if p[0] > self.n]
        self.n = passes[-1][0] if passes else 0
        value["layers"] = [_layer(n, *use) for n, use in layers.items()
                           if self.layers.get(n) is not use]
        self.layers = layers
        return value


def _layer(n, use, digits):
    return {"layer": n, "experts": use.n_experts, "hits_resident": use.hits_resident,
            "hits_prefetch": use.hits_prefetch, "misses": use.misses,
            "resident": use.n_resident, "reading": use.n_reading, "map": digits}


def about(ctx):
    """What does not change while a model is open."""
    e, m = ctx.engine, ctx.model
    numbers = {n: getattr(e, n) for n in ("n_threads", "n_frames", "frame_bytes", "budget_bytes",
                                          "io_depth", "lookahead", "max_rows", "n_banks",
                                          "n_banks_direct", "drive_bytes_per_s")}
    texts = {n: getattr(e, n).decode("utf-8", "replace")
             for n in ("io_engine", "numeric", "kernels", "policy")}
    return {**numbers, **texts, "n_layers": m.n_layers, "n_experts": m.n_experts,
            "top_k": m.top_k, "arch": m.arch.decode("utf-8", "replace")}


class Live:
    """GET /live: one sample as JSON, or for those who accept an event stream two a second."""

    def __init__(self, scheduler, write_seconds):
        self.watch, self.write_seconds = Watch(scheduler), write_seconds
        scheduler.between = self.watch.look

    async def __call__(self, request):
        view = View(self.watch, about)
        with self.watch.watching():
            await self.watch.glance()
            streams = "text/event-stream" in request.http.headers.get("Accept", "")
            if not streams or request.http.method == "HEAD":  # which has no body, so no end
                return json_response(view.sample(), headers={"Cache-Control": "no-store"})
            return await self._stream(request, view)

    async def _stream(self, request, view):
        writer, sse = Writer(request.http, {}, self.write_seconds), Sse()
        await writer.begin()
        while self.watch.scheduler.phase not in (FAILED, CLOSED):
            await writer.write(sse.frame(view.sample()))
            await asyncio.sleep(PERIOD)
            self.watch.scheduler.wake()
        return writer.response
