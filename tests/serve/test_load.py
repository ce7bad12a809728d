"""scripts/load_server, for seconds instead of minutes: many clients, each answer the right one,
nothing left behind. How fast /health is and how memory grows is judged by the long run alone."""

import subprocess
import sys

from serving import PATIENCE, ROOT, clean_env

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


def test_a_server_that_answers_otherwise_is_noticed():
    """With another temperature than the one that was asked alone."""
    done = load_server("--minutes", 0.03, "--clients", 4, "--option=--temperature=1.9")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "another answer than alone" in done.stdout
