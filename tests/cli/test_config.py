"""Options from a file: what beats what, what is refused, and where `config show` says it is from."""

import json

import pytest

from conftest import run_lines, waste, waste_error


@pytest.fixture
def config(tmp_path):
    """Write the user's file; the environment that finds it."""
    def write(text):
        file = tmp_path / "waste" / "config"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return {"XDG_CONFIG_HOME": str(tmp_path)}
    return write


def shown(env, *args, **variables):
    done = waste("config", "show", *args, "--json", env={**env, **variables}, check=0)
    return {k: (v["value"], v["origin"]) for k, v in json.loads(done.stdout)["options"].items()}


def test_flags_beat_variables_beat_the_models_section_beat_the_file(config, tmp_path):
    env = config("threads = 1\ntemp = 0.1\n[model demo]\ntemp=0.2\nthreads = 2\nctx = 64\n"
                 "[model other]\ntemp = 0.9\n")
    file = str(tmp_path / "waste" / "config")
    nothing = shown(env)
    assert nothing["threads"] == ("1", f"{file}: line 1")
    assert nothing["temp"] == ("0.1", f"{file}: line 2")
    assert nothing["ctx"] == ("4096", "default")
    demo = shown(env, "demo", "--temp", "0.5", WASTE_THREADS="3")
    assert demo["threads"] == ("3", "WASTE_THREADS")
    assert demo["temp"] == ("0.5", "the command line")
    assert demo["ctx"] == ("64", f"{file}: line 6, of this model")
    for name in ("demo", "demo.waste", "/models/demo.waste", "./demo.waste/", "/x/demo"):
        assert shown(env, name)["temp"][0] == "0.2", name
    for name in ("demo2", "ademo", "demo.waste.old"):
        assert shown(env, name)["temp"][0] == "0.1", name
    assert shown(env, "other")["temp"][0] == "0.9"


def test_what_is_set_takes_effect(config, tmp_path):
    env = config('n = 5\n# a comment\n\n  system =  "Be\\nbrief."  \nstop = ","\n')
    want = run_lines("demo", "Who?", "-n", 5, "--system", "Be\nbrief.", "--stop", ",")[1]
    assert run_lines("demo", "Who?", env=env)[1]["text"] == want["text"]
    assert run_lines("demo", "Who?", "--no-config", "-n", 6, env=env)[1]["text"] == \
        run_lines("demo", "Who?", "-n", 6)[1]["text"]
    other = tmp_path / "other"
    other.write_text("n = 3\n")
    assert run_lines("demo", "Who?", "--config", other, env=env)[1]["generated_tokens"] == 3
    assert shown(env, "--stop", "x")["stop"] == ('"x"', "the command line")  # not added to a list


def test_switches(config):
    assert shown(config("no-verify\n"))["no-verify"][0] == "yes"
    assert shown(config("no-verify = no\n"))["no-verify"][0] == "no"
    assert shown(config("verify = off\n"))["verify"][0] == "no"
    assert shown(config("learn = true\nno-history = 1\n"))["learn"][0] == "yes"


def test_what_a_command_does_not_understand_does_not_concern_it(config):
    env = config("temp = 0.5\ntop-k = 3\nseed = 9\nstate-disk = 1G\nbudget = 64M\n")
    waste("info", "demo", env=env, check=0)
    waste("tokenize", "demo", "x", env=env, check=0)
    top = json.loads(waste("eval", "demo", "Who", "--json", env=env, check=0).stdout)["top"]
    assert len(top) == 10  # top-k is something else there
    assert json.loads(waste("plan", "demo", "--json", env=env, check=0).stdout)["budget_bytes"] == 64 << 20
    waste("info", "demo", "--temp", "1", env=env, check=2)  # a flag is meant


@pytest.mark.parametrize("line, words", [
    ("bugdet = 46G", ["unknown option", "bugdet", "did you mean budget?"]),
    ("--temp = hot", ["temp", "hot"]),
    ("temp", ["temp", "missing"]),
    ("temp = ", ["temp", "missing"]),
    ("temp = -1", ["temp", "range"]),
    ("verify = perhaps", ["verify", "perhaps"]),
    ("file = x", ["file", "one call"]),
    ("image = x.jpg", ["image", "one call"]),
    ("help", ["help", "one call"]),
    ("shape = k3", ["shape"]),
    ("[demo]", ["[model NAME]"]),
    ("[model]", ["[model NAME]"]),
    ("[model demo", ["[model NAME]"]),
    ("[model nobody]\nbugdet = 1G", ["bugdet", "line 3"]),
    ('system = "x', ["quotes"]),
    ('system = "x" y', ["quotes"]),
    ('system = "\\q"', ["quotes"]),
    ("temp = 1\0", ["byte of 0"]),
    ("= 1", ["unknown option"]),
    ("budget = 46", ["46 bytes? say 46G"]),
])
def test_a_bad_line_is_named(line, words, config, tmp_path):
    env = config("# first\n" + line + "\n")
    detail = waste_error("run", "demo", "x", env=env, check=2)["detail"]
    for word in [str(tmp_path / "waste" / "config"), *words]:
        assert word in detail
    assert "line 2" in detail or "line 3" in detail or "byte of 0" in detail
    waste("run", "demo", "x", "-n", 1, "--no-config", env=env, check=0)
    waste("help", env=env, check=0)


def test_a_wish_of_the_file_yields_where_it_cannot_be(config):
    env = config('think = high\nsystem = "Be brief."\n')
    want = run_lines("demo", "Who?", "-n", 4, "--system", "Be brief.")[1]["text"]
    assert run_lines("demo", "Who?", "-n", 4, env=env)[1]["text"] == want
    waste("run", "demo", "--raw", "Who?", "-n", 1, env=env, check=0)
    waste("run", "demo", "Who?", "--think", "high", env=env, check=6)
    waste("run", "demo", "Who?", "--raw", "--system", "x", env=env, check=2)


def test_a_file_that_was_named_must_be_there(tmp_path):
    assert waste_error("run", "demo", "x", "--config", tmp_path / "no", check=1)
    waste("run", "demo", "x", "-n", 1, env={"XDG_CONFIG_HOME": str(tmp_path)}, check=0)


def test_a_file_of_another_kind_or_size_is_refused(config, tmp_path):
    for device in ("/dev/zero", "/dev/null", tmp_path):
        assert "not a file" in waste_error("run", "demo", "x", "--config", device, check=1)["detail"]
    huge = tmp_path / "huge"
    huge.write_bytes(b"#" * (1 << 20) + b"\n")
    detail = waste_error("run", "demo", "x", "--config", huge, check=6)["detail"]
    assert "1048577" in detail and "1048576" in detail
    huge.write_bytes(b"#" * ((1 << 20) - 9) + b"\ntemp=0.5")
    assert shown({}, "--config", str(huge))["temp"][0] == "0.5"
    assert shown(config("\ufefftemp = 0.5\n"))["temp"][0] == "0.5"  # a mark of some editors
    latin = tmp_path / "latin"
    latin.write_bytes(b"# \xff\ntemp = 0.5\n")  # the rest is not lost
    assert shown({}, "--config", str(latin))["temp"][0] == "0.5"


def test_a_default_is_no_pointer_to_the_manual(config):
    assert shown({})["grammar"] == ("not given", "default")
    assert not [k for k, v in shown({}).items() if "docs/" in v[0]]


def test_show_is_one_screen_of_lines(config):
    assert b"show is missing" in waste("config", check=2).stderr
    out = waste("config", "show", "demo", env=config("temp = 0.5\n"), check=0).stdout.decode()
    assert any(line.split()[:2] == ["temp", "0.5"] and line.endswith("line 1")
               for line in out.splitlines())
    assert waste("config", "hide", check=2).stdout == b""


def test_a_model_whose_name_is_no_utf8_is_shown_all_the_same(config):
    """There was "no memory for the JSON text"."""
    done = waste("config", "show", "\udcff", "--json", env=config("temp = 0.5\n"), check=0)
    assert json.loads(done.stdout)["model"] == "\ufffd"
