"""What docs/TROUBLESHOOTING.md quotes is what the programs say: each sentence is in the source, and
those that any machine can be brought to say are brought about."""
import errno
import fcntl
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "TROUBLESHOOTING.md").read_text()
BINARY = os.path.abspath(os.environ.get("WASTE_BIN", "waste"))
LIB = os.path.abspath(os.environ.get("WASTE_LIB", ""))
DEMO = ROOT / "share" / "demo.waste"
ENV = {k: v for k, v in os.environ.items() if not k.startswith("WASTE_")}
ENV["XDG_CONFIG_HOME"] = tempfile.gettempdir() + "/no-such-configuration"

STRING = r'"(?:[^"\\\n]|\\.)*"'
QUOTED = re.findall(r"^    (\S.*)$", PAGE, re.M)
ANSWERS = re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (\d{3}, [^|]*)\|", PAGE, re.M)))


def c_literals():
    """Texts in C, neighbours joined, as patterns: %u, %s and the like stand for anything."""
    for path in ROOT.glob("*/*.c"):
        if path.parts[-2] in ("base", "storage", "expertfs", "model", "cli"):
            text = path.read_text()
            for run in re.findall(rf"(?:{STRING}\s*(?:PRI\w+\s*)?)+", text):
                parts = "".join(p[1:-1] for p in re.findall(STRING, run))
                yield parts.replace('\\"', '"').replace("\\n", "\n").replace("%%", "\0")


def python_literals():
    for path in [*(ROOT / "serve").glob("*.py"), ROOT / "scripts" / "read_container.py"]:
        text = re.sub(r'"\s*\n\s*f?"', "", path.read_text())
        for literal in re.findall(rf"f?({STRING})", text):
            yield re.sub(r"\{[^}]*\}", "%s", literal[1:-1])


def patterns():
    """What stands for %s and the like is a group. A text of few letters would explain anything."""
    for text in [*c_literals(), *python_literals()]:
        for line in text.split("\n"):
            pieces = re.split(r"%[-+.*\d]*(?:hh|h|ll|l|z)?[diouxXeEfgGcsp]|%", line)
            if max(map(len, pieces)) >= 7:
                yield (max(pieces, key=len).replace("\0", "%"),
                       re.compile("(.*?)".join(map(re.escape, pieces)).replace("\0", "%") + "$"))


KNOWN = list(patterns())
REASONS = {os.strerror(n) for n in errno.errorcode}
BEFORE = {"waste serve", "not direct", "--host 127.0.0.1 --port 8000"}


PIECED = ["did you mean WASTE_IO?", "No module named 'aiohttp'"]  # of several texts; SPOKEN has them


def explained(sentence):
    """One literal reaches to the end. What it leaves open is a word, a reason of the system's, or
    explained in its turn; what is before it are words with a colon: programs, files, options."""
    def short(words):
        return all(len(w.split()) <= 1 or w in REASONS or re.fullmatch(r"[\d.]+ [KMG]iB", w)
                   for w in words.split(": "))

    found = (p.search(sentence) for part, p in KNOWN if part in sentence)
    return any(all(short(w) or w in BEFORE for w in re.split(": |; ", sentence[:m.start()])) and
               all(short(g) or explained(g) for g in m.groups()) for m in found if m)


@pytest.mark.parametrize("sentence", sorted(
    q for q in {*QUOTED, *ANSWERS} if not any(part in q for part in PIECED)))
def test_the_sentence_is_in_the_source(sentence):
    assert explained(sentence), sentence


def test_a_sentence_that_is_nowhere_is_noticed():
    for sentence in ("io_uring: the ring is bent (a seccomp filter, as of a container?)",
                     "waste: k3.waste: there is too much of a vision tower",
                     "this container says nothing of that kind"):
        assert not explained(sentence), sentence


def said(*args, **kw):
    env = {**ENV, **kw.pop("env", {})}
    done = subprocess.run([BINARY, *map(str, args)], stdin=subprocess.DEVNULL, timeout=120,
                          capture_output=True, text=True, env=env, **kw)
    return done.stdout + done.stderr


def spoilt(where, name, change):
    """A copy of the demonstration model with one file changed."""
    shutil.copytree(DEMO, where)
    path = where / name
    path.chmod(0o644)
    data = change(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    return where


def flipped(data):
    return data[:45000] + bytes([data[45000] ^ 1]) + data[45001:]


def no_aiohttp(tmp_path):
    (tmp_path / "aiohttp.py").write_text("raise ModuleNotFoundError(\"No module named 'aiohttp'\")")
    return {"PYTHONPATH": str(tmp_path), "WASTE_LIB": LIB}


SPOKEN = {  # part of a quoted sentence: how to make the program say it
    "no such model": lambda t: said("run", t / "nowhere", "--raw", "x"),
    "no manifest.json (not a .waste container?)":
        lambda t: said("run", spoilt(t / "m", "manifest.json", lambda b: None), "--raw", "x"),
    "environment: unknown variable WASTE_IOO (did you mean WASTE_IO?)":
        lambda t: said("run", DEMO, "x", env={"WASTE_IOO": "1"}),
    "another process has it open for sole use": lambda t: locked(),
    "unknown option --rwa": lambda t: said("run", DEMO, "--rwa", "x"),
    'is none of io_uring|libaio|threads|sync': lambda t: said("run", DEMO, "--io", "foo", "x"),
    '"waste plan" has the details': lambda t: said("run", DEMO, "--budget", "5M", "--raw", "x"),
    "this machine offers":
        lambda t: said("run", DEMO, "--budget", "90000G", "--raw", "x", "-n", "1"),
    "positions": lambda t: said("run", DEMO, "--ctx", "10", "--raw", "word " * 20),
    "manifest says":
        lambda t: said("run", spoilt(t / "m", "experts-L4.bin", lambda b: b[:9]), "--raw", "x"),
    "record says": lambda t: said("verify", spoilt(t / "m", "experts-L3.bin", flipped)),
    "bad base64 (1 characters); a tiktoken rank file is expected":
        lambda t: said("run", spoilt(t / "m", "tokenizer.model", lambda b: b"\n\v"), "--raw", "x"),
    "container has no tokenizer.model; only token ids can be used":
        lambda t: said("chat", spoilt(t / "m", "tokenizer.model", lambda b: None)),
    "is not supported (silu, situ are)":
        lambda t: said("run", spoilt(t / "m", "manifest.json", lambda b: b.replace(
            b'"hidden_act":"silu"', b'"hidden_act":"gelu"').replace(
            b'"hidden_act": "silu"', b'"hidden_act": "gelu"')), "--raw", "x"),
    "neither JPEG, PNG nor WebP":
        lambda t: (t / "p.jpg").write_bytes(b"x" * 100) and said("image", t / "p.jpg"),
    "there is no vision.json": lambda t: said("run", DEMO, "--image", DEMO / "chat.json", "x"),
    "not asked for": lambda t: said("run", DEMO, "--no-direct-io", "--raw", "x", "-n", "1"),
    "give every drive a share": lambda t: said("place", DEMO, "--drives", f"{t}=2"),
    "No module named 'aiohttp'; the server needs aiohttp and prometheus_client":
        lambda t: said("serve", DEMO, env=no_aiohttp(t)),
    "Address already in use; another program listens there": lambda t: taken_port(),
    "a larger --budget, fewer --sessions or --checkpoints, or a smaller --ctx":
        lambda t: said("serve", DEMO, "--budget", "5M", "--port", "0", env={"WASTE_LIB": LIB}),
    "ended by the limit of -n": lambda t: said("run", DEMO, "--raw", "x", "-n", "2"),
    "-bound": lambda t: said("run", DEMO, "--raw", "x", "-n", "2", "--profile"),
}


def locked():
    fd = os.open(DEMO, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        return said("run", DEMO, "--raw", "x", "--exclusive-open")
    finally:
        os.close(fd)


def taken_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        return said("serve", DEMO, "--port", s.getsockname()[1], env={"WASTE_LIB": LIB})


@pytest.mark.parametrize("part", SPOKEN)
def test_the_program_says_it(part, tmp_path):
    assert any(part in q for q in QUOTED), part
    output = SPOKEN[part](tmp_path)
    assert part in output, output[-600:]


def test_the_second_reader_says_it_too(tmp_path):
    model = tmp_path / "m"
    shutil.copytree(DEMO, model)
    (model / "experts-L1.bin").rename(model / "x")
    (model / "experts-L2.bin").rename(model / "experts-L1.bin")
    (model / "x").rename(model / "experts-L2.bin")
    done = subprocess.run([ROOT / "scripts" / "read_container.py", model, "--check"],
                          capture_output=True, text=True, env={**ENV, "PATH": "/usr/bin:/bin"})
    assert "layer 1 expert 0: header says layer 2 expert 0; were banks swapped?" in done.stderr
