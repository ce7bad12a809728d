"""waste place: experts over several drives (directories, here) and back."""

import json
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from conftest import (BINARY, BUDGET, clean_env, preload, replay, run_lines, waste, waste_error,
                      waste_json)

IDS = ["--ids", "3 7 11 2 9", "--budget", BUDGET, "--logits"]


@pytest.fixture
def drives(tmp_path):
    for name in "bc":
        (tmp_path / name).mkdir()
    return [tmp_path / "b", tmp_path / "c"]


def spec(drives, shares=(3, 2), home=1):
    return ",".join([f".={home}", *(f"{d}={s}" for d, s in zip(drives, shares))])


def contents(path):
    return {p.name: p.read_bytes() for p in sorted(path.iterdir())}


def logits(model, *more):
    return waste_json("eval", model, *IDS, *more)["logits"]


def pieces(drive):
    return sorted(p.name for d in drive.iterdir() for p in d.glob("*.piece"))


@pytest.mark.parametrize("home", [0, 1, 5])
def test_it_is_the_same_model_spread_and_gathered(copy, drives, home):
    before, said = contents(copy.path), logits(copy)
    report = waste_json("place", copy, "--drives", spec(drives, home=home))
    layers = len(copy.layers())
    experts = copy.manifest["layers"]["1"]["experts"]
    assert report["layers_spread"] == layers
    assert sum(d["experts_of_a_layer"] for d in report["drives"]) == experts
    assert not any(copy.bank(layer).exists() for layer in copy.layers())
    assert len(pieces(drives[0])) == layers
    for io in ("sync", "threads"):
        assert logits(copy, "--io", io) == said
    assert waste_json("verify", copy)["bad"] == 0
    assert waste_json("verify", copy)["records"] == layers * experts
    assert any("spread over 3 drives" in n for n in waste_json("info", copy)["audit"]["notes"])
    assert waste_json("place", copy, "--gather")["layers_spread"] == 0
    assert contents(copy.path) == before
    assert not any(any(d.iterdir()) for d in drives)


def test_what_is_kept_in_memory_is_the_same(copy, drives):
    """The policy sees layers and not files: each pin hits or misses as before."""
    def counted():
        _, done = run_lines(copy, "Hello", "-n", 24, "--lookahead", 0, "--io", "sync", "--budget",
                            floor)
        return [done[k] for k in ("hits_resident", "experts_missed", "bytes_read")]

    floor = waste_json("plan", copy, "--ctx", 4096)["floor_bytes"] + 3 * copy.record_bytes(1)
    before = counted()
    assert before[1] > len(copy.layers()) * copy.manifest["layers"]["1"]["experts"]
    waste_json("place", copy, "--drives", spec(drives))
    assert counted() == before


def test_again_is_nothing_and_otherwise_is_refused(copy, drives):
    waste_json("place", copy, "--drives", spec(drives))
    after = contents(drives[0] / "copy.waste.pieces")
    waste_json("place", copy, "--drives", spec(drives))
    assert contents(drives[0] / "copy.waste.pieces") == after
    error = waste_error("place", copy, "--drives", spec(drives, (1, 1)), check=2)
    assert "gather it first" in error["detail"]


def test_without_shares_the_drives_are_measured(copy, drives):
    report = waste_json("place", copy, "--drives", f"{drives[0]},{drives[1]}")
    assert all(1 <= d["share"] <= 8 for d in report["drives"])
    assert max(d["share"] for d in report["drives"]) == 8
    assert not list(copy.path.glob("waste-measure*"))


def test_a_missing_drive_is_named(copy, drives):
    waste_json("place", copy, "--drives", spec(drives))
    shutil.move(drives[1] / "copy.waste.pieces", drives[1] / "elsewhere")
    for command in (["eval", copy, *IDS], ["verify", copy], ["place", copy]):
        done = waste(*command)
        assert done.returncode == 1, command
        assert b"is the drive mounted?" in done.stdout + done.stderr
        assert str(drives[1]).encode() in done.stdout + done.stderr


def test_drives_in_each_others_place_are_seen(copy, drives):
    waste_json("place", copy, "--drives", spec(drives))
    a, b = (d / "copy.waste.pieces" for d in drives)
    a.rename(drives[0] / "x")
    b.rename(a)
    (drives[0] / "x").rename(b)
    error = waste_error("eval", copy, *IDS, check=4)
    assert "mounted in another's place" in error["detail"]


def test_another_containers_directory_is_not_taken(copy, drives, tmp_path):
    twin = tmp_path / "twin" / "copy.waste"
    shutil.copytree(copy.path, twin)
    waste_json("place", copy, "--drives", spec(drives))
    before = contents(drives[0] / "copy.waste.pieces")
    error = waste_error("place", twin, "--drives", spec(drives), check=2)
    assert "of another container" in error["detail"]
    assert contents(drives[0] / "copy.waste.pieces") == before
    assert waste_json("verify", twin)["bad"] == 0


def test_a_drive_that_cannot_be_used_leaves_no_trace(copy, drives, tmp_path):
    before = contents(copy.path)
    (drives[1] / "copy.waste.pieces").write_text("a file where a directory should be")
    error = waste_error("place", copy, "--drives", spec(drives), check=1)
    assert str(drives[1]) in error["detail"]
    assert contents(copy.path) == before and not any(drives[0].iterdir())
    waste_json("place", copy, "--drives", f"{drives[0]}=1,.=1")
    waste_json("place", copy, "--gather")
    assert contents(copy.path) == before


def test_a_move_that_never_began_is_no_obstacle(copy, drives):
    """A map that spreads no layer, over drives that are gone: gathered, or spread elsewhere."""
    said = logits(copy)
    idle = {"version": 1, "set": "7", "layers": [],
            "drives": [{"dir": ".", "share": 1}, {"dir": "/no/such/drive", "share": 1}]}
    (copy.path / "drives.json").write_text(json.dumps(idle))
    assert logits(copy) == said
    waste_json("place", copy, "--gather")
    assert not (copy.path / "drives.json").exists()
    (copy.path / "drives.json").write_text(json.dumps(idle))
    waste_json("place", copy, "--drives", spec(drives))
    assert logits(copy) == said


def test_gathering_sweeps_what_a_stopped_move_left(copy, drives):
    before = contents(copy.path)
    (copy.path / "experts-L2.piece").write_bytes(b"left over")
    (copy.path / "experts-L2.piece.tmp").write_bytes(b"left over")
    waste_json("place", copy, "--gather")
    assert contents(copy.path) == before


def test_measuring_touches_nothing_that_is_there(copy, drives):
    victim = drives[0] / "victim"
    victim.write_text("precious")
    (drives[0] / "waste-measure.tmp").symlink_to(victim)
    waste_json("place", copy, "--drives", str(drives[0]))
    assert victim.read_text() == "precious"
    assert (drives[0] / "waste-measure.tmp").is_symlink()


def test_a_mark_without_pieces_is_taken_over(copy, drives):
    left = drives[0] / "copy.waste.pieces"
    left.mkdir()
    (left / "waste-drive.json").write_text('{"set": "abc", "drive": 1, "home": "/gone"}')
    waste_json("place", copy, "--drives", spec(drives))
    assert waste_json("verify", copy)["bad"] == 0


def test_a_copy_does_not_take_the_originals_pieces(copy, drives, tmp_path):
    said = logits(copy)
    before = contents(copy.path)
    waste_json("place", copy, "--drives", spec(drives))
    twin = tmp_path / "twin.waste"
    shutil.copytree(copy.path, twin)
    assert logits(twin) == said
    error = waste_error("place", twin, "--drives", spec(drives), check=2)
    assert "is a copy of" in error["detail"] or "other drives" in error["detail"]
    waste_json("place", twin, "--gather")
    assert contents(twin) == before
    assert logits(copy) == said and waste_json("verify", copy)["bad"] == 0
    waste_json("place", copy, "--gather")
    assert contents(copy.path) == before and not any(any(d.iterdir()) for d in drives)


def test_a_container_that_moved_takes_its_pieces_along(copy, drives, tmp_path):
    before = contents(copy.path)
    waste_json("place", copy, "--drives", spec(drives))
    moved = tmp_path / "moved.waste"
    copy.path.rename(moved)
    waste_json("place", moved, "--gather")
    assert contents(moved) == before and not any(any(d.iterdir()) for d in drives)


def test_damage_in_a_piece_is_the_experts(copy, drives):
    waste_json("place", copy, "--drives", spec(drives, (1, 1), home=1))
    size = copy.record_bytes(2)
    piece = drives[0] / "copy.waste.pieces" / "experts-L2.piece"
    with open(piece, "r+b") as f:  # its second record: expert 4 of 0 1 2 | 3 4 ...
        f.seek(size + 100)
        byte = f.read(1)[0]
        f.seek(size + 100)
        f.write(bytes([byte ^ 1]))
    report = waste_json("verify", copy, check=4)
    assert [(f["layer"], f["expert"]) for f in report["errors"]] == [(2, 4)]
    piece.write_bytes(piece.read_bytes()[:size])
    report = waste_json("verify", copy, check=4)
    assert any("incomplete copy" in f["detail"] for f in report["errors"])
    assert "experts-L2.piece" in waste_error("eval", copy, *IDS, check=4)["detail"]


@pytest.mark.parametrize("text, what", [
    ("nonsense", "drives.json"),
    ('{"version": 2, "set": "1", "drives": [{"dir": ".", "share": 1}]}', "version 2"),
    ('{"version": 1, "set": "0", "drives": [{"dir": ".", "share": 1}]}', "set"),
    ('{"version": 1, "set": "1", "drives": []}', "0 drives"),
    ('{"version": 1, "set": "1", "drives": [{"dir": ".", "share": 0}]}', "no drive has a share"),
    ('{"version": 1, "set": "1", "drives": [{"dir": "x", "share": 1}]}', "drives[0]"),
    ('{"version": 1, "set": "1", "drives": [{"dir": ".", "share": 1}, {"dir": "x", "share": 1}]}',
     "absolute"),
    ('{"version": 1, "set": "1", "drives": [{"dir": ".", "share": 99}]}', "share"),
    ('{"version": 1, "set": "1", "drives": [{"dir": ".", "share": 1}], "layers": [0]}',
     "not a layer with experts"),
    ('{"version": 1, "set": "1", "drives": [7]}', "not an object"),
])
def test_a_map_that_lies_is_refused(copy, text, what):
    (copy.path / "drives.json").write_text(text)
    done = waste("eval", copy, *IDS, "--json")
    assert done.returncode in (4, 6) and what in json.loads(done.stderr)["detail"]
    assert waste("verify", copy).returncode in (1, 4)


@pytest.mark.parametrize("given, code", [
    ("", 2), (",", 2), (".", 2), (".=1", 2), ("{b}=17", 2), ("{b}=x", 2), ("{b}=0,.=1", 2),
    ("{b},{b}", 2), ("{b}=1", 2), ("/no/such/drive", 1),
])
def test_misuse(copy, drives, given, code):
    before = contents(copy.path)
    assert waste_error("place", copy, "--drives", given.format(b=drives[0]), check=code)
    assert contents(copy.path) == before


def test_both_ways_at_once_are_misuse(copy, drives):
    waste_error("place", copy, "--gather", "--drives", spec(drives), check=2)


def test_gathering_what_is_not_spread_is_nothing(copy):
    before = contents(copy.path)
    assert waste_json("place", copy, "--gather")["layers_spread"] == 0
    assert contents(copy.path) == before


def test_killed_at_any_point_it_goes_on(copy, drives):
    """Thirty moves to and fro, each killed somewhere; the model runs after each."""
    before, said = contents(copy.path), logits(copy)
    luck = random.Random(7)
    for turn in range(30):
        way = ["--gather"] if turn % 3 == 2 else ["--drives", spec(drives)]
        move = subprocess.Popen([BINARY, "place", str(copy), *way], env=clean_env(),
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(luck.uniform(0, 0.03))
        move.send_signal(signal.SIGKILL)
        move.wait()
        assert logits(copy) == said, turn
        assert waste_json("verify", copy)["bad"] == 0
    waste_json("place", copy, "--drives", spec(drives))
    assert logits(copy) == said
    waste_json("place", copy, "--gather")
    assert contents(copy.path) == before
    assert not any(any(d.iterdir()) for d in drives)


def test_the_only_copy_of_a_record_outlasts_a_loss_of_power(copy, drives, tmp_path):
    """Before a bank goes its pieces last, and before the pieces go the bank."""
    for n, words in enumerate((["--drives", spec(drives)], ["--gather"])):
        log = tmp_path / f"log{n}"
        waste("place", copy, *words, "-q", check=0,
              env={"LD_PRELOAD": preload("power_cut"), "ORDER_LOG": str(log)})
        assert replay(log, lambda path: path.suffix in (".bin", ".piece")) >= len(copy.layers())


@pytest.mark.parametrize("words", [["--drives"], ["--gather"]])
def test_a_move_that_goes_on_trusts_no_name_that_may_be_lost(copy, drives, tmp_path, words):
    """Killed before each call, and a loss of power while the next run goes on."""
    there, back = ["--drives", spec(drives)], ["--gather"]
    if words == ["--gather"]:
        there, back = back, there
        waste("place", copy, *back, check=0)
    killed, log = 0, tmp_path / "log"
    while True:
        log.unlink(missing_ok=True)
        env = {"LD_PRELOAD": preload("power_cut"), "ORDER_LOG": str(log)}
        if waste("place", copy, *there, "-q", env={**env, "ORDER_KILL": str(killed + 1)}).returncode == 0:
            break
        killed += 1
        waste("place", copy, *there, "-q", check=0, env=env)
        assert replay(log, lambda path: path.suffix in (".bin", ".piece")) >= len(copy.layers()), killed
        waste("place", copy, *back, "-q", check=0)
    assert killed > 10


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_drive_leaves_the_model_whole(copy, drives):
    said = logits(copy)
    size = len(copy.layers()) * copy.record_bytes(1)
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", drives[0]],
                           capture_output=True)
    if mount.returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        error = waste_error("place", copy, "--drives", spec(drives, (16, 1)), check=1)
        assert "No space left" in error["detail"] and "free" in error["detail"] and str(drives[0]) in error["detail"]
        assert logits(copy) == said and waste_json("verify", copy)["bad"] == 0
        subprocess.run(["mount", "-o", "remount,size=64M", drives[0]], check=True)
        waste_json("place", copy, "--drives", spec(drives, (16, 1)))
        assert logits(copy) == said
        waste_json("place", copy, "--gather")
    finally:
        subprocess.run(["umount", "-l", drives[0]], check=True)
