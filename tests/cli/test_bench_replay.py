"""waste-bench replay as people run it: figures that are counts, a bound that holds, traces that lie."""

import json
import os
import pathlib
import subprocess

import pytest

from conftest import BINARY, clean_env
from test_bench import bench, bench_error, bench_json

DEMO = pathlib.Path(__file__).resolve().parents[1] / "golden" / "route_demo_300.jsonl"
# design figures: hits in percent at these sizes must not be lost again
PUBLISHED = {
    "trace_kimi_300.jsonl": {201: 37.5, 402: 49.7, 805: 61.0, 1610: 73.5, 3221: 86.8},
    "trace_olmoe_299.jsonl": {128: 46.9, 256: 63.3, 512: 82.1},
}


def hits(size, policy):
    return next(r["hits"] for r in size["runs"] if r["policy"] == policy)


def test_every_size_has_every_policy_and_belady_is_the_bound():
    replay, = bench_json("replay", DEMO)["replays"]
    assert (replay["tokens"], replay["layers"], replay["experts"], replay["top_k"]) == (299, 7, 32, 4)
    assert replay["requests"] == 299 * 7 * 4 and replay["records"] == 224 and len(replay["sizes"]) == 10
    for size in replay["sizes"]:
        assert [r["policy"] for r in size["runs"]] == ["lru", "lfru", "s3fifo", "nextuse", "belady"]
        for run in size["runs"]:
            assert run["hits"] + run["misses"] == replay["requests"]
            assert run["hits"] <= hits(size, "belady")
            assert "bytes_per_token" not in run
    assert set(replay["knee_records"]) == {"lru", "lfru", "s3fifo", "nextuse", "belady"}


def test_the_same_trace_gives_the_same_counts_and_several_are_apart():
    one = bench_json("replay", DEMO, "--records", "20,60")["replays"]
    two = bench_json("replay", DEMO, DEMO, "--records", "20,60", "--policy", "nextuse")["replays"]
    assert len(two) == 2 and two[0]["sizes"] == two[1]["sizes"]
    for a, b in zip(one[0]["sizes"], two[0]["sizes"]):
        assert hits(a, "nextuse") == hits(b, "nextuse") and len(b["runs"]) == 2


def test_memory_and_bytes_follow_from_the_record():
    replay, = bench_json("replay", DEMO, "--record", "1M", "--ram", "10M,56M")["replays"]
    assert [s["records"] for s in replay["sizes"]] == [10, 56]
    for size in replay["sizes"]:
        assert size["bytes"] == size["records"] << 20
        for run in size["runs"]:
            assert run["bytes_per_token"] == pytest.approx(run["misses"] / 299 * (1 << 20))


def test_both_forms_of_a_trace_say_the_same(tmp_path):
    native = tmp_path / "native"
    lines = [json.loads(line) for line in DEMO.read_text().splitlines()]
    native.write_text("".join(
        f"{t['tok']} {l + 1} {' '.join(map(str, ids))}{' 0.25' * 4}{' -1' * 4}\n"
        for t in lines for l, ids in enumerate(t["layers"])))
    a, b = bench_json("replay", DEMO, native, "--records", "40")["replays"]
    assert a["sizes"] == b["sizes"] and a["tokens"] == b["tokens"]


@pytest.mark.parametrize("policy", ["nextuse", "lfru", "lru", "s3fifo"])
def test_the_engine_counts_what_replay_counts(tmp_path, policy):
    """A whole model, its disk and its threads: what it hit and missed is what its trace replays to."""
    trace = tmp_path / "trace"

    def waste(*args, **env):
        done = subprocess.run([BINARY, *args, "--max-rows", "1", "--json"], capture_output=True,
                              text=True, timeout=300, env=clean_env(env))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    plan = waste("plan", "demo")
    told = waste("run", "demo", "The", "-n", "50", "--temp", "0.8", "--seed", "3", "--lookahead", "0",
                 "--cache", policy, WASTE_DUMP_ROUTE=str(trace))
    frames = plan["expert_cache_bytes"] // plan["record_bytes"]
    replay, = bench_json("replay", trace, "--records", frames)["replays"]
    run = next(r for r in replay["sizes"][0]["runs"] if r["policy"] == policy)
    assert run["evictions"] and replay["sizes"][0]["records"] == frames
    assert (run["hits"], run["misses"]) == (told["experts_hit"], told["experts_missed"])


def test_the_default_is_ahead_on_the_published_traces():
    where = os.environ.get("WASTE_TRACES")
    if not where:
        pytest.skip("WASTE_TRACES does not say where the published traces are")
    for name, least in PUBLISHED.items():
        sizes = ",".join(map(str, least))
        replay, = bench_json("replay", pathlib.Path(where) / name, "--records", sizes)["replays"]
        for size in replay["sizes"]:
            run = next(r for r in size["runs"] if r["policy"] == "nextuse")
            assert run["hit_percent"] >= least[size["records"]], (name, size["records"])


def test_a_projection_says_what_was_assumed():
    args = ("replay", DEMO, "--records", "60", "--record", "1M", "--policy", "nextuse",
            "--drive-model", "nvme7,usb")
    report = bench_json(*args)
    assert [p["drive"] for p in report["projections"]] == ["nvme7", "usb"]
    for p in report["projections"]:
        for arm in ("in_order", "hits_first", "lookahead"):
            assert 0 <= p[arm]["exposed_percent"] <= 100 and p[arm]["tokens_per_s"] > 0
    assert any("simulated" in note for note in report["notes"])
    assert bench_json(*args)["projections"] == report["projections"]


@pytest.mark.parametrize("args, says", [
    (("no such trace",), "no such trace"),
    ((DEMO, "--policy", "lfu"), "lfru"),
    ((DEMO, "--ram", "1G"), "--record or --shape"),
    ((DEMO, "--ram", "1G", "--records", "5", "--record", "1M"), "one of them"),
    ((DEMO, "--shape", "k3"), "92"),
    ((DEMO, "--shape", "k4"), "no such model"),
    ((DEMO, "--records", "0"), "0"),
    ((DEMO, "--drive-model", "nvme7"), "--record or --shape"),
    ((DEMO, "--record", "1M", "--records", "9", "--drive-model", "tape"), "nvme14"),
    (("invented",), "--shape"),
])
def test_what_cannot_be_is_refused(args, says):
    done = bench("replay", *args, check=None)
    assert done.returncode in (1, 2) and says in done.stderr, done.stderr


def test_a_trace_that_lies_is_named_by_line(tmp_path):
    trace = tmp_path / "trace"
    trace.write_text('{"layers": [[1]]}\n{"layers": [[1, 1]]}\n')
    assert f"{trace}:2: layers[0]: expert 1 twice in one layer" in bench_error("replay", trace, check=4)
    assert "NUL byte" in bench_error("replay", "/dev/zero", check=4)  # it was read for ever
