"""vision_oracle.py - model/vision.c against the tower in float64: both encodings of the weights,
pictures of several shapes, every CPU level and number of threads.

    vision_oracle.py VISION_DUMP
"""
import io
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.dont_write_bytecode = True

import oracle_image  # noqa: E402
import oracle_vision  # noqa: E402

BOUND = 3e-6
SIZES = [(1, 1), (40, 30), (112, 112), (300, 200), (900, 40), (30, 700)]


def picture(w, h):
    rng = np.random.default_rng(w * 4099 + h)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8).astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


def rows_of(dump, *args):
    run = subprocess.run([dump, *map(str, args)], stdout=subprocess.PIPE, check=True)
    return np.frombuffer(run.stdout, "<f4")


def relative(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def judge(dump, where, encoding):
    """The largest error, and whether all variants agree in every bit and a mistake would show."""
    box = where / encoding
    oracle_vision.make(box, encoding)
    tower = oracle_vision.Tower(box)
    worst, same, noticed = 0.0, True, True
    for w, h in SIZES:
        data = picture(w, h)
        (where / "picture").write_bytes(data)
        padded = oracle_image.preprocess(data, tower.c["max_patches"])[2]
        want = tower.encode(padded).ravel()
        got = rows_of(dump, box, 1, "c", where / "picture")
        worst = max(worst, relative(got, want))
        for threads, level in ((1, "avx2"), (3, "avx512"), (2, "c")):
            other = rows_of(dump, box, threads, level, where / "picture")
            same &= other.tobytes() == got.tobytes()
        for mistake in ({"swap": True}, {"one_gelu": True}):
            wrong = oracle_vision.Tower(box, **mistake).encode(padded).ravel()
            noticed &= "swap" in mistake and w == h == 1 or relative(wrong, want) > 10 * BOUND
    rows_of(dump, box, 1, "faults", where / "picture")  # fails if a failure is not clean
    print(f"{encoding}: {worst:.2e} of {BOUND:g};", "one" if same else "SEVERAL",
          "result over levels and threads;", "mistakes show" if noticed else "MISTAKES HIDE")
    return worst <= BOUND and same and noticed


def main(dump):
    with tempfile.TemporaryDirectory() as where:
        good = [judge(dump, Path(where), encoding) for encoding in ("stored", "rewritten")]
    return not all(good)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
