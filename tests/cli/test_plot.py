"""scripts/plot: pictures of reports, and one clear sentence where there can be none."""

import json
import pathlib
import subprocess
import sys

import pytest

from test_bench import bench_json

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRACE = ROOT / "tests" / "golden" / "route_demo_300.jsonl"
DEMO = ROOT / "share" / "demo.waste"


def plot(*args, check=0, env=None):
    done = subprocess.run([sys.executable, ROOT / "scripts" / "plot", *map(str, args)], capture_output=True,
                          text=True, timeout=300, env=env)
    assert done.returncode == check, (done.stdout, done.stderr)
    return done


def saved(tmp_path, name, report):
    path = tmp_path / name
    path.write_text(json.dumps(report))
    return path


def io_report():
    def arm(name, state, ms):
        figures = {m: {"median": v, "min": v, "max": v} for m, v in
                   zip(("p50_ms", "p95_ms", "p99_ms", "max_ms"), ms)}
        return {"name": name, "state": state, "why": None if state == "valid" else "page cache",
                "ceiling": name == "fio", **figures}
    return {"schema": "waste-bench/1", "command": "io",
            "provenance": {"machine": {"cpu": "a", "cores": 1}, "build": {"version": "0"}, "date": "now",
                           "load": None},
            "trials": [{"name": f"records of 1 byte, {d} in flight",
                        "facts": {"latency_histograms": {"sync": [[1.5, 3], [2.0, 1]], "threads": []}},
                        "arms": [arm("fio", "valid", (1, 2, 3, 9)), arm("sync", "valid", (2, 3, 4, 5)),
                                 arm("threads", "invalid", (1, 1, 1, 1))]} for d in (1, 2, 4, 8)]}


@pytest.fixture(scope="module")
def replay():
    return bench_json("replay", TRACE, "--record", "20K")


def test_replay_and_sweep_share_a_picture(tmp_path, replay):
    sweep = bench_json("sweep", DEMO, "--rounds", 1, "--prompt", 8, "--warm", 0, "--tokens", 2, "--threads", 1,
                       "--budgets", "33M,40M")
    out = tmp_path / "curve.svg"
    done = plot("-o", out, saved(tmp_path, "sweep.json", sweep), saved(tmp_path, "replay.json", replay))
    assert done.stdout.strip() == str(out) and done.stderr == ""
    text = out.read_text()
    for words in ("hits, %", "tokens/s", "pool, MiB", "belady", "demo.waste, measured"):
        assert words in text or f"<!-- {words} -->" in text, words


def test_the_name_follows_the_report_and_png_is_a_picture_too(tmp_path, replay):
    path = saved(tmp_path, "replay.json", replay)
    plot(path)
    assert (tmp_path / "replay.svg").read_text().startswith("<?xml")
    plot("-o", tmp_path / "r.png", path)
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_latencies_leave_out_what_is_invalid_and_say_so(tmp_path):
    done = plot("-o", tmp_path / "io.svg", saved(tmp_path, "io.json", io_report()))
    assert "threads: page cache" in done.stderr
    text = (tmp_path / "io.svg").read_text()
    assert "<!-- % of reads -->" in text and "<!-- p99 -->" in text and "<!-- sync -->" in text and "<!-- threads -->" not in text


def test_without_matplotlib_the_package_is_named(tmp_path, replay):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')\n")
    done = plot(saved(tmp_path, "replay.json", replay), check=1, env={"PYTHONPATH": str(tmp_path)})
    assert "python3-matplotlib" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("report, says", [
    ([], "schema None"),
    ({"schema": "waste-bench/9"}, "waste-bench/1"),
    ({"schema": "waste-bench/1", "command": "kernels"}, "nothing to draw of kernels"),
])
def test_what_has_no_picture_is_named(tmp_path, report, says):
    path = saved(tmp_path, "report.json", report)
    done = plot(path, check=1)
    assert says in done.stderr and str(path) in done.stderr and done.stderr.count("\n") == 1


def test_io_and_curves_do_not_mix(tmp_path, replay):
    done = plot(saved(tmp_path, "a.json", io_report()), saved(tmp_path, "b.json", replay), check=1)
    assert "alone" in done.stderr
    assert ".svg or .png" in plot("-o", "picture.gif", tmp_path / "a.json", check=1).stderr
    assert "no such" in plot(tmp_path / "no such", check=1).stderr.lower()


def test_json_without_end_is_an_error_of_one_line(tmp_path):
    deep = tmp_path / "deep"
    deep.write_text("[" * 100000)
    done = subprocess.run([sys.executable, ROOT / "scripts" / "plot", "-o", tmp_path / "x.svg", deep],
                          capture_output=True, text=True)
    assert done.returncode == 1 and "not the JSON" in done.stderr and "Traceback" not in done.stderr
