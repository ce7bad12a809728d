"""Helpers of the command tests: run the binary in a clean environment, spoil containers."""

import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import time

import pytest

BINARY = os.path.abspath(os.environ.get("WASTE_BIN", ""))
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
FAMILIES = ["kimi-linear", "k3", "deepseek", "k2"]
BUDGET = "96M"
EOS = 274  # <|im_end|> of the golden containers' tokenizer
FOREVER = ["--logit-bias", f"{EOS}=-1000000"]


def pytest_configure():
    if not os.environ.get("WASTE_BIN"):
        raise pytest.UsageError("WASTE_BIN must name the waste binary to test")


def clean_env(extra=None):
    """No WASTE_* of the caller: the program would refuse WASTE_BIN, as it should. Nor options."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("WASTE_")}
    env.pop("NO_COLOR", None)
    env["XDG_CONFIG_HOME"] = "/dev/null/none"  # root could make /nonexistent, and programs do
    env["TERM"] = "xterm"
    env.update(extra or {})
    return env


def waste(*args, stdin=b"", env=None, check=None, **kw):
    """Run to the end. check: the exit code it must have."""
    done = subprocess.run([BINARY, *map(str, args)], input=stdin, capture_output=True,
                          env=clean_env(env), timeout=300, **kw)
    if check is not None:
        assert done.returncode == check, (args, done.returncode, done.stdout, done.stderr)
    return done


def waste_json(*args, check=0, **kw):
    """With --json: exactly one object on standard output, nothing on standard error."""
    done = waste(*args, "--json", check=check, **kw)
    assert done.stdout.endswith(b"\n") and done.stdout.count(b"\n") == 1, done.stdout
    assert done.stderr == b"", done.stderr
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def waste_error(*args, check, **kw):
    """With --json: no standard output, and one object on standard error."""
    done = waste(*args, "--json", check=check, **kw)
    assert done.stdout == b"", done.stdout
    value = json.loads(done.stderr)
    assert value["exit"] == check and value["error"] and value["detail"]
    return value


def run_lines(*args, check=0, **kw):
    """run --json: the token lines, and the summary."""
    done = waste("run", *args, "--json", check=check, **kw)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(isinstance(line, dict) for line in lines)
    assert lines[-1]["done"] is True and not any("done" in line for line in lines[:-1])
    assert "".join(line["text"] for line in lines[:-1]) == lines[-1]["text"]
    return lines[:-1], lines[-1]


def run(model, *args, **kw):
    return waste("run", model, *args, "--budget", BUDGET, **kw)


# A script's shell starts background jobs with SIGINT ignored. Programs respect that, and would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def preload(name):
    """A library of tests/support, for LD_PRELOAD."""
    path = pathlib.Path(BINARY).parents[1] / "tests" / f"lib{name}.so"
    assert path.exists(), "not built with -Dtests=enabled"
    return str(path)


def replay(log, watched):
    """What tests/support/power_cut.c wrote, played back on a disk that keeps of its own accord nothing.
    At each unlink of a file that `watched` likes, all else whose making was seen lasts: its content
    was synced, its name by a sync of the directory that it is in. Returns how many such files went."""
    content, name, gone = set(), {}, 0
    for line in log.read_text().splitlines():
        what, path, *to = line.split(" ")
        if what == "mkdir":
            name[path] = False
            content.add(path)
        elif what == "sync":
            content.add(path)
            name.update((entry, True) for entry in name if os.path.dirname(entry) == path)
        elif what == "rename":
            name.pop(path, None)
            name[to[0]] = False
            (content.add if path in content else content.discard)(to[0])
        else:
            name.pop(path, None)
            content.discard(path)
            if watched(pathlib.Path(path)):
                gone += 1
                lost = [entry for entry in name if not name[entry] or entry not in content]
                assert not lost, f"{path} goes before these would outlast a loss of power: {lost}"
    return gone


def interrupt(args, ready, **kw):
    child = subprocess.Popen([BINARY, *map(str, args)], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, env=clean_env(), **kw)
    ready(child)
    begun = time.monotonic()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert time.monotonic() - begun < 10
    return child.returncode, out, err


class Container:
    """A copy of a golden container that a test may spoil."""

    def __init__(self, path):
        self.path = path
        self.manifest = json.loads((path / "manifest.json").read_text())

    def __str__(self):
        return str(self.path)

    def bank(self, layer):
        return self.path / self.manifest["layers"][str(layer)]["file"]

    def record_bytes(self, layer):
        entry = self.manifest["layers"][str(layer)]
        return entry["bytes"] // entry["experts"]

    def layers(self):
        return sorted(map(int, self.manifest["layers"]))

    def flip(self, layer, expert, offset):
        at = expert * self.record_bytes(layer) + offset
        with open(self.bank(layer), "r+b") as f:
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 1]))

    def write_manifest(self):
        (self.path / "manifest.json").write_text(json.dumps(self.manifest))

    def spoil_scale(self):
        """A scale of the trunk that is not finite; returns the tensor's name."""
        entry = next(t for t in self.manifest["trunk"] if t["fmt"] != 0)
        with open(self.path / "trunk.bin", "r+b") as f:
            f.seek(entry["scale_off"])
            f.write(struct.pack("<H", 0x7c00))
        return entry["name"]


@pytest.fixture
def kimi():
    return str(GOLDEN / "kimi-linear.waste")


@pytest.fixture(params=FAMILIES)
def family(request):
    return str(GOLDEN / f"{request.param}.waste")


@pytest.fixture
def copy(tmp_path):
    target = tmp_path / "copy.waste"
    shutil.copytree(GOLDEN / "kimi-linear.waste", target)
    for path in target.iterdir():
        path.chmod(0o644)
    return Container(target)
