#!/usr/bin/env python3
"""demo_curve.py - the loss curve of a training log as an SVG picture.

    demo_curve.py log.jsonl curve.svg
"""
import json
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 360, 48, 40, 12


def read(path):
    """(steps, training loss), (steps, held-out loss). A step logged twice counts as logged last:
    a resumed run repeats what came after its checkpoint."""
    train, held = {}, {}
    for line in map(json.loads, path.read_text().splitlines()):
        if "loss" in line:
            train[line["step"]] = line["loss"]
        if "held_out_loss" in line:
            held[line["step"]] = line["held_out_loss"]
    return sorted(train.items()), sorted(held.items())


def picture(train, held):
    last = max(train[-1][0], held[-1][0])
    low = int(min(v for _, v in train + held) * 2) / 2
    high = train[0][1]

    def at(step, loss):
        x = LEFT + step / last * (WIDTH - LEFT - 12)
        y = TOP + (high - loss) / (high - low) * (HEIGHT - BOTTOM - TOP)
        return f"{x:.1f},{y:.1f}"

    def words(spot, text, anchor="middle"):
        x, y = spot.split(",")
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    level = low
    while level <= high:
        out.append(f'<polyline points="{at(0, level)} {at(last, level)}" stroke="#ddd"/>')
        out.append(words(f"{LEFT - 8},{at(0, level - 0.03).split(',')[1]}", f"{level:.1f}", "end"))
        level += 0.5
    for i in range(5):
        step = last * i // 4
        out.append(words(f"{at(step, low).split(',')[0]},{HEIGHT - BOTTOM + 16}", step))
    out.append(words(f"{WIDTH // 2},{HEIGHT - 6}", "step"))
    line = " ".join(at(*p) for p in train)
    out.append(f'<polyline points="{line}" fill="none" stroke="#38c" stroke-width="1.5"/>')
    line = " ".join(at(*p) for p in held)
    out.append(f'<polyline points="{line}" fill="none" stroke="#c52" stroke-width="1.5"/>')
    out += ['<circle cx="{}" cy="{}" r="3" fill="#c52"/>'.format(*at(*p).split(","))
            for p in held]
    out.append(words(f"{WIDTH - 20},{TOP + 16}", "nats per token: training (line), held out (dots)",
                     "end"))
    return "\n".join([*out, "</svg>", ""])


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    Path(sys.argv[2]).write_text(picture(*read(Path(sys.argv[1]))), "ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
