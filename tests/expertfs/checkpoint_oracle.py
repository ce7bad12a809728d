"""checkpoint_oracle.py - expertfs/safetensors.c against the checkpoints of scripts/ and their own
reader: names in order, dtypes, shapes, and every value to the last bit.

    checkpoint_oracle.py CHECKPOINT_DUMP
"""
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.dont_write_bytecode = True

import oracle_checkpoint  # noqa: E402

CASES = [("kimi-linear", 3), ("kimi-linear", 0), ("k3", 4), ("k3", 0), ("deepseek", 2),
         ("deepseek", 5), ("k2", 1)]


def expected(path):
    """The lines that the dump must print."""
    box = oracle_checkpoint.Checkpoint(path)
    for name in sorted(box.logical, key=lambda n: n.encode("utf-8")):
        values = np.ascontiguousarray(box.logical[name], "<f4")
        dtype = box.stored[name][0] if name in box.stored else "MXFP4"
        shape = ",".join(str(d) for d in values.shape)
        yield f"{name} {dtype} {shape} {zlib.crc32(values.tobytes()):08x}"


def main(dump):
    bad = 0
    for family, shards in CASES:
        with tempfile.TemporaryDirectory() as where:
            oracle_checkpoint.write_checkpoint(family, where, n_shards=shards)
            want = list(expected(where))
            run = subprocess.run([dump, where], stdout=subprocess.PIPE, text=True, check=False)
        got = run.stdout.splitlines()
        differ = [(w, g) for w, g in zip(want, got) if w != g]
        ok = run.returncode == 0 and not differ and len(want) == len(got) > 50
        print(f"{family}, {shards or 'no index, 1'} shard(s): {len(got)} of {len(want)} tensors,",
              "equal" if ok else f"differ: {differ[:3]}")
        bad += not ok
    return bad != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
