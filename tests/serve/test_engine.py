"""The mirror of waste.h: as large as the library's structures, and refused where it is not; keys."""

import ctypes
import re
import subprocess
import sys

import pytest

from serving import DEMO, ROOT, clean_env
from serve import engine, keys


def test_every_structure_is_mirrored():
    """Kinds are numbered in the order of the header's enum, which may only grow."""
    header = (ROOT / "include" / "waste.h").read_text()
    names = re.findall(r"^\s+WASTE_ABI_(\w+)", header, re.M)
    assert [m.__name__.lower().replace("engineinfo", "engine") for m in engine.MIRRORS] == \
        [n.lower().replace("_", "") for n in names]
    assert engine.lib.waste_abi(len(names)) == 0


def test_every_prototype_is_in_the_header():
    header = (ROOT / "include" / "waste.h").read_text()
    declared = set(re.findall(r"WASTE_API[^;(]*?\b(waste_\w+)\(", header))
    assert set(engine._PROTOTYPES) <= declared


LONGER = """class Longer(Item):
    _fields_ = [("more", c_uint64)]
MIRRORS = tuple(Longer if m is Item else m for m in MIRRORS)"""


@pytest.mark.parametrize("spoil, words", [
    (LONGER, "bytes there"),
    ("_PROTOTYPES['waste_nothing'] = (None, [])", "no function waste_nothing")])
def test_r1_another_version_of_the_library_is_refused_at_import(tmp_path, spoil, words):
    """Symptom without it: fields read at the wrong offsets, and answers made of them."""
    source = (ROOT / "serve" / "engine.py").read_text()
    head, tail = source.split("\nlib = _load()\n")
    (tmp_path / "spoiled.py").write_text(head + "\n" + spoil + "\nlib = _load()\n" + tail)
    done = subprocess.run([sys.executable, "-c", "import spoiled"], cwd=tmp_path,
                          capture_output=True, text=True, env=clean_env())
    assert done.returncode and words in done.stderr and "another version" in done.stderr


def test_a_library_that_is_not_there_is_said():
    done = subprocess.run([sys.executable, "-c", "import serve.engine"], capture_output=True,
                          text=True, env=clean_env(WASTE_LIB="/nowhere/libwaste.so"))
    assert "/nowhere/libwaste.so" in done.stderr and "WASTE_LIB" in done.stderr


@pytest.mark.parametrize("env, words", [
    ({"WASTE_LIB": "/nowhere/libwaste.so"}, "/nowhere/libwaste.so"),
    ({"PYTHONPATH": "."}, "python3-aiohttp")])
def test_what_the_server_lacks_is_said_in_a_line(tmp_path, env, words):
    (tmp_path / "serve").symlink_to(ROOT / "serve")
    (tmp_path / "aiohttp.py").write_text("raise ModuleNotFoundError('No module named aiohttp')")
    done = subprocess.run([sys.executable, "-m", "serve", str(DEMO)], cwd=tmp_path,
                          capture_output=True, text=True, env=clean_env(PYTHONSAFEPATH="1", **env))
    assert done.returncode == 1 and words in done.stderr and done.stderr.count("\n") == 1


def test_failures_have_the_librarys_sentence(tmp_path):
    with pytest.raises(engine.Failure) as e:
        engine.Tokenizer(tmp_path)
    assert e.value.status == engine.E_UNSUPPORTED and "tokenizer.model" in str(e.value)


def test_text_survives_the_way_there_and_back():
    t = engine.Tokenizer(DEMO)
    for text in ("", "plain", "a\0b", "日本 🎉", "<|im_end|>"):
        assert t.decode(t.encode(text)).decode() == text
    assert t.token_bytes(-1) == b"" and t.token_bytes(10**6) == b""
    assert t.is_control(4098) and not t.is_control(70)


def test_a_prompt_gives_its_ids_ends_and_grammar():
    t = engine.Tokenizer(DEMO)
    chat = engine.Chat(t, DEMO)
    prompt = chat.render(b'{"messages": [{"role": "system", "content": "S"}, '
                         b'{"role": "user", "content": "U"}]}')
    assert isinstance(prompt.ids, ctypes.Array) and len(prompt.ids) == prompt.info.n_ids
    assert [m for _, m in prompt.ends] == [0, 1] and prompt.ends[1][0] <= len(prompt.ids)
    assert prompt.places == [] and prompt.grammar() is None
    assert b"root" in prompt.grammar(b"root ::= [a-z]")


# ---- keys ----


def test_keys_are_found_whichever_way_they_come():
    k = keys.Keys(["one", "two", "one"])
    assert len(k.digests) == 2
    for headers, number in (({"Authorization": "Bearer two"}, 1), ({"x-api-key": "one"}, 0),
                            ({"Authorization": "BEARER   one "}, 0), ({}, None),
                            ({"Authorization": "Basic one"}, None),
                            ({"Authorization": "Bearer "}, None), ({"x-api-key": "on"}, None),
                            ({"Authorization": "Bearer o\udcffne"}, None)):
        assert k.find(headers) == number, headers
    assert len(k.tag(0)) == 32 and k.tag(0) != k.tag(1) and b"one" not in k.tag(0)
    assert not keys.Keys([])


def test_a_key_file_has_comments_and_blanks(tmp_path):
    (tmp_path / "keys").write_text("# mine\n\n  spaced \nlast")
    assert keys.read(tmp_path / "keys") == ["spaced", "last"]
    with pytest.raises(OSError):
        keys.read(tmp_path / "none")


def test_a_key_is_bytes_whatever_they_are(tmp_path):
    (tmp_path / "keys").write_bytes(b"caf\xe9\n")
    k = keys.Keys(keys.read(tmp_path / "keys"))
    assert k.find({"x-api-key": "caf\udce9"}) == 0 and k.find({"x-api-key": "caf\xe9"}) is None


def test_what_is_known_of_a_model_outlives_it():
    """Symptom: /live, asked while the server closed, read texts of a context that was gone."""
    cfg, opts = engine.defaults()
    ctx = engine.Context(str(DEMO), cfg, opts)
    told = repr(ctx.model), repr(ctx.engine)
    ctx.close()
    assert (repr(ctx.model), repr(ctx.engine)) == told
    for known in (ctx.model, ctx.engine):
        assert not any(isinstance(value, ctypes._SimpleCData) for value in vars(known).values())
    assert isinstance(ctx.engine.io_engine, bytes) and isinstance(ctx.model.arch, bytes)
