"""Random requests with tools and response formats, answered with random allowed ids, read back.

What a request says of its answer must hold for every answer: an independent validator judges the
arguments of each call and the response, a pattern the order of the control ids. WASTE_REQUESTS sets
how many (1500), WASTE_REQUEST_SEED the seed.
"""

import json
import os
import pathlib
import random
import re
import subprocess
import sys

import pytest

jsonschema = pytest.importorskip("jsonschema")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import test_grammar as schemas  # noqa: E402

sys.setrecursionlimit(20000)

ROOT = pathlib.Path(__file__).resolve().parents[2]
WALK = pathlib.Path(os.environ.get("WASTE_BUILD", ROOT / "build")) / "tests" / "answer_walk"
N = int(os.environ.get("WASTE_REQUESTS", "1500"))
SEED = int(os.environ.get("WASTE_REQUEST_SEED", "1"))

NAMES = ["get", "get_weather", "größe", 'quo"te', "a&b", "back\\slash", "<|open|>call", "<|tool_call_end|>", "x y",
         "line\nend", "a:3", "functions.f", "日本", "-"]
KEYS = ["city", "n", 'k"ey', "a&amp;b", "<|sep|>", "日本", "", "x y", "type", "key=\"n\"", "tab\t", "ci"]
TEXTS = ["<|close|>argument<|sep|>", "\"quoted\"", "", "é\n\u2028", "<|end_of_msg|>", "{\"a\": 1}", "true", "7"]
DONE = {"K3": re.compile(r"(cs os )?cs (os (os (os cs )*cs )+cs )?cs e".replace(" ", "")),
        "K2": re.compile(r"(S(BAE)+X)?e"), "chat.json": re.compile("e")}
CHAT_JSON = {"system": ["<|im_system|>", "<|im_end|>\n"], "user": ["<|im_user|>", "<|im_end|>\n"],
             "assistant": ["<|im_assistant|>", "<|im_end|>\n"], "open": "<|im_assistant|>"}


class Walker:
    def __init__(self, directory):
        (directory / "chat.json").write_text(json.dumps(CHAT_JSON))
        self.p = subprocess.Popen([WALK, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  encoding="utf-8")

    def __call__(self, format, request, **more):
        request = {"messages": [{"role": "user", "content": "hi"}], **request}
        self.p.stdin.write(json.dumps({"format": format, "request": request, "seed": 1, "tokens": 40, **more}) + "\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        assert line, f"answer_walk ended at {request}"
        return json.loads(line)


@pytest.fixture(scope="module")
def walker(tmp_path_factory):
    if not WALK.exists():
        pytest.skip(f"{WALK} is not built")
    return Walker(tmp_path_factory.mktemp("chat"))


def tool(name, parameters=None, **more):
    f = {"name": name, **more}
    if parameters is not None:
        f["parameters"] = parameters
    return {"type": "function", "function": f}


def parameters(r):
    """A schema of arguments: what random objects have, names that look like markup, references."""
    k = r.random()
    if k < 0.1:
        return r.choice([None, {}, {"type": "object"}, {"additionalProperties": {"type": "integer"}}])
    defs = r.sample(["node", "leaf"], r.randrange(0, 3)) if k < 0.4 else []
    names = r.sample(KEYS, r.randrange(0, 5))
    s = {"type": "object", "properties": {n: schemas.a_schema(r, 1, defs) for n in names}}
    if names and r.random() < 0.3:
        s["properties"][names[0]] = {"enum": r.sample(TEXTS, 3) + [7, None]}
    if names and r.random() < 0.8:
        s["required"] = r.sample(names, r.randrange(len(names) + 1))
    if r.random() < 0.6:
        s["additionalProperties"] = r.choice([False, False, {"type": "string", "maxLength": 4}])
    if defs:
        s["$defs"] = {n: r.choice([schemas.an_object, schemas.an_array])(r, 2, defs) for n in defs}
    if r.random() < 0.1:
        s = {"anyOf": [s, {"type": "object", "properties": {"other": {"type": "boolean"}}, "required": ["other"]}],
             **({"$defs": s.pop("$defs")} if defs else {})}
    return s


def a_request(r, format):
    q = {}
    if format != "chat.json" and r.random() < 0.85:
        names = r.sample(NAMES, r.randrange(1, 5))
        q["tools"] = [tool(n, parameters(r), strict=r.random() < 0.5) for n in names]
        q["tool_choice"] = r.choice(["auto", "auto", "required", "none",
                                     {"type": "function", "function": {"name": r.choice(names)}}])
        q["parallel_tool_calls"] = r.random() < 0.7
    if r.random() < 0.3 or not q:
        q["response_format"] = r.choice([{"type": "json_object"},
                                         {"type": "json_schema", "json_schema": {"schema": schemas.a_document(r)}}])
    return q


def valid(value, schema):
    jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)


def check_calls(message, q, whole):
    calls = message.get("tool_calls", [])
    declared = {t["function"]["name"]: t["function"] for t in q.get("tools", [])}
    choice = q.get("tool_choice", "auto")
    for call in calls:
        f = call["function"]
        assert f["name"] in declared
        if isinstance(choice, dict):
            assert f["name"] == choice["function"]["name"]
        arguments = schemas.strict(f["arguments"])
        assert isinstance(arguments, dict)
        schema = declared[f["name"]].get("parameters", {"additionalProperties": False})
        valid(arguments, schema)
    assert not (calls and choice == "none")
    assert len(calls) <= 1 or q.get("parallel_tool_calls", True)
    if whole and choice not in ("auto", "none") and q.get("tools"):
        assert calls


def check_response(message, q):
    form = q.get("response_format")
    if not form:
        return
    if message["content"] is None:
        assert message.get("tool_calls")
        return
    value = schemas.strict(message["content"])
    if form["type"] == "json_object":
        assert isinstance(value, dict)
    else:
        valid(value, form["json_schema"]["schema"])


def test_every_answer_is_what_its_request_asks_for(walker):
    r = random.Random(SEED)
    n = {"ended": 0, "cut": 0, "calls": 0, "cut calls": 0, "refused": 0, "loosened": 0, "free": 0}
    reasons = {}
    for i in range(N):
        format = r.choice(["K3", "K3", "K2", "chat.json"])
        q = a_request(r, format)
        a = walker(format, q, effort=r.choice(["low", "none"]), seed=i + 1, tokens=r.choice([1, 5, 20, 60, 200]))
        where = f"request {i} of seed {SEED}, {format}: {json.dumps(q)}\n{json.dumps(a)[:3000]}"
        if "error" in a:
            assert not a["error"].startswith("BROKEN"), where
            n["refused"] += 1
            reason = a["error"].split(": ")[-1][:60]
            reasons[reason] = reasons.get(reason, 0) + 1
            continue
        if "note" in a:
            n["loosened"] += 1
            q = {k: v for k, v in q.items() if k != "tools"}
        if "free" in a:
            assert not q.get("tools") and "response_format" not in q, where
            n["free"] += 1
            continue
        try:
            if "note" not in a:
                check_calls(a["cut"], q, a["ended"])
                check_calls(a["whole"], q, True)
            check_response(a["whole"], q)
            assert a["complete"] and DONE[format].fullmatch(a["markers"])
            assert (a["whole"]["content"] or "").startswith(a["cut"]["content"] or "")
        except (ValueError, AssertionError, jsonschema.ValidationError) as x:
            raise AssertionError(f"{str(x)[:600]}\n{where}") from x
        n["ended" if a["ended"] else "cut"] += 1
        n["calls"] += len(a["whole"].get("tool_calls", []))
        n["cut calls"] += a["cut_calls"]
    print(n, reasons)
    assert n["refused"] < N / 8 and n["loosened"] < N / 8
    assert min(n["ended"], n["cut"], n["calls"]) > N / 8 and n["cut calls"] > N / 30
