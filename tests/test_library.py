"""libwaste as a host finds it: what it exports, and whether the documented snippet builds and runs."""

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
            "static": [STATIC, "-luring", "-ljansson", "-ldeflate", "-lpcre2-8", "-lpthread",
                       "-lm"]}[linkage]
    subprocess.run([compiler, f"-std={std}", "-Wall", "-Wextra", "-Werror", "-pedantic",
                    f"-I{ROOT / 'include'}", source, "-o", program, *libs], check=True)
    done = subprocess.run([program, GOLDEN / "kimi-linear.waste"], capture_output=True, text=True)
    assert done.returncode == 0
    assert len(done.stdout.split()) == 6
    assert done.stderr == ""  # the library prints nothing
    assert subprocess.run([program, tmp_path], capture_output=True).returncode == 1


def test_the_library_reads_no_environment():
    undefined = subprocess.run(["nm", "-D", "--undefined-only", SHARED], check=True,
                               capture_output=True, text=True).stdout
    for name in ("getenv", "secure_getenv", "exit", "abort_handler", "puts", "printf"):
        assert not re.search(rf"\b{name}(@|$)", undefined, re.M), name
