"""`waste run --file requests.jsonl --out answers.jsonl`: the answers of single runs, whatever ends
the work in between."""

import fcntl
import json
import random
import signal
import subprocess
import time

import pytest

from conftest import BINARY, GOLDEN, clean_env, run_lines, waste

ASKED = [
    {"id": "a", "prompt": "Emma was not sorry to be obliged to wait."},
    {"id": 2, "prompt": "Grüße, 世界\n\u0000!", "max_tokens": 9},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]},
    {"prompt": "Who came?", "temperature": 1, "top_p": 0.9, "seed": 7},
    {"prompt": "Who came?", "stop": [",", "."], "repeat_penalty": 1.2},
    {"prompt": "Who came?", "logit_bias": {"11": -50}},
]


def write(path, requests):
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))
    return path


def read(path):
    """Answers, without what differs from run to run."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if "error" not in line:
            assert line.pop("ms") >= 0
    return lines


def batch(asked, out, *args, model="demo", check=0, n=20):
    return waste("run", model, "--file", asked, "--out", out, "-n", n, *args, check=check,
                 env={"WASTE_THREADS": "1"})


def test_answers_are_those_of_single_runs(tmp_path):
    asked, out = write(tmp_path / "asked", ASKED), tmp_path / "out"
    done = batch(asked, out)
    assert done.stdout == b""
    answers = read(out)
    assert [a["line"] for a in answers] == [1, 2, 3, 4, 5, 6]
    assert [a.get("id") for a in answers] == ["a", 2, None, None, None, None]

    def single(prompt, *args):
        s = run_lines("demo", *args, stdin=prompt.encode())[1]
        return s["text"], s["prompt_tokens"], s["generated_tokens"]

    got = [(a["text"], a["usage"]["prompt_tokens"], a["usage"]["completion_tokens"]) for a in answers]
    n = ("-n", 20)
    assert got[0] == single(ASKED[0]["prompt"], *n)
    assert got[1] == single(ASKED[1]["prompt"], "-n", 9)
    assert got[2] == single("Who?", *n, "--system", "Be brief.")
    assert got[3] == single("Who came?", *n, "--temp", 1, "--top-p", "0.9", "--seed", 7)
    assert got[4] == single("Who came?", *n, "--stop", ",", "--stop", ".", "--repeat-penalty", 1.2)
    assert got[5] == single("Who came?", *n, "--logit-bias", "11=-50")
    assert answers[3]["seed"] == 7 and "seed" not in answers[0]
    assert answers[4]["finish"] == "stop" and answers[0]["finish"] == "length"


def test_raw_prompts_and_models_without_a_format(tmp_path):
    asked = write(tmp_path / "asked", [{"prompt": "Hello"}, {"messages": []}])
    for model, args in (("demo", ["--raw"]), (str(GOLDEN / "deepseek.waste"), [])):
        out = tmp_path / f"{model[-5:-1]}.out"
        batch(asked, out, *args, model=model, check=1)
        good, bad = read(out)
        assert good["text"] == run_lines(model, "Hello", "--raw", "-n", 20)[1]["text"]
        assert "messages" in bad["error"]


def test_thinking_and_effort(tmp_path):
    asked = write(tmp_path / "asked", [{"prompt": "Hello"}, {"prompt": "Hello", "reasoning_effort": "none"},
                                       {"prompt": "Hello", "thinking": False}])
    batch(asked, tmp_path / "out", "--think", "high", model=GOLDEN / "k3.waste")
    high, none, off = read(tmp_path / "out")
    assert high["reasoning"] == run_lines(GOLDEN / "k3.waste", "Hello", "--think", "high", "-n",
                                          20)[1]["reasoning"]
    assert "reasoning" not in none and none["text"] == off["text"]


LAMP = {"type": "function", "function": {"name": "lamp", "strict": True, "parameters": {
    "type": "object", "properties": {"room": {"enum": ["den", 'a "hall"']}, "on": {"type": "boolean"}},
    "required": ["room", "on"], "additionalProperties": False}}}
ANSWER = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "s": {"enum": ["x"]}},
          "required": ["n", "s"], "additionalProperties": False}


def test_answers_are_held_to_what_their_requests_say(tmp_path):
    form = {"type": "json_schema", "json_schema": {"schema": ANSWER}}
    common = {"prompt": "x", "max_tokens": 2000, "temperature": 1, "seed": 5, "thinking": False}
    asked = write(tmp_path / "asked", [
        {**common, "tools": [LAMP], "tool_choice": "required", "parallel_tool_calls": False},
        {**common, "response_format": form},
        {**common, "response_format": form, "max_tokens": 5},
        {**common, "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
            "properties": {"q": {"contentEncoding": "x"}}}}}]},
        {**common},
    ])
    batch(asked, tmp_path / "out", model=GOLDEN / "k3.waste", check=1, n=20)
    called, formed, cut, refused, free = read(tmp_path / "out")
    assert called["finish"] == "tool_calls" and called["complete"] and called["text"] == ""
    (call,) = called["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert call["function"]["name"] == "lamp" and arguments["room"] in ("den", 'a "hall"')
    assert isinstance(arguments["on"], bool) and len(arguments) == 2
    value = json.loads(formed["text"])
    assert formed["finish"] == "stop" and formed["complete"] and 0 <= value["n"] <= 99 and value["s"] == "x"
    assert cut["finish"] == "length" and not cut["complete"] and formed["text"].startswith(cut["text"])
    assert 'tools[0].function.parameters of "f"' in refused["error"] and "contentEncoding" in refused["error"]
    assert "complete" not in free

    # a format without words for it is held to it all the same; and without a format it is an error
    asked = write(tmp_path / "plain", [{"prompt": "x", "response_format": form, "max_tokens": 300}])
    batch(asked, tmp_path / "plain.out")
    (formed,) = read(tmp_path / "plain.out")
    assert formed["complete"] and json.loads(formed["text"])["s"] == "x"
    batch(asked, tmp_path / "raw.out", "--raw", check=1)
    assert "response_format: --raw" in read(tmp_path / "raw.out")[0]["error"]


def test_tools_of_a_file_and_thinking_left_free_by_a_schema(tmp_path):
    tools, schema = tmp_path / "tools", tmp_path / "schema"
    tools.write_text(json.dumps([LAMP]))
    schema.write_text(json.dumps(ANSWER))
    options = ["-n", 4000, "--temp", 1, "--seed", 2]
    last = run_lines(GOLDEN / "k3.waste", "hi", "--json-schema", schema, "--think", "low", *options)[1]
    assert last["reasoning"]
    assert not last["complete"] or json.loads(last["text"])["s"] == "x"
    last = run_lines(GOLDEN / "k3.waste", "hi", "--tools", tools, "--think", "none", *options)[1]
    for call in last.get("tool_calls", []):
        assert json.loads(call["function"]["arguments"])["room"] in ("den", 'a "hall"')
    assert "complete" in last


def test_calls_are_printed_as_lines_behind_the_answer(tmp_path):
    tools = tmp_path / "tools"
    tools.write_text(json.dumps([LAMP]))
    ids = {s["text"]: s["id"] for s in json.loads((GOLDEN / "k3.waste" / "specials.json").read_text())}
    done = waste("run", GOLDEN / "k3.waste", "hi", "--tools", tools, "--think", "none", "-q", "-n", 300,
                 "--logit-bias", f"{ids['<|open|>']}=900", "--logit-bias", f"{ids['<|close|>']}=600")
    calls = [json.loads(line) for line in done.stdout.splitlines() if line]
    assert len(calls) > 1
    for call in calls:
        assert call["function"]["name"] == "lamp"
        assert json.loads(call["function"]["arguments"])["room"] in ("den", 'a "hall"')
    tools.write_text("{}")
    done = waste("run", GOLDEN / "k3.waste", "hi", "--tools", tools, check=2)
    assert b"it has to be a JSON array of tools" in done.stderr


HOSTILE = [
    ("", None),
    ("   \t", None),
    ("not json", "not JSON"),
    ("[]", "not a JSON object"),
    ("{}", "either prompt or messages"),
    ('{"prompt": "x", "messages": []}', "either prompt or messages"),
    ('{"prompt": 1}', "prompt must be a text"),
    ('{"prompt": ""}', "the prompt is empty"),
    ('{"prompt": "x", "seed": 18446744073709551615}', "written as a text"),
    ('{"prompt": "x", "seed": "18446744073709551616"}', "seed"),
    ('{"prompt": "x", "prompt": "y"}', "not JSON"),
    ('{"prompt": "x", "temperatur": 1}', "did you mean temperature?"),
    ('{"prompt": "x", "temperature": "1"}', "temperature: must be a number"),
    ('{"prompt": "x", "temperature": -1}', "temperature"),
    ('{"prompt": "x", "max_tokens": 0}', "max_tokens"),
    ('{"prompt": "x", "max_tokens": 1.5}', "max_tokens"),
    ('{"prompt": "x", "stop": [""]}', "stop"),
    ('{"prompt": "x", "stop": 1}', "stop"),
    ('{"prompt": "x", "logit_bias": {"x": 1}}', "logit_bias"),
    ('{"prompt": "x", "logit_bias": {"99999999": 1}}', "99999999"),
    ('{"messages": "x"}', "messages"),
    ('{"messages": [{"role": "nobody", "content": "x"}]}', "messages[0].role"),
    ('{"messages": [{"role": "user", "content": 1}]}', "messages[0].content"),
    ('{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]}',
     "messages[0].content[1]: a picture"),
    ('{"prompt": "x", "tools": [1]}', "tools"),
    ('{"prompt": "\\ud800"}', "not JSON"),
    ('{"prompt": "' + "long " * 5000 + '"}', "4096 positions"),
    ('[' * 100000, "not JSON"),
    ('{"a":' * 3000, "not JSON"),
]


def test_every_seed_and_a_mark_of_the_byte_order(tmp_path):
    asked, out = tmp_path / "asked", tmp_path / "out"
    most = str(2**64 - 1)
    line = {"prompt": "Who?", "temperature": 1, "seed": most, "max_tokens": 5}
    asked.write_bytes(b"\xef\xbb\xbf" + json.dumps(line).encode() + b"\n")
    batch(asked, out)
    (answer,) = read(out)
    assert answer["seed"] == most
    assert answer["text"] == run_lines("demo", "Who?", "--temp", 1, "--seed", most, "-n", 5)[1]["text"]


def test_a_bad_line_has_an_error_in_its_place_and_the_work_goes_on(tmp_path):
    asked, out = tmp_path / "asked", tmp_path / "out"
    good = json.dumps({"prompt": "Who?", "max_tokens": 2})
    asked.write_bytes("\n".join([line for line, _ in HOSTILE]).encode() + b"\n\xff\xfe\n\0\n" +
                      good.encode())
    done = batch(asked, out, check=1)
    answers = {a["line"]: a for a in map(json.loads, out.read_text().splitlines())}
    failed = 0
    for number, (line, why) in enumerate(HOSTILE, 1):
        if why is None:
            assert number not in answers
        else:
            assert why in answers[number]["error"], (line[:80], answers[number])
    failed = sum("error" in a for a in answers.values())
    assert "not JSON" in answers[len(HOSTILE) + 1]["error"]
    assert answers[len(HOSTILE) + 3]["finish"] == "length"
    assert f"{failed} of {len(answers)} requests failed".encode() in done.stderr


def test_killed_at_any_time_it_ends_with_the_same_file(tmp_path):
    requests = [{"id": i, "prompt": f"Who came on day {i}?", "max_tokens": 12} for i in range(20)]
    asked, whole, out = write(tmp_path / "asked", requests), tmp_path / "whole", tmp_path / "out"
    batch(asked, whole, "-q")
    rng = random.Random(5)
    kills = 0
    for _ in range(12):
        p = subprocess.Popen([BINARY, "run", "demo", "--file", str(asked), "--out", str(out), "-n", "20",
                              "-q"], env=clean_env({"WASTE_THREADS": "1"}))
        time.sleep(rng.uniform(0.05, 0.5))
        p.kill()
        if p.wait() == 0:
            break
        kills += 1
        if rng.random() < 0.3 and out.exists():  # and what a loss of power leaves
            with open(out, "ab") as f:
                f.write(b'{"line":3,"id":2,"text":"to')
    batch(asked, out, "-q")
    assert kills and read(out) == read(whole)
    before = out.read_bytes()
    batch(asked, out)  # nothing is left to do
    assert out.read_bytes() == before


def test_an_interrupt_leaves_whole_lines(tmp_path):
    asked = write(tmp_path / "asked", [{"prompt": f"Who {i}?", "max_tokens": 300} for i in range(50)])
    out = tmp_path / "out"
    p = subprocess.Popen([BINARY, "run", "demo", "--file", str(asked), "--out", str(out), "-q"],
                         env=clean_env({"WASTE_THREADS": "1"}))
    end = time.monotonic() + 60
    while not (out.exists() and out.stat().st_size) and time.monotonic() < end:
        time.sleep(0.02)
    p.send_signal(signal.SIGINT)
    assert p.wait(timeout=60) == 130
    assert out.read_bytes().endswith(b"\n") and len(read(out)) < 50


def test_a_limit_on_thinking_where_there_is_none_is_refused(tmp_path):
    """As a flag, and in a line; 0 asks for no thinking, which is what there is."""
    lines = [{"prompt": "Who?", "thinking_budget": 4}, {"prompt": "Who?", "thinking_budget": 0},
             {"prompt": "Who?", "thinking_budget": None}]
    asked, out = write(tmp_path / "asked", lines), tmp_path / "out"
    batch(asked, out, n=3, check=1)
    first, zero, null = read(out)
    assert "thinking_budget: the format of this model" in first["error"] and "no thinking" in first["error"]
    assert "error" not in zero and "error" not in null
    batch(asked, tmp_path / "raw", "--raw", n=3, check=1)
    assert "--raw continues texts" in read(tmp_path / "raw")[0]["error"]
    for args, code in ((["--think-limit", 4], 6), (["--think-limit", 4, "--raw"], 2)):
        assert b"--think-limit" in batch(asked, tmp_path / "new", *args, check=code).stderr
        assert b"--think-limit" in waste("run", "demo", "Who?", *args, check=code).stderr
    assert not (tmp_path / "new").exists()


def test_a_limit_on_thinking_is_part_of_what_answers_are_made_with(tmp_path):
    k3 = GOLDEN / "k3.waste"
    other = {"prompt": "Hello", "thinking": {"type": "enabled", "budget_tokens": 4}}
    asked = write(tmp_path / "asked", [{"prompt": "Hello", "thinking_budget": 4}, other])
    batch(asked, tmp_path / "out", model=k3)
    four, told_otherwise = read(tmp_path / "out")
    assert four["reasoning"] == told_otherwise["reasoning"]
    free = write(tmp_path / "free", [{"prompt": "Hello"}])
    batch(free, tmp_path / "free.out", model=k3)
    assert read(tmp_path / "free.out")[0]["reasoning"].startswith(four["reasoning"])
    done = batch(free, tmp_path / "free.out", "--think-limit", 4, model=k3, check=2)
    assert b"line 1 answers no request" in done.stderr


def test_answers_to_something_else_are_not_mixed_in(tmp_path):
    asked, out = write(tmp_path / "asked", [{"prompt": "Who?"}]), tmp_path / "out"
    batch(asked, out, n=3)
    kept = out.read_bytes()
    for args in (["--temp", 1, "--seed", 1], ["--system", "x"], ["--stop", "x"]):
        done = batch(asked, out, *args, n=3, check=2)
        assert b"line 1 answers no request" in done.stderr
    write(asked, [{"prompt": "Who then?"}])
    batch(asked, out, n=3, check=2)
    out.write_text('{"some": "thing"}\n')
    assert b"line 1 is no answer" in batch(asked, out, check=2).stderr
    out.write_bytes(kept)
    write(asked, [{"prompt": "Before?"}, {"prompt": "Who?"}, {"prompt": "Who?"}])
    batch(asked, out, n=3)  # requests were added, and one is asked twice
    assert len(read(out)) == 3 and out.read_bytes().startswith(kept)


def test_answers_made_otherwise_are_not_mixed_in(tmp_path, copy):
    """The content of a schema, the model and the profile in effect, whatever they are called."""
    asked, out, schema = write(tmp_path / "asked", [{"prompt": "Who?"}]), tmp_path / "out", tmp_path / "s"
    schema.write_text('{"enum": ["left"]}')
    held = ("--json-schema", schema, "--numeric", "f32")
    batch(asked, out, *held, model=copy)
    made = read(out)[0]["made_by"]
    write(asked, [{"prompt": "Who?"}, {"prompt": "And who?"}])
    kept = out.read_bytes()

    def refused(*args, model=copy):
        done = batch(asked, out, *args, model=model, check=2)
        assert out.read_bytes() == kept
        return done.stderr.decode()

    schema.write_text('{"enum": ["right"]}')
    said = refused(*held)
    assert "another --grammar or --json-schema" in said and said.count(": s:") + said.count("is s:") == 2
    schema.write_text('{"enum": ["left"]}')
    assert made["grammar"] in refused("--numeric", "f32") and "is none" in refused("--numeric", "f32")
    assert "another --numeric: f32, now it is i8" in refused("--json-schema", schema, "--numeric", "i8")
    assert made["model"] in refused(*held, model="demo")
    out.write_bytes(kept.replace(b'"numeric":"f32"', b'"numeric":"i8"'))
    kept = out.read_bytes()
    assert "another --numeric: i8, now it is f32" in refused(*held)
    out.write_bytes(kept.replace(b'"numeric":"i8"', b'"numeric":"none"'))
    kept = out.read_bytes()
    assert "another --numeric: none, now it is" in refused(*held[:2])  # the one that was chosen for this CPU
    out.write_bytes(kept.replace(b'"numeric":"none"', b'"numeric":"f32"'))
    batch(asked, out, *held, model=copy)
    assert len(read(out)) == 2
    copy.manifest["config"]["tied"] = 1
    copy.write_manifest()
    kept = out.read_bytes()
    assert made["model"] in refused(*held)


def test_a_file_of_somebody_else_is_not_cut(tmp_path):
    asked, out = write(tmp_path / "asked", [{"prompt": "Who?"}]), tmp_path / "out"
    for text in ("a note without an end", '{"some": "thing"}', "{'", '{"lines": 1}'):
        out.write_text(text)
        assert b"it is not cut" in batch(asked, out, check=2).stderr
        assert out.read_text() == text
    for torn in ("{", '{"line":1,"id'):
        out.write_text(torn)
        batch(asked, out, n=2)
        assert len(read(out)) == 1


def test_the_file_of_answers(tmp_path):
    asked = write(tmp_path / "asked", [{"prompt": "Who?"}])
    assert b"the requests are in it" in batch(asked, asked, check=2).stderr
    assert b"not a file" in batch(asked, "/dev/null", check=1).stderr
    batch(asked, tmp_path / "no" / "where", check=1)
    batch(tmp_path / "nothing", tmp_path / "out", check=1)
    for args in (["--ids", "1"], ["--bos"], ["--markup"], ["--profile"]):
        assert args[0].encode() in batch(asked, tmp_path / "out", *args, check=2).stderr
    assert not (tmp_path / "out").exists()
    with open(tmp_path / "busy", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        assert b"another run" in batch(asked, tmp_path / "busy", check=5).stderr


def test_a_system_prompt_for_all(tmp_path):
    asked = write(tmp_path / "asked", [
        {"prompt": "Who?"}, {"messages": [{"role": "user", "content": "Who?"}]},
        {"messages": [{"role": "system", "content": "Own."}, {"role": "user", "content": "Who?"}]}])
    out = tmp_path / "out"
    batch(asked, out, "--system", "Be brief.")
    a, b, c = read(out)
    assert a["text"] == b["text"] == run_lines("demo", "Who?", "--system", "Be brief.", "-n",
                                               20)[1]["text"]
    assert c["text"] == run_lines("demo", "Who?", "--system", "Own.", "-n", 20)[1]["text"]


def test_a_file_without_requests_is_said_to_be_one(tmp_path):
    asked, out = write(tmp_path / "asked", []), tmp_path / "out"
    assert batch(asked, out).stderr.decode() == f"{out}: 0 requests\n"
    assert batch(asked, out, "-q").stderr == b"" and out.read_bytes() == b""
