"""Whole commands, on the golden containers: help, misuse, failures, the terminal. Each command has a
file of its own beside this."""

import fcntl
import json
import os
import pty
import resource
import shutil
import subprocess
import time

import pytest

from conftest import (BINARY, BUDGET, FOREVER, GOLDEN, clean_env, interrupt, run, run_lines, waste,
                      waste_error, waste_json)


# ---- help and version ----

def test_alone_it_prints_short_help_and_fails():
    done = waste(check=2)
    assert done.stdout == b"" and b"Usage:" in done.stderr


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["help"]])
def test_help_lists_the_commands(args):
    out = waste(*args, check=0).stdout.decode()
    for command in ["run", "chat", "config", "eval", "tokenize", "detokenize", "plan", "info", "verify", "synth",
                    "version"]:
        assert f"\n  {command} " in out


@pytest.mark.parametrize("command", ["run", "chat", "config", "eval", "tokenize", "detokenize",
                                     "plan", "info", "verify", "synth", "version"])
def test_help_of_a_command_lists_its_options_only(command):
    done = waste("help", command, check=0)
    assert done.stderr == b""
    assert waste(command, "--help", check=0).stdout == done.stdout
    assert waste("-h", command, check=0).stdout == done.stdout
    out = done.stdout.decode()
    assert ("\n  --temp " in out) == (command in ("run", "chat"))
    assert ("\n  --headers " in out) == (command == "verify")
    assert " --quiet" in out
    assert max(map(len, out.splitlines())) <= 80


def test_help_works_whatever_the_variables_say():
    waste("help", check=0, env={"WASTE_NONSENSE": "1"})
    waste("run", "--help", check=0, env={"WASTE_NONSENSE": "1"})
    waste("version", check=0, env={"WASTE_NONSENSE": "1"})
    waste("--version", check=0, env={"WASTE_CPU": "pdp11"})


def test_help_says_what_an_option_is_in_this_command():
    helps = {c: " ".join(waste("help", c, check=0).stdout.decode().split())
             for c in ["run", "eval", "tokenize", "detokenize", "plan", "verify", "synth"]}
    for text in helps.values():
        assert "eval:" not in text and "run:" not in text
    assert "rows to print; 0 = all" in helps["eval"]
    assert "experts a token takes" in helps["synth"]
    assert "read the ids" in helps["detokenize"]
    assert "exactly as it is" in helps["tokenize"]
    assert "every time it is read" in helps["run"]
    assert "finished files are kept; an unfinished one is begun anew" in helps["synth"]
    assert "no flipped bit in them" in helps["verify"]


def test_usage_has_no_trailing_blanks():
    for done in [waste("help", check=0), waste("help", "version", check=0)]:
        assert not any(line.endswith(b" ") for line in done.stdout.splitlines())
    done = waste("version", "x", check=2)
    assert done.stderr.endswith(b"usage: waste version\n")


@pytest.mark.parametrize("args", [["--json"], ["-q", "--json"], ["rum", "--json"],
                                  ["--json", "--nonsense"], ["--nonsense", "--json"],
                                  ["run", "--file", "--json"], ["run", "--json"]])
def test_misuse_is_json_wherever_json_was_asked_for(args):
    done = waste(*args, check=2)
    assert done.stdout == b""
    error = json.loads(done.stderr)
    assert error["exit"] == 2 and error["error"] and error["detail"]


def test_a_positional_json_asks_for_none():
    assert waste("run", "--nonsense", "--", "--json", check=2).stderr.startswith(b"waste: ")


def test_suggestions_are_near():
    assert b"did you mean run?" in waste("rum", check=2).stderr
    for args in [["xyzzy"], ["run", "--frobnicate"]]:
        assert b"did you mean" not in waste(*args, check=2).stderr


def test_kernels_of_another_machine_are_refused(kimi):
    level = "avx2" if os.uname().machine == "aarch64" else "neon"
    assert b"this machine has no " in waste("plan", kimi, env={"WASTE_CPU": level}, check=2).stderr


@pytest.mark.parametrize("option", ["file", "usage", "config", "out", "json-schema", "grammar",
                                    "tools", "image", "state-dir"])
def test_an_empty_path_is_misuse_that_names_the_option(kimi, option):
    done = waste("run", kimi, f"--{option}", "", check=2)
    assert f"--{option}: it is empty; it has to be a ".encode() in done.stderr


def test_an_empty_model_is_misuse_also_where_one_is_made():
    for command in (["synth", "", "--shape", "tiny-kimi"], ["run", "", "x"], ["verify", ""]):
        assert b"MODEL is empty" in waste(*command, check=2).stderr


def limited_stack(soft, hard):
    return lambda: resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


def test_a_small_limit_of_the_stack_is_raised_or_said(kimi):
    command = [BINARY, "run", str(kimi), "--ids", "1 2", "-n", "2", "--budget", BUDGET]
    done = subprocess.run(command, env=clean_env(), capture_output=True, check=False,
                          preexec_fn=limited_stack(128 << 10, 8 << 20))
    assert done.returncode == 0, done.stderr
    done = subprocess.run(command, env=clean_env(), capture_output=True, check=False,
                          preexec_fn=limited_stack(128 << 10, 128 << 10))
    assert done.returncode == 6 and b"stack: limited to 128 KiB, 2048 are needed" in done.stderr


def test_version():
    out = waste("version", check=0).stdout
    assert out.startswith(b"WASTE ") and b"container v0" in out
    assert waste("--version", check=0).stdout == out
    value = waste_json("version")
    assert value["build"].encode() + b"\n" == out
    assert list(value) == ["version", "number", "api", "build"]


# ---- usage ----

@pytest.mark.parametrize("args, words", [
    (["rum", "x"], ["rum", "run"]),
    (["bench", "x"], ["bench", "waste-bench"]),
    (["chat", "a", "b"], ["b", "too many"]),
    (["chat", "a", "--raw"], ["--raw", "chat"]),
    (["config", "hide"], ["config show"]),
    (["run"], ["MODEL", "usage"]),
    (["run", "a", "b", "c"], ["c"]),
    (["run", "a", "--bugdet", "1G"], ["--bugdet", "--budget"]),
    (["run", "a", "--budget"], ["--budget", "value"]),
    (["run", "a", "--budget", "-1G"], ["--budget"]),
    (["run", "a", "--budget", "nan"], ["--budget"]),
    (["run", "a", "--temp", "hot"], ["--temp", "hot"]),
    (["run", "a", "x", "--file", "y"], ["--file"]),
    (["run", "a", "x", "--ids", "1"], ["--ids"]),
    (["run", "a", "--ids", "1 x"], ["x"]),
    (["run", "a", "--ids", "1", "--bos"], ["--bos"]),
    (["tokenize", "a", "--budget", "1G"], ["--budget", "tokenize"]),
    (["plan", "a", "-n", "1"], ["-n", "plan"]),
    (["eval", "a", "--stop", "x"], ["--stop", "eval"]),
    (["synth", "a"], ["--shape"]),
    (["synth", "a", "--shape", "nonsense"], ["nonsense"]),
    (["synth", "a", "--shape", "tiny-kimi", "--top-k", 40], ["top 40 of 32 experts; at most 32"]),
    (["synth", "a", "--shape", "k3", "--top-k", 65], ["top 65 of 896 experts; at most 64"]),
    (["synth", "a", "--shape", "k3", "--experts", 1, "--top-k", 2], ["2 of 1 expert; at most 1"]),
    (["plan", "", "--json"], ["MODEL"]),
    (["plan", "a", "--budget", "46"], ["46 bytes? say 46G"]),
    (["plan", "a", "--drive", "7"], ["7 bytes per second? say 7G"]),
    (["run", "a", "x", "--ctx", "16777217"], ["--ctx"]),
    (["run", "a", "x", "--max-rows", "4097"], ["--max-rows"]),
])
def test_misuse_is_exit_2_and_says_what(args, words, tmp_path):
    model = str(GOLDEN / "kimi-linear.waste")
    args = [args[0], *[model if a == "a" else a for a in args[1:]]]
    done = waste(*args, check=2, cwd=tmp_path)
    assert done.stdout == b""
    for word in words:
        assert word in done.stderr.decode()
    error = waste_error(*args, check=2, cwd=tmp_path)
    assert all(word in json.dumps(error) for word in words)


def test_unknown_variables_are_errors_that_name_the_nearest(kimi):
    err = waste("plan", kimi, env={"WASTE_BUDGE": "1G"}, check=2).stderr.decode()
    assert "WASTE_BUDGE " in err and "WASTE_BUDGET" in err
    assert "WASTE_THREADS" in waste("info", kimi, env={"WASTE_THREDS": "1"},
                                    check=2).stderr.decode()
    waste("plan", kimi, env={"WASTE_MLOCK": "all"}, check=2)
    waste("plan", kimi, env={"WASTE_DIRECT": "off"}, check=2)
    waste("plan", kimi, env={"WASTE_LIB": "/x", "WASTE_API_KEY": "y", "WASTE_BUDGET": ""}, check=0)


def test_flags_beat_variables(kimi):
    env = {"WASTE_BUDGET": "200M"}
    assert waste_json("plan", kimi, env=env)["budget_bytes"] == 200 << 20
    assert waste_json("plan", kimi, "--budget", "100M", env=env)["budget_bytes"] == 100 << 20


# ---- models ----

def test_a_bare_name_is_looked_up(tmp_path, kimi):
    data = tmp_path / "data"
    (data / "waste").mkdir(parents=True)
    shutil.copytree(kimi, data / "waste" / "noise.waste")
    env = {"XDG_DATA_HOME": str(data)}
    assert waste_json("info", "noise", env=env, cwd=tmp_path)["arch"] == "kimi-linear"
    assert waste_json("info", "noise.waste", env=env, cwd=tmp_path)["layers"] == 5
    home = {"XDG_DATA_HOME": "relative", "HOME": str(tmp_path)}
    share = tmp_path / ".local" / "share"
    share.mkdir(parents=True)
    shutil.copytree(data / "waste", share / "waste")
    err = waste("info", "noise", env={"XDG_DATA_HOME": "relative", "HOME": "/nonexistent"},
                cwd=tmp_path, check=1).stderr.decode()
    assert "noise" in err and "/nonexistent/.local/share/waste/noise.waste" in err
    assert waste("info", "noise", env={"HOME": str(tmp_path), "XDG_DATA_HOME": ""}, cwd=tmp_path,
                 check=0)
    del home
    assert waste("info", "./noise", env=env, cwd=tmp_path).returncode == 1


# ---- failures ----

def test_a_budget_below_the_floor_is_exit_3_with_the_numbers(kimi):
    error = waste_error("run", kimi, "Hello", "--budget", "1M", check=3)
    assert "at least" in error["hint"] and "plan" in error["hint"]
    assert b"at least" in waste("eval", kimi, "Hello", "--budget", "1M", check=3).stderr


def test_a_setting_that_is_refused_says_where_it_is_from(kimi, tmp_path):
    file = tmp_path / "options"
    file.write_text("# mine\nbudget = 1M\n")
    hint = waste_error("run", kimi, "Hello", "--config", file, check=3)["hint"]
    assert f"{file}: line 2: budget" in hint
    env = {"WASTE_BUDGET": "1M"}
    assert "that of WASTE_BUDGET." in waste_error("run", kimi, "Hello", env=env, check=3)["hint"]
    assert b"the budget is 1.0 MiB (WASTE_BUDGET)." in waste("plan", kimi, env=env, check=0).stdout
    hint = waste_error("run", kimi, "Hello", "--budget", "1M", env=env, check=3)["hint"]
    assert "WASTE_BUDGET" not in hint
    env = {"WASTE_CPUS": "0..3"}
    for command in (["run", kimi, "Hello"], ["plan", kimi]):
        assert "WASTE_CPUS" in waste_error(*command, env=env, check=2)["hint"]
    file.write_text("grammar = a\n")
    error = waste_error("run", kimi, "Hello", "--json-schema", "b", "--config", file, check=2)
    assert error["error"] == f"{file}: line 1: grammar" and "--json-schema" in error["detail"]


def test_what_is_empty_has_a_name_in_messages():
    assert waste("", check=2).stderr.startswith(b"waste: waste: the command is empty\n")
    assert waste("image", "", check=1).stderr.startswith(b'waste: "": ')


def test_a_slash_behind_a_directory_is_in_no_message(copy, tmp_path):
    """Shells put it there: "states/: a directory for kept states: ..." was said."""
    file = tmp_path / "file"
    file.write_text("")
    (copy.path / "manifest.json").unlink()
    for args in (["run", f"{GOLDEN / 'kimi-linear.waste'}/", "x", "--state-dir", f"{file}/", "--budget", BUDGET],
                 ["info", f"{copy}/"], ["verify", f"{copy}//"], ["synth", f"{file}/", "--shape", "tiny-kimi"],
                 ["convert", "--src", f"{tmp_path}/", "--out", f"{tmp_path / 'out'}/"]):
        err = waste(*args, "-q").stderr.decode()
        assert err.startswith("waste: ") and "/:" not in err, err


def test_the_server_leaves_no_compiled_modules_behind(tmp_path):
    """What is installed stays as it was installed."""
    env = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    waste("serve", "--help", env=env, check=0)
    assert not list(tmp_path.rglob("*.pyc"))


def test_misuse_says_whose_help_to_read():
    assert b"`waste help chat`" in waste("chat", "demo", "--load", "x", check=2).stderr
    assert b"`waste help synth`" in waste("synth", check=2).stderr
    assert b"`waste help convert`" in waste("convert", check=2).stderr


def test_a_missing_config_json_is_no_bare_name():
    error = waste_error("plan", "config.json", check=1)
    assert error["detail"] == "no such model"


def test_a_missing_model_is_exit_1(tmp_path):
    waste_error("run", tmp_path / "none", "Hello", check=1)
    waste_error("plan", tmp_path, check=1)
    waste_error("info", tmp_path, check=1)
    waste_error("verify", tmp_path, check=1)


def test_a_missing_model_says_so_once_and_how_to_get_one(tmp_path):
    for command in ["run", "eval", "tokenize", "detokenize", "plan", "info", "verify"]:
        args = [] if command in ["plan", "info", "verify"] else ["1"]
        for name in [str(tmp_path / "nonexistent"), "nonexistent"]:
            error = waste_error(command, name, *args, check=1, cwd=tmp_path)
            assert error["error"] == name and error["detail"].startswith("no such model")
            assert "`demo`" in error["hint"] and "waste help synth" in error["hint"]
        err = waste(command, tmp_path / "nonexistent", *args, check=1).stderr
        assert err.count(b"/nonexistent") == 1
        err = waste(command, tmp_path, *args, check=1).stderr.decode()
        assert err.count(str(tmp_path)) == 1 and "no manifest.json" in err


def test_a_directory_without_a_manifest_is_refused_before_the_prompt_is_read(tmp_path):
    for command in ["run", "eval"]:
        for args in [["x"], ["--file", "/nonexistent"]]:
            detail = waste_error(command, tmp_path, *args, check=1)["detail"]
            assert "manifest.json" in detail and "tokenizer" not in detail


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer.model", "specials.json", "trunk.bin",
                                  "codebooks.bin", "experts-L2.bin"])
def test_what_is_no_file_is_exit_1_whatever_it_is(copy, name):
    (copy.path / name).unlink()
    (copy.path / name).mkdir()
    done = waste("run", copy, "Hello", "--budget", BUDGET, check=1)
    assert f"{name}: not a regular file" in done.stderr.decode()
    done = waste("verify", copy, check=1)
    assert f"{name}: not a regular file" in (done.stderr + done.stdout).decode()


@pytest.mark.parametrize("name, shown", [
    (b"\x1b]0;x\x07", r"\x1b]0;x\x07"), (b"a\rb\nc\td\x7f", r"a\x0db\x0ac\x09d\x7f"),
    ("Grüße, 世界 🎉".encode(), "Grüße, 世界 🎉"), (b"\xc2\x9b31m", r"\x9b31m"),
    (b"\x9b31m", r"\x9b31m"), (b"\xe0\x82\x9b", r"\xe0\x82\x9b"), (b"\xe4\xb8", r"\xe4\xb8"),
    (b"\xed\xa0\x80", r"\xed\xa0\x80"), (b"\xf4\x90\x80\x80", r"\xf4\x90\x80\x80")])
def test_errors_hold_no_control_characters(name, shown, tmp_path):
    done = subprocess.run([BINARY.encode(), b"info", b"./" + name], capture_output=True,
                          env=clean_env(), cwd=tmp_path, timeout=60)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[0] == f"waste: ./{shown}: no such model"


def test_names_out_of_a_container_hold_no_control_characters(copy):
    copy.manifest["config"]["architectures"] = ["\x1b[31mred"]
    copy.write_manifest()
    for command in ["info", "plan"]:
        done = waste(command, copy)
        assert b"\x1b" not in done.stdout + done.stderr
    copy.manifest["trunk"][0]["name"] += "\x1b[31m"
    copy.write_manifest()
    done = waste("verify", copy)
    assert b"\x1b" not in done.stdout + done.stderr and done.returncode == 4


def test_a_low_limit_of_open_files_is_raised(kimi):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE,
                           (8, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    run(kimi, "Hello", "-n", 1, check=0, preexec_fn=limit)
    waste("verify", kimi, check=0, preexec_fn=limit)


def test_a_limit_of_file_sizes_is_an_error_and_no_signal(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))

    error = waste_error("synth", tmp_path / "noise.waste", "--shape", "tiny-kimi", check=1,
                        preexec_fn=limit)
    assert "too large" in error["detail"]


def test_a_budget_above_the_machine_is_noted(kimi):
    for command in ["run", "eval"]:
        err = waste(command, kimi, "Hello", "--budget", "20T", check=0).stderr.decode()
        assert "budget 20.00 TiB is above the " in err and "this machine offers" in err
        err = waste(command, kimi, "Hello", "--budget", BUDGET, check=0).stderr.decode()
        assert "this machine offers" not in err
    assert b"above the" in waste("plan", kimi, "--budget", "20T", check=0).stdout


def test_a_busy_container_is_exit_5(copy):
    fd = os.open(copy.path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    waste_error("run", copy, "Hello", "--budget", BUDGET, "--exclusive-open", check=5)
    waste_error("verify", copy, "--exclusive-open", check=5)
    run(copy, "Hello", "-n", 1, check=0)
    os.close(fd)


def test_an_id_outside_the_vocabulary_is_exit_2(kimi):
    waste_error("eval", kimi, "--ids", "1 1000000", "--budget", BUDGET, check=2)
    vocab = waste_json("eval", kimi, "--ids", "1", "--budget", BUDGET)["vocab"]
    for command in ["run", "eval"]:
        done = waste(command, kimi, "--ids", f"1 {vocab}", "--budget", BUDGET, check=2)
        assert done.stdout == b""
        assert done.stderr.decode() == (f"waste: {command}: id {vocab} is outside the vocabulary "
                                        f"of {vocab}\n")
        waste(command, kimi, "--ids", f"1 {vocab - 1}", "--budget", BUDGET, check=0)
    done = run(kimi, "Hello", "--logit-bias", f"{vocab}=1", check=2)
    assert done.stdout == b"" and done.stderr.count(b"\n") == 1
    assert f"id {vocab} is outside the vocabulary of {vocab}" in done.stderr.decode()
    run(kimi, "Hello", "-n", 1, "--logit-bias", f"{vocab - 1}=1", check=0)


def test_damage_ends_the_run_names_the_record_and_is_exit_4(copy):
    for layer in copy.layers():
        for expert in range(5):
            copy.flip(layer, expert, 100)
    done = waste("run", copy, "Hello", "--budget", BUDGET, "--json", check=4)
    error = json.loads(done.stderr)
    assert "layer 1 expert" in error["detail"] and "verify" in error["hint"]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["stop"] == "error" and summary["text"] == ""
    done = run(copy, "Hello", check=4)
    assert done.stdout == b"" and b"checksum" in done.stderr
    run(copy, "Hello", "--no-verify", "-n", 3, check=0)


def test_a_closed_pipe_ends_it_quietly(kimi):
    for extra in [[], ["--json"]]:
        child = subprocess.Popen([BINARY, "run", kimi, "Hello", "-q", "-n", "100000", "--ctx",
                                  "120000", "--budget", "512M", *FOREVER, *extra],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_env())
        child.stdout.read(1)
        child.stdout.close()
        err = child.stderr.read()
        assert child.wait(timeout=60) == 1 and err == b""


def test_a_full_disk_is_an_error(kimi):
    with open("/dev/full", "wb") as full:
        for args in [["run", kimi, "Hello", "--budget", BUDGET], ["tokenize", kimi, "Hello"],
                     ["plan", kimi], ["info", kimi], ["version", "--json"], ["verify", kimi],
                     ["help"], ["eval", kimi, "Hello", "--json", "--budget", BUDGET]]:
            done = subprocess.run([BINARY, *args], stdout=full, stderr=subprocess.PIPE,
                                  env=clean_env(), timeout=60)
            assert done.returncode == 1 and b"space left" in done.stderr, args


def test_a_closed_stdout_never_becomes_another_file(copy):
    before = {p: p.read_bytes() for p in copy.path.iterdir()}
    for args in [["run", str(copy), "Hello", "--budget", BUDGET], ["tokenize", str(copy), "Hello"]]:
        done = subprocess.run([BINARY, *args], stderr=subprocess.PIPE, env=clean_env(), timeout=60,
                              preexec_fn=lambda: os.close(1))
        assert done.returncode == 1 and b"standard output" in done.stderr
    assert before == {p: p.read_bytes() for p in copy.path.iterdir()}


def test_an_interrupt_ends_the_answer_with_its_closing_lines(kimi):
    args = ["run", kimi, "Hello", "-n", 200000, "--ctx", 250000, "--budget", "1G", *FOREVER]
    code, out, err = interrupt(args, lambda child: child.stdout.read(1))
    assert code == 130 and out.endswith(b"\n")
    assert b"ended by an interrupt" in err and b"tok/s" in err
    code, out, err = interrupt([*args, "--json"], lambda child: child.stdout.readline())
    summary = json.loads(out.splitlines()[-1])
    assert code == 130 and err == b"" and summary["stop"] == "interrupted"


def test_an_interrupt_ends_waiting_for_a_prompt(kimi):
    code, out, _ = interrupt(["run", kimi], lambda child: time.sleep(0.3), stdin=subprocess.PIPE)
    assert code == 130 and out == b""


def test_an_interrupt_ends_waiting_for_the_writer_of_a_fifo(kimi, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for command in ["run", "eval", "tokenize", "detokenize"]:
        code, out, _ = interrupt([command, kimi, "--file", fifo], lambda child: time.sleep(0.3))
        assert code == 130 and out == b""


def test_a_fifo_is_read_to_its_end(kimi, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    child = subprocess.Popen([BINARY, "tokenize", kimi, "--content", "--file", fifo],
                             stdout=subprocess.PIPE, env=clean_env())
    time.sleep(0.2)
    with open(fifo, "wb") as f:
        f.write(b"Hello")
        f.flush()
        time.sleep(0.1)
        f.write(b" world")
    out = child.communicate(timeout=60)[0]
    assert out == waste("tokenize", kimi, "--content", "Hello world", check=0).stdout


def test_an_interrupt_ends_measuring(kimi):
    begun = time.monotonic()
    code, out, err = interrupt(["plan", kimi, "--measure"], lambda child: time.sleep(0.3))
    assert code == 130 and out == b"" and err == b"" and time.monotonic() - begun < 1


# ---- synth ----

def test_synth_makes_a_container_that_opens(tmp_path):
    target = tmp_path / "noise.waste"
    args = ["synth", target, "--shape", "tiny-kimi", "--layers", 3, "--experts", 8, "--top-k", 2,
            "--seed", 5]
    value = waste_json(*args)
    assert value["layers"] == 3 and value["experts"] == 8 and value["was_complete"] is False
    assert waste_json("verify", target)["bad"] == 0
    info = waste_json("info", target)
    assert info["layers"] == 3 and info["experts"] == 8 and info["top_k"] == 2
    tokens, _ = run_lines(target, "Hello", "-n", 4, "--budget", "512M")
    assert tokens
    assert waste_json(*args)["was_complete"] is True
    waste_error("synth", target, "--shape", "tiny-k3", check=2)


# ---- terminal ----

def on_terminal(args, env=None):
    """Standard error is a terminal; returns what was written to it."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen([BINARY, *map(str, args)], stdout=subprocess.PIPE, stderr=theirs,
                             stdin=subprocess.DEVNULL, env=clean_env(env))
    os.close(theirs)
    err = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        err += part
    out = child.communicate(timeout=60)[0]
    os.close(ours)
    return child.returncode, out, err


def test_colours_only_on_a_terminal_and_not_with_no_color(kimi):
    args = ["run", kimi, "--budget", "1M", "Hello"]
    assert b"\x1b[" in on_terminal(args)[2]
    assert b"\x1b[" not in on_terminal(args, {"NO_COLOR": "1"})[2]
    assert b"\x1b[" not in on_terminal([*args, "--no-color"])[2]
    assert b"\x1b[" in on_terminal([*args, "--color"], {"NO_COLOR": "1"})[2]
    assert b"\x1b[" not in waste(*args).stderr
    assert b"\x1b[" in waste(*args, "--color").stderr


def test_an_answer_on_a_terminal_moves_no_cursor(kimi):
    escape = waste_json("tokenize", kimi, "\x1b")["ids"]
    assert len(escape) == 1
    args = ["run", kimi, "Hello", "-n", "3", "--budget", BUDGET, "--quiet", "--logit-bias",
            f"{escape[0]}=1000000"]
    assert waste(*args, check=0).stdout == b"\x1b\x1b\x1b\n"
    ours, theirs = pty.openpty()
    for command, want in [(args, rb"\x1b\x1b\x1b"),
                          (["detokenize", kimi, *map(str, waste_json(
                              "tokenize", kimi, "a\tb\x1b\x07\x9b世")["ids"])],
                           rb"\x1b\x07\x9b" + "世".encode())]:
        subprocess.run([BINARY, *command], stdout=theirs, env=clean_env(), timeout=60, check=True)
        assert os.read(ours, 4096).rstrip(b"\r\n").endswith(want)
    os.close(theirs)
    os.close(ours)


def test_a_bar_is_drawn_on_a_terminal_and_erased(tmp_path):
    target = tmp_path / "noise.waste"
    code, out, err = on_terminal(["synth", target, "--shape", "tiny-kimi", "--no-color"])
    assert code == 0 and b"\x1b" not in out
    if b"\r" in err.replace(b"\r\n", b""):
        assert err.rstrip(b"\r\n").endswith(b"\x1b[K")
    code, _, err = on_terminal(["verify", target, "--quiet"])
    assert code == 0 and err == b""
