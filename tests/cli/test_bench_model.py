"""waste-bench sweep, decode and prefill on the demonstration model: what must agree, agrees. No test here
looks at how long anything took."""

import pathlib
import shutil
import subprocess

import pytest

from conftest import BINARY, clean_env
from test_bench import INVALID, arms, bench, bench_error, bench_json, check_report

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "share" / "demo.waste"
TEXT = ROOT / "tests" / "golden" / "heldout.txt"
FEW = ("--rounds", 1, "--prompt", 8, "--warm", 2, "--tokens", 4, "--threads", 1)


@pytest.fixture(scope="module")
def sweep():
    return bench_json("sweep", DEMO, *FEW, "--text", TEXT, "--budgets", "33M,34M,40M")


def test_memory_changes_when_and_never_what(sweep):
    check_report(sweep, "sweep")
    trial, = sweep["trials"]
    assert [arm["name"] for arm in trial["arms"]] == ["33.0 MiB", "34.0 MiB", "40.0 MiB"]
    assert trial["facts"]["budgets"] == [33 << 20, 34 << 20, 40 << 20]
    assert len({arm["digest"] for arm in trial["arms"]}) == 1 and trial["arms"][0]["digest"]
    frames = [arm["pool_records"]["median"] for arm in trial["arms"]]
    assert frames == sorted(frames) and frames[0] < frames[-1] <= trial["facts"]["records"] == 224


def test_a_pool_of_all_records_reads_no_record_twice(sweep):
    """7 layers times 4 of 32 experts in 6 single steps after 8 at once: never more than there are."""
    arm = sweep["trials"][0]["arms"][-1]
    assert arm["mb_per_token"]["median"] * 4 * 1e6 <= 224 * sweep["trials"][0]["facts"]["record_bytes"]
    assert 0 <= arm["hit_percent"]["median"] + arm["early_percent"]["median"] <= 100


def test_other_tokens_have_another_digest(sweep):
    invented = bench_json("sweep", DEMO, *FEW, "--budgets", "40M")
    assert invented["trials"][0]["arms"][0]["digest"] != sweep["trials"][0]["arms"][0]["digest"]
    assert any("invented" in note for note in invented["notes"])


def test_budgets_are_chosen_from_the_floor_up():
    trial, = bench_json("sweep", DEMO, *FEW, "--quick")["trials"]
    assert len(trial["arms"]) == 2 and all(arm["state"] == "valid" for arm in trial["arms"])


def test_a_budget_below_the_floor_is_absent_and_says_what_is_needed():
    trial, = bench_json("sweep", DEMO, *FEW, "--budgets", "8M,40M")["trials"]
    below, fits = trial["arms"]
    assert below["state"] == "absent" and "needs at least" in below["why"] and fits["state"] == "valid"


def test_levels_of_a_profile_agree_and_floors_stand_beside():
    report = bench_json("decode", DEMO, *FEW, "--quick", "--text", TEXT, "--numeric", "i8,f32",
                        "--budget", "40M")
    check_report(report, "decode")
    trial, = report["trials"]
    floor, *measured = trial["arms"]
    assert floor["ceiling"] and floor["ram_gb_s"]["median"] > 0 and floor["drive_gb_s"]["median"] > 0
    assert {a["name"].split(", ")[0] for a in measured} == {"f32", "i8"}
    for profile in ("f32", "i8"):
        same = [a for a in measured if a["name"].startswith(profile + ",")]
        assert len({a["digest"] for a in same}) == 1
    for a in measured:
        parts = sum(a[p]["median"] for p in ("wait_ms", "experts_ms", "trunk_ms", "rest_ms"))
        assert parts == pytest.approx(a["token_ms"]["median"])
        assert a["ram_floor_ms"]["median"] == pytest.approx(floor["ram_floor_ms"]["median"])


def test_a_level_that_is_not_here_is_absent():
    trial, = bench_json("decode", DEMO, *FEW, "--quick", "--numeric", "i8", "--cpu", "c,neon,avx2")["trials"]
    state = {arm["name"]: arm["state"] for arm in trial["arms"]}
    assert state["i8, c"] == "valid"
    assert "absent" in (state["i8, neon"], state["i8, avx2"])  # no machine has both


def test_a_prompt_reads_what_its_rows_need_once():
    report = bench_json("prefill", DEMO, "--rounds", 1, "--threads", 1, "--text", TEXT, "--lengths",
                        "3,24", "--budget", "40M")
    check_report(report, "prefill")
    for arm in report["trials"][0]["arms"]:
        assert arm["records_read"]["median"] == arm["records_needed"]["median"] > 0
    short, long = report["trials"][0]["arms"]
    assert short["records_needed"]["median"] < long["records_needed"]["median"] <= 224
    assert 28 <= short["records_needed"]["median"] <= 3 * 28


def test_a_prompt_larger_than_the_pool_streams_through_it():
    """At the floor the pool has 8 frames: whatever is evicted has been used by every row."""
    arm, = bench_json("prefill", DEMO, "--rounds", 1, "--threads", 1, "--lengths", 40, "--budget",
                      "32600K")["trials"][0]["arms"]
    assert arm["state"] == "valid"
    assert arm["records_read"]["median"] == arm["records_needed"]["median"] > 50


def test_without_the_check_nothing_is_needed_to_be_known():
    arm, = bench_json("prefill", DEMO, "--rounds", 1, "--lengths", 4, "--no-check")["trials"][0]["arms"]
    assert arm["records_needed"]["median"] is None and arm["records_read"]["median"] > 0


@pytest.mark.parametrize("command", ["sweep", "decode", "prefill"])
def test_what_is_no_model_is_named(command, tmp_path):
    assert str(tmp_path) in bench_error(command, tmp_path, check=1)
    assert "no such model" in bench_error(command, "no such model", check=1)


@pytest.mark.parametrize("args, says", [
    (("sweep", DEMO, "--text", "no such text"), "no such text"),
    (("sweep", DEMO, "--budgets", "half"), "half"),
    (("sweep", DEMO, "--io", "psync"), "one of io_uring"),
    (("decode", DEMO, "--numeric", "i8,i4"), '"i4": there are f32'),
    (("decode", DEMO, "--cpu", "sse"), '"sse": there are c'),
    (("prefill", DEMO, "--lengths", "1"), "from 2"),
    (("prefill", DEMO, "--cache", "fifo"), "nextuse|lfru"),
])
def test_what_cannot_be_is_refused(args, says):
    done = bench(*args, check=None)
    assert done.returncode in (1, 2) and says in done.stderr, (done.returncode, done.stderr)


def test_a_text_too_short_says_how_many_tokens_it_has(tmp_path):
    text = tmp_path / "text"
    text.write_text("Once upon a time")
    assert "14 are fed" in bench_error("sweep", DEMO, *FEW, "--text", text, check=2)


def test_a_model_that_fails_makes_its_arm_invalid(copy):
    """Sizes hold, so it opens; the first expert read does not have the bytes that its checksum has."""
    for layer in copy.layers():
        size = copy.bank(layer).stat().st_size
        copy.bank(layer).write_bytes(bytes(size))
    report = bench_json("sweep", copy, *FEW, "--budgets", "96M", check=INVALID)
    arm, = report["trials"][0]["arms"]
    assert arm["state"] == "invalid" and "expert" in arm["why"] and report["valid"] is False


def test_what_was_learned_is_not_read_into_the_pool(tmp_path):
    copy = tmp_path / "demo.waste"
    shutil.copytree(DEMO, copy)
    how = ("prefill", copy, "--rounds", 1, "--threads", 1, "--lengths", 16, "--text", TEXT)
    before, = bench_json(*how)["trials"]
    subprocess.run([BINARY, "run", copy, "She looked", "-n", "8", "--learn", "-q"], check=True,
                   capture_output=True, env=clean_env())
    assert (copy / "usage.waste").stat().st_size > 16
    after, = bench_json(*how)["trials"]
    read = [t["arms"][0]["records_read"]["median"] for t in (before, after)]
    assert read[0] == read[1]
