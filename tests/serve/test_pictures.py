"""Images over HTTP: answers equal to the command's, each conversation's own pictures and nobody
else's, prefixes found past them, refusals that name where they stand, memory that is bounded."""

import base64
import copy
import json
import logging
import os
import random
import shutil
import struct
import subprocess
import sys
import threading
import time

import pytest

from serving import (DEMO, PATIENCE, FakeReader, Heard, Server, clean_env, data_url,  # noqa: F401
                     ids, png, png_of, run_waste, scheduler_with, seeing_model, shown)
from serve import engine, images
from serve.budget import Budget, Share
from serve.errors import ApiError
from serve.scheduler import Ended, Failed, Fed, Job, Scheduler

CHAT = "/v1/chat/completions"
ROWS = 12  # of a picture as png() makes it
TEXT = "he in the"


@pytest.fixture(scope="module")
def server(seeing_model):  # noqa: F811
    with Server("--vision", "--sessions", 2, model=seeing_model) as s:
        yield s.ready()


def said(answer):
    return answer["choices"][0]["message"]["reasoning_content"]


# ---- the same as the command ----


@pytest.fixture(scope="module")
def of_the_command(seeing_model, tmp_path_factory):  # noqa: F811
    """What `waste run` says of these pictures."""
    def ask(*pictures):
        files = []
        for picture in pictures:
            files.append(tmp_path_factory.mktemp("pictures") / "picture")
            files[-1].write_bytes(picture)
        more = [word for file in files for word in ("--image", file)]
        return run_waste(TEXT, "-n", 8, *more, model=seeing_model)
    return ask


def test_an_answer_is_that_of_the_command(server, of_the_command):
    for pictures in ((png(),), (png(seed=1),), (png(), png(30, 40)), (png(30, 40), png())):
        want, got = of_the_command(*pictures), server.chat([shown(TEXT, *pictures)], 8)
        assert said(got) == want["reasoning"]
        assert got["usage"]["prompt_tokens"] == want["prompt_tokens"]


def test_every_dialect_gives_the_same_answer(server, of_the_command):
    want = of_the_command(png())["reasoning"]
    url, text = data_url(png()), {"type": "text", "text": TEXT}
    for part in ({"type": "image_url", "image_url": url},
                 {"type": "image_url", "image_url": {"url": url, "detail": "high"}},
                 {"type": "image", "image": url}):
        assert said(server.chat([{"role": "user", "content": [part, text]}], 8)) == want
    source = {"type": "base64", "media_type": "image/jpeg", "data": url.split(",")[1]}
    body = {"max_tokens": 8, "messages": [{"role": "user", "content": [
        {"type": "image", "source": source}, text]}]}
    message = server.post("/v1/messages", body).json
    assert message["content"] == [{"type": "thinking", "thinking": want, "signature": ""}]
    response = server.post("/v1/responses", {"max_output_tokens": 8, "input": [
        {"role": "user", "content": [{"type": "input_image", "image_url": url, "detail": "auto"},
                                     {"type": "input_text", "text": TEXT}]}]}).json
    assert response["output"][0]["content"] == [{"type": "reasoning_text", "text": want}]


def test_a_tools_result_may_be_a_picture(server):
    call = {"role": "assistant", "content": "", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}
    picture = {"type": "image_url", "image_url": data_url(png())}
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    user = {"role": "user", "content": TEXT}
    mine = server.chat([user, call, {"role": "tool", "tool_call_id": "a", "content": [picture]}], 8,
                       tools=[tool])
    body = {"max_tokens": 8, "tools": [{"name": "look", "input_schema": {}}], "messages": [
        user, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                         "data": base64.b64encode(png()).decode()}}]}]}]}
    theirs = server.post("/v1/messages", body).json
    assert theirs["content"][0]["thinking"] == said(mine)
    usage = theirs["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == mine["usage"]["prompt_tokens"]
    body["messages"][2]["content"][0]["content"][0]["source"]["data"] = "R0lGODlh"
    error = server.post("/v1/messages", body)
    assert error.status == 400
    assert "messages[2].content[0].content[0]" in error.error["message"]


def test_the_bytes_decide_what_a_picture_is(server):
    assert said(server.chat([shown(TEXT, png())], 8)) == said(server.chat([{
        "role": "user", "content": [
            {"type": "image_url", "image_url": data_url(png(), "text/plain;charset=x")},
            {"type": "text", "text": TEXT}]}], 8))


def test_base64_may_come_in_lines(server):
    lines = base64.encodebytes(png()).decode().replace("\n", "\r\n")
    part = {"type": "image_url", "image_url": "data:;base64," + lines}
    got = server.chat([{"role": "user", "content": [part, {"type": "text", "text": TEXT}]}], 8)
    assert said(got) == said(server.chat([shown(TEXT, png())], 8))


def test_every_count_has_the_rows_of_pictures(server):
    messages = [shown(TEXT, png())]
    usage = server.chat(messages, 2)["usage"]
    shaped = server.post("/apply-template", {"messages": messages}).json
    assert shaped["count"] == len(shaped["tokens"]) == usage["prompt_tokens"]
    pad = server.post("/tokenize", {"content": "<|media_pad|>", "parse_special": True}).json["tokens"]
    assert shaped["tokens"].count(pad[0]) == ROWS
    source = {"type": "base64", "media_type": "image/png",
              "data": base64.b64encode(png()).decode()}
    body = {"messages": [{"role": "user", "content": [
        {"type": "image", "source": source}, {"type": "text", "text": TEXT}]}]}
    assert server.post("/v1/messages/count_tokens", body).json["input_tokens"] == shaped["count"]


def test_a_context_is_full_of_rows_too(server):
    black = png_of(900, 900, b"\0" * 900 * 2701)
    answer = server.post(CHAT, {"messages": [shown(TEXT, *[black] * 17)]})
    assert answer.status == 400 and answer.error["code"] == "context_length_exceeded"


def test_fewer_patches_are_fewer_positions(server, seeing_model):  # noqa: F811
    large = png(300, 300)
    with Server("--vision", "--image-patches", 16, model=seeing_model) as s:
        few = s.ready().chat([shown(TEXT, large)], 2)["usage"]["prompt_tokens"]
    many = server.chat([shown(TEXT, large)], 2)["usage"]["prompt_tokens"]
    assert 4 <= 121 + few - many <= 16


def test_the_server_says_whether_it_sees(server, seeing_model, tmp_path):  # noqa: F811
    def told(s):
        chat = s.get("/v1/models").json["data"][0]["waste_chat"]
        return chat["images"], chat.get("no_images")

    assert told(server) == (True, None)
    damaged = tmp_path / "damaged.waste"  # its tower is there, and --vision says what is wrong
    shutil.copytree(seeing_model, damaged)
    (damaged / "vision.json").write_text("{")
    for model, cure in ((seeing_model, "--vision"), (damaged, "--vision"), (DEMO, "no vision tower")):
        with Server(model=model) as s:
            sees, why = told(s.ready())
            assert sees is False and cure in why
            answer = s.post(CHAT, {"messages": [shown(TEXT, b"?")]})
            assert answer.status == 400 and answer.error["code"] == "vision_disabled"
            assert answer.error["param"] == "messages[0].content[0]"
            assert cure in answer.error["message"]


def test_a_container_without_a_tower_is_not_served_with_one():
    done = subprocess.run([sys.executable, "-m", "serve", str(DEMO), "--vision"], text=True,
                          capture_output=True, env=clean_env(), timeout=PATIENCE)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "vision" in done.stderr and str(DEMO) in done.stderr


def test_a_repeated_request_joins_the_answer(server):
    body = {"messages": [shown(TEXT, png(seed=9))], "max_tokens": 8, "temperature": 1}
    first, second = (server.post(CHAT, body, Idempotency_Key="k") for _ in range(2))
    assert first.json == second.json
    body["messages"] = [shown(TEXT, png(seed=10))]
    assert server.post(CHAT, body, Idempotency_Key="k").status == 400


def test_alternatives_see_the_same(server):
    one, two = (server.chat([shown(TEXT, png(seed=11))], 8, temperature=1, seed=5, n=n)["choices"]
                for n in (1, 3))
    assert len(two) == 3 and two[0] == one[0] and two[1] != two[0]


# ---- refusals ----


BAD = [
    ("http://127.0.0.1/x.png", "nothing is fetched"), ("https://x.test/", "nothing is fetched"),
    ("file:///etc/passwd", "file:"), ("/etc/passwd", "nothing is fetched"),
    ("image-0", "nothing is fetched"), ("", "has to bring its bytes"), (None, "has to bring"),
    (5, "has to bring"), ([], "has to bring"), ({}, "has to bring"), ({"url": {}}, "has to bring"),
    ({"type": "base64"}, "source.data"), ({"type": "base64", "data": 7}, "source.data"),
    ({"type": "url", "url": "http://x.test/"}, "http:"),
    ({"type": "file", "file_id": "f"}, "has to bring"),
    ("data:image/png,abc", ";base64"), ("data:" + "x" * 9000, ";base64"),
    ("data:;base64,", "empty"), ("data:;base64,  \n", "empty"),
    ("data:;base64,AAAAA", "no base64"), ("data:;base64,AA=AAAAA", "no base64"),
    ("data:;base64,AA==" * 2, "no base64"), ("data:;base64,äöü", "no base64"),
    (data_url(b"hello"), "5 bytes"), (data_url(b"GIF89a" + b"\0" * 90), "GIF"),
    (data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "JPEG"),
    (data_url(png()[:-40]), "ends early"), (data_url(png()[:20]), "messages[0].content[1]"),
    (data_url(png_of(60000, 60000, b"")), "60000"), (data_url(png_of(70000, 1, b"")), "70000"),
    (data_url(png_of(0, 5, b"")), "0 x 5"), (data_url(png_of(8, 8, b"\0" * 99)), "Not enough"),
]


@pytest.mark.parametrize("source, words", BAD)
def test_what_is_no_picture_is_refused_where_it_stands(server, source, words):
    parts = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": source}]
    answer = server.post(CHAT, {"messages": [{"role": "user", "content": parts}]})
    assert answer.status == 400, answer.body
    assert answer.error["param"] == "messages[0].content[1]"
    assert words in answer.error["message"]


def test_each_dialect_names_its_own_place(server):
    url = "https://x.test/a.png"
    message = server.post("/v1/messages", {"max_tokens": 2, "messages": [
        {"role": "user", "content": "a"}, {"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": url}}]}]})
    assert message.status == 400 and "messages[1].content[0]" in message.error["message"]
    response = server.post("/v1/responses", {"instructions": "x", "input": [
        {"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]})
    assert response.status == 400 and response.error["param"] == "input[0].content[0]"
    assistant = server.post(CHAT, {"messages": [{**shown("x", png()), "role": "assistant"}]})
    assert assistant.status == 400 and assistant.error["param"] == "messages[0].content[0]"


def test_a_stream_of_a_bad_picture_is_a_status_or_an_event(server):
    """It is found before anything is computed, but perhaps not before a stream has begun."""
    answer = server.post(CHAT, {"messages": [shown("?", png()[:-40])], "stream": True})
    error = answer.error if answer.status == 400 else \
        json.loads(answer.body.split(b"data: ")[1].split(b"\n")[0])["error"]
    assert error["param"] == "messages[0].content[0]"


def test_more_than_32_are_too_many(server):
    answer = server.post(CHAT, {"messages": [shown("?", *[png(1, 1)] * 33)]})
    assert answer.status == 400 and answer.error["param"] == "messages[0].content[32]"
    assert server.chat([shown("?", *[png(1, 1)] * 32)], 2)["usage"]["completion_tokens"] == 2


def test_a_place_without_a_picture_is_the_clients_fault(server):
    """Ids can name the place of a row; without a picture of this request there is none."""
    pad = server.post("/tokenize", {"content": "<|media_pad|>", "parse_special": True}).json["tokens"]
    for n in (1, ROWS):
        answer = server.post("/v1/completions", {"prompt": [5, *pad * n, 7], "max_tokens": 3})
        assert answer.status == 400, answer.body


def test_a_place_that_nobody_took_a_picture_from_is_refused(seeing_model):  # noqa: F811
    """As of JSON that names a member twice, which two readers may read as two things."""
    chat = engine.Chat(engine.Tokenizer(seeing_model), seeing_model)
    part = {"type": "image", "image": "image-0", "width": 3, "height": 3}
    prompt = chat.render(json.dumps({"messages": [{"role": "user", "content": [part]}]}).encode())
    with pytest.raises(ApiError) as e:
        images.Pictures([]).placed(prompt)
    assert e.value.status == 400 and e.value.param == "messages"


def peak(process):
    with open(f"/proc/{process.pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))


def test_bombs_take_no_memory(seeing_model):  # noqa: F811
    with Server("--vision", model=seeing_model) as s:
        s.ready().chat([shown(TEXT, png())], 2)
        before = peak(s.process)
        for bomb in (png_of(60000, 60000, b"\0" * 10**6), png_of(8192, 8192, b"\0" * 10**6),
                     png_of(65535, 1024, b"")):
            assert s.post(CHAT, {"messages": [shown("?", *[bomb] * 8)]}).status == 400
        assert peak(s.process) - before < 32 << 20


# ---- memory of requests ----


def test_shares_of_a_budget_come_back():
    budget = Budget("things", 10)
    a, b = Share(budget), Share(budget)
    a.grow(6)
    with pytest.raises(ApiError) as e:
        b.grow(5)
    assert e.value.status == 503 and e.value.headers["Retry-After"] and budget.held == 6
    b.grow(4)
    a.release()
    a.release()
    b.grow(6)
    b.release()
    assert budget.held == 0


def test_pictures_that_wait_are_bounded_and_texts_are_not_kept_out(seeing_model):  # noqa: F811
    """Four times the largest body of them; who comes later is told so before any work."""
    with Server("--vision", "--sessions", 1, "--max-body", "64K", model=seeing_model) as s:
        s.ready()
        busy = s.stream(CHAT, {"messages": [shown(TEXT)], "max_tokens": 3000})
        s.wait_for_health("answering")
        picture = png(120, 100)
        assert 36000 < len(picture) < 40000
        answers = []

        def ask():
            answers.append(s.post(CHAT, {"messages": [shown(TEXT, picture)], "max_tokens": 2}))

        waiting = [threading.Thread(target=ask) for _ in range(7)]
        for i, thread in enumerate(waiting):
            thread.start()
            deadline = time.monotonic() + PATIENCE
            while s.health()["queued"] <= i and time.monotonic() < deadline:
                time.sleep(0.01)
        refused = s.post(CHAT, {"messages": [shown(TEXT, picture)], "max_tokens": 2})
        assert refused.status == 503 and refused.headers["Retry-After"]
        text = s.stream(CHAT, {"messages": [shown(TEXT)], "max_tokens": 2})
        assert text.status == 200
        busy.abort()
        for thread in waiting:
            thread.join(PATIENCE)
        assert [a.status for a in answers] == [200] * 7
        list(text)
        for _ in range(8):  # what they held has been given back
            s.chat([shown(TEXT, picture)], 2)


def test_who_joins_an_answer_holds_no_pictures(seeing_model):  # noqa: F811
    """Nine times the same, of pictures of which not seven may wait."""
    with Server("--vision", "--max-body", "64K", "--drain-timeout", 0, model=seeing_model) as s:
        s.ready()
        body = {"messages": [shown(TEXT, png(120, 100))], "max_tokens": 3000}
        streams = [s.stream(CHAT, body, Idempotency_Key="k") for _ in range(9)]
        assert [x.status for x in streams] == [200] * 9
        assert s.health()["answering"] == 1, "the answer was too short for this test"
        for x in streams:
            x.abort()


def test_a_server_that_sees_takes_larger_bodies(server):
    texts = {"messages": [{"role": "user", "content": "x"}], "more": " " * (9 << 20), "max_tokens": 2}
    assert server.post(CHAT, texts).status == 200


# ---- prefixes ----


def spoil_tower(path):
    """A value that is not finite, so that whatever the tower sees fails."""
    manifest = json.loads((path / "manifest.json").read_text("ascii"))
    at = next(t["off"] for t in manifest["trunk"] if t["name"].endswith("final_layernorm.weight")
              and "vision" in t["name"])
    was = (path / "trunk.bin").stat()
    with open(path / "trunk.bin", "r+b") as f:
        f.seek(at)
        f.write(struct.pack("<f", float("nan")))
    os.utime(path / "trunk.bin", ns=(was.st_atime_ns, was.st_mtime_ns))


def test_the_next_turn_reads_no_picture_again(seeing_model, tmp_path):  # noqa: F811
    """Symptom of a failure: the tower, which is damaged by then, is asked once more."""
    mine = tmp_path / "mine.waste"
    shutil.copytree(seeing_model, mine)
    with Server("--vision", "--free-vision", "--state-dir", tmp_path / "states", model=mine) as s:
        s.ready()
        first = s.chat([shown(TEXT, png())], 8)
        spoil_tower(mine)
        answer = {"role": "assistant", "content": "", "reasoning_content": said(first)}
        turn = [shown(TEXT, png()), answer, {"role": "user", "content": "and?"}]
        second = s.chat(turn, 8)
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > \
            first["usage"]["prompt_tokens"] - 4
        other = s.post(CHAT, {"messages": [shown(TEXT, png(seed=1)), *turn[1:]]})
        assert other.status == 500 and "tower" in other.error["message"]
        assert s.chat([shown(TEXT)], 2)["usage"]["completion_tokens"] == 2
    with Server("--vision", "--free-vision", "--state-dir", tmp_path / "states", model=mine) as s:
        again = s.ready().chat(turn, 8)
        assert said(again) == said(second)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > ROWS


def test_a_session_is_found_by_its_pictures(seeing_model):  # noqa: F811
    """Without memory for states, a conversation is where it was held: the slot with its picture."""
    with Server("--vision", "--checkpoints", 0, "--sessions", 3, model=seeing_model) as s:
        s.ready()
        turns = {}
        for seed in (1, 2, 3):
            first = s.chat([shown(TEXT, png(seed=seed))], 1)
            turns[seed] = [shown(TEXT, png(seed=seed)),
                           {"role": "assistant", "content": "", "reasoning_content": said(first)},
                           {"role": "user", "content": "and?"}]
        for seed in (2, 1, 3):
            usage = s.chat(turns[seed], 4)["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] > 250 + ROWS, seed


# ---- one conversation's picture reaches no other ----


def test_pictures_at_the_same_time_are_each_as_if_alone(server, of_the_command):
    pictures = {seed: png(seed=seed) for seed in range(20, 26)}
    want = {seed: of_the_command(p)["reasoning"] for seed, p in pictures.items()}
    assert len(set(want.values())) == len(want)
    wrong = []

    def ask(seed):
        order = random.Random(seed)
        for _ in range(12):
            which = order.choice(list(pictures))
            if order.random() < 0.3:
                stream = server.stream(CHAT, {"messages": [shown(TEXT, pictures[which])],
                                              "max_tokens": 64})
                time.sleep(order.random() * 0.05)
                stream.abort()
            elif said(server.chat([shown(TEXT, pictures[which])], 8)) != want[which]:
                wrong.append(which)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong
    server.wait_idle()


class Tokens(FakeReader):
    """Remembers what was chosen."""

    def __init__(self):
        super().__init__()
        self.tokens = []

    def feed(self, choice, ends):
        self.tokens.append(choice.token)
        return []


class Bench:
    """The engine's own thread on a real model, with hooks between its passes."""

    def __init__(self, model, sessions=1, checkpoints=4, rows=16, ctx=512):
        self.model = model
        cfg, opts = engine.defaults()
        cfg.vision, cfg.ctx_tokens, cfg.n_threads = 1, ctx, 1
        opts.max_rows, opts.max_sessions, opts.checkpoints = rows, sessions, checkpoints
        self.tokenizer = engine.Tokenizer(model)
        self.chat = engine.Chat(self.tokenizer, model, "none")
        self.s = Scheduler(lambda: engine.Context(model, cfg, opts), sessions=sessions, queue=99,
                           chunk=rows, max_tokens=9, states=(None, 0, None),
                           log=logging.getLogger("test"))
        self.n, self.hooks = 0, {}
        self.s.between = self._between
        self.s.start()

    def _between(self, _ctx):
        self.n += 1
        for hook in self.hooks.pop(self.n, ()):
            hook()

    def after(self, n, hook):
        """Call it, on the engine's thread, when so many passes have been looked forward to."""
        self.hooks.setdefault(self.n + n, []).append(hook)

    def job(self, messages, max_tokens=4):
        messages = copy.deepcopy(messages)
        pictures = images.Pictures(messages)
        pictures.read(self.model, 0)
        prompt = self.chat.render(json.dumps({"messages": messages}).encode())
        placed = pictures.placed(prompt)
        heard = Heard()
        job = Job(prompt.ids, Tokens(), heard, max_tokens=max_tokens,
                  ends=[n for n, _ in prompt.ends], pictures=placed,
                  pictures_end=prompt.images_end)
        prompt.close()
        return job, heard

    def answer(self, messages):
        job, heard = self.job(messages)
        self.s.submit(job)
        heard.wait(Ended)
        assert len(job.reader.tokens) == 4
        return job.reader.tokens

    def __enter__(self):
        deadline = time.monotonic() + PATIENCE
        while self.s.phase == "loading" and time.monotonic() < deadline:
            time.sleep(0.001)
        assert self.s.phase == "ready", self.s.failure
        return self

    def __exit__(self, *_):
        self.s.close()


def cold(model, messages, **more):
    with Bench(model, checkpoints=0, **more) as b:
        return b.answer(messages)


def stolen(bench):
    """A prompt by ids with places for as many rows as a picture has, and no picture."""
    pad, = bench.tokenizer.encode("<|media_pad|>", engine.MARKUP)
    heard = Heard()
    return Job(engine.ids_array([5, *[pad] * ROWS, 7]), Tokens(), heard, max_tokens=2), heard


MIXED = [{"role": "user", "content": "the " * 5}, shown("he " * 3, png()), shown("in", png(30, 40)),
         {"role": "user", "content": "and " * 15}]


@pytest.mark.parametrize("phase", range(0, 16))
def test_a_request_that_goes_in_any_phase_leaves_no_picture(seeing_model, phase):  # noqa: F811
    with Bench(seeing_model) as b:
        gone, heard = b.job(MIXED)
        if phase:
            b.after(phase, lambda: b.s.cancel(gone))
        b.s.submit(gone)
        if not phase:
            b.s.cancel(gone)
        with heard.changed:
            assert heard.changed.wait_for(lambda: gone.over, PATIENCE)
        thief, told = stolen(b)
        b.s.submit(thief)
        assert told.wait(Failed).kind == "request" and not thief.reader.tokens
        assert b.answer([shown(TEXT, png(seed=1))]) == cold(seeing_model, [shown(TEXT, png(seed=1))])


@pytest.mark.parametrize("phase", range(1, 17))
def test_a_prompt_that_makes_room_goes_on_with_its_own_pictures(seeing_model, phase):  # noqa: F811
    """A short request takes its place in each phase, also between two rows of one picture."""
    with Bench(seeing_model) as b:
        long, heard = b.job(MIXED)
        thief, told = stolen(b)
        short = Job(engine.ids_array([5, 6, 7]), Tokens(), Heard(), max_tokens=1)
        b.after(phase, lambda: b.s.submit(short, thief))
        b.s.submit(long)
        heard.wait(Ended)
        assert long.reader.tokens == cold(seeing_model, MIXED)
        assert told.wait(Failed).kind == "request"
        assert b.s.totals["overtakes"], "nobody was overtaken: this tests nothing"


def test_pictures_of_many_fit_into_what_is_planned_for_one(seeing_model):  # noqa: F811
    """Rows of a whole context are planned; three sessions want as many each, at once."""
    pictures = [png(280, 280, seed) for seed in range(6)]  # 100 rows each
    messages = [[shown(TEXT, pictures[i], pictures[-1 - i])] for i in range(6)]
    want = [cold(seeing_model, m, rows=64, ctx=384) for m in messages]
    with Bench(seeing_model, sessions=3, rows=64, ctx=384) as b:
        jobs = [b.job(m) for m in messages]
        b.s.submit(*(job for job, _ in jobs))
        for (job, heard), tokens in zip(jobs, want):
            heard.wait(Ended)
            assert job.reader.tokens == tokens


def test_a_picture_that_fails_in_company_fails_alone(seeing_model):  # noqa: F811
    """The head is whole, so that it is found when the job has its slot."""
    with Bench(seeing_model, sessions=2) as b:
        good, heard = b.job([shown(TEXT, png())], max_tokens=9)
        bad, told = b.job([shown(TEXT, png(), png_of(100, 70, b"\0" * 999))])
        b.after(3, lambda: b.s.submit(bad))
        b.s.submit(good)
        failed = told.wait(Failed)
        assert failed.kind == "request" and failed.param == "messages[0].content[1]"
        assert "Not enough" in failed.message
        heard.wait(Ended)
        assert good.reader.tokens[:4] == cold(seeing_model, [shown(TEXT, png())])
        thief, told = stolen(b)
        b.s.submit(thief)
        assert told.wait(Failed).kind == "request"


# ---- one prompt's pictures at a time ----


def test_a_second_prompt_with_pictures_waits_until_the_first_ones_are_in(monkeypatch):
    with scheduler_with(monkeypatch, sessions=2) as (s, ctx):
        def job(n, pictures_end):
            picture = images.Picture("p", None, "image-0")
            picture.data, picture.rows = b"x", 1
            heard = Heard()
            return Job(ids(n), FakeReader(), heard, max_tokens=3, pictures=[picture],
                       pictures_end=pictures_end), heard

        (first, heard), (second, waits) = job(250, 120), job(240, 1)
        text = Job(ids(230), FakeReader(), Heard(), max_tokens=3)
        s.submit(first)
        heard.wait(Fed)
        s.submit(second)
        ctx.gate.release()
        heard.wait(Fed, 2)
        assert not waits.of(Fed), "100 of the first one's 120 positions are in"
        ctx.gate.release()
        waits.wait(Fed)
        assert first.at == 200 and first.pictures == ()
        s.submit(text)
