#!/usr/bin/env python3
"""json_print against Python's json, whose way of writing is the one the models were shown.

    json_oracle.py PROGRAM [documents]
"""

import json
import math
import random
import struct
import subprocess
import sys


def number(dice):
    kind = dice.randrange(4)
    if kind == 0:
        return dice.randrange(-10 ** dice.randrange(1, 40), 10 ** dice.randrange(1, 40))
    if kind == 1:
        value = math.nan
        while not math.isfinite(value):
            value = struct.unpack("d", struct.pack("Q", dice.getrandbits(64)))[0]
        return value
    if kind == 2:
        return round(dice.uniform(-1000, 1000), dice.randrange(6))
    return dice.uniform(1, 10) * 10.0 ** dice.randrange(-8, 20)


def text(dice):
    ranges = [(0, 128), (128, 0xD800), (0xE000, 0x110000)]
    return "".join(chr(dice.randrange(*dice.choice(ranges))) for _ in range(dice.randrange(6)))


def value(dice, depth):
    kind = dice.randrange(7 if depth else 4)
    if kind < 2:
        return number(dice)
    if kind == 2:
        return text(dice)
    if kind == 3:
        return dice.choice([None, True, False])
    if kind < 6:
        return {text(dice): value(dice, depth - 1) for _ in range(dice.randrange(5))}
    return [value(dice, depth - 1) for _ in range(dice.randrange(4))]


def main():
    dice = random.Random(5)
    documents = [value(dice, 4) for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 5000)]
    lines = [json.dumps(d, ensure_ascii=bool(i & 1)) for i, d in enumerate(documents)]
    run = subprocess.run([sys.argv[1]], input="\n".join(lines) + "\n", capture_output=True,
                         encoding="utf-8", check=True)
    want = []
    for d in documents:
        want.append(json.dumps(d, ensure_ascii=False))
        want.append(json.dumps(d, ensure_ascii=False, sort_keys=True, separators=(",", ":")))
    got = run.stdout.split("\n")[:-1]
    wrong = [(w, g) for w, g in zip(want, got) if w != g]
    for w, g in wrong[:5]:
        print(f"Python: {w}\nours:   {g}")
    if wrong or len(got) != len(want):
        sys.exit(f"{len(wrong)} of {len(want)} lines differ, {len(got)} came")


if __name__ == "__main__":
    main()
