"""include/waste.h is documented, docs/API.md mentions all of it, and its example works."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEADER = (ROOT / "include" / "waste.h").read_text()
PAGE = (ROOT / "docs" / "API.md").read_text()
BUILD = pathlib.Path(os.environ.get("WASTE_BUILD", ROOT / "build" / "gcc"))
DEMO = ROOT / "share" / "demo.waste"
ENV = {k: v for k, v in os.environ.items() if not k.startswith("WASTE_")}

COMMENT = r"/\*(?:[^*]|\*(?!/))*\*/"


def declarations():
    """(name, text) of every function, struct, enum and function type. The text has the comments
    that are its own: right before it, inside, on its last line, or over a group with no gap."""
    code = HEADER[HEADER.index("typedef struct waste_ctx"):HEADER.rindex("#ifdef __cplusplus")]
    code = re.sub(r"^/\* -+.*\*/$", lambda m: " " * len(m[0]), code, flags=re.M)  # section titles
    blank = re.sub(COMMENT, lambda m: re.sub(r"[^\n]", " ", m[0]), code)  # same offsets
    for found in re.finditer(r"\S[^;{}]*(?:\{[^{}]*\})?[^;{}]*;", blank):
        name = re.search(r"\b(waste_\w+)\(", found[0]) if "WASTE_API" in found[0] else \
            re.search(r"}\s*(waste_\w+);$|typedef int \(\*(waste_\w+)\)\(", found[0]) or \
            re.search(r"^enum \{\s*(WASTE_\w+)", found[0])
        begin = code.rfind("\n\n", 0, found.start())
        if name:
            yield next(g for g in name.groups() if g), code[begin:code.index("\n", found.end())]


DECLARED = dict(declarations())


def test_the_header_was_read():
    functions = set(re.findall(r"\b(waste_\w+)\((?!\*)", re.sub(COMMENT, "", HEADER)))
    functions -= {"waste_api"}
    assert functions <= set(DECLARED) and len(functions) > 80
    assert {"waste_cfg", "waste_status", "waste_token_cb", "WASTE_STOP_ID"} <= set(DECLARED)


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_it_has_a_comment(name):
    comments = re.findall(COMMENT, DECLARED[name])
    assert any(len(c) > 10 and "----" not in c for c in comments), DECLARED[name]


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_the_page_mentions_it(name):
    assert re.search(rf"\b{name}\b", PAGE), f"{name} is not in docs/API.md"


def test_the_page_mentions_nothing_else():
    """Names on the page exist in the header."""
    for name in set(re.findall(r"\b(waste_\w+|WASTE_[A-Z_]+[A-Z])\b", PAGE)) - {"WASTE_E_"}:
        assert re.search(rf"\b{name}\b", HEADER), name


def example():
    return PAGE[PAGE.index("    #include"):].split("\n\nIt prints")[0].replace("\n    ", "\n")[4:]


def test_the_example_builds_without_a_warning_and_answers(tmp_path):
    source = tmp_path / "two.c"
    source.write_text(example())
    libs = "-luring -laio -ljansson -lpcre2-8 -ldeflate -ljpeg -lpng -lwebp -lwebpdemux".split()
    if b"hwloc_" in (BUILD / "include" / "libwaste.a").read_bytes():
        libs.append("-lhwloc")
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}",
                    source, BUILD / "include" / "libwaste.a", *libs, "-lm", "-lpthread", "-o",
                    tmp_path / "two"], check=True)
    done = subprocess.run([tmp_path / "two", DEMO, "How do you like the country?", "He smiled."],
                          env=ENV, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert [line.split(" ", 1)[0] for line in done.stdout.splitlines() if line] == ["0:", "1:"]
    assert all(len(line) > 20 for line in done.stdout.splitlines() if line)
    done = subprocess.run([tmp_path / "two", "/nowhere", "a", "b"], env=ENV, capture_output=True,
                          text=True)
    assert done.returncode == 1 and "nowhere" in done.stderr


def test_the_example_is_clean_under_a_c_plus_plus_compiler_s_eyes(tmp_path):
    """The header serves both languages."""
    source = tmp_path / "x.cc"
    source.write_text("#include <waste.h>\nint main() { waste_cfg c; waste_cfg_init(&c); }\n")
    subprocess.run(["g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                    f"-I{ROOT / 'include'}", source], check=True)
