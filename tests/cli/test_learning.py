"""The hotlist: what a run notes, and the next one reads early."""

import os
import re
import shutil
import stat
import struct
import tempfile
from pathlib import Path

import pytest

from conftest import FOREVER, run, run_lines, waste, waste_json


def learn(model, *args, **kw):
    done = waste("run", model, "Hello", "-n", 8, *FOREVER, "--learn", *args, check=0, **kw)
    return done.stdout, done.stderr.decode()


def entries(path):
    data = Path(path).read_bytes()
    assert data[:8] == b"WUSG\1\0\0\0" and len(data) % 16 == 0
    return [struct.unpack_from("<HHII", data, at) for at in range(16, len(data), 16)]


def test_a_run_that_learns_is_noted_and_the_next_one_reads_early(copy):
    text, err = learn(copy)
    assert "learned" in err and f"{copy}/usage.waste" in err and "hotlist" not in err
    first = entries(copy.path / "usage.waste")
    assert first == sorted(first, key=lambda e: (-e[2], e[0], e[1]))
    again, err = learn(copy)
    assert again == text
    assert "hotlist  usage.waste: the" in err
    assert entries(copy.path / "usage.waste")[0][2] == first[0][2] + first[0][2] // 2
    plain = run(copy, "Hello", "-n", 8, *FOREVER, check=0)
    assert plain.stdout == text and b"learned" not in plain.stderr
    _, summary = run_lines(copy, "Hello", "-n", 8, *FOREVER)
    assert 0 <= summary["hits_preload"] <= summary["hits_prefetch"]
    assert summary["hits_preload"] <= summary["preloaded"]
    # What is read before the first pass, a busy machine may not have begun to read.
    assert any(b"experts preloaded" in run(copy, "Hello", "-n", 8, *FOREVER, check=0).stderr
               for _ in range(20))


def test_the_hotlist_is_where_the_flag_or_the_variable_says(copy, tmp_path):
    flag, variable = tmp_path / "flag", tmp_path / "variable"
    env = {"WASTE_USAGE": str(variable)}
    _, err = learn(copy, env=env)
    assert str(variable) in err and entries(variable)
    learn(copy, "--usage", flag, env=env)
    assert entries(flag) == entries(variable) != []
    assert not (copy.path / "usage.waste").exists()
    _, err = learn(copy, "--usage", flag)
    assert f"hotlist  {flag}: the" in err


def test_scoring_learns_too(copy, tmp_path):
    text = tmp_path / "text"
    text.write_text("Hello, hello, hello.")
    for args in (["Hello"], ["--perplexity", text]):
        done = waste("eval", copy, *args, "--learn", check=0)
        assert b"learned" in done.stderr
        assert entries(copy.path / "usage.waste")
        (copy.path / "usage.waste").unlink()


@pytest.mark.parametrize("junk", [b"", b"WUSG", b"WUSG\2\0\0\0" + bytes(24),
                                  b"WUSG\1\0\0\0" + bytes(8) + b"\xff" * 1000, bytes(4096)])
def test_a_bad_hotlist_is_not_worth_a_word(copy, junk):
    sound = run(copy, "Hello", "-n", 8, *FOREVER, check=0)
    (copy.path / "usage.waste").write_bytes(junk)
    done = run(copy, "Hello", "-n", 8, *FOREVER, check=0)
    assert done.stdout == sound.stdout and b"hotlist" not in done.stderr


def test_a_hotlist_that_cannot_be_written_costs_a_note(copy, tmp_path):
    text, err = learn(copy, "--usage", tmp_path / "none" / "u")
    assert text and "nothing learned" in err and "none/" in err and "--usage" in err


def test_what_is_no_hotlist_is_not_replaced_by_one(copy, tmp_path):
    thesis, link, fifo = tmp_path / "thesis.txt", tmp_path / "link", tmp_path / "fifo"
    thesis.write_text("years of work")
    link.symlink_to(thesis)
    os.mkfifo(fifo)
    for path in (thesis, link, fifo, tmp_path, copy.path / "trunk.bin"):
        text, err = learn(copy, "--usage", path)
        assert text and "nothing learned" in err, path
    assert thesis.read_text() == "years of work" and link.is_symlink()
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert waste_json("verify", copy)["bad"] == 0
    _, err = learn(copy, "--usage", thesis)
    assert "is none" in err and "is there and no hotlist" in err
    empty = tmp_path / "empty"
    empty.touch()
    learn(copy, "--usage", empty)
    assert entries(empty)


def test_below_a_container_that_is_read_only_the_hotlist_is_in_the_cache(copy):
    who = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as room:
        os.chmod(room, 0o777)
        model = Path(room) / "a.waste"
        shutil.copytree(copy.path, model)
        model.chmod(0o555)
        env = {"XDG_CACHE_HOME": room + "/cache"}
        try:
            waste("version", check=0, **who)
        except PermissionError:
            pytest.skip("the program is where another user cannot run it")
        _, err = learn(model, env=env, cwd=room, **who)
        name, = os.listdir(room + "/cache/waste")
        assert re.fullmatch("a-[0-9a-f]{8}.usage", name) and not (model / "usage.waste").exists()
        assert f"learned  the experts used, into {room}/cache/waste/{name}" in err
        first = entries(f"{room}/cache/waste/{name}")
        _, err = learn(model, env=env, cwd=room, **who)
        assert f"hotlist  {room}/cache/waste/{name}" in err
        assert entries(f"{room}/cache/waste/{name}")[0][2] == first[0][2] * 3 // 2
        _, err = learn(model, env={"XDG_CACHE_HOME": "relative", "HOME": room}, cwd=room, **who)
        assert f"{room}/.cache/waste/{name}" in err
        # another directory of that name is another model
        other = Path(room) / "b" / "a.waste"
        shutil.copytree(copy.path, other)
        other.chmod(0o555)
        other.parent.chmod(0o755)
        _, err = learn(other, env=env, cwd=room, **who)
        assert "hotlist" not in err and len(os.listdir(room + "/cache/waste")) == 2
        # and a name that leaves no room for more
        long = other.rename(Path(room) / ("x" * 250))
        _, err = learn(long, env=env, cwd=room, **who)
        assert "learned  the experts used" in err and len(os.listdir(room + "/cache/waste")) == 3
        long.chmod(0o755)
        model.chmod(0o755)
