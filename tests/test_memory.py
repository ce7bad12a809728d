"""The budget is a promise: everything the engine takes, measured as the process's peak RSS, stays
below it. On a slice of Kimi-Linear's real shape (scripts/check_budget does it on the whole)."""

import json
import os
import resource
import shutil
import subprocess
import sys

import pytest

BINARY = os.environ.get("WASTE_BIN", "waste")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("WASTE_")}

# Runs its arguments and prints the peak RSS of that one child, in bytes.
MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.stderr.buffer.write(done.stderr)
sys.exit(done.returncode)
"""


@pytest.fixture(scope="module")
def slice_of_kimi(tmp_path_factory):
    path = tmp_path_factory.mktemp("synth") / "slice.waste"
    subprocess.run([BINARY, "synth", path, "--shape", "kimi-linear-48b", "--layers", "5",
                    "--experts", "24", "--quiet"], check=True, env=ENV)
    yield path
    shutil.rmtree(path)


def plan(path, *args):
    done = subprocess.run([BINARY, "plan", path, "--json", *map(str, args)], check=True, env=ENV,
                          capture_output=True)
    return json.loads(done.stdout)


def peak_rss(path, budget, *args):
    done = subprocess.run([sys.executable, "-c", MEASURE, BINARY, "run", path,
                           "--budget", str(budget), *map(str, args)],
                          env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout), done.stderr


@pytest.mark.parametrize("extra", [0, 64 << 20, 400 << 20])
@pytest.mark.parametrize("how", [["--io", "io_uring"], ["--io", "threads"],
                                 ["--io", "sync", "--no-direct-io"]])
def test_peak_rss_stays_under_the_budget(slice_of_kimi, extra, how):
    floor = plan(slice_of_kimi)["floor_bytes"]
    prompt = "one two three " * 40
    rss, _ = peak_rss(slice_of_kimi, floor + extra, prompt, "-n", 4, *how)
    assert rss <= floor + extra, f"{rss / 2**20:.1f} MiB used, budget {(floor + extra) / 2**20:.1f}"


def test_a_byte_below_the_floor_is_refused_with_the_numbers(slice_of_kimi):
    floor = plan(slice_of_kimi)["floor_bytes"]
    done = subprocess.run([BINARY, "run", slice_of_kimi, "x", "--budget", str(floor - 1)], env=ENV,
                          capture_output=True, text=True)
    assert done.returncode == 3
    assert "floor" in done.stderr and done.stdout == ""


def test_long_contexts_are_in_the_plan(slice_of_kimi):
    short, long = plan(slice_of_kimi), plan(slice_of_kimi, "--ctx", 32768)
    assert long["state_bytes"] > short["state_bytes"]
    rss, _ = peak_rss(slice_of_kimi, long["floor_bytes"], "--ctx", 32768, "hello", "-n", 2)
    assert rss <= long["floor_bytes"]
