"""waste-bench as people run it: what it prints, what it refuses, and that its digests agree. No test here
looks at how long anything took."""

import contextlib
import json
import math
import os
import pathlib
import pty
import re
import shutil
import signal
import stat
import subprocess
import time

import pytest

from conftest import BINARY, clean_env

BENCH = str(pathlib.Path(BINARY).parent / "bench" / "waste-bench")
PROFILES = pathlib.Path(__file__).resolve().parents[2] / "fio-profiles"
INVALID = 7


def bench(*args, check=0, env=None, **kw):
    done = subprocess.run([BENCH, *map(str, args)], capture_output=True, text=True, timeout=300,
                          env=clean_env(env), **kw)
    if check is not None:
        assert done.returncode == check, (args, done.returncode, done.stdout, done.stderr)
    return done


def bench_json(*args, check=0, **kw):
    done = bench(*args, "--json", check=check, **kw)
    assert done.stderr == "" and done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def bench_error(*args, check, **kw):
    """The same under --json: an object on standard error, nothing on standard output."""
    words = bench(*args, check=check, **kw).stderr
    done = bench(args[0], "--json", *args[1:], check=check, **kw)
    assert done.stdout == ""
    error = json.loads(done.stderr)
    assert error["exit"] == check and error["detail"] in words
    return error["detail"]


def io_json(file, *args, **kw):
    return bench_json("io", "--quick", "--rounds", 2, "--sizes", "1M", "--depths", "1,3", "--engines",
                      "sync,threads", *args, file, **kw)


def arms(report):
    for trial in report["trials"]:
        for arm in trial["arms"]:
            yield trial, arm


def check_report(report, command):
    """What every report has, whatever was measured."""
    assert report["schema"] == "waste-bench/1" and report["command"] == command
    machine, build = report["provenance"]["machine"], report["provenance"]["build"]
    assert machine["cores"] >= 1 and machine["kernels"] and machine["kernel"]
    assert build["compiler"] and build["type"] and build["revision"] and build["version"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["provenance"]["date"])
    assert len(report["provenance"]["load"]) == 3 == len(report["load_at_end"])
    assert report["trials"]
    for trial, arm in arms(report):
        assert arm["state"] in ("valid", "invalid", "absent")
        assert (arm["why"] is None) == (arm["state"] == "valid")
        for metric in trial["metrics"]:
            figures = arm[metric["name"]]
            known = [v for v in figures["samples"] if v is not None]
            if known:
                assert min(known) == figures["min"] <= figures["median"] <= figures["max"] == max(known)
    assert report["interrupted"] is False
    assert report["valid"] == all(arm["state"] != "invalid" for _, arm in arms(report))


@pytest.fixture(scope="module")
def kernels():
    return bench_json("kernels", "--quick", "--rounds", 1, "--shape", "demo")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "eight.bin"
    path.write_bytes(os.urandom(8 << 20))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)  # or it could not be dropped from the page cache
    os.close(fd)
    return path


def test_help_lists_every_command_and_each_explains_itself():
    listed = re.findall(r"^  (\w+) ", bench("help").stdout, re.M)
    assert {"kernels", "io", "pool", "replay", "sweep", "decode", "prefill", "report"} <= set(listed)
    for name in listed:
        text = bench(name, "--help").stdout
        assert text.startswith(f"Usage: waste-bench {name} ") and "--rounds" in text


def test_help_of_a_command_is_that_of_its_flag():
    assert bench("help", "decode").stdout == bench("decode", "--help").stdout
    assert "did you mean decode?" in bench("help", "decod", check=2).stderr


def test_a_misused_command_says_where_its_options_are():
    assert "waste-bench help io" in bench("io", check=2).stderr


def test_an_installed_model_has_a_bare_name():
    assert bench("decode", "demo", "--quick", "--numeric", "f32", "--cpu", "c", "--json").stdout


def test_on_a_terminal_the_running_arm_is_shown():
    shown, stderr = pty.openpty()
    with subprocess.Popen([BENCH, "kernels", "--quick", "--rounds", "1"], stdout=subprocess.DEVNULL,
                          stderr=stderr) as run:
        os.close(stderr)
        text = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(shown, 4096):
                text += chunk
    os.close(shown)
    assert b"\x1b[Kround 1 of 1, 1 of " in text and text.endswith(b"\r\x1b[K") and run.returncode in (0, 7)


def test_without_a_command_the_usage_is_an_error():
    assert "Usage:" in bench(check=2).stderr


@pytest.mark.parametrize("args, words", [
    (["kernls"], "did you mean kernels?"),
    (["report", "--out", ""], "--out: it is empty"),
    (["decode", "model", "--numeric="], "--numeric: it is empty"),
    (["kernels", "--round", "3"], "did you mean --rounds?"),
    (["kernels", "--rounds"], "a value is missing"),
    (["kernels", "--rounds", "0"], "from 1 to 99"),
    (["kernels", "--rounds", "many"], '"many"'),
    (["kernels", "--quick=yes"], "takes no value"),
    (["kernels", "file"], "too many arguments"),
    (["kernels", "--families", "rvq,rqv"], '"rqv": there are encode, rvq'),
    (["kernels", "--shape", "k4"], '"k4": there are demo, kimi-linear-48b, k3'),
    (["io"], "an argument is missing"),
    (["io", "--depths", "1,,2", "f"], "whole number"),
    (["io", "--depths", "0", "f"], "from 1 to 256"),
    (["io", "--sizes", "5000", "f"], "5000 bytes are no multiple of 4096"),
    (["io", "--engines", "psync", "f"], '"psync": this build has'),
    (["io", "--engines", "sync,psync", "f"], '"psync": this build has'),
    (["io", ""], "an argument is empty"),
    ([""], "the command is empty"),
])
def test_misuse_is_named(args, words):
    if args in (["kernls"], [""]):
        assert words in bench(*args, check=2).stderr
    else:
        assert words in bench_error(*args, check=2)


def test_a_full_standard_output_is_an_error():
    with open("/dev/full", "w") as full:
        done = subprocess.run([BENCH, "kernels", "--quick", "--rounds", "1", "--shape", "demo",
                               "--families", "vec"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "takes no more" in done.stderr


def test_kernels_measure_every_family_at_every_level(kernels):
    check_report(kernels, "kernels")
    families = {trial["name"].split()[0].rstrip(",") for trial in kernels["trials"]}
    assert families == {"encode", "fit", "rvq", "gemv", "delta", "attend", "tower", "vec"}
    levels = {tuple(arm["name"] for arm in trial["arms"] if not arm["ceiling"])
              for trial in kernels["trials"]}
    assert len(levels) == 1 and levels.pop()[0] == "c"
    for profile in ("f32", "direct", "i16", "i8"):
        for part in ("prepare", "rows hot", "rows from RAM"):
            assert any(trial["name"].startswith(f"rvq 3x256 {profile} {part}")
                       for trial in kernels["trials"])


def test_levels_agree_on_what_they_computed(kernels):
    for trial in kernels["trials"]:
        digests = {arm["digest"] for arm in trial["arms"] if not arm["ceiling"]}
        assert len(digests) == 1 and None not in digests, trial["name"]
        assert all(arm["digest"] is None for arm in trial["arms"] if arm["ceiling"])


def test_the_same_inputs_give_the_same_digests(kernels):
    again = bench_json("kernels", "--quick", "--rounds", 1, "--shape", "demo", "--families",
                       "encode,delta")
    wanted = {trial["name"]: trial["arms"][0]["digest"] for trial in kernels["trials"]}
    assert again["trials"]
    for trial in again["trials"]:
        assert trial["arms"][0]["digest"] == wanted[trial["name"]]


def test_the_projection_for_k3_is_its_weights_at_the_measured_rate(kernels):
    weights = 92 * 896 * 3 * 3072 * 3584
    encode = [trial for trial in kernels["trials"] if trial["name"].startswith("encode")]
    assert len(encode) == 3
    assert any("16 cores" in note and "linear" in note for note in kernels["notes"])
    for trial in encode:
        for arm in trial["arms"]:
            if not arm["ceiling"]:
                hours = weights / (arm["rate"]["median"] * 1e6) / 16 / 3600
                assert math.isclose(arm["k3_hours_on_16_cores"]["median"], hours, rel_tol=1e-6)


def test_shares_are_of_the_ceiling_that_binds(kernels):
    for trial in kernels["trials"]:
        roofs = [arm["rate"]["median"] for arm in trial["arms"] if arm["ceiling"]]
        assert trial["ceiling"] == (min(roofs) if roofs else None)
        for arm in trial["arms"]:
            if roofs:
                assert math.isclose(arm["of_ceiling"], arm["rate"]["median"] / min(roofs))


def test_a_table_has_a_line_per_arm():
    text = bench("kernels", "--quick", "--rounds", 1, "--shape", "demo", "--families", "delta").stdout
    assert text.startswith("# ") and text.count("\ndelta ") == 2
    assert len(re.findall(r"^  c +[\d.]+", text, re.M)) == 2


def test_engines_read_the_same_bytes(file):
    report = io_json(file, "--no-fio", check=None)
    check_report(report, "io")
    for trial in report["trials"]:
        ran = [arm for arm in trial["arms"] if arm["state"] != "absent"]
        assert {arm["name"].split(",")[0] for arm in ran} == {"sync", "threads"}
        assert len({arm["digest"] for arm in ran}) == 1
        for arm in ran:
            reads = sum(n for _, n in trial["facts"]["latency_histograms"][arm["name"]])
            assert reads == trial["facts"]["reads_per_sample"] * trial["rounds"]
    assert [trial["facts"]["depth"] for trial in report["trials"]] == [1, 3]


def test_an_arm_is_valid_exactly_when_the_device_delivered(file):
    report = io_json(file, "--no-fio", check=None)
    for _, arm in arms(report):
        from_device = arm["device_per_asked"]["min"]
        if from_device is not None:
            assert (arm["state"] == "valid") == (from_device >= 0.98)


def test_bytes_from_the_page_cache_make_the_row_invalid(file):
    file.read_bytes()
    report = io_json(file, "--no-fio", "--warm", check=INVALID)
    assert report["valid"] is False
    buffered = [arm for _, arm in arms(report) if arm["name"].endswith("buffered")]
    for arm in buffered:
        if arm["state"] != "absent":
            assert arm["state"] == "invalid" and "page cache" in arm["why"]
            assert arm["of_ceiling"] is None and arm["gb_s"]["median"] > 0


def test_computing_threads_are_counted_beside(file):
    report = io_json(file, "--no-fio", "--busy", 1, check=None)
    done = [arm["busy_gfma_s"]["max"] for _, arm in arms(report) if arm["state"] != "absent"]
    assert None not in done and max(done) > 0
    assert all(trial["arms"][-1]["name"] == "nothing is read" for trial in report["trials"])


def test_a_missing_fio_is_said(file, tmp_path):
    report = io_json(file, check=None, env={"PATH": str(tmp_path)})
    assert "fio is not installed: nothing to hold the engines against" in report["notes"]
    assert report["provenance"]["fio"] is None
    assert not any(arm["ceiling"] for _, arm in arms(report))


def fake_fio(folder, body):
    path = folder / "fio"
    path.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo fio-9.9 && exit\n" + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize("body, words", [
    ("echo fio: no such luck; exit 3", "fio ended with 3: fio: no such luck"),
    ("echo '{\"jobs\": [{}]}'", "fio: no read figures in its JSON"),
    ("echo nothing", "fio: no read figures in its JSON"),
])
def test_a_fio_that_fails_is_a_row_with_its_words(file, tmp_path, body, words):
    report = io_json(file, check=INVALID, env=fake_fio(tmp_path, body))
    fio = [arm for _, arm in arms(report) if arm["ceiling"]]
    assert fio and all(arm["state"] == "invalid" and arm["why"] == words for arm in fio)
    assert report["provenance"]["fio"] == "fio-9.9"


@pytest.mark.skipif(not shutil.which("fio"), reason="fio is not installed")
def test_fio_is_the_ceiling(file):
    report = io_json(file, check=None)
    for trial in report["trials"]:
        fio = [arm for arm in trial["arms"] if arm["name"].startswith("fio ")]
        assert len(fio) == 3 and all(arm["ceiling"] for arm in fio)
        valid = [arm["gb_s"]["median"] for arm in fio if arm["state"] == "valid"]
        assert trial["ceiling"] == (max(valid) if valid else None)


def test_a_missing_file_is_named_with_the_way_out(tmp_path):
    path = tmp_path / "none.bin"
    assert str(path) in bench_error("io", path, check=1)
    assert "--create" in bench("io", path, check=1).stderr
    assert bench_error("io", tmp_path, check=1)


def test_a_file_smaller_than_a_record_is_refused_with_both_sizes(tmp_path):
    path = tmp_path / "small.bin"
    path.write_bytes(bytes(8192))
    detail = bench_error("io", "--sizes", "64K", path, check=2)
    assert "8192 bytes" in detail and "65536" in detail


@contextlib.contextmanager
def creating(path, interrupt):
    child = subprocess.Popen([BENCH, "io", "--create", "100G", "--no-fio", path], env=clean_env(),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, interrupt))
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def wait_for_bytes(path, n):
    for _ in range(3000):
        if path.exists() and path.stat().st_size >= n:
            return
        time.sleep(0.01)
    pytest.fail(f"{path} does not grow")


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_create_leaves_nothing(tmp_path, by):
    path, partial = tmp_path / "records", tmp_path / "records.partial"
    with creating(path, signal.SIG_DFL) as child:
        wait_for_bytes(partial, 1)
        child.send_signal(by)
        assert child.wait(timeout=60) == (130 if by == signal.SIGINT else -by)
    assert list(tmp_path.iterdir()) == []


def test_a_create_in_the_background_heeds_no_interrupt(tmp_path):
    """A shell starts background jobs with SIGINT ignored."""
    path, partial = tmp_path / "records", tmp_path / "records.partial"
    with creating(path, signal.SIG_IGN) as child:
        wait_for_bytes(partial, 1)
        child.send_signal(signal.SIGINT)
        wait_for_bytes(partial, partial.stat().st_size + (16 << 20))
        assert child.poll() is None
        child.terminate()
        assert child.wait(timeout=60) == -signal.SIGTERM


def test_of_two_creates_of_one_file_one_makes_it(tmp_path):
    path, partial = tmp_path / "records", tmp_path / "records.partial"
    with creating(path, signal.SIG_DFL) as child:
        wait_for_bytes(partial, 1)
        detail = bench_error("io", "--create", "4M", "--no-fio", path, check=1)
        assert str(partial) in detail and "another run" in detail
        assert child.poll() is None and not path.exists()
        wait_for_bytes(partial, partial.stat().st_size + (4 << 20))
        child.send_signal(signal.SIGINT)
        child.wait(timeout=60)


def test_a_file_that_appears_while_another_is_made_stays(tmp_path):
    path, partial = tmp_path / "records", tmp_path / "records.partial"
    child = subprocess.Popen([BENCH, "io", "--create", "64M", "--no-fio", path], env=clean_env(),
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for_bytes(partial, 1)
    child.send_signal(signal.SIGSTOP)
    path.write_bytes(b"precious")
    child.send_signal(signal.SIGCONT)
    assert "File exists" in child.communicate(timeout=120)[1] and child.returncode == 1
    assert path.read_bytes() == b"precious" and not partial.exists()


def test_create_makes_a_file_once(tmp_path):
    path = tmp_path / "made.bin"
    args = ["--create", "3M", "--no-fio"]
    io_json(path, *args, check=None)
    assert path.stat().st_size == 3 << 20
    before = path.read_bytes()
    assert "File exists" in bench_error("io", *args, path, check=1)
    assert path.read_bytes() == before and len(set(before[:4096])) > 200


def test_records_are_those_of_the_published_models(tmp_path):
    """The default sizes, the profiles' and the layout's: one number each."""
    path = tmp_path / "sparse.bin"
    with open(path, "wb") as f:
        f.truncate(64 << 20)
    report = bench_json("io", "--quick", "--rounds", 1, "--depths", 1, "--engines", "sync", "--no-fio",
                        path, check=None)
    sizes = {trial["facts"]["record_bytes"] for trial in report["trials"]}
    text = (PROFILES / "expert-random.fio").read_text()
    assert sizes == {int(n) for n in re.findall(r"^bs=(\d+)$", text, re.M)} == {2666496, 12406784}


@pytest.mark.skipif(not shutil.which("fio"), reason="fio is not installed")
@pytest.mark.parametrize("profile", sorted(PROFILES.glob("*.fio")), ids=lambda path: path.stem)
def test_fio_understands_the_profiles(profile, file):
    done = subprocess.run(["fio", "--parse-only", str(profile)], capture_output=True, text=True,
                          env={**os.environ, "FILE": str(file)})
    assert done.returncode == 0, done.stderr


def test_a_report_is_tables_goals_and_the_object(tmp_path, file):
    out = tmp_path / "report.txt"
    done = bench("report", "--quick", "--rounds", 1, "--out", out, file, check=None)
    assert done.returncode == 2 and "a record has 12406784" in done.stderr  # 8 MiB are too few
    done = bench("report", "--quick", "--rounds", 1, "--out", out)
    lines = out.read_text().splitlines()
    report = json.loads(lines[-1])
    check_report(report, "report")
    assert lines[0].startswith("# ") and any(line.startswith("encode 3x256") for line in lines)
    assert "no FILE was named: reading was not measured" in report["notes"]
    assert len(report["goals"]) == done.stdout.count(">=") + done.stdout.count("<=")
    for goal in report["goals"]:
        if goal["reached"] is None:
            assert goal["met"] is None
        elif goal["at_most"]:
            assert goal["met"] == (goal["reached"] <= goal["goal"])
        else:
            assert goal["met"] == (goal["reached"] >= goal["goal"])
    assert "--out" in bench_error("report", "--out", tmp_path / "none" / "x", check=1)


def test_a_report_overwrites_nothing(tmp_path):
    there = tmp_path / "bank"
    there.write_bytes(b"precious")
    done = bench("report", "--quick", "--rounds", 1, "--out", there, there, check=1)
    assert "is not overwritten" in done.stderr
    assert there.read_bytes() == b"precious"
    done = bench("report", "--out", tmp_path / "new", tmp_path / "none", check=1)
    assert "none" in done.stderr and not (tmp_path / "new").exists()


# ---- interrupts: what was measured is there, and nothing looks as if it were all ----

def interrupted(args, ready):
    """Ctrl-C once `ready` returns."""
    child = subprocess.Popen([BENCH, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, env=clean_env())
    seen = ready(child) or ""
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 130 and err == "", (child.returncode, err)
    return seen + out


def has_begun(child):
    """Handlers are there, and an arm runs: it has taken this much of the processor."""
    stat = pathlib.Path(f"/proc/{child.pid}/stat")
    for _ in range(3000):
        if sum(map(int, stat.read_text().rsplit(")")[-1].split()[11:13])) >= 20:  # ticks of 10 ms
            return
        time.sleep(0.01)
    pytest.fail("it does not begin")


LONG = {
    "kernels": ["kernels", "--families", "vec", "--sample-ms", 2000, "--ram", "4M"],
    "decode": ["decode", "demo", "--rounds", 99, "--tokens", 4000],
    "prefill": ["prefill", "demo", "--rounds", 99, "--lengths", "2000", "--no-check"],
    "sweep": ["sweep", "demo", "--rounds", 99, "--tokens", 4000],
    "replay": ["replay", "invented", "--shape", "k3"],
}


@pytest.mark.parametrize("command", LONG)
def test_an_interrupted_object_says_that_it_is_not_all(command):
    report = json.loads(interrupted([*LONG[command], "--json"], has_begun))
    assert report["interrupted"] is True and report["valid"] is False
    assert any(note.startswith("INTERRUPTED") for note in report["notes"])
    for trial, arm in arms(report):
        assert arm["state"] == "valid" or arm["why"] == "interrupted before its first sample"


def test_interrupted_tables_end_with_the_word():
    def a_table(child):
        seen = ""
        while " x first " not in seen:
            seen += child.stdout.readline()
        return seen

    out = interrupted(["kernels", "--families", "vec", "--sample-ms", 100, "--ram", "4M"], a_table)
    assert out.splitlines()[-1] == "# INTERRUPTED: this is what was measured until then"


def test_an_interrupted_report_is_a_file_that_says_so(tmp_path):
    out, partial = tmp_path / "report.txt", tmp_path / "report.txt.partial"
    said = interrupted(["report", "--out", out], lambda child: wait_for_bytes(partial, 2000))
    assert "Interrupted" in said and str(out) in said
    assert [p.name for p in tmp_path.iterdir()] == ["report.txt"]
    lines = out.read_text().splitlines()
    report = json.loads(lines[-1])
    assert report["interrupted"] is True and report["trials"] and "goals" not in report
    assert any(line.startswith("# INTERRUPTED") for line in lines) and "Goals" not in out.read_text()


# ---- standard output ----

def test_a_closed_stdout_never_becomes_the_report(tmp_path):
    out = tmp_path / "report.txt"
    done = bench("report", "--quick", "--rounds", 1, "--out", out, check=1, preexec_fn=lambda: os.close(1))
    assert "standard output" in done.stderr
    check_report(json.loads(out.read_text().splitlines()[-1]), "report")


def test_a_reader_who_leaves_ends_the_measuring():
    child = subprocess.Popen([BENCH, "kernels", "--families", "vec", "--sample-ms", "20", "--ram", "4M"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_env())
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == b"" and child.wait(timeout=120) == -signal.SIGPIPE


def test_help_is_asked_for_as_elsewhere():
    assert bench("io", "-h").stdout == bench("io", "--help").stdout == bench("help", "io").stdout
    assert bench("-h").stdout == bench("--help").stdout == bench("help").stdout


@pytest.mark.parametrize("args", [["help"], ["help", "io"], ["version"], ["io", "--help"]])
def test_help_that_nobody_gets_is_an_error(args):
    with open("/dev/full", "w") as full:
        done = subprocess.run([BENCH, *args], stdout=full, stderr=subprocess.PIPE, env=clean_env())
    assert done.returncode == 1 and b"standard output" in done.stderr


@pytest.mark.parametrize("args", [["io", "--sizes", "1G", "--depths", "256"], ["kernels", "--ram", "900G"]])
def test_what_no_machine_has_memory_for_is_refused_before_it_is_touched(args, tmp_path):
    file = tmp_path / "sparse"
    with open(file, "wb") as f:
        f.truncate(1 << 31)
    detail = bench_error(*args, *[file] * (args[0] == "io"), check=3)
    assert "this machine offers" in detail
