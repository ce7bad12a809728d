"""`waste eval`: logits and perplexity."""

import math
import re
import struct
import subprocess
import time

import pytest

from conftest import BUDGET, FAMILIES, GOLDEN, interrupt, waste, waste_error, waste_json


def golden_logits(name):
    data = (GOLDEN / f"{name}.gold").read_bytes()
    assert data[:8] == b"WGOLD1\0\0"
    n, layers, hidden, vocab = struct.unpack_from("<4I", data, 8)
    ids = struct.unpack_from(f"<{n}i", data, 24)
    at = 24 + 4 * n + 4 * n * hidden * (layers + 1) + 4 * (n - 1) * vocab
    return ids, struct.unpack_from(f"<{vocab}f", data, at)


@pytest.mark.parametrize("name", FAMILIES)
def test_eval_gives_the_oracles_logits(name):
    ids, want = golden_logits(name)
    value = waste_json("eval", GOLDEN / f"{name}.waste", "--ids", " ".join(map(str, ids)),
                       "--logits", "--top-k", 7, "--budget", BUDGET,
                       env={"WASTE_NUMERIC": "f32"})
    assert list(value) == ["prompt_tokens", "vocab", "top", "logits"]
    got = value["logits"]
    assert value["prompt_tokens"] == len(ids) and value["vocab"] == len(want) == len(got)
    assert max(abs(a - b) for a, b in zip(got, want)) < 1e-3
    total = sum(math.exp(x) for x in got)
    order = sorted(range(len(got)), key=lambda i: (-got[i], i))[:7]
    assert [row["id"] for row in value["top"]] == order
    for row in value["top"]:
        assert list(row) == ["id", "logit", "prob", "text"]
        assert row["logit"] == got[row["id"]]
        assert math.isclose(row["prob"], math.exp(row["logit"]) / total, rel_tol=1e-6)


def test_logits_survive_printing_to_the_bit(kimi):
    value = waste_json("eval", kimi, "Hello", "--logits", "--budget", BUDGET)
    rows = waste("eval", kimi, "Hello", "--logits", "--top-k", 1, "--budget", BUDGET, "-q",
                 check=0).stdout.decode().splitlines()[2:]
    assert len(rows) == value["vocab"]
    for i, row in enumerate(rows):
        index, logit = row.split()
        assert int(index) == i
        assert struct.pack("<f", float(logit)) == struct.pack("<f", value["logits"][i])


def test_eval_prints_ten_rows_and_never_more_than_there_are_tokens(kimi):
    out = waste("eval", kimi, "Hello", "--budget", BUDGET, check=0).stdout.decode()
    assert len(out.splitlines()) == 11
    vocab = waste_json("eval", kimi, "Hello", "--budget", BUDGET)["vocab"]
    top = waste_json("eval", kimi, "Hello", "--budget", BUDGET, "--top-k", 10 * vocab)["top"]
    assert len(top) == vocab and math.isclose(sum(r["prob"] for r in top), 1, rel_tol=1e-6)
    assert waste_json("eval", kimi, "Hello", "--budget", BUDGET, "--top-k", 0)["top"] == top


def perplexity(model, text, *args, **kw):
    return waste_json("eval", model, "--perplexity", text, "--budget", BUDGET, *args, **kw)


@pytest.fixture
def emma():
    return GOLDEN / "heldout.txt"


def test_perplexity_is_what_the_logits_say_of_every_next_token(kimi, tmp_path):
    """Stretches of five positions; one `eval` for each prefix."""
    text = tmp_path / "text"
    text.write_text("Emma is.\n\n")
    ids = waste_json("tokenize", kimi, "--content", stdin=b"Emma is.")["ids"]
    nats = 0
    for i in range(1, len(ids)):
        prefix = ids[(i - 1) // 5 * 5:i]
        logits = waste_json("eval", kimi, "--ids", " ".join(map(str, prefix)), "--logits",
                            "--budget", BUDGET)["logits"]
        nats += math.log(sum(math.exp(x) for x in logits)) - logits[ids[i]]
    got = perplexity(kimi, text, "--ctx", 5)
    assert list(got) == ["tokens", "bytes", "context", "stretches", "nats", "perplexity",
                         "bits_per_token", "bits_per_byte", "seconds", "tokens_per_second"]
    n = len(ids) - 1
    assert got["tokens"] == n and got["context"] == 5 and got["stretches"] == (n + 4) // 5
    assert got["bytes"] == len("Emma is.") - len(
        waste("detokenize", kimi, ids[0], check=0).stdout) + 1
    assert math.isclose(got["nats"], nats, rel_tol=1e-5)
    assert math.isclose(got["perplexity"], math.exp(nats / n), rel_tol=1e-5)
    assert math.isclose(got["bits_per_token"], nats / n / math.log(2), rel_tol=1e-5)
    assert math.isclose(got["bits_per_byte"], nats / got["bytes"] / math.log(2), rel_tol=1e-5)
    assert got["seconds"] > 0 and got["tokens_per_second"] > 0


def test_perplexity_does_not_depend_on_how_it_is_computed(family, emma, tmp_path):
    text = tmp_path / "text"
    text.write_bytes(emma.read_bytes()[:700])

    def figures(*args, **kw):
        got = perplexity(family, *args, "--ctx", 250, **kw)
        return {k: v for k, v in got.items() if k not in ("seconds", "tokens_per_second")}

    want = figures(text, "--max-rows", 1, "--threads", 1)
    assert want["stretches"] > 1
    for args in [["--max-rows", 64], ["--max-rows", 17, "--threads", 3], ["--lookahead", 0]]:
        assert figures(text, *args) == want
    assert figures("-", stdin=text.read_bytes()) == want
    bos = figures(text, "--bos")
    assert bos["tokens"] == want["tokens"] + 1 and bos["bytes"] == 700


def test_perplexity_says_what_it_did(kimi, emma):
    done = waste("eval", kimi, "--perplexity", emma, "--ctx", 1000, "--budget", BUDGET, check=0)
    assert re.fullmatch(rb"\d+ tokens, \d+ bytes: perplexity \d+\.\d{3}, \d+\.\d{4} bits per token, "
                        rb"\d+\.\d{4} bits per byte\n", done.stdout)
    assert re.search(rb"\n\d stretches of at most 1000 positions; .* tokens per second\n$",
                     done.stderr)


def test_perplexity_refuses_what_it_cannot_score(kimi, copy, emma, tmp_path):
    short = tmp_path / "short"
    short.write_bytes(b"a\n\n\n")
    assert "two are the least" in perplexity_error(kimi, short, check=2)["detail"]
    assert "two are the least" in perplexity_error(kimi, "-", check=2)["detail"]
    assert "No such file" in perplexity_error(kimi, tmp_path / "none", check=1)["detail"]
    assert "directory" in perplexity_error(kimi, tmp_path, check=1)["detail"]
    for more in [["--file", emma], ["--ids", "1 2"], ["--logits"], ["text"]]:
        assert "goes without" in perplexity_error(kimi, emma, *more, check=2)["detail"]
    norm = next(t for t in copy.manifest["trunk"] if t["name"].endswith("model.norm.weight"))
    with open(copy.path / "trunk.bin", "r+b") as f:
        f.seek(norm["off"])
        f.write(struct.pack("<f", 3e38) * norm["shape"][0])  # finite, as it must be
    error = perplexity_error(copy, emma, check=4)
    assert re.search(r"position 1: logit \d+ is not finite", error["detail"])
    (copy.path / "tokenizer.model").unlink()
    assert "tokenizer.model" in perplexity_error(copy, emma, check=6)["detail"]


def perplexity_error(model, text, *args, check):
    return waste_error("eval", model, "--perplexity", text, "--budget", BUDGET, *args, check=check)


def test_an_interrupt_ends_scoring(kimi, tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b"all work and no play " * 19000)
    code, out, err = interrupt(["eval", kimi, "--perplexity", text, "--json", "--budget", BUDGET],
                               lambda child: time.sleep(1))
    assert code == 130 and out == b"" and err == b""
    code, out, _ = interrupt(["eval", kimi, "--perplexity", "-"], lambda child: time.sleep(0.3),
                             stdin=subprocess.PIPE)
    assert code == 130 and out == b""
