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

import pytest

jsonschema = pytest.importorskip("jsonschema")

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
        s["$defs"] = {n: a_schema(r, 1, defs) for n in defs}
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
