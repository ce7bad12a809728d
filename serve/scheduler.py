"""Who computes when: a bounded queue, the sessions of one context, one thread that runs waste_step.

A job is one answer to one prompt. It waits in the queue, gets a slot (a session), feeds its prompt
in passes that it shares with the other slots, then one token a pass. Between passes, that is, at
least once for every `chunk` prompt positions while others speak, everything can change: jobs come,
go, are cancelled, and a much shorter one takes the place of a long prompt, which goes on later from
a checkpoint.

Every method that is not marked belongs to the engine's thread. What a job has to say goes to its
`sink`, called on the engine's thread; it must not block.
"""

import ctypes
import dataclasses
import re
import threading
import time

from serve import engine
from serve.checkpoints import Prefixes, ends_array
from serve.grammars import AHEAD, Compiler, waiting_bytes
from serve.reading import Choice

SHORTER = 4    # a job overtakes one that has so many times more before it
OVERTAKEN = 8  # and nobody is overtaken more often than this

LOADING, READY, DRAINING, FAILED, CLOSED = "loading", "ready", "draining", "failed", "closed"


class Full(Exception):
    """The queue is full, or the server takes no more. retry_after: seconds."""

    def __init__(self, why, retry_after):
        super().__init__(why)
        self.retry_after = retry_after


# ---- what a sink is told -------------------------------------------------------------------------


@dataclasses.dataclass
class Queued:
    """position 0: next."""
    position: int


@dataclasses.dataclass
class Fed:
    """Prompt positions that are in, of all; cached: of these, found in a kept state."""
    done: int
    total: int
    cached: int
    ms: float


@dataclasses.dataclass
class More:
    deltas: list


@dataclasses.dataclass
class Ended:
    """The last thing a sink is told, unless Failed is. reason: "end" the model's own, "stop" a stop
    string, "length" the limit or a full context."""
    reason: str
    usage: "Usage"


@dataclasses.dataclass
class Failed:
    """kind: "request" the caller's fault, "engine", "cancelled", "deadline", "closing". param: the
    member of the request that is to blame."""
    kind: str
    message: str
    param: str = None


@dataclasses.dataclass
class Usage:
    prompt: int
    cached: int
    generated: int
    reasoning: int
    calls: int
    cut_calls: int
    matched: str
    queued_ms: float
    prefill_ms: float
    decode_ms: float
    experts_hit: int
    experts_missed: int
    bytes_read: int
    seed: int


class Job:
    """One answer. Made by any thread, then the engine's."""

    def __init__(self, ids, reader, sink, *, settings=None, max_tokens=None, ends=(), system_end=0,
                 tag=None, after=None, forks=False, pictures=(), pictures_end=0):
        """pictures: images.Picture, in the order of their rows among ids; all of them before
        pictures_end."""
        self.ids, self.reader, self.sink = ids, reader, sink
        self.settings = settings or {}
        self.max_tokens = max_tokens  # None: nobody said
        self.ends, self.system_end, self.tag = ends_array(ends), system_end, tag
        self.after, self.forks = after, forks
        self.pictures, self.pictures_end = pictures, pictures_end  # until all rows are in
        text = self.settings.get("grammar")
        self.wants = None if text is None else (text, self.settings["grammar_kind"])
        self.grammar = None  # what it wants, compiled: before it gets a slot
        self.named = None  # ids as they will be in the session, once the pictures have been read
        self.cancelled = None     # a Failed, once it is
        self.slot = self.checkpoint = None
        self.at = self.cached = self.kept_at = self.place = self.generated = 0
        self.overtaken = 0
        self.position = None
        self.token = ctypes.c_int32(-1)
        self.over = self.begun_decode = False
        self.submitted = time.monotonic()
        self.started = self.answered = None
        self.counters = None

    @property
    def left(self):
        """Passes' worth of work as far as anybody can know: positions to feed, tokens to choose."""
        return len(self.ids) - self.at + self.max_tokens


class Slot:
    """A session, and the job that has it. grammar: the session's, for as long as it has it."""

    def __init__(self, session):
        self.session, self.job = session, None
        self.tag, self.used, self.grammar = None, 0.0, None


class Scheduler:
    def __init__(self, open_context, *, sessions, queue, chunk, max_tokens, states, log,
                 compiled=None, learn=False):
        """open_context() -> engine.Context, called on the engine's thread. states: arguments of
        Prefixes after the context. compiled(text, kind) -> engine.Grammar. learn: at the end, save
        which experts were used."""
        self.open_context, self.n_sessions, self.n_queue = open_context, sessions, queue
        self.chunk, self.max_tokens, self.states, self.log = chunk, max_tokens, states, log
        self.learn = learn
        self.lock = threading.Condition()
        self.queue, self.slots = [], []
        self.phase, self.failure = LOADING, None
        self.ctx = self.prefixes = None
        self.closing = False
        self.seconds_a_job = 5.0
        self.snapshot = {}  # replaced as a whole after each pass; any thread reads it
        self.totals = {"overtakes": 0, "passes": 0, "rows": 0}
        self.observe = lambda job, outcome: None
        self.between = lambda ctx: None  # called on the engine's thread before each pass, and woken
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.compiler = Compiler(compiled, self._uncompiled, self._compiled)

    # ---- any thread ----

    def start(self):
        self.thread.start()
        self.compiler.start()

    def submit(self, *jobs):
        """Into the queue, all or none. Raises Full."""
        with self.lock:
            self._check_room()
            for job in jobs:
                job.max_tokens = job.max_tokens or self.max_tokens
            self.queue.extend(jobs)
            self._tell_positions()
            self.lock.notify_all()

    def check_room(self):
        """Raises what submit would raise now; for those who have yet to make their jobs."""
        with self.lock:
            self._check_room()

    def cancel(self, job, failed=None):
        """It ends within one layer if nobody else is in the pass, else with the pass."""
        with self.lock:
            if job.over or job.cancelled:
                return
            job.cancelled = failed or Failed("cancelled", "the client has gone")
            if job.slot:
                job.slot.session.cancel()
            self.lock.notify_all()

    def wake(self):
        """Let an idle engine's thread come by `between` once."""
        with self.lock:
            self.lock.notify_all()

    def counts(self):
        """(queued, prefilling, decoding)"""
        with self.lock:
            jobs = [s.job for s in self.slots if s.job]
            return len(self.queue), sum(j.answered is None for j in jobs), \
                sum(j.answered is not None for j in jobs)

    def drain(self):
        """Take no more; what waits is refused, what has begun goes on."""
        with self.lock:
            if self.phase == READY:
                self.phase = DRAINING
            for job in self.queue:
                if not job.checkpoint:
                    job.cancelled = job.cancelled or Failed("closing", "the server is closing")
            self.lock.notify_all()

    def close(self):
        """End everything within a layer, and the thread."""
        with self.lock:
            self.closing = True
            for job in self._jobs():
                job.cancelled = job.cancelled or Failed("closing", "the server is closing")
                if job.slot:
                    job.slot.session.cancel()
            self.lock.notify_all()
        self.thread.join()

    # ---- with the lock ----

    def _jobs(self):
        return self.queue + [s.job for s in self.slots if s.job]

    def _n_free(self):
        return sum(s.job is None for s in self.slots)

    def _check_room(self):
        """One place is enough for all jobs of a request: where many wait, several are never free."""
        if self.phase != READY:
            raise Full(f"the server is {self.phase}", 5)
        if len(self.queue) >= self.n_queue + self._n_free():
            raise Full(f"{len(self.queue)} requests are waiting, and {self.n_queue} may",
                       self._retry_after())

    def _retry_after(self):
        waves = 1 + len(self.queue) // max(1, len(self.slots))
        return min(600, max(1, round(waves * self.seconds_a_job)))

    def _tell_positions(self):
        for position, job in enumerate(self.queue):
            if job.position != position:
                job.position = position
                job.sink(Queued(position))

    def _take(self, job):
        """Out of the queue; the compiler, too, may have waited for that."""
        self.queue.remove(job)
        self._tell_positions()
        self.lock.notify_all()

    def _eligible(self):
        """Memory is planned for the pictures of one prompt: a second one waits until they are in."""
        seeing = any(s.job and s.job.pictures for s in self.slots)
        return [j for j in self.queue if not (seeing and j.pictures)
                and (j.grammar or not j.wants)
                and (not j.after or j.after.over or j.after.begun_decode)]

    def _to_compile(self):
        """The first that waits for its grammar, unless enough of them wait for a slot."""
        if waiting_bytes(self.queue) >= AHEAD:
            return None
        return next((j for j in self.queue if j.wants and not j.grammar and not j.cancelled), None)

    def _next(self):
        """Who gets a free slot: the first, or one that has far less to do."""
        jobs = self._eligible()
        if not jobs:
            return None
        first, shortest = jobs[0], min(jobs, key=lambda j: j.left)
        if shortest.left * SHORTER > first.left or first.overtaken >= OVERTAKEN:
            return first
        first.overtaken += 1
        self.totals["overtakes"] += 1
        return shortest

    def _victim(self):
        """A slot whose long prompt makes room for the shortest job that waits, or None."""
        jobs = self._eligible()
        if not jobs:
            return None
        shortest = min(jobs, key=lambda j: j.left)
        feeding = [s for s in self.slots if s.job and s.job.answered is None
                   and s.job.overtaken < OVERTAKEN and s.job.at < len(s.job.ids)]
        slot = max(feeding, key=lambda s: len(s.job.ids) - s.job.at, default=None)
        if not slot or shortest.left * SHORTER > len(slot.job.ids) - slot.job.at:
            return None
        return slot

    # ---- the compiler's thread ----

    def _uncompiled(self):
        """Waits. None: never again."""
        with self.lock:
            while not self.closing and self.phase not in (FAILED, CLOSED):
                job = self._to_compile()
                if job:
                    return job
                self.lock.wait()
        return None

    def _compiled(self, job, grammar, error):
        with self.lock:
            if not job.over:
                job.grammar = grammar
            if error:
                theirs = isinstance(error, engine.Failure) and error.status != engine.E_OOM
                job.cancelled = job.cancelled or Failed("request" if theirs else "engine",
                                                        str(error), "grammar")
            self.lock.notify_all()

    # ---- the engine's thread ----

    def _run(self):
        try:
            self.ctx = self.open_context()
            self.prefixes = Prefixes(self.ctx, *self.states, self.log)
            slots = [Slot(s) for s in self.ctx.sessions(self.n_sessions)]
            self.items = (engine.Item * len(slots))()
            self._publish()
        except Exception as e:  # pylint: disable=broad-except  # whatever it was, it is told
            self.failure = e
            if self.prefixes:
                self.prefixes.close()
            if self.ctx:
                self.ctx.close()
            with self.lock:
                self.phase = FAILED  # last: whoever sees it asks why
                self.lock.notify_all()
            return
        with self.lock:
            self.slots = slots
            self.phase = READY if not self.closing else DRAINING
        try:
            while self._wait():
                self._pass()
        except Exception:  # pylint: disable=broad-except  # a mistake of ours: somebody restarts us
            self.log.exception("the engine's thread failed")
        self._close()

    def _close(self):
        with self.lock:
            self.phase = CLOSED
            self.lock.notify_all()
            for job in self._jobs():
                self._over(job, Failed("closing", "the server is closing"))
        if self.learn:
            try:
                self.ctx.save_usage()
            except engine.Failure as e:
                self.log.warning("not_learned", extra={"why": str(e)})
        self.prefixes.close()
        self.ctx.close()

    def _wait(self):
        """Until there is something to compute. False: never again."""
        while True:
            self._sweep()
            self._admit()
            self.between(self.ctx)
            with self.lock:
                if any(s.job for s in self.slots):
                    return True
                if self.closing:
                    return False
                if not self._eligible() and not any(j.cancelled for j in self.queue):
                    self.lock.wait()

    def _sweep(self):
        """Jobs that nobody waits for any more."""
        with self.lock:
            gone = [j for j in self._jobs() if j.cancelled]
        for job in gone:
            self._finish(job, job.cancelled)

    def _admit(self):
        while True:
            with self.lock:
                free = [s for s in self.slots if not s.job]
                victim = None if free else self._victim()
                if not free and not victim:
                    return
            if victim and not self._suspend(victim):
                return
            with self.lock:
                job = self._next()
                if not job:
                    return
                self._take(job)
            self._begin(job)

    def _suspend(self, slot):
        """Take the slot from a job that is being fed. False: there is no memory for its state."""
        job = slot.job
        try:
            job.checkpoint = engine.Checkpoint(slot.session)
        except engine.Failure:
            job.overtaken = OVERTAKEN
            return False
        with self.lock:
            slot.job = job.slot = None
            self.queue.insert(0, job)
        slot.session.clear_images()
        self.log.info("suspended", extra={"at": job.at, "of": len(job.ids)})
        return True

    def _begin(self, job):
        """Give a job a free slot, and its session the longest beginning of the prompt there is."""
        slot, failed = self._prepared(job)
        with self.lock:
            failed = failed or job.cancelled  # while it had neither a place nor a slot
            if not failed:
                slot.job, job.slot, slot.used = job, slot, time.monotonic()
        if failed:
            if slot:
                slot.session.clear_images()
            self._finish(job, failed)
        else:
            job.sink(Fed(job.at, len(job.ids), job.cached, 0.0))

    def _prepared(self, job):
        """(slot, None) with all that the job needs; (slot or None, a Failed)."""
        with self.lock:
            free = [s for s in self.slots if not s.job]
        slot = None
        try:
            slot = self.prefixes.choose(free, job)
            goes_on = bool(job.checkpoint)
            if not goes_on:
                job.started, job.counters = time.monotonic(), self.ctx.counters()
            slot, failed = self._shown(slot, free, job)
            if failed:
                return slot, failed
            if goes_on:
                job.checkpoint.restore(slot.session)
                job.checkpoint.close()
                job.checkpoint = None
                slot.tag = job.tag
            if job.pictures or not goes_on:
                job.at = self.prefixes.resume(slot, job)
            if not goes_on:
                job.cached = job.kept_at = job.at
            self._let_go_of_pictures(job)
        except engine.Failure as e:
            return slot, Failed("engine", str(e))
        try:
            slot.session.sampling(sampling_of(job.settings, job.grammar))
            slot.grammar = job.grammar
        except engine.Failure as e:
            kind = "engine" if e.status == engine.E_OOM else "request"
            return slot, Failed(kind, str(e), _setting_of(str(e), job.settings))
        room = self.ctx.model.ctx_max - len(job.ids) + 1
        job.max_tokens = max(1, min(job.max_tokens, room))
        return slot, None

    def _shown(self, slot, free, job):
        """The job's pictures wait in a session, and none of anybody else's do. Which slot has most
        of the prompt may only be known when they have been read."""
        failed = self._show(slot, job)
        if failed or not job.pictures or job.named:
            return slot, failed
        job.named = slot.session.image_ids(job.ids)
        better = self.prefixes.choose(free, job)
        if better is not slot:
            slot.session.clear_images()
            failed = self._show(better, job)
        return better, failed

    def _show(self, slot, job):
        slot.session.clear_images()
        for picture in job.pictures:
            if job.cancelled:  # each may take seconds
                return job.cancelled
            try:
                rows = slot.session.add_image(picture.data)
            except engine.Failure as e:
                mine = e.status in (engine.E_OOM, engine.E_IO)
                return Failed("engine" if mine else "request", f"{picture.path}: {e}", picture.path)
            if rows != picture.rows:
                return Failed("engine", f"{picture.path}: {rows} rows, {picture.rows} were expected")
        return None

    @staticmethod
    def _let_go_of_pictures(job):
        """Once all their rows are in the session, or in what it was brought to."""
        if job.at >= job.pictures_end:
            job.pictures = ()

    def _compose(self):
        """The rows of the next pass: those who speak first, then prompts, those first that have
        least before them or were passed over too often."""
        jobs = [s.job for s in self.slots if s.job]
        speaking = [j for j in jobs if j.answered]
        feeding = sorted((j for j in jobs if not j.answered),
                         key=lambda j: (j.overtaken < OVERTAKEN, len(j.ids) - j.at))
        rows = self.ctx.engine.max_rows - len(speaking)
        if speaking:
            rows = min(rows, self.chunk)
        composed = []
        for job in speaking:
            composed.append((job, ctypes.addressof(job.token), 1, engine.WANT_TOKEN))
        for job in feeding:
            job.place = self.prefixes.next_place(job)
            n = min(job.place - job.at, rows)
            if n <= 0:
                job.overtaken += 1
                continue
            rows -= n
            want = engine.WANT_TOKEN if job.at + n == len(job.ids) else 0
            composed.append((job, ctypes.addressof(job.ids) + 4 * job.at, n, want))
        return composed

    def _step(self, composed):
        for item, (job, ids, n, want) in zip(self.items, composed):
            ctypes.memset(ctypes.addressof(item), 0, ctypes.sizeof(item))
            item.size = ctypes.sizeof(item)
            item.session, item.ids, item.n_ids, item.want = job.slot.session.handle, ids, n, want
        return self.ctx.step(self.items, len(composed))

    def _pass(self):
        composed = self._compose()
        status, why = self._step(composed)
        self.totals["passes"] += 1
        if status == engine.OK:
            for item, (job, _, _, _) in zip(self.items, composed):
                self._settle(job, item)
        elif status != engine.E_CANCELLED:  # who was cancelled is found by the next sweep
            self._isolate(composed, status, why)
        self._publish()

    def _isolate(self, composed, status, why):
        """A pass failed and nothing of it happened. With company: which one is it?"""
        for row in composed:
            if len(composed) > 1:
                status, why = self._step([row])
            if status == engine.OK:
                self._settle(row[0], self.items[0])
            elif status != engine.E_CANCELLED:
                theirs = status in (engine.E_ARG, engine.E_UNSUPPORTED)
                self._finish(row[0], Failed("request" if theirs else "engine", why))

    def _settle(self, job, item):
        """What a pass did for one job."""
        if item.status == engine.E_CANCELLED:
            return
        self.totals["rows"] += item.n_done
        if item.stop == engine.STOP_CONTEXT:
            self._finish(job, self._end(job, "length"))
            return
        if not job.answered:
            self._fed(job, item.n_done)
        if item.token >= 0:
            self._chosen(job, item)

    def _fed(self, job, n):
        job.at += n
        self._let_go_of_pictures(job)
        ms = (time.monotonic() - job.started) * 1e3
        job.sink(Fed(job.at, len(job.ids), job.cached, ms))
        if job.at < len(job.ids) and job.at == job.place:
            self.prefixes.keep(job.slot, job)

    def _chosen(self, job, item):
        if not job.answered:
            job.answered = time.monotonic()
        job.begun_decode = True
        job.generated += 1
        job.token.value = item.token
        top = [(t.id, t.logprob) for t in item.top[:item.n_top]]
        choice = Choice(item.token, item.logprob, top)
        try:
            deltas = job.reader.feed(choice, item.stop == engine.STOP_ID)
        except engine.Failure as e:
            self._finish(job, Failed("engine", str(e)))
            return
        if deltas:
            job.sink(More(deltas))
        if job.reader.satisfied:
            self._finish(job, self._end(job, "stop"))
        elif item.stop:
            self._finish(job, self._end(job, "end"))
        elif job.generated >= job.max_tokens:
            self._finish(job, self._end(job, "length"))

    def _end(self, job, reason):
        """The rest of what was held back, and the sums."""
        deltas = job.reader.end()
        if deltas:
            job.sink(More(deltas))
        if job.reader.matched >= 0:
            reason = "stop"
        self.prefixes.keep(job.slot, job)
        now, was, counters = time.monotonic(), job.counters, self.ctx.counters()
        hits = counters.hits_resident + counters.hits_prefetch
        r = job.reader
        return Ended(reason, Usage(
            prompt=len(job.ids), cached=job.cached, generated=job.generated,
            reasoning=r.n_reasoning, calls=r.n_calls, cut_calls=r.n_cut,
            matched=r.stop_texts[r.matched] if r.matched >= 0 else None,
            queued_ms=(job.started - job.submitted) * 1e3,
            prefill_ms=((job.answered or now) - job.started) * 1e3,
            decode_ms=(now - (job.answered or now)) * 1e3,
            experts_hit=hits - was.hits_resident - was.hits_prefetch,
            experts_missed=counters.misses - was.misses,
            bytes_read=counters.bytes_read - was.bytes_read, seed=job.settings.get("seed", 0)))

    def _finish(self, job, outcome):
        """Out of slot or queue; its sink hears the last of it. Pictures that it was not fed go
        before anybody else can have the slot."""
        if job.slot and job.pictures:
            job.slot.session.clear_images()
        with self.lock:
            if job.slot:
                job.slot.job = job.slot = None
            elif job in self.queue:
                self._take(job)
            self._over(job, outcome)

    def _over(self, job, outcome):
        job.over = True
        job.pictures, job.grammar = (), None
        if job.checkpoint:
            job.checkpoint.close()
            job.checkpoint = None
        job.reader.close()
        if job.started:
            took = time.monotonic() - job.started
            self.seconds_a_job += (took - self.seconds_a_job) / 8
        self.observe(job, outcome)
        job.sink(outcome)

    def _publish(self):
        """Numbers for other threads, which must not ask the context."""
        counters, store = self.ctx.counters(), self.prefixes.store.info()
        self.snapshot = {
            "counters": {n: getattr(counters, n) for n, _ in counters._fields_[2:]},
            "store": {n: getattr(store, n) for n, _ in store._fields_[1:] if n != "reserved0"},
            "states_not_kept": self.prefixes.failed, **self.totals}


def _setting_of(text, settings):
    """The library begins a sentence about a setting with its name."""
    return next((name for name in settings if re.match(name + r"\b", text)), None)


def sampling_of(settings, grammar=None):
    """An engine.Sampling; what is not said stays as the library has it. grammar: the one that
    settings have, compiled."""
    p = engine.Sampling()
    engine.lib.waste_sampling_init(ctypes.byref(p))
    p.compiled = grammar and grammar.handle
    for name, value in settings.items():
        if name == "logit_bias":
            p.logit_bias = (engine.Bias * len(value))(*value)
            p.n_logit_bias = len(value)
        elif name == "close_ids":
            p.close_ids, p.n_close = engine.ids_array(value), len(value)
        else:
            setattr(p, name, value)
    return p
