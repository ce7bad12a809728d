"""scripts/fetch_weights against a server on this machine that does everything servers do."""

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).with_name("support")))

from release_server import (COMMIT, INDEX, LIST, NEXT, REPO, SHARDS, TOKEN, Server, release,  # noqa: E402
                            shard)

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "scripts" / "fetch_weights"


@pytest.fixture
def server():
    s = Server()
    yield s
    s.close()


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    for name in ("HF_ENDPOINT", "HF_TOKEN"):
        env.pop(name, None)
    return dict(env, **more)


def command(server, out, *options):
    return [sys.executable, SCRIPT, REPO, "--out", out, "--mirror", server.url,
            "--retry-wait", "0.002", "--timeout", "1", *options]


def fetch(server, out, *options, env=None):
    done = subprocess.run(command(server, out, *options), capture_output=True, text=True,
                          env=env or environment(), timeout=60)
    assert TOKEN not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def lines(out, name=".download-state"):
    return (out / name).read_text().splitlines()


def assert_complete(server, out, without=()):
    names = [*SHARDS, INDEX, "config.json", "tiktoken.model"]
    for name in names:
        if name not in without:
            assert (out / name).read_bytes() == server.files[name], name
    visible = {p.name for p in out.iterdir() if not p.name.startswith(".")}
    assert visible == set(names) - set(without)
    assert sorted(lines(out)) == sorted(SHARDS)


def test_a_release_arrives_with_state_sums_and_pin(server, tmp_path):
    done = fetch(server, tmp_path / "new" / "k")
    out = tmp_path / "new" / "k"
    assert done.returncode == 0, done.stderr
    assert_complete(server, out)
    assert done.stdout.endswith("everything is there\n"
                                "  6 files: hash compared now with the repository's\n")
    assert "\x1b" not in done.stdout and "total" in done.stdout
    pin = json.loads((out / ".download.json").read_text())
    assert pin["commit"] == COMMIT and pin["repository"] == REPO and pin["revision"] == "main"
    sums = dict(reversed(line.split("  ")) for line in lines(out, ".download-sums"))
    for name in SHARDS:
        assert sums[name] == pin["files"][name]["sha256"]
        assert pin["files"][name]["size"] == len(server.files[name])


def test_what_is_complete_is_never_asked_about_again(server, tmp_path):
    assert fetch(server, tmp_path).returncode == 0
    server.requests.clear()
    assert fetch(server, tmp_path).returncode == 0
    assert server.requests == []
    (tmp_path / SHARDS[1]).unlink()
    assert fetch(server, tmp_path).returncode == 0
    assert [path.rsplit("/", 1)[1] for path, _ in server.requests] == [SHARDS[1]]
    assert_complete(server, tmp_path)


@pytest.mark.parametrize("misdeeds", [
    ["cut"] * 7,
    [503, 500, "cut", 503],
    ["html", "html"],
    ["html of the right length"],
    ["cut", "no ranges"],
    ["cut", "wrong range"],
    ["cut", "lying range"],
    ["cut", "lying range"] * 3,
    ["cut", "wrong total"],
    ["another length"],
    ["cut", "another length"],
    ["flip"],
    ["chunked"],
    ["cut", "html", "cut", 500, "lying range", "flip"],
    ["hang"],
], ids=str)
def test_misdeeds_of_a_server_are_survived(server, tmp_path, misdeeds):
    server.plan[SHARDS[0]] = list(misdeeds)
    server.plan["tiktoken.model"] = [m for m in misdeeds if m not in ("cut",)]
    done = fetch(server, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_complete(server, tmp_path)


def test_a_cut_connection_is_resumed_where_it_ended_as_long_as_it_gains(server, tmp_path):
    server.plan[SHARDS[0]] = ["cut", "cut", "cut"]
    assert fetch(server, tmp_path, "--tries", "2").returncode == 0
    assert server.asked(SHARDS[0]) == [None, *(f"bytes={n}0000-" for n in (2, 4, 6))]


def test_a_page_of_html_does_not_cost_what_was_there(server, tmp_path):
    server.plan[SHARDS[0]] = ["cut", "html"]
    assert fetch(server, tmp_path).returncode == 0
    assert server.asked(SHARDS[0]) == [None, "bytes=20000-", "bytes=20000-"]


@pytest.mark.parametrize("misdeed, says", [
    ("html", "page of HTML"), ("html of the right length", "SHA-256"), ("flip", "SHA-256"),
    (503, "503"), (404, "404"), (403, "licence"), ("another length", "announces"),
    ("cut without ranges", "ended at"),
])
def test_a_server_that_stays_bad_makes_the_run_incomplete(server, tmp_path, misdeed, says):
    server.plan[SHARDS[1]] = [misdeed]
    server.forever.add(SHARDS[1])
    done = fetch(server, tmp_path, "--tries", "4")
    assert done.returncode == 1
    assert SHARDS[1] in done.stderr and says in done.stderr
    assert not (tmp_path / SHARDS[1]).exists()
    assert sorted(lines(tmp_path)) == [SHARDS[0], SHARDS[2]]
    assert 1 <= len(server.asked(SHARDS[1])) <= 5
    server.plan.clear()
    assert fetch(server, tmp_path).returncode == 0
    assert_complete(server, tmp_path)


def test_a_part_is_hashed_before_it_is_resumed(server, tmp_path):
    good = server.files[SHARDS[0]]
    (tmp_path / f"{SHARDS[0]}.part").write_bytes(b"\0" * 5000)
    (tmp_path / f"{SHARDS[1]}.part").write_bytes(server.files[SHARDS[1]][:5000])
    (tmp_path / f"{SHARDS[2]}.part").write_bytes(server.files[SHARDS[2]])
    assert fetch(server, tmp_path).returncode == 0
    assert_complete(server, tmp_path)
    assert server.asked(SHARDS[0]) == ["bytes=5000-", None] and good
    assert server.asked(SHARDS[1]) == ["bytes=5000-"]
    assert server.asked(SHARDS[2]) == []


@pytest.mark.parametrize("name", [SHARDS[0], SHARDS[0] + ".part"])
def test_a_local_file_larger_than_the_remote_one_is_an_error(server, tmp_path, name):
    (tmp_path / name).write_bytes(server.files[SHARDS[0]] + b"x")
    done = fetch(server, tmp_path)
    assert done.returncode == 1 and "more than" in done.stderr and SHARDS[0] in done.stderr
    assert (tmp_path / name).read_bytes() == server.files[SHARDS[0]] + b"x"


def test_the_state_of_another_tool_is_taken_over(server, tmp_path):
    """Its partial shards have the final name, its lines may end in CR LF or not at all."""
    for name in SHARDS[:2]:
        (tmp_path / name).write_bytes(server.files[name])
    (tmp_path / SHARDS[2]).write_bytes(server.files[SHARDS[2]][:1000])
    (tmp_path / ".download-state").write_bytes("\r\n".join(SHARDS[:2]).encode())
    done = fetch(server, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".download-state").read_bytes() == (
        f"{SHARDS[0]}\r\n{SHARDS[1]}\n{SHARDS[2]}\n").encode()
    assert server.asked(SHARDS[0]) == [] and server.asked(SHARDS[2]) == ["bytes=1000-"]
    assert_complete(server, tmp_path)


def test_a_listed_shard_that_is_damaged_is_named_and_not_replaced(server, tmp_path):
    bad = b"x" * len(server.files[SHARDS[0]])
    (tmp_path / SHARDS[0]).write_bytes(bad)
    (tmp_path / ".download-state").write_text(SHARDS[0] + "\n")
    done = fetch(server, tmp_path)
    assert done.returncode == 1 and SHARDS[0] in done.stderr and "SHA-256" in done.stderr
    assert (tmp_path / SHARDS[0]).read_bytes() == bad
    (tmp_path / SHARDS[0]).write_bytes(bad[:100])
    assert "100 bytes of" in fetch(server, tmp_path).stderr


def test_an_unlisted_whole_file_is_verified_or_fetched_again(server, tmp_path):
    (tmp_path / SHARDS[0]).write_bytes(server.files[SHARDS[0]])
    (tmp_path / SHARDS[1]).write_bytes(b"x" * len(server.files[SHARDS[1]]))
    assert fetch(server, tmp_path).returncode == 0
    assert server.asked(SHARDS[0]) == [] and server.asked(SHARDS[1]) == [None]
    assert_complete(server, tmp_path)


def last_words(done):
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("everything is there\n")[2].splitlines()


def test_the_last_words_say_what_was_hashed_and_what_was_trusted(server, tmp_path):
    now = "hash compared now with the repository's"
    assert fetch(server, tmp_path).returncode == 0
    words = last_words(fetch(server, tmp_path))
    assert words[0] == f"  3 files: {now}" and len(words) == 2
    assert words[1].startswith("  3 files: hashed by an earlier run, not read now")
    assert last_words(fetch(server, tmp_path, "--rehash")) == [f"  6 files: {now}"]
    assert last_words(fetch(server, tmp_path, "--check")) == [f"  6 files: {now}"]
    os.utime(tmp_path / SHARDS[0])
    words = last_words(fetch(server, tmp_path))
    assert words[0] == f"  4 files: {now}" and words[1].startswith("  2 files: hashed by")
    assert last_words(fetch(server, tmp_path))[0] == f"  3 files: {now}"


def flip(path, keep_time):
    before, data = path.stat().st_mtime_ns, bytearray(path.read_bytes())
    data[70_000] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before, before if keep_time else before + 1))


def test_a_shard_that_changed_is_hashed_again_by_its_mtime_or_on_demand(server, tmp_path):
    assert fetch(server, tmp_path).returncode == 0
    flip(tmp_path / SHARDS[0], keep_time=True)
    assert "hashed by an earlier run" in fetch(server, tmp_path).stdout
    flip(tmp_path / SHARDS[1], keep_time=False)
    done = fetch(server, tmp_path)
    assert done.returncode == 1 and SHARDS[1] in done.stderr and SHARDS[0] not in done.stderr
    done = fetch(server, tmp_path, "--rehash")
    assert done.returncode == 1
    assert all(f"{name}: in .download-state, but its SHA-256" in done.stderr for name in SHARDS[:2])


@pytest.mark.parametrize("option", ["--rehash", "--check"])
def test_without_hashes_of_the_server_those_of_the_first_run_are_compared(server, tmp_path, option):
    server.hashes = False
    assert last_words(fetch(server, tmp_path)) == ["  6 files: size only: the server gives no hash"]
    flip(tmp_path / SHARDS[0], keep_time=True)
    done = fetch(server, tmp_path, option)
    assert done.returncode == 1 and SHARDS[0] in done.stderr and "of an earlier run" in done.stderr
    (tmp_path / SHARDS[0]).unlink()
    server.files[SHARDS[0]] = shard(77, len(server.files[SHARDS[0]]))
    assert fetch(server, tmp_path).returncode == 0
    sums = [line.split("  ") for line in lines(tmp_path, ".download-sums")]
    assert sorted(sums, key=lambda s: s[1]) == [
        [hashlib.sha256(server.files[name]).hexdigest(), name] for name in SHARDS]
    assert fetch(server, tmp_path, option).returncode == 0


def test_reclaimed_shards_are_fetched_only_when_asked_for(server, tmp_path):
    assert fetch(server, tmp_path).returncode == 0
    (tmp_path / ".reclaimed").write_text(SHARDS[0] + "\n")
    (tmp_path / SHARDS[0]).unlink()
    server.requests.clear()
    done = fetch(server, tmp_path)
    assert done.returncode == 0 and "1 reclaimed" in done.stdout and server.requests == []
    done = fetch(server, tmp_path, "--check")
    assert done.returncode == 0 and f"{SHARDS[0]}: reclaimed" in done.stdout
    assert fetch(server, tmp_path, "--again").returncode == 0
    assert_complete(server, tmp_path)


def test_a_dry_run_says_whether_it_fits_and_writes_nothing(server, tmp_path):
    out = tmp_path / "not" / "there"
    done = fetch(server, out, "--dry-run")
    assert done.returncode == 0, done.stderr
    total = sum(len(server.files[n]) for n in [*SHARDS, "config.json", "tiktoken.model"])
    assert f"to fetch  {total / 1024:.1f} KiB" in done.stdout
    assert "fits      yes" in done.stdout and "0 of 3 done" in done.stdout
    assert not list(tmp_path.iterdir())
    assert not any(path.endswith(".safetensors") for path, _ in server.requests)


def test_a_dry_run_says_that_a_server_cannot_be_reached(server, tmp_path):
    server.close()
    done = fetch(server, tmp_path, "--dry-run", "--tries", "2")
    assert done.returncode == 1 and "refused" in done.stderr


def waits_of(module, monkeypatch):
    """The seconds that it would wait; it does not."""
    waits = []

    class Impatience(module.Patience):
        def __init__(self, tries, wait, stop, say):
            stop.wait = lambda seconds: waits.append(seconds)
            super().__init__(tries, wait, stop, say)
    monkeypatch.setattr(module, "Patience", Impatience)
    return waits


@pytest.mark.parametrize("url, says", [
    ("http://no-such-host.invalid", "cannot connect to no-such-host.invalid"),
    ("http://127.0.0.1:1", "cannot connect to 127.0.0.1"),
])
def test_a_host_that_is_not_there_is_given_up_soon_by_name(tmp_path, module, monkeypatch, capsys,
                                                           url, says):
    waits = waits_of(module, monkeypatch)
    assert module.main([REPO, "--out", str(tmp_path), "--dry-run", "--mirror", url]) == 1
    out, err = capsys.readouterr()
    assert says in err and "3 attempts" in err and "network" in err and "--mirror" in err
    assert len(waits) == 2 and sum(waits) < 20
    assert [line.partition("; ")[2].partition(",")[0] for line in out.splitlines() if says in line
            ] == ["attempt 1 of 3 failed", "attempt 2 of 3 failed"]


@pytest.mark.parametrize("status", [429, 503])
def test_every_wait_for_the_list_is_announced(server, tmp_path, module, monkeypatch, capsys,
                                                 status):
    waits = waits_of(module, monkeypatch)
    server.raw[LIST] = [b"HTTP/1.0 %d x\r\nRetry-After: 400\r\n\r\n" % status]
    assert module.main([REPO, "--out", str(tmp_path), "--dry-run", "--mirror", server.url]) == 1
    out, err = capsys.readouterr()
    assert f"127.0.0.1 says {status}; gave up after 8 attempts" in err
    assert len(waits) == 7 and min(waits) == 400
    for k in range(1, 8):
        assert f"127.0.0.1 says {status}; attempt {k} of 8 failed, trying again in 6 min" in out


def test_every_wait_for_a_file_is_announced(server, tmp_path):
    server.plan[SHARDS[0]] = [503, "cut"]
    done = fetch(server, tmp_path)
    assert f"{SHARDS[0]}: 127.0.0.1 says 503; attempt 1 of 8 failed, trying again in" in done.stdout
    assert "at 20000 of 150000 bytes; some of it came, trying again in" in done.stdout


def drip(first, piece):
    yield first
    while True:
        time.sleep(0.05)
        yield piece


@pytest.mark.parametrize("path", ["the list", *SHARDS[:1], INDEX])
@pytest.mark.parametrize("first, piece", [
    (b"HTTP/1.0 200 OK\r\n\r\n", b" "),
    (b"HTTP/1.0 200 OK\r\n", b"X: y\r\n"),
    (b"HTTP/1.0 200 OK\r\nX: ", b"y"),
], ids=["body", "headers", "one header"])
def test_a_drip_is_given_up(server, tmp_path, module, monkeypatch, capsys, path, first, piece):
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.4)
    server.raw[LIST if path == "the list" else path] = drip(first, piece)
    assert call(module, server, tmp_path, "--tries", "1") == 1
    err = capsys.readouterr().err
    assert path in err and "127.0.0.1: slower than" in err


def test_a_repository_that_is_not_there_is_told_from_a_bad_one(server, tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, "acme/other", "--out", tmp_path, "--mirror",
                           server.url], capture_output=True, text=True, env=environment())
    assert done.returncode == 1 and "401" in done.stderr and "HF_TOKEN" in done.stderr


def test_check_names_what_is_wrong_and_what_is_missing(server, tmp_path):
    assert fetch(server, tmp_path).returncode == 0
    server.requests.clear()
    assert fetch(server, tmp_path, "--check").returncode == 0
    assert server.requests == []
    data = bytearray(server.files[SHARDS[0]])
    data[70_000] ^= 1
    (tmp_path / SHARDS[0]).write_bytes(data)
    (tmp_path / SHARDS[1]).write_bytes(data[:500])
    (tmp_path / SHARDS[2]).unlink()
    (tmp_path / "config.json").unlink()
    before = sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir())
    done = fetch(server, tmp_path, "--check")
    assert done.returncode == 1
    assert f"{SHARDS[0]}: its SHA-256 is" in done.stderr
    assert f"{SHARDS[1]}: 500 bytes" in done.stderr
    assert f"{SHARDS[2]}: missing" in done.stderr and "config.json: missing" in done.stderr
    assert "tiktoken.model: right" in done.stdout
    assert before == sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir())


def test_check_of_an_empty_directory_names_every_shard(server, tmp_path):
    done = fetch(server, tmp_path, "--check")
    assert done.returncode == 1
    assert all(f"{name}: missing" in done.stderr for name in [*SHARDS, INDEX, "config.json"])
    assert not list(tmp_path.iterdir())


def test_a_listed_small_file_that_never_arrives_makes_the_run_incomplete(server, tmp_path):
    server.plan["config.json"], server.forever = [404], {"config.json"}
    done = fetch(server, tmp_path)
    assert done.returncode == 1 and "config.json" in done.stderr
    assert sorted(lines(tmp_path)) == SHARDS


def test_a_small_file_that_differs_is_kept_and_reported(server, tmp_path):
    (tmp_path / "config.json").write_bytes(b"{}")
    done = fetch(server, tmp_path)
    assert done.returncode == 1 and "config.json: 2 bytes" in done.stderr
    assert (tmp_path / "config.json").read_bytes() == b"{}"
    (tmp_path / "config.json").write_bytes(server.files["config.json"][::-1])
    assert "git hash" in fetch(server, tmp_path).stderr


def test_a_branch_that_moves_on_does_not_mix_revisions(server, tmp_path):
    server.plan[SHARDS[2]], server.forever = [404], {SHARDS[2]}
    assert fetch(server, tmp_path).returncode == 1
    server.forever.clear()
    server.plan.clear()
    server.commit = NEXT
    server.files[SHARDS[2]] = shard(99, 150_000)
    done = fetch(server, tmp_path)  # the old commit is gone from this server
    assert done.returncode == 1 and "404" in done.stderr and SHARDS[2] in done.stderr
    assert not (tmp_path / SHARDS[2]).exists()
    for revision in (NEXT, "v2"):
        done = fetch(server, tmp_path, "--revision", revision)
        assert done.returncode != 0 and not (tmp_path / SHARDS[2]).exists()
    assert fetch(server, tmp_path, "--revision", NEXT).returncode == 2
    server.commit = COMMIT
    server.files = release()
    for revision in ("main", COMMIT):
        assert fetch(server, tmp_path, "--revision", revision).returncode == 0
    assert_complete(server, tmp_path)
    assert {p.split("/")[4] for p, _ in server.requests if p.endswith(".safetensors")} == {COMMIT}


def test_another_repository_in_the_same_directory_is_refused(server, tmp_path):
    assert fetch(server, tmp_path).returncode == 0
    argv = [str(a) for a in command(server, tmp_path)]
    argv[argv.index(REPO)] = "acme/other"
    done = subprocess.run(argv, capture_output=True, text=True, env=environment())
    assert done.returncode == 2 and "acme/tiny" in done.stderr


def test_the_endpoint_comes_from_the_environment_too(server, tmp_path):
    argv = [a for a in command(server, tmp_path) if a not in ("--mirror", server.url)]
    done = subprocess.run(argv, capture_output=True, text=True,
                          env=environment(HF_ENDPOINT=server.url + "/"))
    assert done.returncode == 0, done.stderr
    assert_complete(server, tmp_path)


def test_the_token_goes_to_the_endpoint_only_and_is_never_printed(server, tmp_path):
    other = Server()
    try:
        server.redirect_to = other.url
        other.plan[SHARDS[0]] = ["cut"]
        done = fetch(server, tmp_path, env=environment(HF_TOKEN=TOKEN))
        assert done.returncode == 0, done.stderr
        assert set(server.auth) == {"Bearer " + TOKEN}
        assert other.auth and set(other.auth) == {None}
        assert "bytes=20000-" in other.asked(SHARDS[0])
        assert_complete(server, tmp_path)
        for p in tmp_path.iterdir():
            assert TOKEN.encode() not in p.read_bytes()
    finally:
        other.close()


@pytest.mark.parametrize("url, token, says", [
    ("http://mirror.invalid", TOKEN, "unencrypted"),
    ("http://127.0.0.1:1", TOKEN + "\nX: y", "characters"),
    ("http://me:pass@127.0.0.1:1", "", "password"),
    ("ftp://127.0.0.1", "", "endpoint"),
    ("http://127.0.0.1:abc", "", "endpoint"),
    ("http://me:pass@127.0.0.1:abc", "", "'http://127.0.0.1:abc': the endpoint"),
    ("http://127.0.0.1:99999", "", "endpoint"),
    ("http://[x", "", "endpoint"),
    ("http://", "", "endpoint"),
    ("http://a..b", "", "endpoint"),
    ("http://a b", "", "endpoint"),
])
def test_endpoints_and_tokens_that_cannot_be_are_refused(tmp_path, url, token, says):
    done = subprocess.run([sys.executable, SCRIPT, REPO, "--out", tmp_path, "--mirror", url],
                          capture_output=True, text=True, env=environment(HF_TOKEN=token))
    assert done.returncode == 2 and says in done.stderr
    assert TOKEN not in done.stdout + done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/x", "", ".", "..", ".download-state",
                                  "a\\b", "c:d", "e\x00f", "g\nh", "x.part", "y" * 256, 7, None,
                                  "a\x9b31mb", "a\x85b", "a\u202eb", "a\u2066b",
                                  "a\u200fb", "a\ufeffb", "a\u2028b", "\ud800"], ids=ascii)
def test_names_in_the_index_that_are_no_file_names_are_refused(server, tmp_path, name):
    server.files[INDEX] = json.dumps({"weight_map": {"t": name}}).encode()
    server.files[str(name)] = shard(5, 1000)
    done = fetch(server, tmp_path / "in")
    assert done.returncode == 1 and INDEX in done.stderr
    assert f"{ascii(name)} is not a file name inside the checkpoint" in done.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"in"}
    assert {p.name for p in (tmp_path / "in").iterdir()} == {".download.json"}


DEEP = b"[" * 200_000
NO_INTEGER = (b'{"sha":"%s","siblings":[{"rfilename":"a","size":%s}]}'
              % (COMMIT.encode(), b"9" * 6000))


@pytest.mark.parametrize("answer", [
    DEEP, b'{"a":' * 200_000, NO_INTEGER, NO_INTEGER.replace(b"9" * 6000, b"9" * 30), b"[]", b"7",
    b"", b"\xff\xfe", b"<html>", b'{"sha":null,"siblings":[]}', b'{"siblings":[[]]}',
], ids=lambda a: ascii(a[:40]))
def test_a_list_that_cannot_be_read_is_one_error(server, tmp_path, answer):
    server.raw[LIST] = [b"HTTP/1.0 200 OK\r\n\r\n", answer]
    done = fetch(server, tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "127.0.0.1" in done.stderr and "list" in done.stderr


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=str)
@pytest.mark.parametrize("answer", [DEEP, b'{"weight_map":' + DEEP, b'{"weight_map":{"a":["x"]}}',
                                    b"[]", b"\xff"], ids=lambda a: ascii(a[:20]))
def test_an_index_that_cannot_be_read_is_one_error_and_does_not_stay(server, tmp_path, answer,
                                                                     options):
    server.files[INDEX] = answer
    done = fetch(server, tmp_path, *options)
    assert done.returncode == 1 and done.stderr.count(f"{INDEX}: no index of shards") == 1
    assert {p.name for p in tmp_path.iterdir()} <= {".download.json"}
    server.files = release()
    (tmp_path / ".download.json").unlink(missing_ok=True)
    assert fetch(server, tmp_path).returncode == 0


BAD_HEADS = {
    "retry after": (b"503 x\r\nRetry-After: \xb2\r\nContent-Length: 0", "says 503"),
    "long retry after": (b"429 x\r\nRetry-After: " + b"9" * 5000, "says 429"),
    "no redirect": (b"302 x\r\nLocation: http://[bad/", "malformed answer or redirect"),
    "redirect port": (b"302 x\r\nLocation: http://127.0.0.1:99999999/", "malformed"),
    "redirect label": (b"302 x\r\nLocation: http://a..b/", "malformed"),
    "redirect control": (b"302 x\r\nLocation: http://a\x7f/", "malformed"),
    "redirect file": (b"302 x\r\nLocation: file:///etc/passwd", "says 302"),
    "chunk": (b"200 x\r\nTransfer-Encoding: chunked\r\n\r\nzzzz", "127.0.0.1"),
    "range": (b"206 x\r\nContent-Range: bytes " + b"1" * 5000 + b"-" + b"2" * 5000 + b"/*", "sent"),
    "range digits": (b"206 x\r\nContent-Range: bytes \xb2-\xb3/*", "sent"),
    "garbage": (b"\0\1", "127.0.0.1"),
    "a long line": (b"y" * 60_000, "127.0.0.1"),
}


@pytest.mark.parametrize("head, says", BAD_HEADS.values(), ids=BAD_HEADS)
@pytest.mark.parametrize("path", [LIST, SHARDS[0]])
def test_a_head_that_cannot_be_read_is_one_error_of_one_file(server, tmp_path, path, head, says):
    if path == LIST and b"206" in head:
        return  # the list is not asked for in ranges: what comes is read as a list
    server.raw[path] = [b"HTTP/1.1 " + head + b"\r\n\r\n"]
    done = fetch(server, tmp_path, "--tries", "2")
    assert done.returncode == 1 and says in done.stderr and "127.0.0.1" in done.stderr
    assert max(map(len, done.stderr.splitlines())) < 500
    if path == SHARDS[0]:
        assert sorted(lines(tmp_path)) == SHARDS[1:]
        assert f"  {SHARDS[0]}: " in done.stderr


def test_a_size_in_other_digits_is_none(server, tmp_path):
    server.lists = False
    server.raw["config.json"] = [b"HTTP/1.0 200 OK\r\nX-Linked-Size: \xb2\r\n\r\n"]
    done = fetch(server, tmp_path)
    assert done.returncode == 1
    assert "config.json: 127.0.0.1 does not say how long it is" in done.stderr


def test_what_servers_say_does_not_reach_the_terminal_as_it_is(server, tmp_path):
    control = "\x9b31m"
    server.files[f"a{control}"] = server.files["a\u202eb"] = b"never asked for"
    server.raw[SHARDS[0]] = [b"HTTP/1.0 206 x\r\nContent-Range: \x9b31m\r\n\r\n"]
    server.files["caf\xe9.json"] = b"{}"
    done = fetch(server, tmp_path, "--tries", "2", env=environment(PYTHONIOENCODING="ascii"))
    assert done.returncode == 1 and "\\x9b31m" in done.stderr
    assert "caf\\xe9.json: done" in done.stdout
    assert (done.stdout + done.stderr).isascii()
    assert not any("never" in p.read_text("latin-1") for p in tmp_path.iterdir())


@pytest.mark.parametrize("name", [SHARDS[0] + ".part", "config.json.part", ".download-state",
                                  ".download-sums", ".download.json.tmp"])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_followed_out_of_the_directory(server, tmp_path, name, there):
    out, outside = tmp_path / "in", tmp_path / "outside"
    out.mkdir()
    if there:
        outside.write_bytes(b"mine")
    (out / name).symlink_to(outside)
    done = fetch(server, out)
    assert done.returncode == 1 and name in done.stderr and "not a regular file" in done.stderr
    assert outside.exists() == there and (not there or outside.read_bytes() == b"mine")


def test_an_incomplete_shard_that_is_a_link_does_not_become_a_part(server, tmp_path):
    out, outside = tmp_path / "in", tmp_path / "outside"
    out.mkdir()
    outside.write_bytes(server.files[SHARDS[0]][:100])
    (out / SHARDS[0]).symlink_to(outside)
    done = fetch(server, out)
    assert done.returncode == 1 and f"{SHARDS[0]}: a symbolic link" in done.stderr
    assert outside.read_bytes() == server.files[SHARDS[0]][:100] and (out / SHARDS[0]).is_symlink()


@pytest.mark.parametrize("misdeed", [404, 503, "html"])
def test_of_a_file_that_gave_nothing_nothing_is_left(server, tmp_path, misdeed):
    server.plan["config.json"], server.forever = [misdeed], {"config.json"}
    assert fetch(server, tmp_path, "--tries", "2").returncode == 1
    assert not list(tmp_path.glob("*.part"))


def test_a_shard_that_only_the_index_knows_is_an_error(server, tmp_path):
    del server.files[SHARDS[1]]
    done = fetch(server, tmp_path)
    assert done.returncode == 1 and SHARDS[1] in done.stderr


def test_a_checkpoint_of_one_file_needs_no_index(server, tmp_path):
    for name in [*SHARDS, INDEX]:
        del server.files[name]
    server.files["model.safetensors"] = shard(3, 50_000)
    assert fetch(server, tmp_path).returncode == 0
    assert lines(tmp_path) == ["model.safetensors"]


def test_without_a_list_the_usual_files_are_asked_for(server, tmp_path):
    """A plain mirror: no API, the commit in a header, no hashes; files it lacks are not missed."""
    server.lists = False
    done = fetch(server, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "only sizes are checked" in done.stdout
    assert json.loads((tmp_path / ".download.json").read_text())["commit"] == COMMIT
    assert_complete(server, tmp_path)


def test_without_a_list_a_redirect_says_size_and_hash(server, tmp_path):
    other, data = Server(), server.files[SHARDS[0]]
    try:
        server.lists = False
        server.raw[SHARDS[0]] = [
            f"HTTP/1.0 302 x\r\nLocation: {other.url}/{REPO}/resolve/main/{SHARDS[0]}\r\n"
            f"X-Linked-Etag: \"{hashlib.sha256(data).hexdigest()}\"\r\n"
            f"X-Linked-Size: {len(data)}\r\n\r\n".encode()]
        done = fetch(server, tmp_path)
        assert done.returncode == 0, done.stderr
        pin = json.loads((tmp_path / ".download.json").read_text())["files"][SHARDS[0]]
        assert pin == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    finally:
        other.close()


def test_without_hashes_a_page_of_the_right_length_is_no_shard(server, tmp_path):
    server.hashes = False
    server.plan[SHARDS[0]] = ["html of the right length"]
    done = fetch(server, tmp_path)
    assert done.returncode == 0 and "not a safetensors file" in done.stdout
    assert_complete(server, tmp_path)


def test_without_hashes_two_files_are_not_spliced(server, tmp_path):
    """The server has another one, of the same length, when the rest is asked for."""
    server.hashes, server.etags = False, True
    server.plan[SHARDS[0]] = ["cut", "cut", "replaced"]
    before = server.files[SHARDS[0]]
    done = fetch(server, tmp_path)
    assert done.returncode == 0 and "has another file there now" in done.stdout
    assert server.asked(SHARDS[0]) == [None, "bytes=20000-", "bytes=40000-", None]
    assert server.files[SHARDS[0]] != before
    assert_complete(server, tmp_path)


def test_without_hashes_a_body_that_is_too_long_is_not_cut_to_size(server, tmp_path):
    server.hashes = False
    server.plan[SHARDS[0]] = ["chunked and longer"]
    server.plan[SHARDS[1]] = ["chunked"]
    done = fetch(server, tmp_path)
    assert done.returncode == 0 and "sends more than the 150000 bytes" in done.stdout
    assert (len(server.asked(SHARDS[0])), len(server.asked(SHARDS[1]))) == (2, 1)
    assert_complete(server, tmp_path)


@pytest.mark.parametrize("path", [LIST, SHARDS[0]])
def test_an_answer_that_is_always_about_to_come_is_given_up(server, tmp_path, path):
    server.raw[path] = [b"HTTP/1.1 100 Continue\r\n\r\n" * 1000] * 2000
    done = fetch(server, tmp_path, "--tries", "2")
    assert done.returncode == 1 and "its head does not end in 1.0 MiB" in done.stdout + done.stderr


def test_a_fifo_in_a_ledgers_place_is_named_and_hangs_nothing(server, tmp_path):
    for name in (".download-state", ".download-sums", ".download-times", ".reclaimed"):
        os.mkfifo(tmp_path / name)
        done = fetch(server, tmp_path)
        assert done.returncode == 1 and f"{name}: not a regular file" in done.stderr
        os.unlink(tmp_path / name)


def test_killed_again_and_again_the_files_are_those_of_the_source(server, tmp_path):
    server.delay = 0.02
    dice = random.Random(4)
    for _ in range(20):
        had = len(server.requests)
        p = subprocess.Popen(command(server, tmp_path, "--jobs", "2"), env=environment(),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while p.poll() is None and not any(
                path.endswith(".safetensors") for path, _ in server.requests[had:]):
            time.sleep(0.005)
        time.sleep(dice.uniform(0, 0.15))
        p.send_signal(signal.SIGKILL)
        p.wait()
        for name in SHARDS:
            if (tmp_path / name).exists():
                assert (tmp_path / name).read_bytes() == server.files[name]
    killed = [r for name in SHARDS for r in server.asked(name)]
    assert any(r for r in killed), "no run was killed in the middle of a shard"
    server.delay = 0
    done = fetch(server, tmp_path)
    assert done.returncode == 0, done.stderr
    assert_complete(server, tmp_path)


def heed_interrupts():
    """What is started in the background of a script ignores them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupt_ends_it_at_once_with_a_word(server, tmp_path):
    server.delay = 0.2
    p = subprocess.Popen(command(server, tmp_path), env=environment(), text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         preexec_fn=heed_interrupts)
    while not server.asked(SHARDS[0]):
        time.sleep(0.005)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "run it again" in err and "Traceback" not in err


def test_two_runs_in_one_directory_are_one_too_many(server, tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    done = fetch(server, tmp_path)
    os.close(fd)
    assert done.returncode == 1 and "another run" in done.stderr


@pytest.mark.parametrize("argv", [[], ["x"], ["x", "--out"], ["../x", "--out", "o"],
                                  ["a/b", "--out", "o", "--jobs", "0"],
                                  ["a/b", "--out", "o", "--timeout", "nan"],
                                  ["a/b", "--out", "o", "--dry-run", "--check"],
                                  ["a/b", "--out", "o", "--check", "--rehash"]])
def test_wrong_usage_ends_with_2(argv):
    done = subprocess.run([sys.executable, SCRIPT, *argv], capture_output=True, text=True)
    assert done.returncode == 2 and "usage:" in done.stderr


# What needs a disk of a certain kind, or a terminal, is tested inside the process.


@pytest.fixture
def module(monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name in ("HF_ENDPOINT", "HF_TOKEN"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("fetch_weights", str(SCRIPT))
    m = importlib.util.module_from_spec(importlib.util.spec_from_loader("fetch_weights", loader))
    loader.exec_module(m)
    return m


def call(module, server, out, *options):
    return module.main([str(a) for a in command(server, out, *options)[2:]])


def test_what_does_not_fit_is_refused_before_any_shard(server, tmp_path, module, monkeypatch,
                                                       capsys):
    need = sum(len(server.files[n]) for n in [*SHARDS, "config.json", "tiktoken.model"])
    monkeypatch.setattr(module, "free_bytes", lambda path: int(need * 1.04))
    assert call(module, server, tmp_path, "--dry-run") == 1
    assert "fits      no" in capsys.readouterr().out
    assert call(module, server, tmp_path) == 1
    assert "not enough space" in capsys.readouterr().err
    assert not any(path.endswith(".safetensors") for path, _ in server.requests)
    monkeypatch.setattr(module, "free_bytes", lambda path: int(need * 1.06))
    assert call(module, server, tmp_path) == 0


def test_a_file_system_that_does_not_tell_its_size_is_not_full(server, tmp_path, module, monkeypatch,
                                                               capsys):
    """All zeros: ramfs, some of FUSE."""
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result([4096] * 2 + [0] * 8))
    assert call(module, server, tmp_path) == 0
    assert "free      unknown" in capsys.readouterr().out
    assert_complete(server, tmp_path)


def test_a_disk_that_somebody_else_fills_ends_the_run(server, tmp_path, module, monkeypatch,
                                                      capsys):
    def free(path):
        return 0 if (tmp_path / SHARDS[0]).exists() else 1 << 30
    monkeypatch.setattr(module, "free_bytes", free)
    assert call(module, server, tmp_path, "--jobs", "1") == 1
    assert "make room" in capsys.readouterr().err
    assert lines(tmp_path) == SHARDS[:1]
    monkeypatch.undo()
    assert fetch(server, tmp_path).returncode == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_called_so(server, tmp_path, module, monkeypatch, capsys):
    class OnFullDisk(module.Partial):
        def __init__(self, *args):
            super().__init__(*args)
            self.stream.close()
            self.stream = open("/dev/full", "wb", buffering=0)
    monkeypatch.setattr(module, "Partial", OnFullDisk)
    assert call(module, server, tmp_path, "--jobs", "1") == 1
    assert "disk is full" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["replace", "append"])
def test_stopped_before_any_lasting_step_the_next_run_completes(server, tmp_path, module, step,
                                                                monkeypatch, capsys):
    class Stopped(Exception):
        pass
    owner, name = {"replace": (module.os, "replace"), "append": (module, "append_line")}[step]
    real, steps, n = getattr(owner, name), 0, 0
    while steps >= n:  # until a run takes fewer steps than it would be stopped at
        n, steps = n + 1, 0
        out = tmp_path / str(n)

        def counted(*args):
            nonlocal steps
            steps += 1
            if steps >= n:
                raise Stopped
            return real(*args)
        with monkeypatch.context() as patch, contextlib.suppress(Stopped):
            patch.setattr(owner, name, counted)
            call(module, server, out, "--jobs", "1")
        assert call(module, server, out) == 0
        assert_complete(server, out)
    assert n == {"replace": 8, "append": 10}[step]
    capsys.readouterr()


def test_what_is_no_regular_file_is_named(server, tmp_path):
    (tmp_path / (SHARDS[0] + ".part")).mkdir()
    done = fetch(server, tmp_path)
    assert done.returncode == 1 and "not a regular file" in done.stderr


def test_a_terminal_shows_a_line_for_each_shard_and_a_total(server, tmp_path):
    server.delay = 0.04
    master, slave = os.openpty()
    p = subprocess.Popen(command(server, tmp_path), stdout=slave, stderr=slave, env=environment())
    os.close(slave)
    text = b""
    with contextlib.suppress(OSError):
        while data := os.read(master, 65536):
            text += data
    os.close(master)
    assert p.wait() == 0
    shown = text.decode()
    assert "\x1b[4A\x1b[J" in shown and " left" in shown
    assert all(f"KiB  {name}" in shown for name in SHARDS)
