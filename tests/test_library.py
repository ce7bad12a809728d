"""libwaste as a host finds it: what it exports, and whether the documented snippet builds and runs."""

import ctypes
import json
import math
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("WASTE_BUILD", ROOT / "build" / "gcc"))
SHARED = pathlib.Path(os.environ.get("WASTE_LIB", BUILD / "include" / "libwaste.so"))
STATIC = BUILD / "include" / "libwaste.a"
GOLDEN = ROOT / "tests" / "golden"

# The snippet of waste.h, with the rest a program needs around it and nothing changed inside.
SNIPPET = r"""
#include <stdio.h>
#include "waste.h"

static int on_token(const waste_token_info *info, const char *piece, void *user)
{
    (void)piece;
    printf("%d ", info->token);
    ++*(int *)user;
    return 0;
}

int main(int argc, char **argv)
{
    int32_t ids[] = {3, 7, 11, 5};
    size_t n = 4;
    int count = 0;
    void *user = &count;
    waste_gen_params params;

    waste_gen_params_init(&params);
    params.max_tokens = 6;
    (void)argc;
#define PATH argv[1]
    waste_cfg cfg;
    waste_cfg_init(&cfg);
    cfg.ram_budget_bytes = 46ULL << 30;
    waste_ctx *ctx;
    if (waste_open(PATH, &cfg, &ctx) != WASTE_OK) return 1;
    waste_generate(ctx, ids, n, &params, on_token, user);
    waste_close(ctx);
    return count == 6 ? 0 : 2;
}
"""


def defined(lib, *flags):
    text = subprocess.run(["nm", "--defined-only", "-g", *flags, lib], check=True,
                          capture_output=True, text=True).stdout
    return {line.split()[-1] for line in text.splitlines() if len(line.split()) == 3}


def declared():
    header = (ROOT / "include" / "waste.h").read_text()
    return set(re.findall(r"WASTE_API[^;(]*?\b(waste_\w+)\(", header))


def hwloc():
    """What a static library of a build with hwloc wants beside the rest."""
    wanted = subprocess.run(["nm", STATIC], capture_output=True, text=True, check=True).stdout
    return ["-lhwloc"] if " U hwloc_" in wanted else []


def test_the_shared_library_exports_the_header_and_nothing_else():
    names = {n.split("@")[0] for n in defined(SHARED, "-D")} - {"WASTE_0"}
    assert names == declared()
    assert all("@@WASTE_0" in n for n in defined(SHARED, "-D") if n.startswith("waste_"))


def test_the_static_library_exports_the_header_and_nothing_else():
    assert defined(STATIC) == declared()


@pytest.mark.parametrize("compiler,suffix,std", [("gcc", ".c", "c11"), ("gcc", ".c", "c99"),
                                                 ("clang", ".c", "c11"), ("g++", ".cc", "c++11")])
@pytest.mark.parametrize("linkage", ["shared", "static"])
def test_the_snippet_builds_and_runs_as_it_is(tmp_path, compiler, suffix, std, linkage):
    source = tmp_path / ("snippet" + suffix)
    source.write_text(SNIPPET)
    program = tmp_path / "snippet"
    libs = {"shared": [f"-L{SHARED.parent}", "-lwaste", f"-Wl,-rpath,{SHARED.parent}"],
            "static": [STATIC, "-luring", "-laio", "-ljansson", "-ldeflate", "-lpcre2-8", "-ljpeg", "-lpng",
                       "-lwebp", "-lwebpdemux", "-lpthread", "-lm", *hwloc()]}[linkage]
    subprocess.run([compiler, f"-std={std}", "-Wall", "-Wextra", "-Werror", "-pedantic",
                    f"-I{ROOT / 'include'}", source, "-o", program, *libs], check=True)
    done = subprocess.run([program, GOLDEN / "kimi-linear.waste"], capture_output=True, text=True)
    assert done.returncode == 0
    assert len(done.stdout.split()) == 6
    assert done.stderr == ""  # the library prints nothing
    assert subprocess.run([program, tmp_path], capture_output=True).returncode == 1


class Item(ctypes.Structure):
    """waste_item, as a binding mirrors it."""
    _fields_ = [("size", ctypes.c_uint32), ("want", ctypes.c_uint32),
                ("session", ctypes.c_void_p), ("ids", ctypes.POINTER(ctypes.c_int32)),
                ("n_ids", ctypes.c_size_t), ("n_done", ctypes.c_size_t),
                ("status", ctypes.c_int), ("token", ctypes.c_int32),
                ("logprob", ctypes.c_float), ("stop", ctypes.c_uint32),
                ("logits", ctypes.POINTER(ctypes.c_float)),
                ("next_ids", ctypes.POINTER(ctypes.c_int32)),
                ("id_logprobs", ctypes.POINTER(ctypes.c_float)), ("n_next", ctypes.c_size_t),
                ("top", ctypes.c_void_p), ("n_top", ctypes.c_size_t)]


class Counters(ctypes.Structure):
    """waste_counters, the same."""
    _fields_ = [("size", ctypes.c_uint32), ("reserved0", ctypes.c_uint32),
                *((name, ctypes.c_uint64) for name in ("prefill_tokens", "decode_tokens")),
                *((name, ctypes.c_double) for name in ("sec_prefill", "sec_decode", "sec_io")),
                *((name, ctypes.c_uint64) for name in (
                    "hits_resident", "hits_prefetch", "misses", "bytes_read", "bytes_prefetch",
                    "preloaded", "hits_preload", "late_prefetch", "late_misses", "guesses",
                    "guesses_wasted", "guesses_refused", "reads_retried", "reads_failed",
                    "records_refused")),
                *((name, ctypes.c_double) for name in (
                    "sec_in_flight", "sec_mix", "sec_mlp", "sec_route", "sec_checks", "sec_experts",
                    "sec_head", "sec_other")),
                ("images", ctypes.c_uint64), ("sec_images", ctypes.c_double)]


ABI_COUNTERS, ABI_ITEM = 9, 11
WANT_LOGITS, WANT_ID_LOGPROBS = 2, 4


@pytest.fixture
def library():
    lib = ctypes.CDLL(str(SHARED))
    lib.waste_session_default.restype = ctypes.c_void_p
    lib.waste_session_default.argtypes = [ctypes.c_void_p]
    lib.waste_session_reset.argtypes = [ctypes.c_void_p]
    lib.waste_abi.restype = ctypes.c_size_t
    lib.waste_close.argtypes = [ctypes.c_void_p]
    lib.waste_step.argtypes = [ctypes.c_void_p, ctypes.POINTER(Item), ctypes.c_size_t]
    return lib


def test_a_binding_scores_a_text(library):
    """The struct as mirrored above is the library's; what it is told adds up: the logits of each
    position say the same."""
    assert library.waste_abi(ABI_ITEM) == ctypes.sizeof(Item)
    container = GOLDEN / "kimi-linear.waste"
    ctx = ctypes.c_void_p()
    assert library.waste_open(str(container).encode(), None, ctypes.byref(ctx)) == 0
    session = library.waste_session_default(ctx)
    vocab = json.loads((container / "manifest.json").read_text())["config"]["vocab_size"]
    text = [3, 7, 11, 5, 2, 60, 9]
    ids = (ctypes.c_int32 * len(text))(*text)
    got = (ctypes.c_float * len(text))(*[42] * len(text))
    n = len(text) - 1
    next_ids = ctypes.cast(ctypes.byref(ids, 4), ctypes.POINTER(ctypes.c_int32))
    item = Item(size=ctypes.sizeof(Item), want=WANT_ID_LOGPROBS, session=session, ids=ids, n_ids=n,
                next_ids=next_ids, id_logprobs=got, n_next=n)
    assert library.waste_step(ctx, ctypes.byref(item), 1) == 0
    assert item.n_done == n and item.token == -1 and not item.logits and got[n] == 42
    library.waste_session_reset(session)
    for i in range(n):
        one = (ctypes.c_int32 * 1)(text[i])
        item = Item(size=Item.next_ids.offset, want=WANT_LOGITS, session=session, ids=one, n_ids=1)
        assert library.waste_step(ctx, ctypes.byref(item), 1) == 0  # the size before logprobs
        logits = item.logits[:vocab]
        top = max(logits)
        want = logits[text[i + 1]] - top - math.log(sum(math.exp(x - top) for x in logits))
        assert abs(got[i] - want) < 1e-5
    library.waste_close(ctx)


def test_a_binding_counts_where_the_time_went(library):
    assert library.waste_abi(ABI_COUNTERS) == ctypes.sizeof(Counters)
    library.waste_get_counters.argtypes = [ctypes.c_void_p, ctypes.POINTER(Counters)]
    library.waste_eval.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32), ctypes.c_size_t,
                                   ctypes.c_void_p, ctypes.c_void_p]
    ctx = ctypes.c_void_p()
    container = str(GOLDEN / "kimi-linear.waste").encode()
    assert library.waste_open(container, None, ctypes.byref(ctx)) == 0
    assert library.waste_eval(ctx, (ctypes.c_int32 * 3)(3, 7, 11), 3, None, None) == 0
    c = Counters(size=ctypes.sizeof(Counters))
    assert library.waste_get_counters(ctx, ctypes.byref(c)) == 0
    assert c.prefill_tokens == 3 and c.misses and c.sec_mix > 0 and c.sec_experts > 0
    parts = (c.sec_io, c.sec_mix, c.sec_mlp, c.sec_route, c.sec_checks, c.sec_experts, c.sec_head,
             c.sec_other)
    assert min(parts) >= 0 and abs(sum(parts) - c.sec_prefill - c.sec_decode) < 1e-9
    old = Counters(size=Counters.late_prefetch.offset, sec_other=42)
    assert library.waste_get_counters(ctx, ctypes.byref(old)) == 0
    assert old.misses == c.misses and old.late_prefetch == 0 and old.sec_other == 42
    library.waste_close(ctx)


def test_the_library_reads_no_environment():
    undefined = subprocess.run(["nm", "-D", "--undefined-only", SHARED], check=True,
                               capture_output=True, text=True).stdout
    for name in ("getenv", "secure_getenv", "exit", "abort_handler", "puts", "printf"):
        assert not re.search(rf"\b{name}(@|$)", undefined, re.M), name


class PromptInfo(ctypes.Structure):
    """waste_prompt_info, the same."""
    _fields_ = [("size", ctypes.c_uint32), ("begins", ctypes.c_uint32),
                ("ids", ctypes.POINTER(ctypes.c_int32)), ("n_ids", ctypes.c_size_t),
                ("segments", ctypes.c_void_p), ("n_segments", ctypes.c_size_t),
                ("ends", ctypes.c_void_p), ("n_ends", ctypes.c_size_t),
                ("images", ctypes.c_void_p), ("n_images", ctypes.c_size_t),
                ("effort", ctypes.c_char_p), ("note", ctypes.c_char_p),
                ("may_call", ctypes.c_int32), ("must_call", ctypes.c_int32),
                ("must_call_name", ctypes.c_char_p), ("must_call_name_len", ctypes.c_size_t),
                ("close_ids", ctypes.POINTER(ctypes.c_int32)), ("n_close", ctypes.c_size_t)]


class Event(ctypes.Structure):
    """waste_event, the same."""
    _fields_ = [("kind", ctypes.c_uint32), ("call", ctypes.c_uint32), ("text", ctypes.c_void_p),
                ("len", ctypes.c_size_t), ("id", ctypes.c_char_p), ("number", ctypes.c_int32),
                ("complete", ctypes.c_uint32)]


ABI_PROMPT_INFO, ABI_EVENT = 21, 22
RESPONSE, MESSAGE_END = 2, 7
WANT_TOKEN, STOP_ID = 1, 1


def events_of(call, *args):
    """The events of one call, as (kind, text, complete)."""
    events, n = ctypes.POINTER(Event)(), ctypes.c_size_t()
    assert call(*args, ctypes.byref(events), ctypes.byref(n)) == 0
    return [(e.kind, ctypes.string_at(e.text, e.len).decode(), e.complete)
            for e in events[:n.value]]


def test_a_binding_talks_to_the_demonstration_model(library):
    """From a request to the message that the next request will hold, as a server does it."""
    assert library.waste_abi(ABI_PROMPT_INFO) == ctypes.sizeof(PromptInfo)
    assert library.waste_abi(ABI_EVENT) == ctypes.sizeof(Event)
    library.waste_tokenizer_of.restype = ctypes.c_void_p
    path = str(ROOT / "share" / "demo.waste").encode()
    ctx, chat, prompt, reply = (ctypes.c_void_p() for _ in range(4))
    assert library.waste_open(path, None, ctypes.byref(ctx)) == 0
    tokenizer = ctypes.c_void_p(library.waste_tokenizer_of(ctx))
    assert library.waste_chat_open(tokenizer, path, None, ctypes.byref(chat)) == 0
    request = json.dumps({"messages": [{"role": "user", "content": "Hello! <|im_end|>"}]}).encode()
    assert library.waste_chat_render(chat, request, ctypes.c_size_t(len(request)),
                                     ctypes.byref(prompt)) == 0
    info = PromptInfo(size=ctypes.sizeof(PromptInfo))
    assert library.waste_prompt_get_info(prompt, ctypes.byref(info)) == 0
    assert info.begins == RESPONSE and info.n_ends == 1 and info.effort == b""
    assert library.waste_reply_open(prompt, ctypes.byref(reply)) == 0
    item = Item(size=ctypes.sizeof(Item), want=WANT_TOKEN, ids=info.ids, n_ids=info.n_ids,
                session=library.waste_session_default(ctx))
    got = []
    for _ in range(40):
        assert library.waste_step(ctx, ctypes.byref(item), 1) == 0
        got += events_of(library.waste_reply_feed, reply, ctypes.c_int32(item.token))
        if item.stop == STOP_ID:
            break
        item.ids, item.n_ids = (ctypes.c_int32 * 1)(item.token), 1
    got += events_of(library.waste_reply_end, reply)
    assert [kind for kind, _, _ in got].count(MESSAGE_END) == 1 and got[-1][0] == MESSAGE_END
    said = "".join(text for kind, text, _ in got if kind == RESPONSE)
    text, length = ctypes.c_void_p(), ctypes.c_size_t()
    assert library.waste_reply_message(reply, ctypes.byref(text), ctypes.byref(length)) == 0
    message = json.loads(ctypes.string_at(text, length.value))
    assert said and message == {"role": "assistant", "content": said}
    for close, handle in (("reply", reply), ("prompt", prompt), ("chat", chat)):
        getattr(library, f"waste_{close}_close")(handle)
    library.waste_close(ctx)
