"""A run as a container of Docker's makes it: no io_uring, 8 MiB of lockable memory, a memory limit.
It starts, says the same as outside, and its banner says what it had to do without and why."""

import ctypes
import os
import pathlib
import re
import resource
import struct

import pytest

from conftest import GOLDEN, waste

MIB = 1 << 20
LIMIT = 512 * MIB
MEMLOCK = 8 * MIB
NO_URING = "not io_uring: Operation not permitted (a seccomp filter, as of a container?)"
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 22, 24, 38
CAP_IPC_LOCK = 14
LIBC = ctypes.CDLL(None, use_errno=True)


def bpf(*instructions):
    return b"".join(struct.pack("=HBBI", *i) for i in instructions)


# io_uring_setup, _enter, _register are 425 to 427 on every architecture since they exist.
FILTER = bpf((0x20, 0, 0, 0),            # the number of the call
             (0x35, 0, 2, 425),          # below: allowed
             (0x25, 1, 0, 427),          # above: allowed
             (0x06, 0, 0, 0x00050001),   # EPERM
             (0x06, 0, 0, 0x7fff0000))


def must(answer):
    if answer:
        raise OSError(ctypes.get_errno(), "prctl")


def confine(cgroup=None):
    """In the child: what the runtime does before it starts a program."""
    text = ctypes.create_string_buffer(FILTER, len(FILTER))
    program = ctypes.create_string_buffer(
        struct.pack("@HP", len(FILTER) // 8, ctypes.addressof(text)))
    if cgroup:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (MEMLOCK, MEMLOCK))
    if os.geteuid() == 0:
        must(LIBC.prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0))
    must(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    must(LIBC.prctl(PR_SET_SECCOMP, 2, program, 0, 0))


def run(name, **kw):
    done = waste("run", GOLDEN / f"{name}.waste", "Hello", "-n", 6, check=0, **kw)
    return done.stdout, done.stderr.decode()


def own_cgroups():
    """Directories of this process's groups that may have a memory controller: v2, then v1."""
    mounts = [line.split() for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for m in mounts:
            kind, options = m[m.index("-") + 1], m[m.index("-") + 3].split(",")
            if not controllers and kind == "cgroup2" or (
                    "memory" in controllers.split(",") and kind == "cgroup" and "memory" in options):
                inside = os.path.relpath(path, m[3])
                yield pathlib.Path(m[4]) / ("" if inside.startswith("..") else inside)


@pytest.fixture(name="limited")
def make_limited():
    why = "no cgroup with a memory controller is mounted"
    for parent in own_cgroups():
        group = parent / f"waste-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as e:
            why = f"{parent}: {e.strerror}"
            continue
        try:
            for name in ("memory.max", "memory.limit_in_bytes"):
                if (group / name).exists():
                    (group / name).write_text(str(LIMIT))
                    yield group
                    return
            why = f"{parent}: no memory controller for groups below"
        except OSError as e:
            why = f"{parent}: {e.strerror}"
        finally:
            group.rmdir()
    pytest.skip(f"a memory limit: {why}")


def check_banner(err):
    reads = re.search(r"^reads +(\w+), \d+ in flight", err, re.M)
    assert reads and reads[1] in ("libaio", "threads"), err
    assert NO_URING in err, err


@pytest.mark.parametrize("name", ["kimi-linear", "k3"])
def test_without_io_uring_and_little_locked_memory_the_text_is_the_same(name):
    out, _ = run(name)
    confined, err = run(name, preexec_fn=confine)
    assert confined == out
    check_banner(err)


def test_a_memory_limit_is_what_the_budget_is_chosen_from(limited):
    out, _ = run("k3")
    confined, err = run("k3", preexec_fn=lambda: confine(limited))
    assert confined == out
    check_banner(err)
    plan = waste("plan", GOLDEN / "k3.waste", "--json", check=0,
                 preexec_fn=lambda: confine(limited)).stdout.decode()
    assert f'"usable_ram_bytes":{LIMIT}' in plan.replace(" ", ""), plan


def test_io_uring_allowed_and_memory_not_lockable_is_said():
    """Registering needs no more than the limit, or says that it was more."""
    def little():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))
        if os.geteuid() == 0:
            must(LIBC.prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0))

    out, err = run("kimi-linear")
    if not re.search(r"^reads +io_uring", err, re.M):
        pytest.skip("io_uring does not work here")
    confined, err = run("kimi-linear", preexec_fn=little)
    assert confined == out
    assert re.search(r"pool memory not registered: \d+ KiB, RLIMIT_MEMLOCK is 64 KiB", err) or (
        "not io_uring: " in err and "RLIMIT_MEMLOCK" in err), err
