"""Who computes when, on a scripted engine: passes are made one by one."""

import asyncio
import ctypes
import threading
import time

import pytest

from serving import FakeContext, FakeReader, Heard, ids, scheduler_with
from serve import engine
from serve.budget import Budget, Share
from serve.errors import ApiError
from serve.grammars import AHEAD
from serve.scheduler import (OVERTAKEN, READY, Ended, Failed, Fed, Full, Job, More, Queued)
from serve.stream import Exchange


def job(n, max_tokens=3, **more):
    heard = Heard()
    return Job(ids(n), FakeReader(), heard, max_tokens=max_tokens, **more), heard


def step(ctx, n=1):
    """Let n passes happen, and wait until they have."""
    with ctx.made:
        want = len(ctx.passes) + n
        for _ in range(n):
            ctx.gate.release()
        assert ctx.made.wait_for(lambda: len(ctx.passes) >= want, 60)


def begin(s, ctx, j, heard):
    """Submit a job, let the pass that is waiting at the gate happen, and the job get its slot."""
    busy = any(slot.job for slot in s.slots)
    s.submit(j)
    if busy:
        step(ctx)
    heard.wait(Fed)
    return j, heard


def start(s, ctx, n, **more):
    return begin(s, ctx, *job(n, **more))


def test_a_prompt_goes_in_by_passes_and_then_a_token_each(monkeypatch):
    with scheduler_with(monkeypatch) as (s, ctx):
        j, heard = start(s, ctx, 250)
        step(ctx, 5)
        ended = heard.wait(Ended)
        assert [p[0][1] for p in ctx.passes] == [100, 100, 50, 1, 1]
        assert [f.done for f in heard.of(Fed)] == [0, 100, 200, 250]
        assert ended.reason == "length" and ended.usage.generated == 3
        assert len(heard.of(More)) == 3 and j.reader.closed == 1


def test_several_conversations_share_a_pass(monkeypatch):
    with scheduler_with(monkeypatch) as (s, ctx):
        start(s, ctx, 250)
        start(s, ctx, 30)
        step(ctx)
        assert ctx.passes[0] == [(0, 100)]
        assert ctx.passes[1] == [(1, 30), (0, 70)], "the shorter prompt first, and all rows used"


def test_prompts_take_small_bites_while_others_speak(monkeypatch):
    with scheduler_with(monkeypatch, chunk=10) as (s, ctx):
        start(s, ctx, 5, max_tokens=50)
        step(ctx)
        start(s, ctx, 35)
        step(ctx, 5)
        assert [(0, 1), (1, 10)] in ctx.passes and [(0, 1), (1, 5)] in ctx.passes
        assert not any(n > 10 for p in ctx.passes[1:] for _, n in p)


def test_r6_the_queue_is_bounded_and_says_when_to_come_again(monkeypatch):
    with scheduler_with(monkeypatch, queue=2) as (s, ctx):
        for _ in range(2):
            start(s, ctx, 5, max_tokens=50)
        waiting = [job(5) for _ in range(2)]
        for j, _ in waiting:
            s.submit(j)
        with pytest.raises(Full) as full:
            s.submit(job(5)[0])
        assert 1 <= full.value.retry_after <= 600
        assert [heard.wait(Queued).position for _, heard in waiting] == [0, 1]


def test_r6_several_answers_need_one_place(monkeypatch):
    """At a full queue, a request with n > 1 was refused for ever: there was never room for all."""
    with scheduler_with(monkeypatch, queue=2) as (s, ctx):
        for _ in range(2):
            start(s, ctx, 5, max_tokens=50)
        s.submit(job(5)[0])
        s.submit(*(job(5)[0] for _ in range(3)))
        with pytest.raises(Full):
            s.check_room()
        with pytest.raises(Full):
            s.submit(job(5)[0])


def test_r6_positions_move_up(monkeypatch):
    with scheduler_with(monkeypatch, sessions=1) as (s, ctx):
        first, _ = start(s, ctx, 5, max_tokens=50)
        s.submit(job(5)[0])
        third, heard = job(5)
        s.submit(third)
        assert heard.wait(Queued).position == 1
        s.cancel(first)
        step(ctx)
        assert heard.wait(Queued, 2).position == 0


def test_r6_a_much_shorter_request_takes_the_place_of_a_long_prompt(monkeypatch):
    with scheduler_with(monkeypatch, sessions=1) as (s, ctx):
        long, long_heard = start(s, ctx, 900)
        short, short_heard = job(20, max_tokens=2)
        s.submit(short)
        step(ctx, 3)
        assert short_heard.wait(Ended).usage.generated == 2
        assert ctx.passes[:3] == [[(0, 100)], [(0, 20)], [(0, 1)]]
        step(ctx)
        assert long_heard.wait(Fed, 4).done == 200, "it goes on where it was"
        assert long.cached == 0 and s.totals["overtakes"] == 1


def test_r6_a_request_that_is_not_much_shorter_waits(monkeypatch):
    with scheduler_with(monkeypatch, sessions=1) as (s, ctx):
        start(s, ctx, 400)
        other, _ = job(200)
        s.submit(other)
        step(ctx, 4)
        assert all(p == [(0, 100)] for p in ctx.passes)


def test_r6_nobody_is_overtaken_for_ever(monkeypatch):
    with scheduler_with(monkeypatch, sessions=1, queue=100) as (s, ctx):
        long, heard = start(s, ctx, 900)
        for _ in range(3 * OVERTAKEN):
            s.submit(job(5, max_tokens=1)[0])
        step(ctx, OVERTAKEN + 5)
        assert s.totals["overtakes"] == OVERTAKEN and heard.of(Fed)[-1].done > 300


def test_r5_a_request_that_waits_is_cancelled_at_once(monkeypatch):
    with scheduler_with(monkeypatch, sessions=1) as (s, ctx):
        start(s, ctx, 5, max_tokens=50)
        waiting, heard = job(5)
        s.submit(waiting)
        s.cancel(waiting)
        step(ctx)
        assert heard.wait(Failed).kind == "cancelled" and not heard.of(Fed)


@pytest.mark.parametrize("passes", [0, 1, 12])
def test_r5_t29_cancelling_reaches_the_engine_in_any_phase(monkeypatch, passes):
    with scheduler_with(monkeypatch, sessions=1) as (s, ctx):
        j, heard = start(s, ctx, 900, max_tokens=50)
        if passes:
            step(ctx, passes)
        s.cancel(j)
        assert ctx.all[0].cancelled
        step(ctx)
        assert heard.wait(Failed).kind == "cancelled"
        after, heard = start(s, ctx, 5, max_tokens=1)
        step(ctx)
        assert heard.wait(Ended).usage.generated == 1, "the slot is free"


def test_a_cancellation_that_came_too_late_hits_nobody_else(monkeypatch):
    """The session's flag stays set; the next job there is told CANCELLED once, and goes on."""
    with scheduler_with(monkeypatch, sessions=1) as (s, ctx):
        _, heard = start(s, ctx, 5, max_tokens=1)
        step(ctx)
        heard.wait(Ended)
        ctx.all[0].cancelled = True
        _, heard = start(s, ctx, 5, max_tokens=1)
        step(ctx, 2)
        assert heard.wait(Ended).usage.generated == 1 and not heard.of(Failed)


def test_r6_why_a_request_ended_is_told_where_it_waits_and_where_it_runs(monkeypatch):
    with scheduler_with(monkeypatch, sessions=1) as (s, ctx):
        first, running = start(s, ctx, 900)
        second, heard = job(400)
        s.submit(second)
        for j in (first, second):
            s.cancel(j, Failed("deadline", "late"))
        step(ctx)
        assert running.wait(Failed).kind == heard.wait(Failed).kind == "deadline"


def test_a_request_that_goes_while_its_state_is_read_gets_no_pass(monkeypatch):
    """Reading a state of half a gigabyte takes seconds, and a pass may take minutes."""
    with scheduler_with(monkeypatch, sessions=1) as (s, ctx):
        gone, heard = job(400)
        monkeypatch.setattr(s.prefixes, "resume", lambda slot, j: s.cancel(j) or 0)
        s.submit(gone)
        assert heard.wait(Failed).kind == "cancelled"
        monkeypatch.setattr(s.prefixes, "resume", lambda slot, j: 0)
        start(s, ctx, 7)
        step(ctx)
        assert ctx.passes == [[(0, 7)]]


def test_r6_who_does_not_say_how_much_overtakes_nobody(monkeypatch):
    with scheduler_with(monkeypatch, sessions=1, max_tokens=4096) as (s, ctx):
        start(s, ctx, 900)
        other, _ = job(5, max_tokens=None)
        s.submit(other)
        step(ctx, 3)
        assert all(p == [(0, 100)] for p in ctx.passes)


def test_a_failed_pass_fails_only_whose_fault_it_is(monkeypatch):
    with scheduler_with(monkeypatch) as (s, ctx):
        _, good = start(s, ctx, 5, max_tokens=50)
        step(ctx)
        _, heard = start(s, ctx, 5, max_tokens=50)

        def guilty(rows):
            return engine.E_LIMIT if any(r[0].number == 1 for r in rows) else engine.OK

        ctx.fail += [guilty] * 4
        step(ctx, 4)
        assert heard.wait(Failed).kind == "engine"
        before = len(good.of(More))
        step(ctx, 2)
        assert len(good.of(More)) > before and not good.of(Failed)


def test_alternatives_wait_for_the_first_to_read_the_prompt(monkeypatch):
    with scheduler_with(monkeypatch, sessions=2) as (s, ctx):
        first, heard = job(150, max_tokens=2, forks=True)
        second, second_heard = job(150, max_tokens=2, after=first)
        s.submit(first, second)
        heard.wait(Fed)
        step(ctx, 4)
        assert ctx.passes[:3] == [[(0, 100)], [(0, 49)], [(0, 1)]]
        assert s.prefixes.kept[0] == (first, 149)
        assert second_heard.wait(Fed).done == 0
        assert len(ctx.passes[3]) == 2


def test_draining_refuses_what_waits_and_ends_what_has_begun(monkeypatch):
    with scheduler_with(monkeypatch, sessions=1) as (s, ctx):
        _, running = start(s, ctx, 5, max_tokens=2)
        waiting, heard = job(400)
        s.submit(waiting)
        s.drain()
        with pytest.raises(Full):
            s.submit(job(5)[0])
        step(ctx, 2)
        assert running.wait(Ended).usage.generated == 2
        assert heard.wait(Failed).kind == "closing"


def test_closing_ends_everything(monkeypatch):
    with scheduler_with(monkeypatch, sessions=1) as (s, ctx):
        _, running = start(s, ctx, 5, max_tokens=10)
        closing = threading.Thread(target=s.close)
        closing.start()
        ctx.gate.release()
        closing.join(60)
        assert running.wait(Failed).kind == "closing" and s.phase != READY


def test_a_store_that_does_not_open_closes_the_model(monkeypatch):
    import logging
    from serve import scheduler

    def refuse(*_):
        raise engine.Failure(engine.E_IO, "states: no space left")

    closed = []
    ctx = FakeContext()
    monkeypatch.setattr(ctx, "close", lambda: closed.append(ctx))
    monkeypatch.setattr(scheduler, "Prefixes", refuse)
    s = scheduler.Scheduler(lambda: ctx, sessions=1, queue=1, chunk=1, max_tokens=1, states=(),
                            log=logging.getLogger("test"))
    s.start()
    s.thread.join(60)
    assert s.phase == scheduler.FAILED and "no space" in str(s.failure) and closed == [ctx]


# ---- grammars, compiled beside -------------------------------------------------------------------


class Workshop:
    """Grammars that are finished when the test says so. n_bytes: of each."""

    def __init__(self, n_bytes=100):
        self.n_bytes, self.gate = n_bytes, threading.Semaphore(0)
        self.begun, self.changed = [], threading.Condition()

    def __call__(self, text, kind):
        with self.changed:
            self.begun.append(text)
            self.changed.notify_all()
        assert self.gate.acquire(timeout=60)
        if text == b"bad":
            raise engine.Failure(engine.E_FORMAT, "grammar: line 1: no rule")
        made = type("Made", (), {})()
        made.handle, made.n_bytes = ctypes.c_void_p(1000 + len(self.begun)), self.n_bytes
        return made

    def wait_begun(self, n):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) >= n, 60), self.begun


def wait_until(true):
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.001)


def limited(text, **more):
    return job(5, settings={"grammar": text, "grammar_kind": engine.GRAMMAR_TEXT}, **more)


def test_a_grammar_that_is_being_compiled_holds_up_nobody_else(monkeypatch):
    """Symptom: a schema of 5,000 alternatives stopped every stream for seconds."""
    shop = Workshop()
    with scheduler_with(monkeypatch, compiled=shop, sessions=1) as (s, ctx):
        waits, waits_heard = limited(b"large")
        s.submit(waits)
        shop.wait_begun(1)
        other, heard = job(5, max_tokens=2)
        s.submit(other)
        step(ctx, 2)
        assert heard.wait(Ended).usage.generated == 2
        assert not waits_heard.of(Fed)
        shop.gate.release()
        waits_heard.wait(Fed)
        settings = ctx.all[0].settings
        assert settings.compiled == 1001 and settings.grammar == b"large"
        step(ctx, 3)
        waits_heard.wait(Ended)
        assert waits.grammar is None, "who is told the answer again needs no grammar"


def test_equal_grammars_are_compiled_once(monkeypatch):
    """For the alternatives of an answer, for two who wait, and for the next turn."""
    shop = Workshop()
    shop.gate.release()
    with scheduler_with(monkeypatch, compiled=shop, sessions=2, queue=8) as (s, ctx):
        jobs = [limited(b"same", max_tokens=1) for _ in range(4)]
        s.submit(*(j for j, _ in jobs[:3]))
        s.submit(jobs[3][0])
        for _ in range(20):
            ctx.gate.release()
        for _, heard in jobs:
            heard.wait(Ended)
        for _ in range(2):
            later, heard = limited(b"same", max_tokens=1)
            s.submit(later)
            heard.wait(Ended)
        assert shop.begun == [b"same"]


@pytest.mark.parametrize("status, kind", [(engine.E_LIMIT, "request"), (engine.E_OOM, "engine")])
def test_a_grammar_that_cannot_be_compiled_fails_its_job_alone(monkeypatch, status, kind):
    tried = []

    def refuse(text, _):
        tried.append(text)
        raise engine.Failure(status, "grammar: it is too much")

    with scheduler_with(monkeypatch, compiled=refuse, sessions=1) as (s, ctx):
        _, speaking = start(s, ctx, 5)
        bad, heard = limited(b"bad")
        s.submit(bad)
        wait_until(lambda: bad.cancelled)
        time.sleep(0.02)  # the pass goes on, and the compiler does not try again
        step(ctx, 3)
        failed = heard.wait(Failed)
        assert (failed.kind, failed.param) == (kind, "grammar") and "too much" in failed.message
        assert tried == [b"bad"]
        assert speaking.wait(Ended).usage.generated == 3


def test_a_mistake_in_compiling_is_told_and_not_the_end_of_the_compiler(monkeypatch):
    def compiled(text, _):
        return {b"good": type("Made", (), {"handle": ctypes.c_void_p(7), "n_bytes": 1})}[text]()

    with scheduler_with(monkeypatch, compiled=compiled, sessions=1) as (s, ctx):
        bad, heard = limited(b"bad")
        s.submit(bad)
        assert heard.wait(Failed).kind == "engine"
        good, heard = limited(b"good")
        s.submit(good)
        step(ctx, 3)
        heard.wait(Ended)


def test_who_waits_for_a_grammar_is_cancelled_at_once(monkeypatch):
    shop = Workshop()
    with scheduler_with(monkeypatch, compiled=shop, sessions=1) as (s, ctx):
        both = [limited(text) for text in (b"first", b"second")]
        s.submit(*(j for j, _ in both))
        shop.wait_begun(1)
        for j, heard in reversed(both):
            s.cancel(j)
            assert heard.wait(Failed).kind == "cancelled"
        shop.gate.release()
        after, heard = limited(b"third", max_tokens=1)
        shop.gate.release()
        s.submit(after)
        step(ctx)
        heard.wait(Ended)
        assert shop.begun == [b"first", b"third"], "nobody wanted the second any more"


def test_grammars_that_wait_for_a_slot_have_a_limit(monkeypatch):
    shop = Workshop(n_bytes=AHEAD)
    for _ in range(9):
        shop.gate.release()
    with scheduler_with(monkeypatch, compiled=shop, sessions=1, queue=8) as (s, ctx):
        start(s, ctx, 5, max_tokens=3)
        waiting = [limited(bytes([n]), max_tokens=1) for n in range(65, 68)]
        s.submit(*(j for j, _ in waiting))
        wait_until(lambda: waiting[0][0].grammar)
        with s.lock:
            assert s._to_compile() is None and shop.begun == [b"A"]
        step(ctx, 6)
        for _, heard in waiting:
            heard.wait(Ended)
        assert shop.begun == [b"A", b"B", b"C"]


def test_a_grammar_that_nobody_waits_for_any_more_makes_room_for_the_next(monkeypatch):
    """Symptom: the next was compiled only when somebody else came, for cancelling alone woke the
    compiler, and what was cancelled was still there."""
    shop = Workshop(n_bytes=AHEAD)
    for _ in range(2):
        shop.gate.release()
    with scheduler_with(monkeypatch, compiled=shop, sessions=1, queue=8) as (s, ctx):
        start(s, ctx, 5, max_tokens=3)
        (gone, gone_heard), (waits, heard) = limited(b"A"), limited(b"B", max_tokens=1)
        s.submit(gone, waits)
        wait_until(lambda: gone.grammar)
        s.cancel(gone)
        time.sleep(0.1)  # the engine's thread is in a pass, and the compiler's looks
        step(ctx, 3)
        gone_heard.wait(Failed)
        shop.wait_begun(2)
        step(ctx)
        heard.wait(Ended)


def test_nobody_turns_round_and_round_while_a_grammar_is_compiled(monkeypatch):
    shop, turns = Workshop(), []
    with scheduler_with(monkeypatch, compiled=shop, sessions=1) as (s, ctx):
        s.between = lambda _: turns.append(1)
        s.submit(limited(b"large")[0])
        shop.wait_begun(1)
        time.sleep(0.2)
        assert len(turns) < 20
        shop.gate.release()


def test_the_end_does_not_wait_for_a_grammar(monkeypatch):
    shop = Workshop()
    with scheduler_with(monkeypatch, compiled=shop) as (s, ctx):
        j, heard = limited(b"large")
        s.submit(j)
        shop.wait_begun(1)
    assert heard.wait(Failed).kind == "closing"
    shop.gate.release()
    s.compiler.thread.join(60)
    assert not s.compiler.thread.is_alive() and j.grammar is None


def test_the_text_of_a_grammar_is_held_until_its_answer_is_over():
    """What is kept for those who ask again holds neither it nor the jobs."""
    class Answer:
        options = type("Options", (), {"limited_by": "grammar", "progress": False})

        def end(self, index, ended):
            return ["the end"]

    async def answered():
        budget = Budget("schemas and grammars", 100)
        share = Share(budget)
        share.grow(90)
        with pytest.raises(ApiError, match="schemas and grammars"):
            Share(budget).grow(11)
        exchange = Exchange(Answer(), cancel=lambda *_: None, grace=60.0, grammar=share)
        exchange.start([job(5)[0]], None)
        assert budget.held == 90
        exchange.sink(0)(Ended("end", None))
        await exchange.task
        assert budget.held == 0 and not exchange.jobs and exchange.history == [["the end"]]

    asyncio.run(answered())


def test_a_model_that_does_not_open_is_a_failure_with_a_sentence(monkeypatch):
    import logging
    from serve import scheduler

    def refuse():
        raise engine.Failure(engine.E_FORMAT, "trunk.bin: short")

    s = scheduler.Scheduler(refuse, sessions=1, queue=1, chunk=1, max_tokens=1, states=(),
                            log=logging.getLogger("test"))
    s.start()
    s.thread.join(60)
    assert s.phase == scheduler.FAILED and "trunk.bin" in str(s.failure)
    with pytest.raises(Full):
        s.submit(job(5)[0])
