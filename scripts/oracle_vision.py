"""oracle_vision.py - K3's vision tower and projector in float64, and tiny containers that have one.

    oracle_vision.py make OUT [--encoding stored|rewritten]

Written like oracle.py: whole pictures, plain matrix products, from the specification alone. The two
encodings are those of the format: 4 bits along the stored last axis (the patch kernel by 14 columns),
and the 8-bit rewrite, which is flattened.
"""
import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np

import oracle
import oracle_checkpoint
import oracle_container as oc
import oracle_image

MEDIA_PAD = oc.N_RANKS + 6
SPECIALS = {0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>",
            6: "<|media_pad|>", 7: "<|media_begin|>", 8: "<|media_content|>", 9: "<|media_end|>"}
EPS = 2.0**-23


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def resized_grid(grid, height, width):
    """Bilinear, align_corners = false, no antialiasing. grid: [H][W][h] to [height][width][h]."""
    def axis(n, size):
        c = np.maximum((np.arange(n) + 0.5) * size / n - 0.5, 0)
        low = np.floor(c).astype(int)
        return low, np.minimum(low + 1, size - 1), c - low

    y0, y1, fy = axis(height, grid.shape[0])
    x0, x1, fx = axis(width, grid.shape[1])
    fx, fy = fx[None, :, None], fy[:, None, None]
    top = grid[y0][:, x0] * (1 - fx) + grid[y0][:, x1] * fx
    below = grid[y1][:, x0] * (1 - fx) + grid[y1][:, x1] * fx
    return top * (1 - fy) + below * fy


def rotary(x, rows, columns):
    """x: [L][heads][dim]. Pairs of values 4i, 4i + 1 turn by the column, 4i + 2, 4i + 3 by the row.
    Frequencies and angles are binary32."""
    dim = x.shape[-1]
    freq = (10000.0 ** (-4.0 * np.arange(dim // 4) / dim)).astype(np.float32)
    out = np.empty_like(x)
    for part, at in ((0, columns), (2, rows)):
        angle = (at.astype(np.float32)[:, None] * freq).astype(np.float64)[:, None]
        a, b = x[..., part::4], x[..., part + 1::4]
        out[..., part::4] = a * np.cos(angle) - b * np.sin(angle)
        out[..., part + 1::4] = a * np.sin(angle) + b * np.cos(angle)
    return out


class Tower:
    """swap, one_gelu: mistakes, so that tests can see that they would be noticed."""

    def __init__(self, path, swap=False, one_gelu=False):
        self.box = oc.Container(path)
        self.box.prefix = ""
        self.c = json.loads((Path(path) / "vision.json").read_text("ascii"))
        self.swap, self.one_gelu = swap, one_gelu

    def w(self, name):
        return self.box.tensor(name + ".weight")

    def embed(self, padded):
        c, h = self.c, self.c["vt_hidden_size"]
        rows, columns = (n // oracle_image.PATCH for n in padded.shape[:2])
        x = oracle_image.patches(padded, c["image_mean"], c["image_std"])
        x = x @ self.w("vision_tower.patch_embed.proj").reshape(h, -1).T
        grid = self.w("vision_tower.patch_embed.pos_emb").reshape(
            c["init_pos_emb_height"], c["init_pos_emb_width"], h)
        return x + resized_grid(grid, rows, columns).reshape(-1, h)

    def block(self, x, at, rows, columns):
        heads = self.c["vt_num_attention_heads"]
        qkv = oracle.rms_norm(x, self.w(at + "norm0"), EPS) @ self.w(at + "wqkv").T
        q, k, v = qkv.reshape(len(x), 3, heads, -1).swapaxes(0, 1)
        turn = (columns, rows) if self.swap else (rows, columns)
        q, k = rotary(q, *turn), rotary(k, *turn)
        s = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
        o = np.einsum("hij,jhd->ihd", oracle.softmax(s), v).reshape(len(x), -1)
        x = x + o @ self.w(at + "wo").T
        inner = gelu_tanh(oracle.rms_norm(x, self.w(at + "norm1"), EPS) @ self.w(at + "mlp.fc0").T)
        return x + inner @ self.w(at + "mlp.fc1").T

    def encode(self, padded):
        """uint8 [h][w][3] to [tokens][text hidden]."""
        height, width = (n // oracle_image.PATCH for n in padded.shape[:2])
        rows, columns = (a.ravel() for a in np.mgrid[0:height, 0:width])
        x = self.embed(padded)
        for i in range(self.c["vt_num_hidden_layers"]):
            x = self.block(x, f"vision_tower.encoder.blocks.{i}.", rows, columns)
        x = oracle.rms_norm(x, self.w("vision_tower.encoder.final_layernorm"), EPS)
        tiles = x.reshape(height // 2, 2, width // 2, 2, -1).transpose(0, 2, 1, 3, 4)
        tiles = tiles.reshape(height * width // 4, -1)
        y = tiles @ self.w("mm_projector.proj.0").T
        y = (gelu_tanh(y) if self.one_gelu else gelu_erf(y)) @ self.w("mm_projector.proj.2").T
        return oracle.rms_norm(y, self.w("mm_projector.post_norm"), 1e-5)


class Seeing(oracle.Model):
    """The language model, with rows in the place of the ids that are images'."""

    def forward_rows(self, ids, rows):
        """rows: [number of MEDIA_PAD in ids][hidden]."""
        table = self.w("model.embed_tokens.weight")
        x = table[ids].copy()
        x[np.asarray(ids) == MEDIA_PAD] = rows
        trace = oracle.Trace(list(ids))
        mixed = self.c.get("attn_res_block_size", 0) > 0
        x = self.mixed_layers(x, trace) if mixed else self.plain_layers(x, trace)
        trace.normed = self.norm(x, "model.norm")
        trace.logits = self.linear(trace.normed, "lm_head")
        return trace


def encoded(values, encoding):
    """(fmt, shape, payload, scales) of a vision tensor."""
    if values.ndim == 1:
        return oc.F32, values.shape, values.astype("<f4").tobytes(), b""
    if encoding == "rewritten":
        values = values.reshape(values.shape[0], -1) if values.ndim == 4 \
            else values.reshape(-1, values.shape[-1])
    fmt = oc.Q8G if encoding == "rewritten" else oc.Q4G
    payload, scales = oc.quantise(fmt, values.reshape(-1, values.shape[-1]))
    return fmt, values.shape, payload, scales


def add_tower(path, encoding, seed=11):
    """Give the container at path a tower, as converters append one."""
    path = Path(path)
    manifest = json.loads((path / "manifest.json").read_text("ascii"))
    hidden = oc.Container(path).config["hidden_size"]
    vision = {**oracle_checkpoint.VISION, "text_hidden_size": hidden}
    trunk = (path / "trunk.bin").read_bytes()
    for name, values in oracle_checkpoint.vision_tensors(oc.Draw(seed), vision).items():
        fmt, shape, payload, scales = encoded(values, encoding)
        entry = {"name": name, "fmt": fmt, "off": len(trunk), "shape": list(shape),
                 "bytes": len(payload) + len(scales)}
        if fmt != oc.F32:
            entry.update(group=oc.GROUP, scale_off=len(trunk) + len(payload))
        manifest["trunk"].append(entry)
        trunk += payload + scales
    (path / "trunk.bin").write_bytes(trunk)
    (path / "manifest.json").write_text(json.dumps(manifest, indent=1), "ascii")
    vision |= {"media_placeholder_token_id": MEDIA_PAD, "image_mean": [0.5] * 3,
               "image_std": [0.5] * 3, "max_patches": 64}
    (path / "vision.json").write_text(json.dumps(vision, indent=1), "ascii")
    specials = [{"id": oc.N_RANKS + i, "text": t} for i, t in SPECIALS.items()]
    (path / "specials.json").write_text(json.dumps(specials, indent=1), "ascii")


def make(path, encoding="stored"):
    oc.tiny("k3", path)
    add_tower(path, encoding)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    sub = parser.add_subparsers(required=True)
    p = sub.add_parser("make", help="a tiny K3 with a tower")
    p.add_argument("out")
    p.add_argument("--encoding", choices=["stored", "rewritten"], default="stored")
    p.set_defaults(run=lambda a: make(a.out, a.encoding))
    args = parser.parse_args()
    args.run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
