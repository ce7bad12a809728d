"""Every command in README.md, CONTRIBUTING.md, docs/ and the folders' READMEs is run, with small
files in the place of large ones, or stands below with the reason why it cannot be; every option
that they mention exists."""
import json
import os
import pathlib
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from zlib import compress, crc32

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("WASTE_BUILD", ROOT / "build" / "gcc")).resolve()
BINARY = pathlib.Path(os.environ.get("WASTE_BIN", BUILD / "cli" / "waste")).resolve()
BENCH = BUILD / "cli" / "bench" / "waste-bench"
LIB = os.path.abspath(os.environ.get("WASTE_LIB", BUILD / "include" / "libwaste.so"))
PYTHON = "/usr/bin/python3"
ENV = {k: v for k, v in os.environ.items() if not k.startswith("WASTE_")}
ENV["XDG_CONFIG_HOME"] = tempfile.gettempdir() + "/no-such-configuration"
ENV["MPLCONFIGDIR"] = tempfile.gettempdir() + "/waste-test-matplotlib"

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"),
                *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md")])
PROGRAMS = re.compile(r"(?:\$ )?((?:waste|waste-bench|python3|/usr/bin/python3|curl|meson|cc|find"
                      r"|build/cli/waste|scripts/[\w.]+) .*\S|scripts/[\w.]+)")

NOT_RUN = {  # a beginning, in whole words: why
    "scripts/demo": "builds below build/; tests/test_demo.py runs it",
    "scripts/test": "is what runs this test",
    "scripts/test_aarch64": "a stage of scripts/test of its own",
    "scripts/fetch_weights": "needs a network; tests/test_fetch_weights.py has a server for it",
    "scripts/ceiling": "a minute of fio with fixed sizes; tests/cli/test_bench.py runs it",
    "waste serve": "does not end by itself; tests/serve/ runs it, with requests",
    "curl localhost:8000/v1/chat/completions": "asks the server of the line above; "
                                               "tests/serve/test_http.py asks the same",
    "python3 scripts/oracle.py goldens": "writes into the tree; tests/test_oracle.py does not",
    "meson": "builds what this test runs in",
    "build/cli/waste help": "the same program under another path",
    "cc hello.c": "tests/test_readme.py builds that program both ways",
    "cc host.c": "tests/test_install.py builds the examples like that, with an installed library",
    "cc plan.c": "the same", "cc text.c": "the same",
    "scripts/build_deb": "builds everything anew; tests/test_packages.py runs it",
    "scripts/build_static": "the same",
    "scripts/lint": "half a minute, or half an hour, on the tree that this test is in",
    "scripts/coverage": "builds everything anew and runs every test",
    "scripts/load_server": "minutes of load; tests/serve/test_load.py runs it",
    "waste verify kl.waste --against release": "needs the release that kl.waste was made from; "
                                               "tests/cli/test_convert.py has both",
    "/usr/bin/python3 scripts/train_demo.py": "trains for an hour",
    "/usr/bin/python3 scripts/demo_eval.py": "needs what the training left",
    "waste convert --src RUN/release": "needs what the training left",
    "waste-bench report": "two minutes even when quick; tests/cli/test_bench.py runs it",
}
SMALLER = [  # in the command, in this order
    (r"--shape kimi-linear-48b|--shape deepseek-v3|--shape kimi-k2", "--shape tiny-kimi"),
    (r"--shape k3\b( --layers \d+ --experts \d+)?", "--shape tiny-k3"),
    (r"--budget [\d.]+[GM]", "--budget 200M"), (r"--budgets [\dGM,]+", "--budgets 40M,60M"),
    (r"--create 16G", "--create 32M"), (r"/nvme/|/data/", "./"), (r"\bMODEL\b", "kl.waste"),
    (r"-n \d+", "-n 4"), (r"--depths 4 --busy 2", "--busy 1"),
    (r"kl\.waste/experts-L5\.bin", "large.bin"), (r"--records [\d,]+", "--records 8,16"),
]

BRIEF = {"io": " --no-fio --depths 2 --bytes 16M --engines threads,sync --sizes 64K",
         "decode": " --prompt 4 --warm 1 --tokens 2 --cpu c",
         "pool": " --record 4096 --records 8 --tokens 20 --engines threads"}


def commands():
    """(page, command) of every indented or fenced line that begins with a program of ours."""
    for page in PAGES:
        lines = page.read_text().split("\n")
        fenced = False
        for line in lines:
            if line.startswith("```"):
                fenced = not fenced
            elif line.startswith("    ") or fenced:
                found = PROGRAMS.fullmatch(line.strip())
                if found and not found[1].startswith("waste serve: "):  # what it says
                    yield page.relative_to(ROOT), found[1]


def plain(command):
    """Without what stands behind it as an explanation."""
    return re.split(r"\s+#|\s{3,}", command)[0].strip()


COMMANDS = sorted({(str(page), plain(c)) for page, c in commands()})


def png(width, height):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc32(kind + data))

    rows = b"".join(b"\0" + bytes(3 * x + y & 255 for x in range(3 * width)) for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", compress(rows)) +
            chunk(b"IEND", b""))


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    """A directory in which the names of the pages are small things of that kind."""
    where = tmp_path_factory.mktemp("docs")
    demo = ROOT / "share" / "demo.waste"
    for name in ("kl.waste", "kimi-linear.waste", "model.waste", "demo.waste"):
        shutil.copytree(demo, where / name)
    subprocess.run([BINARY, "synth", where / "k3.waste", "--shape", "tiny-k3", "--vision", "-q"],
                   check=True, env=ENV)
    sys.path.insert(0, str(ROOT / "scripts"))
    import oracle_checkpoint
    oracle_checkpoint.write_checkpoint("kimi-linear", where / "release")
    shutil.copy(ROOT / "tests/golden/route_demo_300.jsonl", where / "trace.jsonl")
    (where / "novel.txt").write_text((ROOT / "tests/golden/heldout.txt").read_text()[:6000])
    (where / "prompts.jsonl").write_text('{"prompt": "Once", "max_tokens": 2}\n')
    (where / "question.txt").write_text("What is it?")
    (where / "person.json").write_text('{"type": "boolean"}')
    (where / "dates.txt").write_text('root ::= "a" | "b"\n')
    (where / "tools.json").write_text(json.dumps([{"type": "function", "function": {
        "name": "f", "parameters": {"type": "object", "properties": {}}}}]))
    (where / "photo.jpg").write_bytes(png(64, 48))  # the bytes decide, not the name
    (where / "large.bin").write_bytes(os.urandom(32 << 20))
    (where / "bin").mkdir()
    for name, target in (("waste", BINARY), ("waste-bench", BENCH)):
        (where / "bin" / name).symlink_to(target)
    (where / "scripts").symlink_to(ROOT / "scripts")
    return where


def begins(command, words):
    return f"{command} ".startswith(f"{words} ")


def runnable():
    return [(p, c) for p, c in COMMANDS if not any(begins(c, n) for n in NOT_RUN)]


def test_there_are_commands_and_no_excuse_is_left_over():
    assert len(runnable()) > 30
    for beginning in NOT_RUN:
        assert any(begins(c, beginning) for _, c in COMMANDS), beginning


def smaller(command, tag=""):
    for pattern, by in SMALLER:
        command = re.sub(pattern, by, command)
    if command.startswith("waste-bench"):
        command += " --quick --rounds 1" + BRIEF.get(command.split()[1], "")
    if command.startswith("waste synth"):
        command = re.sub(r"synth (\S+)", rf"synth made-{tag}\1", command)
    if command.startswith("waste convert"):
        command = re.sub(r"--out (\S+)", rf"--out converted-{tag}\1", command)
    if re.match(r"waste (run|chat|eval) ", command):
        command += " --no-config"
        if " -n " not in command and " eval " not in command:
            command += " -n 4"
    return command


@pytest.mark.parametrize("page, command", runnable(), ids=lambda x: x.replace("/", "_")[:60])
def test_it_runs(box, page, command):
    if command.startswith("waste-bench") and not BENCH.exists():
        pytest.skip("this build has no waste-bench")
    if command.startswith("scripts/plot"):
        for name in ("sweep", "replay"):
            if not (box / f"{name}.json").exists():
                make = {"sweep": "waste-bench sweep kl.waste --budgets 40M,60M --text novel.txt",
                        "replay": "waste-bench replay trace.jsonl --records 8,16"}[name]
                done = subprocess.run(["bash", "-c", make + " --quick --json > " + name + ".json"],
                                      cwd=box, env={**ENV, "PATH": f"{box}/bin:/usr/bin:/bin"})
                assert done.returncode in (0, 7)
    command = smaller(command, re.sub(r"\W", "", page + command))
    path = f"{box}/bin:/usr/bin:/bin"
    done = subprocess.run(["bash", "-c", command], cwd=box, env={**ENV, "PATH": path},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    good = (0, 7) if command.startswith("waste-bench") else (0,)  # 7: measured, a row is invalid
    assert done.returncode in good, (command, done.stdout[-300:], done.stderr[-600:])


@pytest.mark.parametrize("page, command", [(p, c) for p, c in COMMANDS
                                           if begins(c, "waste serve")])
def test_a_server_s_command_parses(page, command, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    main = pytest.importorskip("serve.__main__")
    main.arguments().parse_args(shlex.split(command)[2:])


def test_its_suites_and_tests_are_there():
    """Of `meson test --suite X` and `meson test NAME`, without building them once more."""
    tests = json.loads(subprocess.run(["meson", "introspect", "--tests", BUILD], check=True,
                                      capture_output=True, text=True).stdout)
    suites = {s.split(":")[-1] for t in tests for s in t["suite"]}
    names = {t["name"] for t in tests}
    for page, command in COMMANDS:
        if command.startswith("meson test"):
            words = command.split()
            if "--suite" in words:
                assert words[words.index("--suite") + 1] in suites, (page, command)
            if "-v" in words:
                assert words[-1] in names, (page, command)


# ---- options that are mentioned in passing ----------------------------------------------------

OTHERS = {  # of other programs: which
    "--security-opt": "docker", "--ulimit": "docker", "--memory": "docker", "--suite": "meson",
    "--werror": "meson", "--buildtype": "meson", "--cpunodebind": "numactl", "--membind": "numactl",
    "--partial": "rsync", "--rm": "docker", "--prefix": "meson", "--append-verify": "rsync", "--no-install-recommends": "apt-get",
    "--setro": "blockdev", "--read-only": "rbd",
    "--cflags": "pkg-config", "--libs": "pkg-config",
    "--bs": "fio", "--direct": "fio", "--rw": "fio", "--norandommap": "fio", "--iodepth": "fio",
    "--bench": "an older check_gemv, in the record of what was tried", "--ioengine": "fio",
    "--prefer-static": "meson",
    "--nice": "an option that was tried and dropped", "--rwa": "a misspelling that is the example", "--minutes": "build/tests/soak",
}


@pytest.fixture(scope="module")
def options():
    """Every option of every command and script."""
    def text(*args):
        return subprocess.run([str(a) for a in args], capture_output=True, text=True,
                              env={**ENV, "WASTE_LIB": LIB}, stdin=subprocess.DEVNULL).stdout

    commands = re.findall(r"^  ([a-z]+) ", text(BINARY, "help"), re.M)
    assert len(commands) > 12
    out = "".join(text(BINARY, c, "--help") for c in commands if c != "serve")
    if BENCH.exists():
        out += "".join(text(BENCH, c, "--help")
                       for c in re.findall(r"^  ([a-z]+)  ", text(BENCH, "help"), re.M))
    scripts = [p for p in [*(ROOT / "scripts").iterdir(), ROOT / "serve" / "__main__.py",
                           *(ROOT / "tests").rglob("*.py")] if p.is_file()]
    out += "".join(p.read_text() for p in scripts if p != pathlib.Path(__file__))
    return set(re.findall(r"--[a-z][a-z-]*[a-z0-9]", out))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)).replace("/", "_"))
def test_every_option_it_mentions_exists(page, options):
    text = re.sub(r"^    .*--[>+|v].*$", "", page.read_text(), flags=re.M)  # arrows of pictures
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z0-9](?![\w-])", text)):
        assert option in options or option in OTHERS, f"{page.name}: {option}"


def help_of(command):
    done = subprocess.run([BINARY, command, "--help"], capture_output=True, text=True,
                          env={**ENV, "WASTE_LIB": LIB})
    return done.stdout


@pytest.mark.parametrize("page, command", sorted({
    (str(p.relative_to(ROOT)), c.replace("\n", " ")) for p in PAGES
    for c in re.findall(r"`(waste [a-z][^`]*)`", p.read_text())}),
    ids=lambda x: x.replace("/", "_")[:60])
def test_a_command_in_a_sentence_parses(page, command):
    """Its subcommand exists, and each of its options is one of that subcommand."""
    words = shlex.split(command.replace("...", ""))
    known = subprocess.run([BINARY, "help"], capture_output=True, text=True, env=ENV).stdout
    assert re.search(rf"^  {words[1]} ", known, re.M) or words[1] in ("help", "COMMAND"), command
    options = [w.split("=")[0] for w in words[2:] if re.match(r"--?[a-z]", w)]
    if options and words[1] != "COMMAND":
        text = help_of(words[1])
        for option in options:
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text), (page, command, option)
