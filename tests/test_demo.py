"""The model in share/demo.waste: small, whole, and really trained."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = ROOT / "share" / "demo.waste"
HELD_OUT = ROOT / "tests" / "golden" / "heldout.txt"
BINARY = os.environ.get("WASTE_BIN", "waste")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("WASTE_")}


def waste(*args):
    return subprocess.run([BINARY, *map(str, args)], check=True, capture_output=True, env=ENV,
                          text=True).stdout


def test_it_is_small_and_undamaged():
    assert sum(f.stat().st_size for f in MODEL.iterdir()) <= 12 << 20
    report = json.loads(waste("verify", MODEL, "--json"))
    assert report["bad"] == 0 and report["records"] >= 200


def test_it_is_found_by_its_name_and_writes_words():
    text = waste("run", "demo", "She looked out of the window and", "-n", 40, "-q")
    words = [w.strip(".,;:!?\"'-") for w in text.lower().split()]
    common = "the of and to a in was her it that had she he i not be with for as his".split()
    assert len(words) > 20
    assert sum(w in common for w in words) > len(words) / 5


def test_it_predicts_text_it_has_not_seen():
    """The beginning of a chapter of Emma that training left out. Bits per byte, measured: see
    docs/DEMO_MODEL.md; noise would cost more than 3."""
    cost = json.loads(waste("eval", "demo", "--perplexity", HELD_OUT, "--json", "-q"))
    assert cost["bytes"] > 5000
    assert cost["bits_per_byte"] <= 1.70


def test_numeric_profiles_cost_next_to_nothing():
    cost = {p: json.loads(waste("eval", "demo", "--perplexity", HELD_OUT, "--json", "-q",
                                "--numeric", p))["bits_per_byte"]
            for p in ("f32", "direct", "i16", "i8")}
    assert all(abs(c - cost["f32"]) < 0.01 * cost["f32"] for c in cost.values()), cost
