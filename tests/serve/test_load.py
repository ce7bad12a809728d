"""scripts/load_server, for seconds instead of minutes: many clients, each answer the right one,
nothing left behind. How fast /health is and how memory grows is judged by the long run alone."""

import subprocess
import sys

import pytest

from serving import PATIENCE, ROOT, clean_env, seeing_model  # noqa: F401

QUICK = ["--head-timeout", "2", "--body-timeout", "4", "--max-body", "2000000", "--health-ms", "0",
         "--rss-kib", "0", "--patience", str(2 * PATIENCE)]


def load_server(*args):
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "load_server"), *QUICK, *map(str, args)],
        env=clean_env(), capture_output=True, text=True, timeout=20 * PATIENCE)


def test_sixty_clients_of_all_kinds_get_their_own_answers_and_leave_nothing():
    done = load_server("--minutes", 0.35, "--clients", 60, "--seed", 5)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert {"normal", "leaving", "slow", "repeating", "hurried", "large", "hostile", "lingering",
            "looking"} <= counted, done.stdout
    assert "no violation" in done.stdout


def test_a_run_of_no_time_is_judged_like_any_other():
    """Symptom: IndexError, for want of samples."""
    done = load_server("--minutes", 0, "--clients", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("memory", "descriptors", "threads", "CPU", "no violation"):
        assert f"\n{word}" in done.stdout, done.stdout


@pytest.mark.parametrize("option, value", [("--minutes", "-1"), ("--minutes", "nan"),
                                           ("--clients", "0"), ("--patience", "x")])
def test_a_number_that_is_none_of_the_possible_is_refused(option, value):
    done = load_server(option, value)
    assert done.returncode == 2 and option in done.stderr and value in done.stderr


def test_pictures_are_among_what_a_server_that_sees_is_asked(seeing_model):  # noqa: F811
    done = load_server("--minutes", 0.05, "--clients", 6, "--model", seeing_model,
                       "--option=--vision")
    assert done.returncode == 0, done.stdout + done.stderr
    plain = load_server("--minutes", 0, "--clients", 1, "--model", seeing_model)
    n_seeing, n_plain = (int(d.stdout.split(" right answers")[0]) for d in (done, plain))
    assert n_seeing > n_plain > 30


def test_a_server_that_answers_otherwise_is_noticed():
    """With another temperature than the one that was asked alone."""
    done = load_server("--minutes", 0.03, "--clients", 4, "--option=--temperature=1.9")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "another answer than alone" in done.stdout
