"""The arrows point down: base <- storage <- expertfs <- model <- cli, and names are unique.

Only text is read here, so these tests need no build.
"""
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["base", "storage", "expertfs", "model", "cli"]

# Commands that make or examine files may open any layer; the others run models as a host would.
EXAMINERS = {"cmd_" + name + ".c" for name in ("verify", "synth", "info", "plan", "convert", "doctor", "image",
                                         "place")}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)


def sources(*folders):
    """C files below these folders, as paths relative to the root."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.[ch]")):
            yield path.relative_to(ROOT)


def includes(path):
    """(quoted?, name) of each include of a file."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return [(mark == '"', name) for mark, name in INCLUDE.findall(text)]


def ours(path):
    """Names of the included files that are this project's."""
    return [name for quoted, name in includes(path)
            if quoted or name.split("/")[0] in LAYERS or name.endswith("waste.h")]


def is_door(name):
    return name in ("waste.h", "include/waste.h")


def layer_of(name):
    return name.split("/")[0]


def test_the_layers_are_there():
    for layer in LAYERS[:-1]:
        assert list(sources(layer)), f"no sources in {layer}/: is this the tree's root?"


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_includes_only_itself_and_what_lies_below(layer):
    allowed = LAYERS[:LAYERS.index(layer) + 1]
    wrong = [f"{path}: {name}" for path in sources(layer) for name in ours(path)
             if layer_of(name) not in allowed
             and not (is_door(name) and layer in ("model", "cli"))]
    assert not wrong, "includes that point up: " + ", ".join(wrong)


def test_waste_h_stands_alone():
    assert ours(Path("include/waste.h")) == []


def test_runners_see_only_the_door():
    """A command that runs a model needs nothing that a foreign host could not have."""
    wrong = [f"{path}: {name}" for path in sources("cli")
             if path.parent.name == "cli" and path.name.startswith("cmd_")
             and path.name not in EXAMINERS
             for name in ours(path) if layer_of(name) != "cli" and not is_door(name)]
    assert not wrong, "runners that look behind waste.h: " + ", ".join(wrong)


def test_shared_parts_of_the_command_line_stay_shallow():
    """Options, terminal, progress bar: what every command uses must not pull a layer in. audit,
    measure and find_system are halves of `info`, `plan` and `doctor`, against of `verify`: they
    examine files and engines."""
    wrong = [f"{path}: {name}" for path in sources("cli")
             if path.parent.name == "cli" and not path.name.startswith("cmd_")
             and path.stem not in ("audit", "measure", "against", "find_system")
             for name in ours(path)
             if layer_of(name) not in ("cli", "base") and not is_door(name)]
    assert not wrong, ", ".join(wrong)


@pytest.mark.parametrize("layer", LAYERS[:-2])
def test_tests_of_a_layer_include_nothing_above_it(layer):
    allowed = LAYERS[:LAYERS.index(layer) + 1] + ["tests"]
    wrong = [f"{path}: {name}" for path in sources(f"tests/{layer}") for name in ours(path)
             if layer_of(name) not in allowed]
    assert not wrong, ", ".join(wrong)


def test_quoted_includes_start_at_the_root():
    """One spelling for each file, so that the checks above see all of them."""
    wrong = [f"{path}: {name}" for path in sources(*LAYERS, "include", "tests")
             for quoted, name in includes(path)
             if quoted and not is_door(name) and not (ROOT / name).is_file()]
    assert not wrong, "quoted, but not a file below the root: " + ", ".join(wrong)


def test_headers_include_each_other_in_no_circle():
    graph = {str(path): [n for n in ours(path) if n.endswith(".h")]
             for path in sources(*LAYERS) if path.suffix == ".h"}
    done = set()

    def visit(name, trail):
        assert name not in trail, " -> ".join(trail + [name])
        if name not in done:
            for below in graph.get(name, []):
                visit(below, trail + [name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_no_source_is_included_as_text():
    wrong = [f"{path}: {name}" for path in sources(*LAYERS)
             for name in ours(path) if name.endswith(".c")]
    assert not wrong, ", ".join(wrong)


def test_source_names_are_unique():
    """A file is called by its bare name, in talk and in messages: there is one of each."""
    seen = {}
    for folder in LAYERS + ["include", "tests", "scripts", "serve"]:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".py") and path.name not in ("__init__.py", "__main__.py",
                                                                        "conftest.py"):
                seen.setdefault(path.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: paths for name, paths in seen.items() if len(paths) > 1}
    assert not twice, twice


def test_nothing_below_the_command_line_prints_exits_or_reads_the_environment():
    banned = re.compile(r"(?<![\w.>])(printf|puts|putchar|perror|exit|_exit|abort|getenv|"
                        r"secure_getenv)[ \t]*\(|\b(stderr|stdout)\b")
    comment = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", re.S)
    wrong = []
    for path in sources(*LAYERS[:-1]):
        text = comment.sub(lambda m: "\n" * m.group().count("\n"),
                           (ROOT / path).read_text(encoding="utf-8"))
        for found in banned.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            wrong.append(f"{path}:{line}: {found.group().strip('( ')}")
    assert not wrong, ", ".join(wrong)
