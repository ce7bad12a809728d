"""`waste tokenize` and `detokenize`."""


import pytest

from conftest import EOS, waste, waste_error, waste_json


def test_bytes_survive_the_way_there_and_back(kimi):
    text = bytes(range(256)) + "🎉 Grüße".encode() + b"\xff"
    value = waste_json("tokenize", kimi, "--content", stdin=text)
    assert list(value) == ["n", "ids"] and value["n"] == len(value["ids"])
    ids = " ".join(map(str, value["ids"]))
    assert waste("tokenize", kimi, "--content", stdin=text, check=0).stdout.decode() == ids + "\n"
    for args, stdin in [([ids], b""), (ids.split(), b""), ([], ids.encode()),
                        (["-"], ids.replace(" ", ",\n").encode())]:
        assert waste("detokenize", kimi, *args, stdin=stdin, check=0).stdout == text + b"\n"
    replaced = waste_json("detokenize", kimi, ids)
    assert list(replaced) == ["text"] and "\ufffd" in replaced["text"] and "🎉" in replaced["text"]


def test_tokenize_reads_markup_unless_it_is_called_content(kimi):
    assert waste_json("tokenize", kimi, "<|im_end|>")["ids"] == [EOS]
    assert EOS not in waste_json("tokenize", kimi, "<|im_end|>", "--content")["ids"]
    assert waste_json("tokenize", kimi, "x", "--bos")["n"] == 2
    assert waste_json("tokenize", kimi, "")["ids"] == []


def test_tokenizing_needs_no_weights(copy):
    for path in copy.path.iterdir():
        if path.suffix == ".bin":
            path.unlink()
    assert waste_json("tokenize", copy, "<|im_end|>")["ids"] == [EOS]
    assert waste_json("detokenize", copy, EOS)["text"] == "<|im_end|>"


@pytest.mark.parametrize("ids", ["x", "1.5", "-1", "99999999999"])
def test_what_is_no_id_is_misuse(kimi, ids):
    waste("detokenize", kimi, "--", ids, check=2)


def test_an_id_that_stands_for_nothing_is_misuse_and_is_named(kimi):
    for bad in [1000000, 2147483647]:
        detail = waste_error("detokenize", kimi, f"1 {bad} 2", check=2)["detail"]
        assert str(bad) in detail
