"""What `meson install` puts in place works from there: commands, library, examples, pages, completion.

The build that was tested is installed below a temporary DESTDIR, and nothing of the source tree or the
build is used from then on.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("WASTE_BUILD", ROOT / "build" / "gcc"))
ENV = {k: v for k, v in os.environ.items() if not k.startswith("WASTE_")}
EXAMPLES = {"plan": [], "text": [], "chat": [], "vision": [], "sampler": ["-lm"], "embed": ["-pthread"]}
OPENING = "She looked out of the window and"


def run(*command, **kwargs):
    kwargs.setdefault("env", ENV)
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, **kwargs)


def output(*command, **kwargs):
    done = run(*command, **kwargs)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


class Installed:
    """A DESTDIR, and what is where below it."""

    def __init__(self, root, options):
        self.prefix = root / options["prefix"].lstrip("/")
        self.bin, self.lib, self.share, self.include, self.man = (
            self.prefix / options[name]
            for name in ("bindir", "libdir", "datadir", "includedir", "mandir"))
        self.demo = self.share / "waste" / "demo.waste"

    def pkg_config(self, *flags):
        """Flags as a user has them; only the prefix is another, for DESTDIR is not where it will be."""
        return output("pkg-config", f"--define-variable=prefix={self.prefix}", *flags, "waste",
                      env={**ENV, "PKG_CONFIG_PATH": str(self.lib / "pkgconfig")}).split()


def build_options(build):
    return {o["name"]: o["value"]
            for o in json.loads(output("meson", "introspect", "--buildoptions", build))}


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    root = tmp_path_factory.mktemp("destdir")
    output("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", root)
    return Installed(root, build_options(BUILD))


def test_the_commands_run_where_they_are_installed(installed):
    assert output(installed.bin / "waste", "version").startswith("WASTE ")
    assert "kernels" in output(installed.bin / "waste-bench", "help")
    text = output(installed.bin / "waste", "run", "demo", "--raw", OPENING, "-n", "8", "-q", cwd="/")
    assert len(text) > 10  # and "demo" was found beside the program


def test_the_server_is_found_beside_the_program(installed):
    """The package and the library were looked for below the configured prefix alone."""
    program = installed.bin / "waste"
    assert "--api-key-file" in output(program, "serve", "--help", cwd="/")
    python = installed.prefix / "python"
    python.write_text('#!/bin/sh\necho "$WASTE_LIB:$PYTHONPATH"\n')
    python.chmod(0o755)
    library, package = output(program, "serve", "--help", cwd="/",
                              env={**ENV, "PYTHON": str(python), "PYTHONPATH": ""}).strip().split(":")
    assert pathlib.Path(library) == installed.lib / "libwaste.so.0"
    assert pathlib.Path(package) == installed.share / "waste"
    assert pathlib.Path(library).exists()


def test_nothing_that_is_installed_names_the_build_or_is_rubbish(installed):
    names = [path for path in installed.prefix.rglob("*") if path.is_file()]
    assert not [path for path in names if path.suffix in (".pyc", ".orig") or path.name == "usage.waste"]
    for path in installed.share.rglob("*"):
        if path.is_file() and path.suffix in ("", ".pc", ".service", ".1", ".3", ".5", ".py"):
            assert str(BUILD).encode() not in path.read_bytes(), path
    profiles = {path.name for path in (ROOT / "fio-profiles").glob("*.fio")}
    assert profiles == {path.name for path in (installed.share / "waste/fio-profiles").glob("*.fio")}


# ---- the library, from C ----------------------------------------------------------------------


@pytest.fixture(scope="session", params=["shared", "static"])
def examples(request, installed, tmp_path_factory):
    """Each example, built as its README says; a function that runs one."""
    where = tmp_path_factory.mktemp(request.param)
    static = request.param == "static"
    flags = installed.pkg_config("--cflags", "--libs", *(["--static"] if static else []))
    if static:
        flags = ["-l:libwaste.a" if flag == "-lwaste" else flag for flag in flags]
    for name, more in EXAMPLES.items():
        output("gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror",
               installed.share / "doc/waste/examples" / f"{name}.c", "-o", where / name, *flags, *more)
    env = dict(ENV) if static else {**ENV, "LD_LIBRARY_PATH": str(installed.lib)}

    def example(name, *arguments, **kwargs):
        return run(where / name, *arguments, env=env, **kwargs)
    return example


def test_every_example_is_built_here_and_described():
    text = (ROOT / "examples/README.md").read_text()
    for path in (ROOT / "examples").glob("*.c"):
        assert path.stem in EXAMPLES and f"[{path.name}]" in text, path.name


def test_plan(examples, installed):
    done = examples("plan", installed.demo, "128")
    assert done.returncode == 0 and "for 128 positions" in done.stdout and "it fits" in done.stdout
    assert examples("plan", "/nonexistent").returncode == 1


def test_text_writes_what_the_command_writes(examples, installed):
    done = examples("text", installed.demo, OPENING, "12")
    assert done.returncode == 0
    assert done.stdout == output(installed.bin / "waste", "run", installed.demo, "--raw", OPENING,
                                 "-n", "12", "-q")
    refused = examples("text", "/nonexistent", OPENING)
    assert refused.returncode == 1 and refused.stderr.count("/nonexistent") == 1


@pytest.mark.parametrize("name, arguments", [
    ("plan", "MODEL NUMBER"), ("text", "MODEL x NUMBER"), ("chat", "MODEL NUMBER"),
    ("vision", "MODEL x x NUMBER"), ("sampler", "MODEL x NUMBER"), ("sampler", "MODEL x 4 NUMBER"),
    ("sampler", "MODEL x 4 1 NUMBER"), ("embed", "MODEL x NUMBER"), ("embed", "MODEL x 4 NUMBER")])
def test_what_is_no_number_is_none_to_an_example(examples, installed, name, arguments):
    for number in ("-3", "4x", "", " 4" if arguments[-8:] != "4 NUMBER" else "nan", "1e400"):
        words = [installed.demo if word == "MODEL" else number if word == "NUMBER" else word
                 for word in arguments.split()]
        done = examples(name, *words, input="")
        assert done.returncode == 2 and done.stderr.startswith(f"{number}: not a number"), number


def test_sampler_without_temperature_is_the_librarys(examples, installed):
    ours = examples("sampler", installed.demo, OPENING, "12")
    assert ours.returncode == 0
    assert ours.stdout == examples("text", installed.demo, OPENING, "12").stdout
    drawn = {examples("sampler", installed.demo, OPENING, "24", "1.5", str(seed)).stdout
             for seed in (1, 2, 1)}
    assert len(drawn) == 2  # a seed decides, and nothing else


def test_embed_ends_by_itself_and_when_told_to(examples, installed):
    done = examples("embed", installed.demo, OPENING, "12")
    assert done.returncode == 0
    assert done.stdout == examples("text", installed.demo, OPENING, "12").stdout
    cut = examples("embed", installed.demo, OPENING, "4000", "0.2")
    assert cut.returncode == 130 and cut.stderr.endswith("cancelled\n")
    assert examples("embed", "/nonexistent", OPENING).returncode == 1


def test_chat_remembers(examples, installed):
    done = examples("chat", installed.demo, "12", input='How do "you" do?\nAnd then?\n')
    assert done.returncode == 0
    first, second = done.stdout.strip().split("\n")
    assert first and second
    alone = examples("chat", installed.demo, "12", input="And then?\n").stdout.strip()
    assert second != alone  # the first message is part of the second prompt


def test_vision_sees_which_picture_it_is(examples, installed, tmp_path):
    if "vision" not in build_options(BUILD) or build_options(BUILD)["vision"] == "disabled":
        pytest.skip("a build without pictures")
    image = pytest.importorskip("PIL.Image")
    model = tmp_path / "tiny.waste"
    output(installed.bin / "waste", "synth", model, "--shape", "tiny-k3", "--vision", "-q")
    texts = set()
    for name, colour in (("red", (200, 30, 30)), ("blue", (10, 10, 220))):
        image.new("RGB", (90, 60), colour).save(tmp_path / f"{name}.png")
        done = examples("vision", model, tmp_path / f"{name}.png", 'What is "this"?', "8")
        assert done.returncode == 0 and "90 x 60 pixels, 12 positions" in done.stderr
        texts.add(done.stdout)
    assert len(texts) == 2
    blind = examples("vision", installed.demo, tmp_path / "red.png", "What?")
    assert blind.returncode == 1 and "vision" in blind.stderr


# ---- manual pages -----------------------------------------------------------------------------


def page(installed, name):
    """A page as a reader sees it, wide enough that nothing is broken, without bold and underlined."""
    text = output("mandoc", "-Tutf8", "-Owidth=300", next(installed.man.rglob(name)))
    return re.sub(".\b", "", text)


def pages_needed(installed):
    if not (installed.man / "man1").exists():
        pytest.skip("a build without manual pages (scdoc)")
    if not shutil.which("mandoc"):
        pytest.skip("mandoc is not here")


def commands(program):
    return re.findall(r"^  (\w+) ", output(program, "help"), re.M)


def options(text, indent):
    """What is defined in a help text or a page: lines that begin with options, behind so many blanks."""
    found = re.findall(rf"^ {{{indent}}}(-\w, )?(--?[a-z][\w-]*)", text, re.M)
    return {name.strip(", ") for names in found for name in names if name}


def test_every_command_has_a_page_with_exactly_its_options(installed):
    pages_needed(installed)
    program = installed.bin / "waste"
    for name in set(commands(program)) - {"help", "version", "serve"}:
        text = page(installed, f"waste-{name}.1")
        told = output(program, "help", name)
        assert "--help" in told and options(text, 7) == options(told, 2), name
        assert set(re.findall(r"WASTE_\w+", told)) == set(re.findall(r"WASTE_\w+", text)), name


def test_the_page_of_the_server_has_exactly_its_options(installed):
    """They are read off the server's source, without running it."""
    pages_needed(installed)
    text = page(installed, "waste-serve.1")
    listed = options(output(installed.bin / "waste", "serve", "--help"), 2)
    assert len(listed) > 30 and options(text, 7) == listed


def test_the_page_of_waste_bench_has_exactly_its_options(installed):
    pages_needed(installed)
    program = installed.bin / "waste-bench"
    parts = re.split(r"^WASTE-BENCH (\w+)$", page(installed, "waste-bench.1"), flags=re.M)
    found = {name.lower(): options(text, 7) for name, text in zip(parts[1::2], parts[2::2])}
    assert list(found) == commands(program)
    for name in found:
        assert found[name] == options(output(program, name, "--help"), 2), name


def test_the_page_of_the_library_names_every_function(installed):
    pages_needed(installed)
    symbols = re.findall(r" T (waste_\w+)", output("nm", "-D", installed.lib / "libwaste.so.0"))
    assert len(symbols) > 80
    assert set(re.findall(r"(waste_\w+)\(\)", page(installed, "libwaste.3"))) == set(symbols)


def test_pages_are_clean_and_lead_to_pages(installed):
    pages_needed(installed)
    paths = sorted(installed.man.rglob("waste*.[135]")) + sorted(installed.man.rglob("lib*.3"))
    here = {(path.stem, path.suffix[1:]) for path in paths}
    for path in paths:
        # scdoc begins paragraphs twice; nobody sees it.
        lint = [line for line in run("mandoc", "-Tlint", "-Wwarning", path).stdout.split("\n")
                if line and "skipping paragraph macro" not in line]
        assert not lint, "\n".join(lint)
        for name, section in re.findall(r"((?:lib)?waste[\w-]*)\((\d)\)", page(installed, path.name)):
            assert (name, section) in here, f"{path.name}: {name}({section})"


# ---- completion -------------------------------------------------------------------------------


def bash_completes(installed, *words, cwd=None):
    """What bash is offered for the last of these words."""
    script = (f"source {installed.share}/bash-completion/completions/{words[0]}\n"
              'COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))\n'
              'complete -p "$1" | grep -q -e "-F _waste" || exit 1\n'
              '_waste "$1"\nprintf "%s\\n" "${COMPREPLY[@]}"')
    return output("bash", "--norc", "-c", script, "bash", *words, cwd=cwd).split()


@pytest.fixture
def completions(installed):
    if not (installed.share / "bash-completion").exists():
        pytest.skip("a build without completions")
    return lambda *words, **kwargs: bash_completes(installed, *words, **kwargs)


def test_bash_completes_commands_options_values_and_paths(completions, installed, tmp_path):
    (tmp_path / "k3.waste").mkdir()
    (tmp_path / "k3.txt").touch()
    assert completions("waste", "") == commands(installed.bin / "waste")
    assert completions("waste", "pl") == ["plan", "place"]
    assert completions("waste-bench", "re") == ["replay", "report"]
    assert completions("waste", "run", "m", "--look") == ["--lookahead"]
    assert completions("waste", "run", "--cache", "l") == ["lfru", "lru"]
    assert completions("waste", "run", "--cache", "=", "l") == ["lfru", "lru"]  # as bash cuts words
    assert completions("waste", "run", "--cache", "=") == ["nextuse", "lfru", "lru", "s3fifo"]
    assert completions("waste", "run", "--cache=l") == ["lfru", "lru"]
    assert completions("waste", "run", "--temp", "") == []
    assert completions("waste", "run", "k", cwd=tmp_path) == ["k3.waste"]  # MODEL: a directory
    assert completions("waste", "run", "--budget", "4G", "k", cwd=tmp_path) == ["k3.waste"]
    assert sorted(completions("waste", "run", "--file", "k", cwd=tmp_path)) == ["k3.txt", "k3.waste"]
    assert completions("waste", "run", "k3.waste", "k", cwd=tmp_path) == []  # PROMPT: any text
    assert completions("waste", "help", "ver") == ["verify", "version"]
    assert completions("waste", "config", "s") == ["show"]
    assert completions("waste", "serve", "--log-level", "w") == ["warning"]


def test_bash_offers_every_option(completions, installed):
    for program in ("waste", "waste-bench"):
        for name in commands(installed.bin / program):
            own = ["help", name] if name == "help" else [name, "--help"]
            listed = options(output(installed.bin / program, *own), 2)
            assert set(completions(program, name, "-")) == listed, name


@pytest.mark.parametrize("typed, becomes", [
    ("waste ch\t", "chat"), ("waste-bench repl\t", "replay"), ("waste run m --lookah\t", "run m --lookahead"),
    ("waste run m --cache s3\t", "run m --cache s3fifo"), ("waste help tok\t", "help tokenize"),
    ("waste serve m --log-level w\t", "serve m --log-level warning")])
def test_zsh_completes(installed, tmp_path, typed, becomes):
    """In a real zsh on a terminal: what is typed, Tab, Return."""
    if not (installed.share / "zsh").exists():
        pytest.skip("a build without completions")
    if not shutil.which("zsh"):
        pytest.skip("zsh is not here")
    script = tmp_path / "type.zsh"
    script.write_text(f"""
zmodload zsh/zpty
zpty z 'ZDOTDIR={tmp_path} TERM=dumb zsh -f -i'
zpty -w z 'unsetopt zle_bracketed_paste; fpath=({installed.share}/zsh/site-functions $fpath)'
zpty -w z 'autoload -U compinit && compinit -u -D; PROMPT=; waste() {{ print "RAN:$*:" }}'
zpty -w z 'waste-bench() {{ print "RAN:$*:" }}; print READY''!'
zpty -r -m z text '*READY!*' || exit 1
zpty -w z "$1"
zpty -r -m z text '*RAN:*:*' || exit 1
print -r -- "$text"
""")
    assert not run("zsh", "-n", installed.share / "zsh/site-functions/_waste").stderr
    text = output("timeout", "60", "zsh", "-f", script, typed)
    assert re.search(r"RAN:(.*?)[= ]?:", text)[1] == becomes
