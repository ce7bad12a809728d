"""Whole commands, on the golden containers. WASTE_BIN names the binary."""

import fcntl
import json
import math
import os
import pty
import re
import resource
import shutil
import signal
import stat
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from conftest import (BINARY, BUDGET, FAMILIES, GOLDEN, clean_env, run_lines, waste, waste_error,
                      waste_json)

EOS = 274  # <|im_end|> of the golden containers' tokenizer
FOREVER = ["--logit-bias", f"{EOS}=-1000000"]


def run(model, *args, **kw):
    return waste("run", model, *args, "--budget", BUDGET, **kw)


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
        assert "eval:" not in text and "run:" not in text and " demo " not in text
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


# ---- run ----

def test_run_streams_text_to_stdout_and_the_rest_to_stderr(family):
    done = run(family, "Hello", "-n", 8, check=0)
    assert done.stdout.endswith(b"\n")
    err = done.stderr.decode()
    for word in ["model", "memory", "reads", "compute", "prompt", "answer", "tok/s", "resident",
                 "prefetched", "missed", "read", "ended by"]:
        assert word in err
    quiet = run(family, "Hello", "-n", 8, "--quiet", check=0)
    assert quiet.stdout == done.stdout and quiet.stderr == b""


def test_run_json_has_a_line_per_token_and_a_summary(family):
    tokens, summary = run_lines(family, "Hello", "--raw", "-n", 8, "--budget", BUDGET, *FOREVER)
    assert len(tokens) == summary["generated_tokens"] == 8
    assert summary["stop"] == "length" and summary["prompt_tokens"] > 0
    for t in tokens:
        assert list(t) == ["token", "text", "ms", "logprob", "experts_hit", "experts_missed",
                           "bytes_read"]
        assert t["ms"] >= 0 and t["logprob"] <= 0
    assert sum(t["experts_missed"] for t in tokens) == summary["experts_missed"]
    assert summary["hits_resident"] + summary["hits_prefetch"] == summary["experts_hit"]
    plain = run(family, "Hello", "--raw", "-n", 8, "-q", *FOREVER, check=0).stdout.decode()
    assert plain == summary["text"] + "\n"


def test_run_counts_nothing_twice(family):
    _, s = run_lines(family, "Hello", "-n", 8, "--budget", BUDGET, "--profile", *FOREVER)
    assert s["late_prefetch"] <= s["hits_prefetch"] <= s["guesses"]
    assert s["late_misses"] <= s["experts_missed"]
    assert s["hits_prefetch"] + s["guesses_wasted"] <= s["guesses"]
    assert s["reads_retried"] == s["reads_failed"] == s["records_refused"] == 0
    assert s["bytes_device"] is None or s["bytes_device"] >= 0
    for part, seconds in (("prefill_s", s["prefill_s"]), ("decode_s", s["decode_s"])):
        times = dict(s["profile"][part])
        whole = times.pop("all")
        assert set(times) == {"reads", "checks", "experts", "attention", "mlp", "route", "head",
                              "other"}
        assert all(t >= -1e-9 for t in times.values())
        assert abs(sum(times.values()) - whole) < 1e-9 + 1e-6 * whole
        assert whole <= seconds + 1e-6  # the library's share of what the command waited for
    assert s["profile"]["bound_by"] in ("disk", "memory", "compute", "memory or compute")


def test_profile_is_one_screen_that_ends_in_words(kimi):
    err = run(kimi, "Hello", "-n", 4, "--profile", check=0).stderr.decode()
    lines = err[err.index("profile "):].splitlines()
    assert len(lines) == 11 and "bound" in lines[-1]
    assert [line.split()[0] for line in lines[1:10]] == [
        "reads", "checks", "experts", "attention", "mlp", "route", "head", "other", "all"]
    assert "profile" not in run(kimi, "Hello", "-n", 4, check=0).stderr.decode()


def test_run_ends_when_the_model_does(kimi):
    tokens, summary = run_lines(kimi, "Hello", "--budget", BUDGET, "--logit-bias", f"{EOS}=1e6")
    assert [t["token"] for t in tokens] == [EOS]
    assert summary["stop"] == "stop_id" and summary["text"] == ""


def test_only_newlines_that_an_editor_made_are_removed(kimi, tmp_path):
    file = tmp_path / "text"
    file.write_bytes(b"a\n\n")
    exact = waste_json("tokenize", kimi, "a\n\n")["ids"]
    assert len(exact) > len(waste_json("tokenize", kimi, "a")["ids"])
    assert waste_json("tokenize", kimi, "--file", file)["ids"] == exact
    assert waste_json("tokenize", kimi, stdin=b"a\n\n")["ids"] == exact
    n = waste_json("eval", kimi, "a\n\n", "--budget", BUDGET)["prompt_tokens"]
    assert n == len(exact)
    assert waste_json("eval", kimi, "--file", file, "--budget", BUDGET)["prompt_tokens"] == 1


def test_prompts_from_argument_file_and_stdin_are_the_same(kimi, tmp_path):
    file = tmp_path / "prompt"
    file.write_bytes("Grüße, 世界\r\n\n".encode())
    want = run(kimi, "Grüße, 世界", "-n", 5, "-q", "--raw", check=0).stdout
    assert run(kimi, "--file", file, "-n", 5, "-q", "--raw", check=0).stdout == want
    assert run(kimi, "-n", 5, "-q", "--raw", stdin=file.read_bytes(), check=0).stdout == want
    assert run(kimi, "-", "-n", 5, "-q", "--raw", stdin=file.read_bytes(), check=0).stdout == want
    assert run(kimi, "--file=-", "-n5", "-q", "--raw", stdin=file.read_bytes(), check=0).stdout == want
    ids = waste("tokenize", kimi, "Grüße, 世界", check=0).stdout.decode()
    assert run(kimi, "--ids", ids, "-n", 5, "-q", "--raw", check=0).stdout == want


@pytest.mark.parametrize("stdin", [b"", b"\n", b"\r\n\n"])
def test_an_empty_prompt_is_misuse(kimi, stdin):
    assert b"empty" in run(kimi, stdin=stdin, check=2).stderr
    assert b"empty" in waste("eval", kimi, stdin=stdin, check=2).stderr


def test_a_prompt_is_content_unless_it_is_called_markup(kimi):
    plain = waste_json("eval", kimi, "<|im_end|>", "--budget", BUDGET)
    markup = waste_json("eval", kimi, "<|im_end|>", "--markup", "--budget", BUDGET)
    assert plain["prompt_tokens"] > 1 and markup["prompt_tokens"] == 1
    assert waste_json("eval", kimi, "x", "--bos", "--budget", BUDGET)["prompt_tokens"] == 2


def test_prompts_have_no_length_of_their_own(kimi):
    text = b"all work and no play " * 500  # more than 8,192 tokens: the reference's limit
    n = waste_json("tokenize", kimi, stdin=text)["n"]
    assert n > 8192
    _, summary = run_lines(kimi, "--raw", "-n", 1, "--ctx", n + 1, "--budget", "256M", stdin=text)
    assert summary["prompt_tokens"] == n
    error = waste_error("run", kimi, "--raw", "--budget", BUDGET, stdin=text, check=2)
    assert str(n) in error["detail"] and "--ctx" in error["hint"]


def test_a_full_context_ends_the_answer_and_is_no_error(kimi):
    tokens, summary = run_lines(kimi, "Hello", "--raw", "--ctx", 12, "-n", 50, "--budget", BUDGET, *FOREVER)
    assert summary["stop"] == "context"
    assert summary["prompt_tokens"] + len([t for t in tokens if t["token"] is not None]) == 13
    assert b"--ctx" in run(kimi, "Hello", "--raw", "--ctx", 12, "-n", 50, *FOREVER, check=0).stderr
    _, summary = run_lines(kimi, "Hello", "--raw", "--ctx", summary["prompt_tokens"], "--budget", BUDGET,
                           *FOREVER)
    assert summary["generated_tokens"] == 1 and summary["stop"] == "context"


def test_stop_strings_cut_anywhere_and_say_which(kimi):
    text = run_lines(kimi, "Hello", "-n", 24, "--budget", BUDGET, *FOREVER)[1]["text"]
    assert len(text) > 8
    for at in range(1, len(text) - 3):
        stop = text[at:at + 3]
        if "\ufffd" in stop or "\0" in stop or not stop.isprintable():
            continue
        cut = text.index(stop)
        _, summary = run_lines(kimi, "Hello", "-n", 24, "--budget", BUDGET, *FOREVER,
                               "--stop=never", f"--stop={stop}")
        assert summary["text"] == text[:cut]
        assert summary["stop"] == "stop_string" and summary["stop_string"] == stop
        break
    else:
        pytest.fail(f"no usable piece in {text!r}")


def test_a_stop_string_that_never_ends_holds_nothing_back_in_the_end(kimi):
    text = run_lines(kimi, "Hello", "-n", 6, "--budget", BUDGET, *FOREVER)[1]["text"]
    tail = text[-1]
    if tail.isprintable() and tail != "\ufffd":
        _, summary = run_lines(kimi, "Hello", "-n", 6, "--budget", BUDGET, *FOREVER,
                               f"--stop={tail}\u2603")
        assert summary["text"] == text


def test_a_seed_is_drawn_and_shown_and_repeats(kimi):
    args = [kimi, "Hello", "-n", 12, "--temp", "1.2", "--budget", BUDGET, *FOREVER]
    first, second = run_lines(*args)[1], run_lines(*args)[1]
    assert first["seed"] != second["seed"] and 0 <= first["seed"] < 1 << 53
    again = run_lines(*args, "--seed", first["seed"])[1]
    assert again["text"] == first["text"] and again["seed"] == first["seed"]
    assert b"seed 7" in run(kimi, "Hello", "-n", 2, "--temp", "1", "--seed", 7, check=0).stderr
    # a filter that removes nothing changes nothing
    same = run_lines(*args, "--seed", first["seed"], "--top-k", 100000, "--min-p", "0",
                     "--top-p", "1", "--repeat-penalty", "1")[1]
    assert same["text"] == first["text"]


@pytest.mark.parametrize("args", [
    ["--io", "sync"], ["--io", "threads"], ["--io", "io_uring"], ["--io", "libaio"],
    ["--threads", "1"],
    ["--lookahead", "0"], ["--max-rows", "1"], ["--no-direct-io"], ["--no-verify"],
    ["--cache", "lru"], ["--cache", "lfru"], ["--cache", "s3fifo"], ["--io-depth", "1"],
    ["--io=threads", "--io-depth=3", "--threads=2"]])
def test_how_it_runs_never_changes_what_it_says(kimi, args):
    want = run(kimi, "Hello", "-n", 16, "-q", *FOREVER, check=0).stdout
    assert run(kimi, "Hello", "-n", 16, "-q", *FOREVER, *args, check=0).stdout == want


def test_a_forced_engine_and_kernels_are_shown(kimi):
    err = run(kimi, "Hello", "-n", 1, "--io", "sync", "--threads", 1, "--no-direct-io",
              "--no-verify", env={"WASTE_CPU": "c", "WASTE_NUMERIC": "f32"}, check=0).stderr.decode()
    assert "sync" in err and "1 thread" in err and "c kernels" in err and "f32" in err
    assert "0 of 4 banks direct" in err and "not direct: not asked for" in err
    assert "checksums off" in err


def test_routes_are_written_on_request(kimi, tmp_path):
    trace = tmp_path / "route"
    run(kimi, "Hello", "-n", 3, "-q", *FOREVER, env={"WASTE_DUMP_ROUTE": str(trace)}, check=0)
    assert trace.stat().st_size > 0


# ---- the hotlist ----

def learn(model, *args, **kw):
    done = waste("run", model, "Hello", "-n", 8, *FOREVER, "--learn", *args, check=0, **kw)
    return done.stdout, done.stderr.decode()


def entries(path):
    data = Path(path).read_bytes()
    assert data[:8] == b"WUSG\1\0\0\0" and len(data) % 16 == 0
    return [struct.unpack_from("<HHII", data, at) for at in range(16, len(data), 16)]


def test_a_run_that_learns_is_noted_and_the_next_one_reads_early(copy):
    text, err = learn(copy)
    assert "learned" in err and f"{copy}/usage.waste" in err and "hotlist" not in err
    first = entries(copy.path / "usage.waste")
    assert first == sorted(first, key=lambda e: (-e[2], e[0], e[1]))
    again, err = learn(copy)
    assert again == text
    assert "hotlist  usage.waste: the" in err and "experts preloaded" in err
    assert entries(copy.path / "usage.waste")[0][2] == first[0][2] + first[0][2] // 2
    plain = run(copy, "Hello", "-n", 8, *FOREVER, check=0)
    assert plain.stdout == text and b"learned" not in plain.stderr
    _, summary = run_lines(copy, "Hello", "-n", 8, *FOREVER)
    assert 0 <= summary["hits_preload"] <= summary["hits_prefetch"]
    assert summary["hits_preload"] <= summary["preloaded"]


def test_the_hotlist_is_where_the_flag_or_the_variable_says(copy, tmp_path):
    flag, variable = tmp_path / "flag", tmp_path / "variable"
    env = {"WASTE_USAGE": str(variable)}
    _, err = learn(copy, env=env)
    assert str(variable) in err and entries(variable)
    learn(copy, "--usage", flag, env=env)
    assert entries(flag) == entries(variable) != []
    assert not (copy.path / "usage.waste").exists()
    _, err = learn(copy, "--usage", flag)
    assert f"hotlist  {flag}: the" in err


def test_scoring_learns_too(copy, tmp_path):
    text = tmp_path / "text"
    text.write_text("Hello, hello, hello.")
    for args in (["Hello"], ["--perplexity", text]):
        done = waste("eval", copy, *args, "--learn", check=0)
        assert b"learned" in done.stderr
        assert entries(copy.path / "usage.waste")
        (copy.path / "usage.waste").unlink()


@pytest.mark.parametrize("junk", [b"", b"WUSG", b"WUSG\2\0\0\0" + bytes(24),
                                  b"WUSG\1\0\0\0" + bytes(8) + b"\xff" * 1000, bytes(4096)])
def test_a_bad_hotlist_is_not_worth_a_word(copy, junk):
    sound = run(copy, "Hello", "-n", 8, *FOREVER, check=0)
    (copy.path / "usage.waste").write_bytes(junk)
    done = run(copy, "Hello", "-n", 8, *FOREVER, check=0)
    assert done.stdout == sound.stdout and b"hotlist" not in done.stderr


def test_a_hotlist_that_cannot_be_written_costs_a_note(copy, tmp_path):
    text, err = learn(copy, "--usage", tmp_path / "none" / "u")
    assert text and "nothing learned" in err and "none/" in err and "--usage" in err


def test_what_is_no_hotlist_is_not_replaced_by_one(copy, tmp_path):
    thesis, link, fifo = tmp_path / "thesis.txt", tmp_path / "link", tmp_path / "fifo"
    thesis.write_text("years of work")
    link.symlink_to(thesis)
    os.mkfifo(fifo)
    for path in (thesis, link, fifo, tmp_path, copy.path / "trunk.bin"):
        text, err = learn(copy, "--usage", path)
        assert text and "nothing learned" in err, path
    assert thesis.read_text() == "years of work" and link.is_symlink()
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert waste_json("verify", copy)["bad"] == 0
    _, err = learn(copy, "--usage", thesis)
    assert "is none" in err and "is there and no hotlist" in err
    empty = tmp_path / "empty"
    empty.touch()
    learn(copy, "--usage", empty)
    assert entries(empty)


def test_below_a_container_that_is_read_only_the_hotlist_is_in_the_cache(copy):
    who = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as room:
        os.chmod(room, 0o777)
        model = Path(room) / "a.waste"
        shutil.copytree(copy.path, model)
        model.chmod(0o555)
        env = {"XDG_CACHE_HOME": room + "/cache"}
        try:
            waste("version", check=0, **who)
        except PermissionError:
            pytest.skip("the program is where another user cannot run it")
        _, err = learn(model, env=env, cwd=room, **who)
        assert f"{room}/cache/waste/a.usage" in err and not (model / "usage.waste").exists()
        first = entries(room + "/cache/waste/a.usage")
        _, err = learn(model, env=env, cwd=room, **who)
        assert f"hotlist  {room}/cache/waste/a.usage" in err
        assert entries(room + "/cache/waste/a.usage")[0][2] == first[0][2] * 3 // 2
        _, err = learn(model, env={"XDG_CACHE_HOME": "relative", "HOME": room}, cwd=room, **who)
        assert f"{room}/.cache/waste/a.usage" in err
        model.chmod(0o755)


def test_without_a_tokenizer_ids_still_run(copy):
    (copy.path / "tokenizer.model").unlink()
    tokens, summary = run_lines(copy, "--ids", "3 7 11", "-n", 4, "--budget", BUDGET, *FOREVER)
    assert summary["text"] == " ".join(str(t["token"]) for t in tokens)
    assert b"tokenizer" in run(copy, "Hello", check=6).stderr
    waste("tokenize", copy, "x", check=6)
    waste("detokenize", copy, "1", check=6)


# ---- failures ----

def test_a_budget_below_the_floor_is_exit_3_with_the_numbers(kimi):
    error = waste_error("run", kimi, "Hello", "--budget", "1M", check=3)
    assert "at least" in error["hint"] and "plan" in error["hint"]
    assert b"at least" in waste("eval", kimi, "Hello", "--budget", "1M", check=3).stderr


def test_a_missing_model_is_exit_1(tmp_path):
    waste_error("run", tmp_path / "none", "Hello", check=1)
    waste_error("plan", tmp_path, check=1)
    waste_error("info", tmp_path, check=1)
    waste_error("verify", tmp_path, check=1)


def test_a_missing_model_says_so_once_and_how_to_get_one(tmp_path):
    for command in ["run", "eval", "tokenize", "detokenize", "plan", "info", "verify"]:
        args = [] if command in ["plan", "info", "verify"] else ["1"]
        for name in ["/nonexistent", "nonexistent"]:
            error = waste_error(command, name, *args, check=1, cwd=tmp_path)
            assert error["error"] == name and error["detail"].startswith("no such model")
            assert "scripts/demo" in error["hint"] and "waste help synth" in error["hint"]
        err = waste(command, "/nonexistent", *args, check=1).stderr
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


def interrupt(args, ready, **kw):
    # a shell starts background jobs with SIGINT ignored, and the program respects that
    child = subprocess.Popen([BINARY, *map(str, args)], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, env=clean_env(),
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **kw)
    ready(child)
    begun = time.monotonic()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert time.monotonic() - begun < 10
    return child.returncode, out, err


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


# ---- eval ----

def golden_logits(name):
    data = (GOLDEN / f"{name}.gold").read_bytes()
    assert data[:8] == b"WGOLD1\0\0"
    n, layers, hidden, vocab = struct.unpack_from("<4I", data, 8)
    ids = struct.unpack_from(f"<{n}i", data, 24)
    at = 24 + 4 * n + 4 * n * hidden * (layers + 1) + 4 * (n - 1) * vocab
    return ids, struct.unpack_from(f"<{vocab}f", data, at)


@pytest.mark.parametrize("name", FAMILIES)
def test_eval_gives_the_oracles_logits(name):
    ids, want = golden_logits(name)
    value = waste_json("eval", GOLDEN / f"{name}.waste", "--ids", " ".join(map(str, ids)),
                       "--logits", "--top-k", 7, "--budget", BUDGET,
                       env={"WASTE_NUMERIC": "f32"})
    assert list(value) == ["prompt_tokens", "vocab", "top", "logits"]
    got = value["logits"]
    assert value["prompt_tokens"] == len(ids) and value["vocab"] == len(want) == len(got)
    assert max(abs(a - b) for a, b in zip(got, want)) < 1e-3
    total = sum(math.exp(x) for x in got)
    order = sorted(range(len(got)), key=lambda i: (-got[i], i))[:7]
    assert [row["id"] for row in value["top"]] == order
    for row in value["top"]:
        assert list(row) == ["id", "logit", "prob", "text"]
        assert row["logit"] == got[row["id"]]
        assert math.isclose(row["prob"], math.exp(row["logit"]) / total, rel_tol=1e-6)


def test_logits_survive_printing_to_the_bit(kimi):
    value = waste_json("eval", kimi, "Hello", "--logits", "--budget", BUDGET)
    rows = waste("eval", kimi, "Hello", "--logits", "--top-k", 1, "--budget", BUDGET, "-q",
                 check=0).stdout.decode().splitlines()[2:]
    assert len(rows) == value["vocab"]
    for i, row in enumerate(rows):
        index, logit = row.split()
        assert int(index) == i
        assert struct.pack("<f", float(logit)) == struct.pack("<f", value["logits"][i])


def test_eval_prints_ten_rows_and_never_more_than_there_are_tokens(kimi):
    out = waste("eval", kimi, "Hello", "--budget", BUDGET, check=0).stdout.decode()
    assert len(out.splitlines()) == 11
    vocab = waste_json("eval", kimi, "Hello", "--budget", BUDGET)["vocab"]
    top = waste_json("eval", kimi, "Hello", "--budget", BUDGET, "--top-k", 10 * vocab)["top"]
    assert len(top) == vocab and math.isclose(sum(r["prob"] for r in top), 1, rel_tol=1e-6)
    assert waste_json("eval", kimi, "Hello", "--budget", BUDGET, "--top-k", 0)["top"] == top


def perplexity(model, text, *args, **kw):
    return waste_json("eval", model, "--perplexity", text, "--budget", BUDGET, *args, **kw)


@pytest.fixture
def emma():
    return GOLDEN / "heldout.txt"


def test_perplexity_is_what_the_logits_say_of_every_next_token(kimi, tmp_path):
    """Stretches of five positions; one `eval` for each prefix."""
    text = tmp_path / "text"
    text.write_text("Emma is.\n\n")
    ids = waste_json("tokenize", kimi, "--content", stdin=b"Emma is.")["ids"]
    nats = 0
    for i in range(1, len(ids)):
        prefix = ids[(i - 1) // 5 * 5:i]
        logits = waste_json("eval", kimi, "--ids", " ".join(map(str, prefix)), "--logits",
                            "--budget", BUDGET)["logits"]
        nats += math.log(sum(math.exp(x) for x in logits)) - logits[ids[i]]
    got = perplexity(kimi, text, "--ctx", 5)
    assert list(got) == ["tokens", "bytes", "context", "stretches", "nats", "perplexity",
                         "bits_per_token", "bits_per_byte", "seconds", "tokens_per_second"]
    n = len(ids) - 1
    assert got["tokens"] == n and got["context"] == 5 and got["stretches"] == (n + 4) // 5
    assert got["bytes"] == len("Emma is.") - len(
        waste("detokenize", kimi, ids[0], check=0).stdout) + 1
    assert math.isclose(got["nats"], nats, rel_tol=1e-5)
    assert math.isclose(got["perplexity"], math.exp(nats / n), rel_tol=1e-5)
    assert math.isclose(got["bits_per_token"], nats / n / math.log(2), rel_tol=1e-5)
    assert math.isclose(got["bits_per_byte"], nats / got["bytes"] / math.log(2), rel_tol=1e-5)
    assert got["seconds"] > 0 and got["tokens_per_second"] > 0


def test_perplexity_does_not_depend_on_how_it_is_computed(family, emma, tmp_path):
    text = tmp_path / "text"
    text.write_bytes(emma.read_bytes()[:700])

    def figures(*args, **kw):
        got = perplexity(family, *args, "--ctx", 250, **kw)
        return {k: v for k, v in got.items() if k not in ("seconds", "tokens_per_second")}

    want = figures(text, "--max-rows", 1, "--threads", 1)
    assert want["stretches"] > 1
    for args in [["--max-rows", 64], ["--max-rows", 17, "--threads", 3], ["--lookahead", 0]]:
        assert figures(text, *args) == want
    assert figures("-", stdin=text.read_bytes()) == want
    bos = figures(text, "--bos")
    assert bos["tokens"] == want["tokens"] + 1 and bos["bytes"] == 700


def test_perplexity_says_what_it_did(kimi, emma):
    done = waste("eval", kimi, "--perplexity", emma, "--ctx", 1000, "--budget", BUDGET, check=0)
    assert re.fullmatch(rb"\d+ tokens, \d+ bytes: perplexity \d+\.\d{3}, \d+\.\d{4} bits per token, "
                        rb"\d+\.\d{4} bits per byte\n", done.stdout)
    assert re.search(rb"\n\d stretches of at most 1000 positions; .* tokens per second\n$",
                     done.stderr)


def test_perplexity_refuses_what_it_cannot_score(kimi, copy, emma, tmp_path):
    short = tmp_path / "short"
    short.write_bytes(b"a\n\n\n")
    assert "two are the least" in perplexity_error(kimi, short, check=2)["detail"]
    assert "two are the least" in perplexity_error(kimi, "-", check=2)["detail"]
    assert "No such file" in perplexity_error(kimi, tmp_path / "none", check=1)["detail"]
    assert "directory" in perplexity_error(kimi, tmp_path, check=1)["detail"]
    for more in [["--file", emma], ["--ids", "1 2"], ["--logits"], ["text"]]:
        assert "goes without" in perplexity_error(kimi, emma, *more, check=2)["detail"]
    norm = next(t for t in copy.manifest["trunk"] if t["name"].endswith("model.norm.weight"))
    with open(copy.path / "trunk.bin", "r+b") as f:
        f.seek(norm["off"])
        f.write(struct.pack("<f", 3e38) * norm["shape"][0])  # finite, as it must be
    error = perplexity_error(copy, emma, check=4)
    assert re.search(r"position 1: logit \d+ is not finite", error["detail"])
    (copy.path / "tokenizer.model").unlink()
    assert "tokenizer.model" in perplexity_error(copy, emma, check=6)["detail"]


def perplexity_error(model, text, *args, check):
    return waste_error("eval", model, "--perplexity", text, "--budget", BUDGET, *args, check=check)


def test_an_interrupt_ends_scoring(kimi, tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b"all work and no play " * 19000)
    code, out, err = interrupt(["eval", kimi, "--perplexity", text, "--json", "--budget", BUDGET],
                               lambda child: time.sleep(1))
    assert code == 130 and out == b"" and err == b""
    code, out, _ = interrupt(["eval", kimi, "--perplexity", "-"], lambda child: time.sleep(0.3),
                             stdin=subprocess.PIPE)
    assert code == 130 and out == b""


# ---- tokenize, detokenize ----

def test_bytes_survive_the_way_there_and_back(kimi):
    text = bytes(range(256)) + "🎉 Grüße".encode() + b"\xff"
    value = waste_json("tokenize", kimi, "--content", stdin=text)
    assert list(value) == ["n", "ids"] and value["n"] == len(value["ids"])
    ids = " ".join(map(str, value["ids"]))
    assert waste("tokenize", kimi, "--content", stdin=text, check=0).stdout.decode() == ids + "\n"
    for args, stdin in [([ids], b""), (ids.split(), b""), ([], ids.encode()),
                        (["-"], ids.replace(" ", ",\n").encode())]:
        assert waste("detokenize", kimi, *args, stdin=stdin, check=0).stdout == text + b"\n"
    replaced = waste_json("detokenize", kimi, ids)
    assert list(replaced) == ["text"] and "\ufffd" in replaced["text"] and "🎉" in replaced["text"]


def test_tokenize_reads_markup_unless_it_is_called_content(kimi):
    assert waste_json("tokenize", kimi, "<|im_end|>")["ids"] == [EOS]
    assert EOS not in waste_json("tokenize", kimi, "<|im_end|>", "--content")["ids"]
    assert waste_json("tokenize", kimi, "x", "--bos")["n"] == 2
    assert waste_json("tokenize", kimi, "")["ids"] == []


def test_tokenizing_needs_no_weights(copy):
    for path in copy.path.iterdir():
        if path.suffix == ".bin":
            path.unlink()
    assert waste_json("tokenize", copy, "<|im_end|>")["ids"] == [EOS]
    assert waste_json("detokenize", copy, EOS)["text"] == "<|im_end|>"


@pytest.mark.parametrize("ids", ["x", "1.5", "-1", "99999999999"])
def test_what_is_no_id_is_misuse(kimi, ids):
    waste("detokenize", kimi, "--", ids, check=2)


def test_an_id_that_stands_for_nothing_is_misuse_and_is_named(kimi):
    for bad in [1000000, 2147483647]:
        detail = waste_error("detokenize", kimi, f"1 {bad} 2", check=2)["detail"]
        assert str(bad) in detail


# ---- plan, info ----

PLAN_FIELDS = ["ctx", "trunk_bytes", "state_bytes", "scratch_bytes", "min_expert_cache",
               "floor_bytes", "recommended_bytes", "working_set_bytes", "physical_ram_bytes",
               "usable_ram_bytes", "vision_bytes", "budget_bytes", "expert_cache_bytes"]


def test_plan_has_the_published_fields(family):
    plan = waste_json("plan", family, "--ctx", 1000, "--budget", BUDGET)
    assert list(plan)[:len(PLAN_FIELDS)] == PLAN_FIELDS
    assert plan["ctx"] == 1000 and plan["budget_bytes"] == 96 << 20 and plan["fits"]
    parts = ["trunk_bytes", "state_bytes", "scratch_bytes", "min_expert_cache"]
    assert sum(plan[p] for p in parts) == plan["floor_bytes"]
    assert 0 < plan["expert_cache_bytes"] <= plan["expert_bytes"]


def test_plan_below_the_floor_fails_under_json_only(kimi):
    plan = waste_json("plan", kimi, "--budget", "1M", check=1)
    assert plan["expert_cache_bytes"] == -1 and plan["fits"] is False
    assert b"Does not fit" in waste("plan", kimi, "--budget", "1M", check=0).stdout


def test_plan_of_what_no_machine_holds_does_not_fit(copy, tmp_path):
    config = tmp_path / "config.json"
    model = copy.manifest["config"]
    model.update(kv_lora_rank=1 << 16)
    config.write_text(json.dumps(model))
    args = [config, "--ctx", 1 << 24]
    plan = waste_json("plan", *args, check=1)
    assert plan["floor_bytes"] > 1 << 40
    assert plan["fits"] is False and plan["expert_cache_bytes"] == -1
    out = waste("plan", *args, check=0).stdout.decode()
    assert "Does not fit: needs " in out and ", this machine offers " in out


def test_the_rows_of_a_plan_add_up(family):
    plan = waste_json("plan", family, "--ctx", 64, "--budget", "1G", "--max-rows", 4096)
    assert plan["max_rows"] > 64 and plan["scratch_growth_bytes"] > 0
    taken = (plan["floor_bytes"] - plan["min_expert_cache"] + plan["scratch_growth_bytes"] +
             plan["expert_cache_bytes"])
    assert taken <= plan["budget_bytes"]
    assert (plan["expert_cache_bytes"] == plan["expert_bytes"] or
            plan["budget_bytes"] - taken < plan["record_bytes"])
    out = waste("plan", family, "--budget", "1G", "--max-rows", 4096, check=0).stdout.decode()
    assert "longer passes" in out and "passes of 64 rows" in out


def test_plan_prints_both_kinds_of_units(kimi):
    done = waste("plan", kimi, check=0)
    assert b"MiB" in done.stdout and b" MB" in done.stdout and done.stderr == b""
    assert b"floor" in done.stdout and b"chosen" in done.stdout


def test_plan_reads_a_release_before_it_is_downloaded(copy, tmp_path):
    config = tmp_path / "release" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(copy.manifest["config"]))
    for path in [config, config.parent]:
        plan = waste_json("plan", path)
        assert plan["from_config"] is True and plan["layers"] == 5 and plan["floor_bytes"] > 0
    waste_error("plan", config, "--measure", check=2)


def test_plan_estimates_from_a_rate_and_from_measuring(kimi):
    plan = waste_json("plan", kimi, "--drive", "7GB/s", "--ram", "50GB/s")
    e = plan["estimate"]
    assert e["drive_bytes_per_s"] == 7e9 and e["ram_bytes_per_s"] == 5e10
    assert e["hit_rate"] == 1 and e["disk_s_per_token"] == 0 and e["tok_per_s"] > 0
    assert math.isclose(e["ram_s_per_token"],
                        (plan["trunk_bytes"] + plan["working_set_bytes"]) / 5e10, rel_tol=1e-6)
    e = waste_json("plan", kimi, "--measure", "--no-direct-io")["estimate"]
    assert e["ram_from"] == "measured" and e["ram_bytes_per_s"] > 1e8
    assert e["drive_from"] == "measured" and e["drive_bytes_per_s"] > 1e6
    assert e["direct_io"] is False
    out = waste("plan", kimi, "--drive", "7GB/s", check=0).stdout
    assert b"Estimate" in out and b"disk floor" in out and b"RAM floor" in out
    assert b"tok/s" not in waste("plan", kimi, check=0).stdout
    waste("plan", kimi, "--drive", "7GB/s", "--measure", check=2)
    waste("plan", kimi, "--ram", "7GB/s", check=2)


INFO_FIELDS = ["engine", "arch", "layers", "experts", "top_k", "hidden", "params_total",
               "params_active", "quantization", "expert_cache_bytes"]


def test_info_has_the_published_fields_and_needs_no_weights(copy):
    info = waste_json("info", copy)
    assert list(info)[:len(INFO_FIELDS)] == INFO_FIELDS
    assert info["arch"] == "kimi-linear" and info["layers"] == 5 and info["experts"] == 5
    assert info["top_k"] == 2 and "VQ3R" in info["quantization"]
    assert info["audit"]["model"] is None and info["params_active"] < info["params_total"]
    out = waste("info", copy, check=0).stdout
    assert b"kimi-linear" in out and b"0 MB" not in out


@pytest.mark.parametrize("name, quant", zip(FAMILIES, ["VQ3R", "VQ4P", "VQ3R", "VQ2R"]))
def test_info_names_the_experts_format(name, quant):
    assert quant in waste_json("info", GOLDEN / f"{name}.waste")["quantization"]


def test_info_notes_an_incomplete_copy(copy):
    with open(copy.bank(2), "r+b") as f:
        f.truncate(4096)
    notes = waste_json("info", copy)["audit"]["notes"]
    assert any("incomplete" in n and copy.bank(2).name in n for n in notes)


# ---- verify ----

def test_verify_passes_what_is_sound(family):
    value = waste_json("verify", family)
    assert list(value)[:4] == ["records", "bad", "bytes", "seconds"]
    assert value["bad"] == 0 and value["errors"] == [] and value["complete"] is True
    assert value["records"] > 0 and value["bytes"] > 0
    assert waste_json("verify", family, "--headers")["records"] == value["records"]
    done = waste("verify", family, check=0)
    assert b"records: all good" in done.stdout and done.stderr == b""
    # only the experts have checksums
    assert value["unchecked"] == ["trunk.bin", "codebooks.bin"] and value["trunk_tensors"] > 0
    assert b"trunk and codebooks: no checksum" in done.stdout
    assert f"{value['trunk_tensors']} trunk tensors" in done.stdout.decode()
    done = waste("verify", family, "--headers", check=0)
    assert b"all good" not in done.stdout and b"checksums not looked at" in done.stdout


@pytest.mark.parametrize("threads", ["1", "3", "16"])
def test_verify_names_every_bad_record(copy, threads):
    copy.flip(1, 3, 100)   # payload
    copy.flip(3, 0, 4)     # layer in the header
    copy.flip(4, 4, 0)     # magic
    value = waste_json("verify", copy, "--threads", threads, check=4)
    assert value["bad"] == 3 and value["records"] == 20
    where = [(e["layer"], e["expert"], e["kind"]) for e in value["errors"]]
    assert where == [(1, 3, "corrupt"), (3, 0, "format"), (4, 4, "format")]
    assert all(f"layer {e['layer']} expert {e['expert']}" in e["detail"] for e in value["errors"])
    headers = waste_json("verify", copy, "--headers", check=4)
    assert headers["bad"] == 2 and headers["headers_only"] is True
    out = waste("verify", copy, check=4).stdout.decode()
    assert "layer 1 expert 3" in out and "3 bad" in out


def test_verify_looks_at_trunk_and_codebooks(copy):
    name = copy.spoil_scale()
    value = waste_json("verify", copy, check=4)
    assert value["bad"] == 1 and name in value["errors"][0]["detail"]
    assert "layer" not in value["errors"][0]
    with open(copy.path / "codebooks.bin", "r+b") as f:
        f.write(b"XXXX")
    assert waste_json("verify", copy, check=4)["bad"] == 2
    assert "codebooks.bin" in waste_json("verify", copy, "--headers", check=4)["errors"][0]["detail"]


def test_verify_goes_on_past_what_is_missing_or_cut_off(copy):
    with open(copy.bank(1), "r+b") as f:
        f.truncate(2 * copy.record_bytes(1) + 100)
    copy.bank(3).unlink()
    copy.flip(1, 1, 100)
    copy.flip(4, 2, 100)
    value = waste_json("verify", copy, check=4)
    assert value["bad"] == 4 and value["records"] == 2 + 5 + 5 and value["complete"] is False
    assert [(e["layer"], e.get("expert"), e["kind"]) for e in value["errors"]] == [
        (1, None, "format"), (1, 1, "corrupt"), (3, None, "io"), (4, 2, "corrupt")]
    assert "incomplete" in value["errors"][0]["detail"]
    assert copy.bank(3).name in value["errors"][2]["detail"]
    out = waste("verify", copy, check=4).stdout.decode()
    assert "4 bad\n" in out and "not looked at, because the container does not open" in out


def test_verify_of_a_missing_bank_is_exit_1(copy):
    copy.bank(3).unlink()
    value = waste_json("verify", copy, check=1)
    assert value["bad"] == 1 and value["records"] == 15 and value["errors"][0]["layer"] == 3


@pytest.mark.parametrize("name", ["trunk.bin", "codebooks.bin"])
@pytest.mark.parametrize("cut", [True, False])
def test_verify_looks_at_the_experts_even_without_the_rest(copy, name, cut):
    if cut:
        with open(copy.path / name, "r+b") as f:
            f.truncate(100)
    else:
        (copy.path / name).unlink()
    copy.flip(2, 2, 100)
    value = waste_json("verify", copy, check=4)
    assert value["bad"] == 2 and value["records"] == 20
    assert name in value["errors"][0]["detail"] and value["errors"][1]["expert"] == 2


@pytest.mark.parametrize("name", ["tokenizer.model", "specials.json"])
def test_what_run_calls_damaged_verify_finds_in_the_tokenizer(copy, name):
    (copy.path / name).write_bytes(b"\x00junk\n")
    error = waste_error("run", copy, "Hello", "--budget", BUDGET, check=4)
    assert "verify" in error["hint"]
    value = waste_json("verify", copy, check=4)
    assert value["bad"] == 1 and name in value["errors"][0]["detail"]
    (copy.path / name).unlink()
    waste("verify", copy, check=0)


def test_what_run_calls_damaged_verify_finds_in_the_manifest(copy):
    entry = next(t for t in copy.manifest["trunk"] if t["name"].endswith("o_proj.weight"))
    entry["name"] += "x"
    copy.write_manifest()
    waste_error("run", copy, "--ids", "1", "--budget", BUDGET, check=4)
    value = waste_json("verify", copy, check=4)
    assert value["bad"] == 1 and "o_proj.weight" in value["errors"][0]["detail"]


def test_an_unknown_format_version_is_refused_by_all(copy):
    copy.manifest["format_version"] = 1
    copy.write_manifest()
    for args in [["run", copy, "x"], ["eval", copy, "x"], ["plan", copy], ["info", copy],
                 ["verify", copy]]:
        error = waste_error(*args, check=4)
        assert "version 1" in error["detail"] or "version" in error["detail"]


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
