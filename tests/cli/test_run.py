"""`waste run`: text, JSON, prompts, stop strings, seeds, engines, routes."""


import pytest

from conftest import BUDGET, EOS, FOREVER, run, run_lines, waste, waste_error, waste_json


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


def test_a_text_without_an_end_is_refused(kimi):
    detail = waste_error("run", kimi, "--file", "/dev/zero", "--budget", BUDGET, check=1)["detail"]
    assert "more than 256 MiB" in detail


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


def test_without_a_tokenizer_ids_still_run(copy):
    (copy.path / "tokenizer.model").unlink()
    tokens, summary = run_lines(copy, "--ids", "3 7 11", "-n", 4, "--budget", BUDGET, *FOREVER)
    assert summary["text"] == " ".join(str(t["token"]) for t in tokens)
    assert b"tokenizer" in run(copy, "Hello", check=6).stderr
    waste("tokenize", copy, "x", check=6)
    waste("detokenize", copy, "1", check=6)
