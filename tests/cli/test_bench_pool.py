"""waste-bench pool: the pool on each engine hits what replay says, and every engine reads the same bytes."""

import os
import pathlib

import pytest

from test_bench import bench_error, bench_json, check_report

TRACE = pathlib.Path(__file__).resolve().parents[1] / "golden" / "route_demo_300.jsonl"
RECORD = 4096
N_RECORDS = 7 * 32


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pool") / "records.bin"
    path.write_bytes(os.urandom(N_RECORDS * RECORD))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return path


def pool(file, *args, **kw):
    return bench_json("pool", TRACE, "--file", file, "--record", RECORD, "--rounds", 1, *args, **kw)


@pytest.mark.parametrize("policy", ["nextuse", "lfru", "lru", "s3fifo"])
def test_every_engine_hits_what_replay_hits(file, policy):
    report = pool(file, "--cache", policy, "--records", "40,110")
    check_report(report, "pool")
    replay, = bench_json("replay", TRACE, "--records", "40,110", "--policy", policy)["replays"]
    for trial, size in zip(report["trials"], replay["sizes"]):
        run = size["runs"][0]
        assert trial["facts"]["pool_records"] == size["records"] and run["policy"] == policy
        assert len(trial["arms"]) >= 2 and len({arm["digest"] for arm in trial["arms"]}) == 1
        for arm in trial["arms"]:
            assert arm["misses"]["median"] == run["misses"] and arm["evictions"]["median"] == run["evictions"]
            assert arm["hit_percent"]["median"] == pytest.approx(run["hit_percent"])


def test_a_pool_of_everything_reads_each_record_once(file):
    trial, = pool(file, "--records", N_RECORDS, "--engines", "sync")["trials"]
    arm, = trial["arms"]
    asked = bench_json("replay", TRACE, "--records", N_RECORDS)["replays"][0]["records_asked_for"]
    assert arm["misses"]["median"] == asked and arm["evictions"]["median"] == 0


def test_the_first_tokens_alone(file):
    trial, = pool(file, "--tokens", 1, "--records", 50, "--engines", "sync")["trials"]
    assert trial["arms"][0]["misses"]["median"] == 28


def test_where_counts_may_differ_a_note_says_so(file):
    arm, = pool(file, "--tokens", 4, "--records", 5, "--engines", "threads")["trials"][0]["arms"]
    assert arm["state"] == "valid" and "need not equal" in arm["note"]


def test_create_makes_a_file_of_the_size_that_is_needed(tmp_path):
    path = tmp_path / "made"
    report = pool(path, "--create", "--tokens", 2, "--engines", "sync")
    assert path.stat().st_size == N_RECORDS * RECORD and len(report["trials"]) == 3
    args = ("pool", TRACE, "--file", path, "--record", RECORD, "--create")
    assert "File exists" in bench_error(*args, check=1) and path.stat().st_size == N_RECORDS * RECORD


@pytest.mark.parametrize("args, check, says", [
    ((TRACE,), 2, "--file is needed"),
    ((TRACE, "--file", "none", "--record", RECORD), 1, "none"),
    ((TRACE, "--file", "{file}", "--record", 5000), 2, "no multiple of 4096"),
    ((TRACE, "--file", "{file}", "--record", 2 * RECORD), 2, "917504 bytes, 224 records of 8192 are 1835008"),
    ((TRACE, "--file", "{file}", "--record", RECORD, "--engines", "psync"), 2, "this build has"),
    (("no such trace", "--file", "{file}"), 1, "no such trace"),
])
def test_what_cannot_be_is_refused(file, args, check, says):
    args = [str(a).replace("{file}", str(file)) for a in args]
    assert says in bench_error("pool", *args, check=check)
