"""Random JSON schemas against an independent validator.

Answers of random allowed tokens over the demonstration model's vocabulary: each must be accepted by
python3-jsonschema, and each that was cut must have had an end. WASTE_SCHEMAS sets how many (10000),
WASTE_SCHEMA_SEED the seed of the generator.
"""

import json
import os
import pathlib
import random
import subprocess
import sys

import pytest

jsonschema = pytest.importorskip("jsonschema")
sys.setrecursionlimit(20000)  # the validator needs some ten frames for a level; answers nest up to 120

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "share" / "demo.waste"
WALK = pathlib.Path(os.environ.get("WASTE_BUILD", ROOT / "build")) / "tests" / "grammar_walk"
N = int(os.environ.get("WASTE_SCHEMAS", "10000"))
SEED = int(os.environ.get("WASTE_SCHEMA_SEED", "1"))

NAMES = ["id", "name", "value", "a", "b", "items", "größe", 'quo"te', "back\\slash", "x y", "", "日本",
         "new\nline", "na", "nam", "names", "\u007f", "kind"]
PATTERNS = ["^[a-z]{2,5}$", "^(foo|bar)+$", "[0-9]", "^\\d{3}-\\d{4}$", "^[^a-z]{1,4}$", "^.{0,3}é+", "^.{0,6}$",
            "^\\w+(\\s\\w+)?$", "^a|b$", "^\\\\.", "^[\\u4e00-\\u4e10\"]{1,3}$", "^\\D\\S$", "^x*?y$"]
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "duration"]


def a_string(r):
    s = {"type": "string"}
    k = r.randrange(8)
    if k < 3:
        lo, hi = r.randrange(6), r.randrange(4, 40)
        if r.random() < 0.6:
            s["minLength"] = lo
        if r.random() < 0.6:
            s["maxLength"] = hi
    elif k == 3:
        s["pattern"] = r.choice(PATTERNS)
        if r.random() < 0.3:
            s["maxLength"] = r.randrange(8, 30)
    elif k == 4:
        s["format"] = r.choice(FORMATS)
    return s


def a_number(r):
    s = {"type": r.choice(["integer", "number"])}
    whole = s["type"] == "integer" or r.random() < 0.5
    bound = (lambda: r.randrange(-300, 300)) if whole else (lambda: r.randrange(-3000, 3000) / r.choice([1, 8, 10, 100]))
    lo, hi = sorted([bound(), bound()])
    k = r.randrange(6)
    if k in (1, 3):
        s[r.choice(["minimum", "exclusiveMinimum"])] = lo
    if k in (2, 3):
        s[r.choice(["maximum", "exclusiveMaximum"])] = hi + 1
    if k == 4 and s["type"] == "integer":
        s["multipleOf"] = r.randrange(1, 30)
    return s


def a_value(r, depth=0):
    return r.choice([None, True, False, 0, -7, 12.5, 1e30, "", "text", "q\"\\\n\u00e9\u2028", [], [1, "x"],
                     {"a": None}, {"é": [True]}])


def an_array(r, depth, defs):
    s = {"type": "array"}
    k = r.random()
    if k < 0.75:
        s["items"] = a_schema(r, depth + 1, defs)
    if k > 0.6:
        s["prefixItems"] = [a_schema(r, depth + 1, defs) for _ in range(r.randrange(1, 4))]
    if r.random() < 0.4:
        s["minItems"] = r.randrange(4)
    if r.random() < 0.5:
        s["maxItems"] = r.randrange(s.get("minItems", 0), 7)
    return s


def an_object(r, depth, defs):
    names = r.sample(NAMES, r.randrange(0, 5))
    s = {"type": "object", "properties": {n: a_schema(r, depth + 1, defs) for n in names}}
    if names and r.random() < 0.8:
        s["required"] = r.sample(names, r.randrange(len(names) + 1))
    k = r.random()
    if k < 0.5:
        s["additionalProperties"] = False
    elif k < 0.7:
        s["additionalProperties"] = a_schema(r, depth + 1, defs)
    if r.random() < 0.05:
        s.setdefault("required", []).append("undeclared")
    return s


def a_schema(r, depth=0, defs=()):
    k = r.randrange(17 if depth < 3 else 9)
    if k < 3:
        s = a_string(r)
    elif k < 5:
        s = a_number(r)
    elif k == 5:
        s = {"type": r.choice(["boolean", "null", ["string", "null"], ["integer", "boolean"], ["number", "integer"]])}
    elif k == 6:
        s = {"enum": [a_value(r) for _ in range(r.randrange(1, 5))]}
    elif k == 7:
        s = {"const": a_value(r)}
    elif k == 8:
        s = {"$ref": "#/$defs/" + r.choice(defs)} if defs else r.choice([{}, True])
    elif k < 12:
        s = an_object(r, depth, defs)
    elif k < 14:
        s = an_array(r, depth, defs)
    elif k == 14:
        s = {"anyOf": [a_schema(r, depth + 1, defs) for _ in range(r.randrange(1, 4))]}
    elif k == 15:
        s = {"allOf": [an_object(r, depth, defs), an_object(r, depth, defs)]}
    else:
        s = {"oneOf": [{"type": "object", "properties": {"kind": {"const": n}, "v": a_schema(r, depth + 1, defs)},
                        "required": ["kind"], "additionalProperties": False} for n in ("x", "y", "z")]}
    if isinstance(s, dict) and r.random() < 0.05:
        s["description"] = "a note"
    return s


def a_document(r):
    defs = r.sample(["node", "leaf", "tree"], r.randrange(0, 3))
    s = a_schema(r, 0, defs)
    if defs and isinstance(s, dict):
        # references only below an object or array: validators never come back from others
        s["$defs"] = {n: r.choice([an_object, an_array])(r, 1, defs) for n in defs}
    return s if isinstance(s, dict) and (defs == [] or "$defs" in s) else {}


class Walker:
    def __init__(self):
        self.p = subprocess.Popen([WALK, DEMO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  encoding="utf-8")

    def __call__(self, **request):
        self.p.stdin.write(json.dumps(request) + "\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        assert line, f"grammar_walk ended at {request}"
        return json.loads(line)


def strict(text):
    def no_twins(pairs):
        keys = [k for k, _ in pairs]
        assert len(keys) == len(set(keys)), f"a key twice: {keys}"
        return dict(pairs)

    def no_constant(name):
        raise AssertionError(name)

    value = json.loads(text, object_pairs_hook=no_twins, parse_constant=no_constant)
    text.encode("utf-8")
    json.dumps(value, ensure_ascii=False).encode("utf-8")  # no lone surrogates
    return value


@pytest.fixture(scope="module")
def walker():
    if not WALK.exists():
        pytest.skip(f"{WALK} is not built")
    return Walker()


def test_answers_to_random_schemas_validate_and_cut_ones_have_an_end(walker):
    r = random.Random(SEED)
    complete = cut = refused = 0
    reasons = {}
    for i in range(N):
        schema = a_document(r)
        tokens = r.choice([1, 3, 8, 20, 60])
        a = walker(schema=schema, seed=i + 1, tokens=tokens)
        where = f"schema {i} of seed {SEED}: {json.dumps(schema)}"
        if "error" in a:
            assert not a["error"].startswith("BROKEN"), f"{a['error']}\n{where}"
            reason = a["error"].split(": ")[-1][:60]
            reasons[reason] = reasons.get(reason, 0) + 1
            refused += 1
            continue
        try:
            value = strict(a["text"])
            jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)
        except (ValueError, AssertionError, jsonschema.ValidationError) as x:
            raise AssertionError(f"{str(x)[:500]}\n{a['text'][:2000]}\n{where}") from x
        complete += a["complete"]
        cut += not a["complete"]
    print(f"{complete} ended by themselves, {cut} were cut and had an end, {refused} refused: {reasons}")
    assert complete > N / 3 and cut > N / 10
    assert refused < N / 10


BIN = os.environ.get("WASTE_BIN", "waste")
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 30},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                           "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 4}},
          "required": ["name", "age", "tags"], "additionalProperties": False}


def run(*args):
    p = subprocess.run([BIN, "run", DEMO, "Once upon a time", "-q", "--json", *map(str, args)], text=True,
                       capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL,
                       env={k: v for k, v in os.environ.items() if not k.startswith("WASTE_")})
    return p, json.loads(p.stdout.splitlines()[-1]) if p.stdout else None


@pytest.fixture
def schema(tmp_path):
    path = tmp_path / "person.json"
    path.write_text(json.dumps(PERSON))
    return path


def test_a_model_that_is_told_a_schema_keeps_to_it_at_any_temperature(schema):
    for seed, temp in enumerate([0, 0.7, 1, 3]):
        p, last = run("--json-schema", schema, "-n", 400, "--temp", temp, "--seed", seed)
        assert p.returncode == 0, p.stderr
        assert last["complete"] and last["stop"] == "stop_id"
        jsonschema.validate(strict(last["text"]), PERSON)


def test_an_answer_that_the_length_cuts_says_so_and_is_the_beginning_of_a_longer_one(schema):
    _, whole = run("--json-schema", schema, "-n", 400, "--temp", 1, "--seed", 5)
    _, cut = run("--json-schema", schema, "-n", 6, "--temp", 1, "--seed", 5)
    assert cut["stop"] == "length" and not cut["complete"]
    assert whole["text"].startswith(cut["text"])


def test_a_grammar_of_control_tokens_frees_what_comes_before_its_marker(tmp_path):
    path = tmp_path / "g"
    path.write_text('root ::= "so " [a-z]{3,5} <|im_middle|> %json{"const": [1]}')
    p, last = run("--raw", "--grammar", path, "-n", 60)
    assert p.returncode == 0, p.stderr
    assert last["complete"] and last["text"].endswith("<|im_middle|>[1]")


def test_what_is_no_grammar_is_refused_before_a_token_is_chosen(tmp_path):
    path = tmp_path / "g"
    for option, text, says in [("--json-schema", '{"not": {}}', "$.not"), ("--grammar", "root ::= x", "no rule called x"),
                               ("--json-schema", "{", "JSON")]:
        path.write_text(text)
        p, last = run(option, path)
        assert p.returncode != 0 and says in p.stderr, p.stderr
        assert last is None
