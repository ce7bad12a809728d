"""`waste convert --reclaim`: shards that go while they are converted. Whatever ends it, at any point of
it, no byte of the release is gone that the container does not have."""

import fcntl
import json
import os
import random
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from conftest import BINARY, clean_env, replay, waste, waste_error, waste_json
from conversions import (STATE, add_sparse, mount_namespace, och, preloaded, same_files, small,  # noqa: F401
                         source, two_layers, unfinished)


def test_a_shard_that_was_replaced_meanwhile_is_not_deleted(source, tmp_path):
    """Replaced while the process is stopped; what it has open is the old one."""
    args = [BINARY, "convert", "--src", source, "--out", tmp_path / "x", "--reclaim", "on", "--jobs",
            "1", "--quiet"]
    child = subprocess.Popen(args, env=clean_env(), stderr=subprocess.PIPE)
    while not (tmp_path / "x" / STATE).exists():
        assert child.poll() is None
    child.send_signal(signal.SIGSTOP)
    left = sorted(source.glob("*.safetensors"))
    assert left
    for path in left:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.rename(path.with_suffix(".old"))
        path.write_bytes(data)
    child.send_signal(signal.SIGCONT)
    _, said = child.communicate()
    assert child.returncode == 1 and b"has changed while it was converted" in said
    assert sorted(source.glob("*.safetensors")) == left


@pytest.mark.parametrize("name,what", [("experts-L1.bin", "experts-L1.bin"), ("trunk.bin", "trunk.bin"),
                                       ("codebooks-L1.bin", "experts-L1.bin")])
def test_damage_that_cannot_be_made_again_is_named(tmp_path, name, what):
    source, out = tmp_path / "src", tmp_path / "x"
    och.write_checkpoint("k3", source, n_shards=9)
    unfinished(source, out, "--reclaim", "on")
    left = sorted(p.name for p in source.glob("*.safetensors"))
    gone = (source / ".reclaimed").read_text().split()
    assert left and gone
    data = bytearray((out / name).read_bytes())
    data[len(data) // 2] ^= 1
    (out / name).write_bytes(data)
    detail = waste_error("convert", "--src", source, "--out", out, "--reclaim", "on",
                         check=4)["detail"]
    assert what in detail and "damaged" in detail and any(shard in detail for shard in gone)
    if name.startswith("experts"):  # and what reading it said
        assert re.search(r"Reading it: .*experts-L1\.bin.*expert \d", detail), detail
    assert sorted(p.name for p in source.glob("*.safetensors")) == left
    assert (out / name).exists()


def test_reclaim_dry_deletes_nothing(source, small, tmp_path):
    before = sorted(p.name for p in source.iterdir())
    done = waste_json("convert", "--src", source, "--out", tmp_path / "x", "--reclaim", "dry")
    assert sorted(p.name for p in source.iterdir()) == before
    assert done["shards_reclaimed"] == 3
    same_files(small / "k3.waste", tmp_path / "x")


def test_reclaim_deletes_what_is_converted_and_says_so_first(source, small, tmp_path):
    shards = {p.name for p in source.glob("*.safetensors")}
    size = sum(p.stat().st_size for p in source.glob("*.safetensors"))
    done = waste_json("convert", "--src", source, "--out", tmp_path / "x", "--reclaim", "on")
    assert done["shards_reclaimed"] == 3 and done["shard_bytes_reclaimed"] == size
    assert not list(source.glob("*.safetensors"))
    assert set((source / ".reclaimed").read_text().split()) == shards
    same_files(small / "k3.waste", tmp_path / "x")
    again = waste_json("convert", "--src", source, "--out", tmp_path / "x", "--reclaim", "on")
    assert again["was_complete"]


def test_reclaim_survives_kills(small, tmp_path):
    source, out, rng = tmp_path / "src", tmp_path / "x", random.Random(3)
    args = [BINARY, "convert", "--src", source, "--out", out, "--reclaim", "on", "--quiet"]
    for _ in range(3):
        och.write_checkpoint("k3", source, n_shards=9)
        while not (out / "manifest.json").exists():
            child = subprocess.Popen(args, env=clean_env(), stdout=subprocess.DEVNULL)
            try:
                assert child.wait(rng.uniform(0.02, 0.5)) == 0
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        waste(*args[1:], check=0)
        same_files(small / "k3.waste", out, same_shards=False)
        assert not list(source.glob("*.safetensors"))
        shutil.rmtree(out)
        shutil.rmtree(source)


def test_what_a_shard_became_outlasts_a_loss_of_power_before_it_goes(two_layers, tmp_path):
    source, log = Path(shutil.copytree(two_layers / "src", tmp_path / "src")), tmp_path / "log"
    shards = sorted(p.name for p in source.glob("*.safetensors"))
    assert preloaded(source, tmp_path / "x", "--reclaim", "on", ORDER_LOG=str(log)).wait() == 0
    assert replay(log, lambda path: path.name in shards) == len(shards)
    lines = log.read_text().splitlines()
    for at, line in enumerate(lines):  # the ledger says so first, and lasts
        if line.startswith("unlink") and line.endswith(tuple(shards)):
            assert lines[at - 2:at] == [f"sync {source}/.reclaimed", f"sync {source}"]


def test_reclaim_goes_on_after_an_end_at_any_call(two_layers, tmp_path):
    """Killed before each call that changes what is on the disk, or makes it last. What it left
    undone is not taken for lasting by the run that goes on."""
    source, out, log = tmp_path / "src", tmp_path / "x", tmp_path / "log"
    shards = {p.name for p in (two_layers / "src").glob("*.safetensors")}
    args, killed = ["--reclaim", "on", "--jobs", "1"], 0
    while True:
        for path in (source, out):
            shutil.rmtree(path, ignore_errors=True)
        log.unlink(missing_ok=True)
        shutil.copytree(two_layers / "src", source)
        child = preloaded(source, out, *args, ORDER_KILL=str(killed + 1), ORDER_LOG=str(log))
        child.communicate()
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL
        killed += 1
        if not (out / "manifest.json").exists():
            waste("info", out, check=1)
        assert preloaded(source, out, *args, ORDER_LOG=str(log)).wait() == 0
        same_files(two_layers / "x.waste", out)
        assert not list(source.glob("*.safetensors"))
        assert replay(log, lambda path: path.name in shards) == len(shards), killed
        assert replay(log, lambda path: path.parent == out and path.suffix != ".tmp"), killed
    assert killed > 30


def test_two_that_delete_do_not_work_on_one_release(small, source, tmp_path):
    """Nor does a download, which holds the same lock."""
    held = os.open(source, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    args = ["convert", "--src", source, "--out", tmp_path / "x"]
    detail = waste_error(*args, "--reclaim", "on", check=5)["detail"]
    assert str(source) in detail and "another process is at work there" in detail
    assert not (tmp_path / "x").exists()
    waste(*args, check=0)
    os.close(held)
    waste("convert", "--src", source, "--out", tmp_path / "y", "--reclaim", "on", check=0)
    same_files(small / "k3.waste", tmp_path / "y")


@pytest.mark.parametrize("tail", [b"model-0", b"model-0\0\0\0"])
def test_a_line_of_the_ledger_that_was_cut_short_hides_no_other(two_layers, tmp_path, tail):
    source, out = Path(shutil.copytree(two_layers / "src", tmp_path / "src")), tmp_path / "x"
    shards = {p.name for p in source.glob("*.safetensors")}
    (source / ".reclaimed").write_bytes(tail)
    args = ["convert", "--src", source, "--out", out, "--reclaim", "on"]
    waste(*args, check=0)
    assert shards <= set((source / ".reclaimed").read_text().splitlines())
    assert waste_json(*args)["was_complete"]


def test_a_shard_that_was_written_to_anywhere_is_not_deleted(source, tmp_path):
    """Between the samples of its fingerprint, and with its mtime put back."""
    add_sparse(source, "language_model.model.extra.weight", "F32", [1024, 1024], 4 << 20)
    path, out = source / "sparse.safetensors", tmp_path / "x"
    args = [BINARY, "convert", "--src", source, "--out", out, "--reclaim", "on", "--jobs", "1", "--quiet"]
    child = subprocess.Popen(args, env=clean_env(), stderr=subprocess.PIPE)
    while not (out / STATE).exists():
        assert child.poll() is None
    child.send_signal(signal.SIGSTOP)
    before = path.stat()
    with open(path, "r+b") as f:
        f.seek(130 << 10)
        f.write(b"\x3f" * 64)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    child.send_signal(signal.SIGCONT)
    _, said = child.communicate()
    assert child.returncode == 1 and b"has changed while it was converted (another file, or" in said
    assert path.exists()


def test_a_release_of_one_file_stays(tmp_path):
    """Without an index the names of its tensors would be gone before the container is sealed."""
    och.write_checkpoint("kimi-linear", tmp_path / "src", n_shards=0)
    args = ["convert", "--src", tmp_path / "src", "--out", tmp_path / "x"]
    for mode in ("on", "dry"):
        assert "a release of one file" in waste_error(*args, "--reclaim", mode, check=2)["detail"]
    assert not (tmp_path / "x").exists()
    waste(*args, check=0)


def confined(tmp_path, script, *args):
    """A shell that may mount below tmp_path; the words behind the script are $1 and so on."""
    way = mount_namespace(tmp_path)
    if not way:
        pytest.skip("no right to mount: as root, in a user namespace or by sudo")
    return subprocess.run([*way, "sh", "-ec", script, "sh", *map(str, args)], capture_output=True,
                          env=clean_env(), text=True)


def test_a_release_that_cannot_be_deleted_is_refused_before_work(source, tmp_path):
    done = confined(tmp_path, 'mount --bind "$2" "$2"; mount -o remount,bind,ro "$2"; '
                    'exec "$1" convert --src "$2" --out "$3" --reclaim on', BINARY, source, tmp_path / "x")
    assert done.returncode == 1 and "its shards cannot be deleted: Read-only" in done.stderr
    assert not (tmp_path / "x").exists()


def test_room_that_no_shard_makes_in_time_is_asked_for(tmp_path):
    """All layers in one shard, which goes last: the whole container must fit beside it."""
    source, volume, work = tmp_path / "src", tmp_path / "volume", tmp_path / "whole"
    och.write_checkpoint("k3", source, n_shards=1)
    volume.mkdir()
    done = waste_json("convert", "--src", source, "--out", work)
    banks = [path.stat().st_size for path in work.glob("experts-*.bin")]
    taken = sum(path.stat().st_size // 4096 + 1 for path in source.iterdir()) * 4096
    need = done["total_bytes"] + (work / "codebooks.bin").stat().st_size
    tight = taken + need - 2 * banks[0]
    assert len(banks) > 4
    script = ('mount -t tmpfs -o size="$4" none "$2"; cp -r "$3" "$2/src"; '
              'exec "$1" convert --src "$2/src" --out "$2/x" --reclaim on')
    done = confined(tmp_path, script, BINARY, volume, source, tight)
    assert done.returncode == 1 and re.search(r"x: need [\d.]+ \wiB on \S+, [\d.]+ \wiB free", done.stderr)


def test_a_shard_stays_until_its_last_consumer_is_done(source, small, tmp_path):
    """Layer 6 is last; a value there that is not finite stops the run before it."""
    stored = och.Checkpoint(source).stored
    name = "language_model.model.layers.6.block_sparse_moe.experts.0.w1.weight_scale"
    dtype, shape, data = stored[name]
    stored[name] = dtype, shape, b"\xff" + data[1:]
    shutil.rmtree(source)
    och.write_checkpoint("k3", source, n_shards=9)
    for path in source.glob("*.safetensors"):
        path.unlink()
    och.write_tensors(source, stored, 9)
    index = json.loads((source / "model.safetensors.index.json").read_text())["weight_map"]
    waste("convert", "--src", source, "--out", tmp_path / "x", "--reclaim", "on", check=4)
    left = {p.name for p in source.glob("*.safetensors")}
    assert left == {index[n] for n in stored if ".layers.6.block_sparse_moe.experts." in n}
    waste("verify", "--against", source, tmp_path / "x", check=1)
    detail = waste_error("verify", "--against", source, small / "k3.waste", check=1)["detail"]
    assert "was reclaimed: nothing is left to compare with" in detail


def test_reclaim_refuses_what_it_cannot_do_safely(source, small, tmp_path):
    args = ["convert", "--src", source, "--reclaim", "on", "--out"]
    assert "lie in each other" in waste_error(*args, source / "x", check=2)["detail"]
    shard = sorted(source.glob("*.safetensors"))[0]
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / shard.name
    shard.rename(moved)
    shard.symlink_to(moved)
    assert "is a link" in waste_error(*args, tmp_path / "x", check=2)["detail"]
    shard.unlink()
    os.link(moved, shard)
    assert "one of 2 hard links" in waste_error(*args, tmp_path / "x", check=2)["detail"]
    shard.unlink()
    (source / ".reclaimed").write_text(shard.name + "\n")
    assert "was reclaimed" in waste_error(*args, tmp_path / "x", check=1)["detail"]
    assert not (tmp_path / "x").exists() and moved.exists()
    assert len(list(source.glob("*.safetensors"))) == 2
