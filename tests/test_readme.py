"""What README.md shows works: its C program builds and runs, its commands and links exist."""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BUILD = pathlib.Path(os.environ.get("WASTE_BUILD", ROOT / "build" / "gcc"))
BINARY = os.environ.get("WASTE_BIN", "waste")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("WASTE_")}


def indented_block(first_line):
    lines = README[README.index("    " + first_line):].split("\n")
    block = []
    for line in lines:
        if line and not line.startswith("    "):
            break
        block.append(line[4:])
    return "\n".join(block)


def test_the_c_program_builds_and_writes(tmp_path):
    code, _, commands = indented_block("#include <stdio.h>").partition("\ncc ")
    model = tmp_path / "tiny.waste"
    subprocess.run([BINARY, "synth", model, "--shape", "tiny-kimi", "-q"], check=True, env=ENV)
    source = tmp_path / "hello.c"
    source.write_text(code.replace("kl.waste", str(model)))
    libs = re.search(r"libwaste\.a ((?:-l[\w-]+ ?)+)", commands).group(1).split()
    if b"hwloc_" not in (BUILD / "include" / "libwaste.a").read_bytes():
        libs.remove("-lhwloc")  # a build without it
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}",
                    source, BUILD / "include" / "libwaste.a", *libs, "-o", tmp_path / "hello"],
                   check=True)
    done = subprocess.run([tmp_path / "hello"], capture_output=True, check=True)
    assert len(done.stdout) > 50 and done.stderr == b""


def test_its_commands_are_commands():
    known = subprocess.run([BINARY, "help"], capture_output=True, text=True, check=True,
                           env=ENV).stdout
    for command in set(re.findall(r"^    waste (\w+)", README, re.M)):
        assert re.search(rf"\b{command}\b", known), command
    shapes = set(re.findall(r"--shape ([\w.-]+)", README))
    listed = subprocess.run([BINARY, "synth", "/nonexistent/x.waste", "--shape", "?"],
                            capture_output=True, text=True, env=ENV).stderr
    for shape in shapes:
        assert shape in listed, shape


def test_its_links_lead_somewhere():
    for text in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", text.read_text()):
            assert (text.parent / link).exists(), f"{text.name}: {link}"
