"""waste doctor: what it says of this machine, whatever it is."""

import os
import resource

import pytest

from conftest import waste, waste_error, waste_json

JUDGED = {"good", "fact", "better", "bad", "unknown"}


def by_name(report, topic, name):
    return [f for f in report["findings"] if (f["topic"], f["name"]) == (topic, name)]


def names_the_place(report):
    """In a chroot mountinfo has no mount that the path is on; that is found, too."""
    return by_name(report, "drive", "file system") or by_name(report, "drive", "mount")


def test_of_a_model_it_ends_with_what_to_expect(kimi):
    report = waste_json("doctor", kimi)
    assert report["fits"] is True
    assert report["drive_bytes_per_s"] > 0 and report["tok_per_s"] > 0
    assert by_name(report, "system", "kernel") and by_name(report, "memory", "usable")
    assert names_the_place(report) and by_name(report, "drive", "rate")
    assert by_name(report, "model", "memory")[0]["judged"] in ("good", "better")
    for f in report["findings"]:
        assert f["judged"] in JUDGED and f["value"]
        assert f["cure"] or f["judged"] != "bad"


def test_as_text_it_has_a_verdict_and_a_count(kimi):
    out = waste("doctor", kimi, check=0).stdout.decode()
    assert "can run here: at most" in out and "could be better.\n" in out
    assert all(len(line) < 80 or str(kimi) in line for line in out.splitlines())


def test_without_a_model_it_looks_at_the_directory(tmp_path):
    report = waste_json("doctor", cwd=tmp_path)
    assert "fits" not in report and report["path"] == "."
    assert names_the_place(report)


def test_a_model_that_does_not_fit_is_exit_code_3(kimi):
    report = waste_json("doctor", kimi, "--budget", "2M", check=3)
    assert report["fits"] is False and report["tok_per_s"] is None
    assert by_name(report, "model", "memory")[0]["judged"] == "bad"
    assert "cannot run here" in waste("doctor", kimi, "--budget", "2M", check=3).stdout.decode()


def test_every_rung_that_exists_is_reported(kimi):
    report = waste_json("doctor", kimi)
    for engine in ("threads", "sync"):
        assert by_name(report, "system", engine)[0]["judged"] == "good"


def test_threads_are_shown_where_they_would_run(kimi):
    cpu = min(os.sched_getaffinity(0))
    report = waste_json("doctor", kimi)
    assert "thread" in by_name(report, "system", "placement")[0]["value"]
    report = waste_json("doctor", kimi, "--cpus", str(cpu), "--threads", "3")
    assert by_name(report, "system", "placement")[0]["value"] == f"3 threads on CPU {cpu}, as listed"


def test_variables_are_shown_and_keys_are_not(kimi):
    report = waste_json("doctor", kimi, env={"WASTE_BUDGET": "96M"})
    assert by_name(report, "settings", "WASTE_BUDGET")[0]["value"] == "96M"


@pytest.mark.parametrize("args, code", [
    (["no-such-model"], 1),
    (["a", "b"], 2),
    (["--stages", "3"], 2),
])
def test_misuse(args, code):
    assert waste_error("doctor", *args, check=code)


def test_a_damaged_container_is_named(copy):
    with open(copy.bank(1), "r+b") as f:
        f.truncate(4096)
    report = waste_json("doctor", copy, check=4)
    assert report["opens"] is False and report["drive_bytes_per_s"] is None
    found = by_name(report, "model", "container")[0]
    assert found["judged"] == "bad" and copy.bank(1).name in found["value"]
    assert b"cannot run: the container is not whole" in waste("doctor", copy, check=4).stdout


def test_too_few_descriptors_are_not_called_damage(kimi):
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))  # noqa: E731
    done = waste("doctor", kimi, preexec_fn=few)
    assert done.returncode == 1
    text = done.stdout.decode()
    assert "ulimit -n" in text and "cannot be opened" in text and "not whole" not in text
