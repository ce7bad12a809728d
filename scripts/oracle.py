#!/usr/bin/env python3
"""oracle.py - what a forward pass computes, in float64, from the model specification alone.

    oracle.py golden-mini OUT [--vq4p]      build the golden mini container, check its digests
    oracle.py make FAMILY OUT [--seed N]    build a tiny container: kimi-linear k3 deepseek k2
    oracle.py eval DIR --ids "3 7 11"       logits after the last id; --layers-out, --json
    oracle.py goldens                       regenerate tests/golden

It is written to be unlike the engine it judges: whole prompts instead of steps, keys and values
expanded instead of absorbed, experts decoded to matrices instead of looked up in tables. x is
always [rows][width]; a weight is [outputs][inputs], so a linear layer is x @ W.T.
"""
import argparse
import hashlib
import json
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

import oracle_container as oc

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
MINI_IDS = [3, 7, 11, 5]
MARGIN = 1e-4  # a golden router decides by more than this, everywhere

# Primitives ---------------------------------------------------------------------------------


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.logaddexp(0, x)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rms_norm(x, w, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w


def l2_norm(x, eps):
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps)


def situ(g, u, beta=4.0, linear_beta=25.0):
    """SwiGLU with both branches bounded; the sigmoid sees the unbounded gate."""
    up = linear_beta * np.tanh(u / linear_beta) if linear_beta else u
    return beta * np.tanh(g / beta) * sigmoid(g) * up


def causal_conv(z, w):
    """Depthwise, last tap on the newest row, zeros before the first. z: [T][C], w: [C][taps]."""
    taps = w.shape[1]
    padded = np.vstack([np.zeros((taps - 1, z.shape[1])), z])
    return sum(w[:, i] * padded[i : i + len(z)] for i in range(taps))


# Kimi Delta Attention -------------------------------------------------------------------------


def decay_softplus(a_log, z):
    """Log decay of Kimi-Linear, in (-inf, 0)."""
    return -np.exp(a_log) * softplus(z)


def decay_bounded(a_log, z, lower):
    """Log decay of K3, in (lower, 0)."""
    return lower * sigmoid(np.exp(a_log) * z)


def kda_recurrent(q, k, v, g, beta, state):
    """The definition. q, k, v, g: [T][H][D]; beta: [T][H]; state: [H][D keys][D values].
    Returns (o [T][H][D], state)."""
    out = np.empty_like(v)
    for t in range(len(q)):
        state = np.exp(g[t])[:, :, None] * state
        error = v[t] - np.einsum("hkv,hk->hv", state, k[t])
        state = state + beta[t][:, None, None] * k[t][:, :, None] * error[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    return out, state


def kda_chunkwise(q, k, v, g, beta, state, chunk=16):
    """The same in chunks: one triangular solve in place of a chunk's steps. Exponents are
    differences of later and earlier sums of g, so none is positive."""
    out = np.empty_like(v)
    for a in range(0, len(q), chunk):
        s = slice(a, a + chunk)
        qc, kc, vc, b = (x[s].swapaxes(0, 1) for x in (q, k, v, beta))  # [H][n]...
        total = np.cumsum(g[s], axis=0).swapaxes(0, 1)
        n = total.shape[1]
        lower = np.tri(n, dtype=bool)[None, :, :, None]
        fade = np.exp(np.where(lower, total[:, :, None] - total[:, None], -np.inf))
        kk = np.einsum("hid,hjd,hijd->hij", kc, kc, fade) * b[:, :, None] * np.tri(n, k=-1)
        qk = np.einsum("hid,hjd,hijd->hij", qc, kc, fade)
        since = np.exp(total)
        fresh = np.linalg.solve(np.eye(n) + kk, b[:, :, None] * (vc - (since * kc) @ state))
        out[s] = ((since * qc) @ state + qk @ fresh).swapaxes(0, 1)
        until = np.exp(total[:, -1:] - total)
        state = since[:, -1][:, :, None] * state + (until * kc).swapaxes(1, 2) @ fresh
    return out, state


# Rotary positions -----------------------------------------------------------------------------


def yarn(dim, base, scaling):
    """(frequencies [dim/2], mu^2). scaling: the config's rope_scaling, or None."""
    s = scaling or {}
    j = np.arange(dim // 2)
    plain = float(base) ** (-2.0 * j / dim)
    factor = s.get("factor", 1)
    if factor <= 1:
        return plain, 1.0
    oc.need(s.get("type", s.get("rope_type")) == "yarn", "rope_scaling is not yarn")
    oc.need(s.get("mscale", 1) == s.get("mscale_all_dim", 0), "rope_scaling: the mscales differ")

    def corr(rotations):
        length = s.get("original_max_position_embeddings", 4096)
        return dim * np.log(length / (2 * np.pi * rotations)) / (2 * np.log(base))

    low = max(np.floor(corr(s.get("beta_fast", 32))), 0)
    high = min(np.ceil(corr(s.get("beta_slow", 1))), dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((j - low) / (high - low), 0, 1)
    mu = 0.1 * s.get("mscale_all_dim", 0) * np.log(factor) + 1
    return plain / factor * ramp + plain * (1 - ramp), mu * mu


def rotate(x, positions, freq):
    """Turn adjacent pairs. x: [T][...][dim]. Frequency and angle are binary32, as released."""
    angle = positions.astype(np.float32)[:, None] * freq.astype(np.float32)
    angle = angle.astype(np.float64).reshape(len(x), *[1] * (x.ndim - 2), -1)
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    out[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return out


# Router and attention residuals -----------------------------------------------------------------


def select(chosen_by, k, n_group=1, topk_group=1):
    """(ids in selection order, margin): the k largest of the topk_group best groups. margin is
    the smallest difference that a choice hung on."""
    score, margin = chosen_by.copy(), np.inf
    if n_group > 1:
        groups = np.sort(score.reshape(n_group, -1), axis=1)[:, -2:].sum(axis=1)
        ranked = np.argsort(-groups, kind="stable")
        if topk_group < n_group:
            margin = groups[ranked[topk_group - 1]] - groups[ranked[topk_group]]
        score.reshape(n_group, -1)[ranked[topk_group:]] = -np.inf
    ranked = np.argsort(-score, kind="stable")  # equal scores: the lower id first
    steps = -np.diff(score[ranked[: k + 1]])
    return ranked[:k], min(margin, steps.min(initial=np.inf))


def attn_res(blocks, p, w, eps):
    """Softmax mixture of the blocks and the running sum. Each: [T][h]; w = norm * projection."""
    v = np.stack([*blocks, p])
    rms = np.sqrt((v * v).mean(axis=-1) + eps)
    pi = softmax((v @ w / rms).T).T
    return (pi[:, :, None] * v).sum(axis=0)


# The model ----------------------------------------------------------------------------------


class Trace:
    """What a pass over ids left behind."""

    def __init__(self, ids):
        self.ids = ids
        self.layers = []   # per layer [T][h], as handed to the next one
        self.normed = None
        self.logits = None
        self.experts = []  # per MoE layer [T][K], selection order
        self.states = []   # per KDA layer [H][D][D], after the last id
        self.margin = np.inf
        self.pushes = []   # attention residuals: layers that pushed a block,
        self.mixes = 0     # and how often a mixture was taken


class Model:
    """A container ready to run. config: what to believe instead of its own."""

    def __init__(self, path, l2_eps=1e-6, latent_eps=None, kda=kda_recurrent, config=None):
        self.box = oc.Container(path)
        self.c = c = config or self.box.config
        self.eps = c.get("rms_norm_eps", 1e-5)
        self.l2_eps = l2_eps
        self.latent_eps = latent_eps or c.get("waste_latent_norm_eps", 1e-6)
        self.kda = kda
        self.lin = c.get("linear_attn_config") or {}
        self.kda_layers = {v - 1 for v in self.lin.get("kda_layers", [])}  # stored 1-based
        act = c.get("hidden_act", "silu")
        oc.need(act in ("silu", "situ"), f"hidden_act {act}")
        self.act = lambda g, u: silu(g) * u
        if act == "situ":
            betas = c.get("activation_situ_beta", 1.0), c.get("activation_situ_linear_beta", 0.0)
            self.act = lambda g, u: situ(g, u, *betas)

    def w(self, name):
        return self.box.tensor(name)

    def linear(self, x, name):
        return x @ self.w(name + ".weight").T

    def norm(self, x, name, eps=None):
        return rms_norm(x, self.w(name + ".weight").ravel(), eps or self.eps)

    def mix(self, trace, blocks, p, site):
        trace.mixes += 1
        w = self.w(site + "_norm.weight").ravel() * self.w(site + "_proj.weight").ravel()
        return attn_res(blocks, p, w, self.eps)

    def forward(self, ids):
        """All ids from an empty state. Returns the Trace."""
        trace = Trace(list(ids))
        x = self.w("model.embed_tokens.weight")[trace.ids]
        if self.c.get("attn_res_block_size", 0) > 0:
            x = self.mixed_layers(x, trace)
        else:
            x = self.plain_layers(x, trace)
        trace.normed = self.norm(x, "model.norm")
        trace.logits = self.linear(trace.normed, "lm_head")
        return trace

    def plain_layers(self, x, trace):
        for layer in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            x = x + self.attention(layer, self.norm(x, p + "input_layernorm"), trace)
            x = x + self.ffn(layer, self.norm(x, p + "post_attention_layernorm"), trace)
            trace.layers.append(x)
        return x

    def mixed_layers(self, x, trace):
        """The residual stream of K3: sub-layers read mixtures, the sums stay unmixed."""
        blocks = []
        for layer in range(self.c["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            p = x
            if blocks:
                x = self.mix(trace, blocks, p, at + "self_attention_res")
            if layer % self.c["attn_res_block_size"] == 0:
                trace.pushes.append(layer)
                blocks.append(p)
                p = None
            a = self.attention(layer, self.norm(x, at + "input_layernorm"), trace)
            p = a if p is None else p + a
            x = self.mix(trace, blocks, p, at + "mlp_res")
            p = p + self.ffn(layer, self.norm(x, at + "post_attention_layernorm"), trace)
            trace.layers.append(p)
            x = p
        return self.mix(trace, blocks, x, "model.output_attn_res")

    def attention(self, layer, x, trace):
        p = f"model.layers.{layer}.self_attn."
        return self.delta(p, x, trace) if layer in self.kda_layers else self.mla(p, x)

    def delta(self, p, x, trace):
        n_h, dim = self.lin["num_heads"], self.lin["head_dim"]

        def heads(y):
            return y.reshape(len(x), n_h, dim)

        q, k, v = (heads(silu(causal_conv(self.linear(x, p + s + "_proj"),
                                          self.w(p + s + "_conv1d.weight").reshape(n_h * dim, -1))))
                   for s in "qkv")
        z = self.linear(self.linear(x, p + "f_a_proj"), p + "f_b_proj")
        z = heads(z + self.w(p + "dt_bias").ravel())
        a_log = self.w(p + "A_log").ravel()[:n_h, None]  # one per head; K3 stores more
        lower = self.lin.get("gate_lower_bound") or 0
        g = decay_bounded(a_log, z, lower) if lower else decay_softplus(a_log, z)
        beta = sigmoid(self.linear(x, p + "b_proj"))
        q = l2_norm(q, self.l2_eps) / np.sqrt(dim)
        k = l2_norm(k, self.l2_eps)
        o, state = self.kda(q, k, v, g, beta, np.zeros((n_h, dim, dim)))
        trace.states.append(state)
        if self.lin.get("use_full_rank_gate") is True:
            gate = self.linear(x, p + "g_proj")
        else:
            gate = self.linear(self.linear(x, p + "g_a_proj"), p + "g_b_proj")
        o = self.norm(o, p + "o_norm") * sigmoid(heads(gate))
        return self.linear(o.reshape(len(x), -1), p + "o_proj")

    def mla(self, p, x):
        c, n_h = self.c, self.c["num_attention_heads"]
        nope, rope, latent = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        scale = (nope + rope) ** -0.5
        if c.get("q_lora_rank"):
            q = self.norm(self.linear(x, p + "q_a_proj"), p + "q_a_layernorm", self.latent_eps)
            q = self.linear(q, p + "q_b_proj")
        else:
            q = self.linear(x, p + "q_proj")
        q = q.reshape(len(x), n_h, nope + rope)
        q_n, q_r = q[..., :nope], q[..., nope:]
        kv = self.linear(x, p + "kv_a_proj_with_mqa")
        k_r = kv[:, latent:]
        kv = self.norm(kv[:, :latent], p + "kv_a_layernorm", self.latent_eps)
        kv = self.linear(kv, p + "kv_b_proj").reshape(len(x), n_h, -1)
        k_n, v = kv[..., :nope], kv[..., nope:]
        if c.get("mla_use_nope") is not True:
            freq, mu2 = yarn(rope, c.get("rope_theta", 10000), c.get("rope_scaling"))
            at = np.arange(len(x))
            q_r, k_r = rotate(q_r, at, freq), rotate(k_r, at, freq)
            scale *= mu2
        s = np.einsum("ihd,jhd->hij", q_n, k_n) + np.einsum("ihd,jd->hij", q_r, k_r)
        s = np.where(np.tri(len(x), dtype=bool), s * scale, -np.inf)
        o = np.einsum("hij,jhd->ihd", softmax(s), v).reshape(len(x), -1)
        if c.get("mla_use_output_gate") is True:
            o = o * sigmoid(self.linear(x, p + "g_proj"))
        return self.linear(o, p + "o_proj")

    def mlp(self, x, p):
        h = self.act(self.linear(x, p + "gate_proj"), self.linear(x, p + "up_proj"))
        return self.linear(h, p + "down_proj")

    def ffn(self, layer, u, trace):
        if layer < self.c.get("first_k_dense_replace", 0):
            return self.mlp(u, f"model.layers.{layer}.mlp.")
        p = f"model.layers.{layer}.block_sparse_moe."
        ids, weights = self.route(p, u, trace)
        latent = self.c.get("routed_expert_hidden_size") or 0
        z = self.linear(u, p + "routed_expert_down_proj") if latent else u
        y = np.zeros_like(z)
        for t, row in enumerate(ids):
            for j, e in enumerate(row):
                gate, up, down = self.box.experts(layer)[e]
                y[t] += weights[t, j] * (down @ self.act(gate @ z[t], up @ z[t]))
        if latent:
            if self.c.get("latent_moe_use_norm") is True:
                y = self.norm(y, p + "routed_expert_norm")
            y = self.linear(y, p + "routed_expert_up_proj")
        return y + self.mlp(u, p + "shared_experts.")

    def route(self, p, u, trace):
        """(ids [T][K] in selection order, weights [T][K])."""
        c, k = self.c, self.c["num_experts_per_token"]
        s = sigmoid(self.linear(u, p + "gate"))
        bias = p + "gate.e_score_correction_bias"
        biased = s + self.w(bias).ravel() if self.box.has(bias) else s
        n_group = c.get("num_expert_group", c.get("n_group", 1))
        picks = [select(row, k, n_group, c.get("topk_group", 1)) for row in biased]
        ids = np.array([p[0] for p in picks])
        trace.margin = min(trace.margin, *[p[1] for p in picks])
        trace.experts.append(ids)
        w = np.take_along_axis(s, ids, axis=1)  # the bias selects, it never weighs
        if c.get("moe_renormalize") is True and k > 1:
            w = w / (w.sum(axis=1, keepdims=True) + 1e-20)
        return ids, w * c.get("routed_scaling_factor", 1.0)


# Golden files -------------------------------------------------------------------------------


def write_gold(path, t):
    """The layout is in tests/golden/README.md."""
    def floats(x):
        return np.ascontiguousarray(x, "<f4").tobytes()

    layers = np.stack(t.layers)
    n_layers, n, hidden = layers.shape
    experts, states = np.array(t.experts, "<i4"), np.array(t.states, "<f4")
    n_moe, k = (experts.shape[0], experts.shape[2]) if t.experts else (0, 0)
    heads, dim = states.shape[1:3] if t.states else (0, 0)
    Path(path).write_bytes(b"".join([
        b"WGOLD1\0\0", struct.pack("<4I", n, n_layers, hidden, t.logits.shape[1]),
        np.array(t.ids, "<i4").tobytes(), floats(layers), floats(t.normed), floats(t.logits),
        struct.pack("<2I", n_moe, k), experts.tobytes(),
        struct.pack("<3I", len(t.states), heads, dim), floats(states)]))


def read_gold(path):
    """A golden file as a Trace of arrays."""
    data, at = Path(path).read_bytes(), 8

    def take(dtype, *shape):
        nonlocal at
        x = np.frombuffer(data, dtype, int(np.prod(shape)), at).reshape(shape)
        at += x.nbytes
        return x

    oc.need(data[:8] == b"WGOLD1\0\0", f"{path}: not a golden file")
    n, n_layers, hidden, vocab = (int(v) for v in take("<u4", 4))
    t = Trace(take("<i4", n).tolist())
    t.layers = take("<f4", n_layers, n, hidden)
    t.normed, t.logits = take("<f4", n, hidden), take("<f4", n, vocab)
    n_moe, k = (int(v) for v in take("<u4", 2))
    t.experts = take("<i4", n_moe, n, k)
    n_kda, heads, dim = (int(v) for v in take("<u4", 3))
    t.states = take("<f4", n_kda, heads, dim, dim)
    oc.need(at == len(data), f"{path}: {len(data)} bytes, its header needs {at}")
    return t


def golden_family(name, where):
    oc.tiny(name, where / f"{name}.waste")
    trace = Model(where / f"{name}.waste").forward(oc.golden_ids(name))
    oc.need(trace.margin > MARGIN, f"{name}: a router decides by {trace.margin:.1e}, "
            "give the family another seed")
    write_gold(where / f"{name}.gold", trace)
    return trace


def golden_minis(where):
    for name, vq4p in (("mini", False), ("mini-vq4p", True)):
        with tempfile.TemporaryDirectory() as box:
            oc.golden_mini(box, vq4p)
            write_gold(where / f"{name}.gold", Model(box).forward(MINI_IDS))


def mini_digests(path, vq4p):
    """[(file, ok)] for the files whose SHA-256 the specification gives."""
    want = oc.MINI_SHA256["vq4p" if vq4p else "vq3r"]
    return [(f, hashlib.sha256((Path(path) / f).read_bytes()).hexdigest() == h)
            for f, h in want.items()]


# Command line -------------------------------------------------------------------------------


def cmd_golden_mini(args):
    oc.golden_mini(args.out, args.vq4p)
    digests = mini_digests(args.out, args.vq4p)
    for file, ok in digests:
        print(f"{file}: {'ok' if ok else 'SHA-256 differs'}")
    return 0 if all(ok for _, ok in digests) else 1


def cmd_make(args):
    oc.tiny(args.family, args.out, args.seed)
    trace = Model(args.out).forward(oc.golden_ids(args.family))
    size = sum(f.stat().st_size for f in Path(args.out).iterdir())
    print(f"{args.out}: {size} bytes, smallest router margin {trace.margin:.2e}")
    if trace.margin > MARGIN:
        return 0
    print(f"{args.out}: a router decides by less than {MARGIN:g}, try another --seed",
          file=sys.stderr)
    return 1


def cmd_eval(args):
    kda = kda_chunkwise if args.kda == "chunkwise" else kda_recurrent
    ids = [int(i) for i in args.ids.replace(",", " ").split()]
    trace = Model(args.dir, args.l2_eps, args.latent_eps, kda).forward(ids)
    last = trace.logits[-1]
    if args.layers_out and args.layers_out.endswith(".npz"):
        np.savez(args.layers_out, ids=ids, layers=trace.layers, normed=trace.normed,
                 logits=trace.logits, experts=trace.experts, states=trace.states)
    elif args.layers_out:
        write_gold(args.layers_out, trace)
    if args.json:
        print(json.dumps({"ids": ids, "argmax": int(last.argmax()), "logits": last.tolist(),
                          "experts": [e[-1].tolist() for e in trace.experts],
                          "margin": trace.margin if trace.experts else None}))
        return 0
    print(f"argmax {last.argmax()}  L2 norm {np.linalg.norm(last):.6f}")
    for i in range(0, len(last), 8):
        print(f"{i:6d} " + " ".join(f"{v:10.6f}" for v in last[i : i + 8]))
    return 0


def cmd_goldens(args):
    where = Path(args.dir)
    where.mkdir(parents=True, exist_ok=True)
    golden_minis(where)
    for name in oc.FAMILIES:
        trace = golden_family(name, where)
        size = sum(f.stat().st_size for f in (where / f"{name}.waste").iterdir())
        print(f"{name}: container {size} bytes, smallest router margin {trace.margin:.2e}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    sub = parser.add_subparsers(required=True)

    p = sub.add_parser("golden-mini", help="build the golden mini container")
    p.add_argument("out")
    p.add_argument("--vq4p", action="store_true", help="the 4 x 64 variant")
    p.set_defaults(run=cmd_golden_mini)

    p = sub.add_parser("make", help="build a family's tiny container")
    p.add_argument("family", choices=list(oc.FAMILIES))
    p.add_argument("out")
    p.add_argument("--seed", type=int, help="default: the one the goldens use")
    p.set_defaults(run=cmd_make)

    p = sub.add_parser("eval", help="logits of a container after some token ids")
    p.add_argument("dir")
    p.add_argument("--ids", required=True, help='for example "3 7 11"')
    p.add_argument("--layers-out", help="FILE.npz, or any other name for the golden layout")
    p.add_argument("--json", action="store_true")
    p.add_argument("--l2-eps", type=float, default=1e-6)
    p.add_argument("--latent-eps", type=float, help="default: the manifest's, else 1e-6")
    p.add_argument("--kda", choices=["recurrent", "chunkwise"], default="recurrent")
    p.set_defaults(run=cmd_eval)

    p = sub.add_parser("goldens", help="regenerate the golden files")
    p.add_argument("--dir", default=GOLDEN)
    p.set_defaults(run=cmd_goldens)

    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
