"""The tree as a newcomer finds it: what each folder's README says of it is so, headers stand alone,
files hold one noun. Who may include whom is test_layers.py's.
"""
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["base", "storage", "expertfs", "model"]
CODE = FOLDERS + ["cli"]
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)

# Headers of libraries, by the name that a README has for each.
LIBRARIES = {"jansson.h": "jansson", "hwloc.h": "hwloc", "liburing.h": "liburing",
             "libaio.h": "libaio", "libdeflate.h": "libdeflate", "pcre2.h": "PCRE2",
             "jpeglib.h": "libjpeg", "png.h": "libpng", "webp/decode.h": "libwebp",
             "histedit.h": "libedit"}

# One noun is seldom longer than this; a suite about one noun may have more to say.
LINES_MAX = 800
TEST_LINES_MAX = 1000
LONGER = {
    "include/waste.h": "the one door: whoever embeds the engine reads one file",
    "scripts/fetch_weights": "is copied alone to where the disks are",
    "scripts/read_container.py": "a reader of the format that can be taken elsewhere, alone",
    "storage/pool.c": "one state machine; every function of it changes the same few fields",
}


def sources(folder, suffixes=(".c", ".h")):
    return [path.relative_to(ROOT) for path in sorted((ROOT / folder).rglob("*"))
            if path.suffix in suffixes and "__pycache__" not in path.parts]


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


def includes(path):
    return [name for _, name in INCLUDE.findall(text_of(path))]


def paragraph(folder, title):
    """The paragraph of a folder's README that begins with this title."""
    found = re.search(rf"^\*\*{re.escape(title)}\*\*(.*?)\n\n", text_of(Path(folder, "README.md")),
                      re.M | re.S)
    assert found, f"{folder}/README.md has no paragraph **{title}**"
    return found.group(1)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_includes_what_its_readme_says_and_nothing_else(folder):
    says = paragraph(folder, "May include:")
    names = [name for path in sources(folder) for name in includes(path)]
    ours = {name.split("/")[0] for name in names if (ROOT / name).is_file()} - {folder}
    assert ours == set(re.findall(r"`([a-z]+)/`", says))
    assert {LIBRARIES[name] for name in names if name in LIBRARIES} == {
        library for library in LIBRARIES.values() if library in says}


def listed(folder):
    """The names in the first column of a README's table of files, braces resolved."""
    rows = re.search(r"^\| file \| what \|\n\|---\|---\|\n((?:\|.*\n)+)",
                     text_of(Path(folder, "README.md")), re.M)
    assert rows, f"{folder}/README.md has no table of files"
    for row in rows.group(1).splitlines():
        for name in re.findall(r"`([^`]+)`", row.split("|")[1]):
            stem, brace, endings = name.partition("{")
            yield from ([stem + ending for ending in endings.rstrip("}").split(",")] if brace
                        else [name])


@pytest.mark.parametrize("folder", CODE + ["serve"])
def test_the_table_of_a_readme_lists_the_files_that_are_there(folder):
    """A name may leave out its folder, as names are unique, and `api_*.c` stands for many."""
    files = {path.name for path in sources(folder, (".c", ".h", ".py"))} - {"__init__.py"}
    patterns = [name.rsplit("/", 1)[-1] for name in listed(folder) if not name.endswith("/")]
    as_regex = {p: re.compile(re.escape(p).replace(r"\*", ".*") + "$") for p in patterns}
    assert len(patterns) == len(as_regex), "a file is listed twice"
    missing = [f for f in sorted(files) if not any(r.match(f) for r in as_regex.values())]
    gone = [p for p, r in as_regex.items() if not any(r.match(f) for f in files)]
    assert (missing, gone) == ([], []), "not in the table; in the table, but not there"


def test_a_source_includes_its_own_header_first():
    """So that each header is compiled at least once with nothing in front of it."""
    wrong = [str(path) for folder in CODE for path in sources(folder, (".c",))
             if (ROOT / path).with_suffix(".h").is_file()
             and includes(path)[0] != str(path.with_suffix(".h"))]
    assert not wrong


def instruction_set(path):
    """The flags without which a header of kernels cannot be compiled, or none."""
    if "vbmi" in path.name or "avx512" in path.name:
        return ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vbmi", "-mavx2",
                "-mfma", "-mf16c"]
    return ["-mavx2", "-mfma", "-mf16c"] if "avx2" in path.name else []


def test_every_header_can_be_included_alone():
    """But for those that say what their includer has to define, and are parts of its text."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        pytest.skip("no C compiler: CC names none that is there")
    x86 = platform.machine() in ("x86_64", "AMD64")
    wrong = {}
    for path in (p for f in CODE + ["include", "tests/support"] for p in sources(f, (".h",))):
        if "The includer" in text_of(path) or (instruction_set(path) and not x86):
            continue
        done = subprocess.run(
            [compiler, "-std=c11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-Wall", "-Wextra",
             "-Werror", "-Wno-unused-function", "-fsyntax-only", "-I.", "-Iinclude",
             *instruction_set(path), "-x", "c", str(path)],
            cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            wrong[str(path)] = done.stderr.splitlines()[:3]
    assert not wrong


def test_guards_are_unique():
    """Of two headers with one guard the second is empty."""
    guards = {}
    for path in (p for f in CODE + ["include", "tests"] for p in sources(f, (".h",))):
        guard = re.search(r"^#ifndef (\w+)\n#define \1$", text_of(path), re.M)
        assert guard, f"{path} has no guard"
        guards.setdefault(guard.group(1), []).append(str(path))
    assert not {guard: paths for guard, paths in guards.items() if len(paths) > 1}


def test_tests_readme_names_tests_that_are_where_it_says():
    where = {}
    for path in sources("tests", (".c", ".py")):
        for name in re.findall(r"^(?:def |static void )(\w+)\(", text_of(path), re.M):
            where.setdefault(name, []).append(str(path))
    wrong = []
    for line in text_of(Path("tests/README.md")).splitlines():
        file = None
        for name in re.findall(r"`([^`]+)`", line):
            if re.search(r"\.(c|py)$", name):
                file = name
            elif file and (name.startswith("test_") or "_" in name and name in where):
                if not any(("/" + path).endswith("/" + file) for path in where.get(name, [])):
                    wrong.append(f"{file}: {name}")
    assert not wrong


def test_a_file_holds_one_noun():
    """What is longer than others has a reason in LONGER; one that is not needed any more goes."""
    long = set()
    for folder in CODE + ["include", "serve", "tests", "scripts"]:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".py", ".js", ".mjs") or path.parent.name == "scripts":
                lines = path.read_bytes().count(b"\n") if path.is_file() else 0
                if lines > (TEST_LINES_MAX if folder == "tests" else LINES_MAX):
                    long.add(str(path.relative_to(ROOT)))
    assert long == set(LONGER), "split it, or give the reason; or drop the reason"


def test_the_model_is_on_one_page():
    """model/forward.c is the figure of the paper: what one look takes in."""
    assert text_of(Path("model/forward.c")).count("\n") <= 110
