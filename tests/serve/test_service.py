"""The unit for systemd: systemd itself finds nothing wrong with it, its command is one that we
understand, its filter lets every way of reading through, and it is told when we are ready."""

import contextlib
import re
import shlex
import shutil
import socket
import subprocess

import pytest

from serving import PATIENCE, ROOT, Server
from serve.__main__ import arguments

UNIT = ROOT / "share" / "waste-serve.service"
ANALYZE = shutil.which("systemd-analyze")
with_systemd = pytest.mark.skipif(not ANALYZE, reason="no systemd-analyze here")


def settings():
    lines = [l for l in UNIT.read_text().splitlines() if re.match(r"\w+=", l)]
    return dict(l.split("=", 1) for l in lines)


def options():
    program, command, *rest = shlex.split(settings()["ExecStart"])
    assert program.endswith("/waste") and command == "serve"
    return arguments().parse_args(rest)


@with_systemd
def test_systemd_understands_every_line(tmp_path):
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/waste", shutil.which("true")))
    done = subprocess.run([ANALYZE, "verify", "--recursive-errors=no", unit], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0 and UNIT.name not in done.stdout, done.stdout


def calls_of(group):
    listed = subprocess.run([ANALYZE, "syscall-filter", group], check=True, text=True,
                            capture_output=True).stdout.split()
    nested = set().union(*(calls_of(w) for w in listed[1:] if w.startswith("@")), set())
    return nested | set(listed)


@with_systemd
def test_its_filter_has_the_calls_that_engines_need():
    calls = calls_of(settings()["SystemCallFilter"])
    assert {"io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup", "io_submit",
            "pread64", "sched_setaffinity", "madvise"} <= calls
    assert "reboot" not in calls


def test_stopping_may_take_longer_than_draining():
    assert float(settings()["TimeoutStopSec"]) > options().drain_timeout


def test_more_files_may_be_open_than_connections():
    assert int(settings()["LimitNOFILE"]) > 2 * options().connections


@contextlib.contextmanager
def manager(path):
    """systemd's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.settimeout(PATIENCE)
        s.bind(path)
        yield s


@pytest.mark.parametrize("abstract", (False, True))
def test_whoever_started_us_hears_when_we_are_ready_and_when_we_stop(tmp_path, abstract):
    path = str(tmp_path / "notify")
    told = "@" + path if abstract else path
    with manager("\0" + path if abstract else path) as s, Server(env={"NOTIFY_SOCKET": told}) as server:
        ready = s.recv(1000).decode().split("\n")
        assert ready[0] == "READY=1" and server.health()["status"] == "ok"
        assert f":{server.port}" in ready[1]
        server.process.terminate()
        assert s.recv(1000).startswith(b"STOPPING=1\n")
        assert server.stop() == 0


def test_nobody_who_listens_is_no_reason_to_stop(tmp_path):
    with Server(env={"NOTIFY_SOCKET": str(tmp_path / "nobody")}) as server:
        assert server.ready().chat("Hello!", 2)
