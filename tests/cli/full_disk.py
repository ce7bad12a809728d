"""full_disk.py BINARY PRELOAD SOURCE WANT DIR [NAME=VALUE] - converts SOURCE on volumes of every size
that is too small, then makes each larger and goes on. PRELOAD: tests/support/full_disk.c, so that the
check for space passes. NAME=VALUE: its environment. Prints what happened, one JSON object a size; WANT:
what must come out. Needs the right to mount at DIR, in a mount namespace of its own."""

import filecmp
import json
import os
import subprocess
import sys
from pathlib import Path

PAGE, ENOUGH = 4096, "size=64m"


def mount(at, options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", at], check=True)


def convert(binary, source, out, *args, **env):
    done = subprocess.run([binary, "convert", "--src", source, "--out", out, "--json", *args],
                          env={"PATH": os.environ.get("PATH", ""), **env}, capture_output=True)
    return done.returncode, json.loads(done.stderr or "{}").get("detail", "")


def differ(a, b):
    names = sorted(p.name for p in a.iterdir())
    if names != sorted(p.name for p in b.iterdir()):
        return [f"files: {names}"]
    _, different, errors = filecmp.cmpfiles(a, b, names, shallow=False)
    return different + errors


def main():
    binary, preload, source, want, at = sys.argv[1:6]
    env = dict(x.split("=", 1) for x in sys.argv[6:])
    out, code, pages, detail = Path(at) / "x.waste", 1, 0, ""
    while code:
        pages += 1 if pages < 9 else 28 if "trunk.bin" in detail else 5
        mount(at, f"size={pages * PAGE}")
        code, detail = convert(binary, source, out, LD_PRELOAD=preload, **env)
        found = {"bytes": pages * PAGE, "exit": code, "detail": detail,
                 "begun": (out / "waste-convert.json").exists(),
                 "left": sorted(p.name for p in out.iterdir()) if out.exists() else [],
                 "opens": subprocess.run([binary, "info", out], capture_output=True).returncode == 0}
        if code and pages % 2:  # with the check for space
            found["checked"] = convert(binary, source, out)
        mount(at, f"remount,{ENOUGH}")
        found["resumed"] = convert(binary, source, out, *(["--resume"] if found["begun"] else []))
        found["different"] = differ(out, Path(want))
        print(json.dumps(found), flush=True)
        subprocess.run(["umount", at], check=True)


if __name__ == "__main__":
    main()
