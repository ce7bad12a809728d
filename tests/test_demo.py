"""The model in share/demo.waste: small, whole, and really trained."""

import json
import os
import pathlib
import subprocess
import sys

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
    text = waste("run", "demo", "--raw", "She looked out of the window and", "-n", 40, "-q")
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


MARKERS = {"[BOS]": 4096, "[EOS]": 4097, "<|im_end|>": 4098, "<|im_user|>": 4099,
           "<|im_assistant|>": 4100, "<|im_system|>": 4106, "<|im_middle|>": 4113}


def test_it_has_the_familys_control_tokens_and_chat_format():
    specials = {s["text"]: s["id"] for s in json.loads((MODEL / "specials.json").read_text())}
    assert MARKERS.items() <= specials.items()
    chat = json.loads((MODEL / "chat.json").read_text())
    assert set(chat) == {"system", "user", "assistant", "open"}
    turn = json.loads(waste("tokenize", "demo", chat["open"], "--json"))["ids"]
    assert turn[0] == MARKERS["<|im_assistant|>"] and turn[-1] == MARKERS["<|im_middle|>"]
    manifest = json.loads((MODEL / "manifest.json").read_text())
    assert manifest["config"]["eos_token_id"] == MARKERS["<|im_end|>"]


def test_it_ends_its_turn():
    """In a conversation it writes a paragraph and the marker that ends a turn, most of the time."""
    chat = json.loads((MODEL / "chat.json").read_text())
    asked = "Emma was not sorry to be obliged to wait."
    prompt = chat["user"][0] + asked + chat["user"][1] + chat["open"]
    ended = 0
    for seed in range(6):
        lines = waste("run", "demo", prompt, "--markup", "-n", 400, "--temp", 0.8, "--seed", seed,
                      "-q", "--json").splitlines()
        done = json.loads(lines[-1])
        assert "<|im_" not in done["text"]
        ended += done["stop"] == "stop_id"
    assert ended >= 4


def test_conversations_are_made_of_all_paragraphs_in_order():
    sys.path.insert(0, str(ROOT / "scripts"))
    import demo_chat
    marker = demo_chat.markers(1000)
    text = "CHAPTER I\n\n" + "\n\n".join(f"p{i}" for i in range(21)) + "\n"
    words = []

    def encode(t):
        words.append(t)
        return [len(words) - 1]

    ids = demo_chat.conversations(text, encode, marker, 5)
    roles = [words[ids[at + 1]] for at, i in enumerate(ids)
             if i in (marker["<|im_user|>"], marker["<|im_assistant|>"], marker["<|im_system|>"])]
    assert [r for r in roles if r != "system"] == ["user", "assistant"] * 10
    assert [w for w in words if w.startswith("p") and w[1:].isdigit()] == [f"p{i}" for i in range(20)]
    assert ids.count(marker["<|im_end|>"]) == ids.count(marker["<|im_middle|>"]) == len(roles)
