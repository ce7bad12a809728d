#!/usr/bin/env python3
"""read_container.py - read a .waste container as docs/FORMAT.md describes it.

    scripts/read_container.py CONTAINER                     what is in it
    scripts/read_container.py CONTAINER --check             and all of it against every rule
    scripts/read_container.py CONTAINER --tokens            ids, kinds and bytes of all tokens
    scripts/read_container.py CONTAINER --dump NAME OUT     one matrix as numpy's .npy, f32

NAME is a tensor's name, codebook.N, or expert.LAYER.EXPERT.gate, .up or .down. Needs numpy.

This is a second reader: written from that page alone, it shares nothing with the C one, and the
tests hold the two against each other. A letter and a number (T8) is the rule of its section 9
that was broken; section numbers below are that page's. It reads files as a whole where that is
simplest, and is meant for understanding a container, not for running one.
"""
import argparse
import base64
import json
import math
import os
import stat
import sys
import zlib

import numpy as np

MIB = 1 << 20
FORMATS = {0: "F32", 2: "Q8G", 3: "Q4G", 7: "Q3G"}
MATRICES = ("gate", "up", "down")


class Refused(Exception):
    """What a file says is against a rule."""

    def __init__(self, rule, what):
        super().__init__(f"{what} ({rule})")
        self.rule = rule


def demand(truth, rule, what):
    if not truth:
        raise Refused(rule, what)


# ---- 3. manifest.json ---------------------------------------------------------------------------


def parse_json(data, name, limit=64 * MIB):
    """One object in plain JSON (J2 to J6), whole numbers as int."""

    def members(pairs):
        out = {}
        for key, value in pairs:
            demand(key not in out, "J5", f"{name}: key {key!r} twice in an object")
            out[key] = value
        return out

    def number(text):
        value = float(text)
        demand(math.isfinite(value), "J6", f"{name}: {text} is not finite")
        return int(value) if value.is_integer() and abs(value) < 2 ** 53 else value

    def bad(text):
        raise Refused("J3", f"{name}: {text} is no JSON")

    def depth(value, level=0):
        demand(level <= 64, "J4", f"{name}: nested deeper than 64")
        for x in value.values() if isinstance(value, dict) else value:
            if isinstance(x, (dict, list)):
                depth(x, level + 1)

    demand(0 < len(data) <= limit, "J2", f"{name}: {len(data)} bytes, not 1 to {limit}")
    try:
        tree = json.loads(data.decode("utf-8"), object_pairs_hook=members, parse_float=number,
                          parse_constant=bad)
    except RecursionError:
        raise Refused("J4", f"{name}: nested deeper than 64") from None
    except ValueError as why:
        raise Refused("J3", f"{name}: {why}") from None
    if isinstance(tree, (dict, list)):
        depth(tree)
    return tree


def member(table, key, kind, default, where):
    """table[key], checked; absent or null it has its default. kind: int, float, str, list..."""
    value = table.get(key)
    if value is None:
        return default
    if kind is bool:
        demand(isinstance(value, bool), "F4", f"{where}.{key}: {value!r} is no flag")
        return value
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        demand(number, "J8", f"{where}.{key}: {value!r} is no number")
        demand(isinstance(value, int) and abs(value) < 2 ** 53, "J6",
               f"{where}.{key}: {value!r} is no integer below 2^53")
    else:
        demand(number if kind is float else isinstance(value, kind), "J8",
               f"{where}.{key}: {value!r} is no {kind.__name__}")
    return value


def whole(value):
    """An integer as the format knows it; true and false are none."""
    return type(value) is int and abs(value) < 2 ** 53


def integer(table, key, low, high, default=0, where="config", also=None):
    """also: the name it has in DeepSeek's releases. default None: there has to be one."""
    if also and table.get(key) is None:
        key = also
    elif also and table.get(also) is not None:
        other = table[also]
        demand(not whole(other) or not whole(table[key]) or other == table[key], "F1",
               f"{where}: {key} is {table[key]!r}, but {also} is {other!r}")
    value = member(table, key, int, default, where)
    demand(value is not None, "J8", f"{where}.{key} is absent")
    demand(low <= value <= high, "F1", f"{where}.{key}: {value}, not {low}...{high}")
    return value


def real(table, key, low, high, default=0, where="config"):
    value = member(table, key, float, default, where)
    demand(low <= value <= high, "F2", f"{where}.{key}: {value}, not {low}...{high}")
    return value


def only(table, key, *known):
    """What a release may ask for and nobody here computes is refused by name."""
    value = table.get(key)
    demand(value is None or any(type(value) is type(k) and value == k for k in known), "F7",
           f"config.{key}: {value!r}; {known[0]!r} is what there is")


class Shape:
    """What config and expert_quant say about the sizes of everything else (3.2, 3.3)."""

    def __init__(self, config, quant):
        big = 2 ** 20
        self.n_layers = n = integer(config, "num_hidden_layers", 1, 128)
        self.hidden = integer(config, "hidden_size", 1, big)
        self.vocab = integer(config, "vocab_size", 1, 2 ** 24)
        self.heads = integer(config, "num_attention_heads", 1, 65536)
        self.experts = integer(config, "num_experts", 0, 65535, also="n_routed_experts")
        self.first_dense = integer(config, "first_k_dense_replace", 0, n)
        self.moe = list(range(self.first_dense, n)) if self.experts else []
        self.top_k = integer(config, "num_experts_per_token", 1 if self.moe else 0,
                             min(self.experts, 64) if self.experts else 64,
                             also="num_experts_per_tok")
        self.inter = integer(config, "moe_intermediate_size", 1 if self.moe else 0, big)
        self.dense = integer(config, "intermediate_size", 1 if len(self.moe) < n else 0, big)
        shared = integer(config, "num_shared_experts", 0, 64, also="n_shared_experts")
        self.shared = max(1, shared) * self.inter
        demand(self.shared < 2 ** 31, "F6", f"config: {shared} shared experts of {self.inter}")
        self.latent = integer(config, "routed_expert_hidden_size", 0, big)
        self.lat = self.latent or self.hidden
        self.latent_norm = member(config, "latent_moe_use_norm", bool, False, "config")
        self.residuals = integer(config, "attn_res_block_size", 0, n)
        self.attention(config, big)
        self.quant(quant)
        self.arithmetic(config)

    def arithmetic(self, config):
        """What changes no size (3.2), held to its bounds all the same."""
        for name, usual in (("rms_norm_eps", 1e-5), ("waste_latent_norm_eps", 1e-6)):
            real(config, name, 1e-30, math.nextafter(1, 0), usual)
        if member(config, "hidden_act", str, "silu", "config") == "situ":
            real(config, "activation_situ_beta", math.nextafter(0, 1), 1e30, 1)
            real(config, "activation_situ_linear_beta", 0, 1e30, 0)
        only(config, "hidden_act", "silu", "situ")
        only(config, "attention_bias", False)
        ids = config.get("eos_token_id")
        ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
        demand(len(ids) <= 16, "F1", f"config.eos_token_id: {len(ids)} ids")
        for i in ids:
            demand(type(i) is int and 0 <= i < self.vocab, "F1", f"config.eos_token_id: {i!r}")
        if len(self.kda) < self.n_layers:
            self.rotation(config)
        if self.experts:
            self.routing(config)

    def rotation(self, config):
        demand(config.get("kv_lora_rank") is not None, "F7", "config: no kv_lora_rank")
        only(config, "num_key_value_heads", self.heads)
        nope = config.get("mla_use_nope", False)
        demand(isinstance(nope, bool), "F4", f"config.mla_use_nope: {nope!r} is no flag")
        if nope or not self.rope:
            return
        demand(self.rope % 2 == 0 and self.rope <= 128, "F1",
               f"config.qk_rope_head_dim: {self.rope}, not an even number up to 128")
        real(config, "rope_theta", math.nextafter(0, 1), math.inf, 10000)
        only(config, "rope_interleave", True)
        yarn, where = member(config, "rope_scaling", dict, {}, "config"), "config.rope_scaling"
        if not yarn:
            return
        kind = member(yarn, "type", str, None, where) or member(yarn, "rope_type", str, None, where)
        demand(kind == "yarn", "F7", f"{where}: type {kind!r}")
        above = math.nextafter(0, 1)
        factor = real(yarn, "factor", above, math.inf, 1, where)
        for name, usual in (("original_max_position_embeddings", 4096), ("beta_fast", 32),
                            ("beta_slow", 1)):
            real(yarn, name, above, math.inf, usual, where)
        scale = [real(yarn, name, -math.inf, math.inf, usual, where)
                 for name, usual in (("mscale", 1), ("mscale_all_dim", 0))]
        demand(factor <= 1 or scale[0] == scale[1], "F7", f"{where}: mscale {scale[0]}, "
               f"mscale_all_dim {scale[1]}")

    def routing(self, config):
        renorm = "moe_renormalize" if "moe_renormalize" in config else "norm_topk_prob"
        member(config, renorm, bool, False, "config")
        real(config, "routed_scaling_factor", -1e30, 1e30, 1)
        only(config, "moe_router_activation_func", "sigmoid")
        only(config, "scoring_func", "sigmoid")
        only(config, "topk_method", "noaux_tc")
        only(config, "moe_layer_freq", 1)
        demand(self.latent or not self.latent_norm, "F1",
               "config: latent_moe_use_norm without routed_expert_hidden_size")
        groups = integer(config, "num_expert_group", 0, 65536, 1, also="n_group") or 1
        chosen = integer(config, "topk_group", 0, 65536, 1) or 1
        fits = self.experts % groups == 0 and chosen <= groups and \
            (groups == 1 or self.experts // groups >= 2)
        demand(fits and self.top_k <= chosen * (self.experts // groups), "F9",
               f"config: {groups} groups of {self.experts} experts, {chosen} chosen for "
               f"{self.top_k}")

    def attention(self, config, big):
        linear = member(config, "linear_attn_config", dict, {}, "config")
        where = "config.linear_attn_config"
        kda = member(linear, "kda_layers", list, [], where)
        full = member(linear, "full_attn_layers", list, None, where)
        both = kda + (full or [])
        demand(len(set(map(str, both))) == len(both), "F5", f"{where}: a layer is named twice")
        for v in both:
            demand(isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= self.n_layers,
                   "F5", f"{where}: {v!r} is none of the layers 1...{self.n_layers}")
        demand(full is None or len(both) == self.n_layers, "F5",
               f"{where}: kda_layers and full_attn_layers name {len(both)} of "
               f"{self.n_layers} layers")
        self.kda = {v - 1 for v in kda}
        some = 1 if kda else 0
        self.kda_heads = integer(linear, "num_heads", some, 65536, where=where)
        self.kda_dim = integer(linear, "head_dim", some, 4096, where=where)
        demand(self.kda_heads * self.kda_dim <= 2 ** 20, "F6",
               f"{where}: {self.kda_heads} heads of {self.kda_dim} channels")
        real(linear, "gate_lower_bound", -80, 0, 0, where)
        self.taps = integer(linear, "short_conv_kernel_size", some, 64, 4, where)
        self.full_gate = member(linear, "use_full_rank_gate", bool, False, where)
        some = 1 if len(self.kda) < self.n_layers else 0
        self.kv_lora = integer(config, "kv_lora_rank", some, big)
        self.v_dim = integer(config, "v_head_dim", some, big)
        self.nope = integer(config, "qk_nope_head_dim", 0, big)
        self.rope = integer(config, "qk_rope_head_dim", 0, big)
        demand(self.nope + self.rope >= some, "F1", "config: qk_nope_head_dim and "
               "qk_rope_head_dim are both 0")
        demand(self.heads * (self.nope + max(self.rope, self.v_dim)) < 2 ** 31, "F6",
               f"config: {self.heads} heads of {self.nope} + {self.rope}, {self.v_dim} columns")
        self.q_lora = integer(config, "q_lora_rank", 0, big)
        self.mla_gate = member(config, "mla_use_output_gate", bool, False, "config")

    def quant(self, quant):
        def q(key, low, high, default):
            return integer(quant, key, low, high, default, "expert_quant")

        self.stages, self.dim = q("stages", 1, 8, 3), q("vec_dim", 8, 8, 8)
        self.entries, self.bits = q("entries", 1, 256, 256), q("index_bits", 6, 8, 8)
        self.cell = 3 if self.bits == 6 else self.stages
        self.notes = []
        if not self.moe:
            return
        block = q("index_block", 0, 2 ** 20, 0)
        demand(block == 64, "F8", f"expert_quant.index_block: {block}; this reader knows 64")
        demand(self.bits == 8 or (self.bits, self.stages, self.entries) == (6, 4, 64), "F8",
               f"expert_quant: {self.bits} bits with {self.stages} stages of {self.entries}")
        self.described(quant)
        for name in ("lat", "inter"):
            demand(getattr(self, name) % 8 == 0, "F8",
                   f"{name} is {getattr(self, name)}, no multiple of vec_dim")

    def described(self, quant):
        """The two members that are only for people to read (3.3)."""
        names = {"VQ4P"} if self.bits == 6 else {2: {"VQ2R"}, 3: {"VQ3R"}}.get(
            self.stages, {"VQ2R", "VQ3R"})
        fmt, weight = quant.get("fmt"), quant.get("bits_per_weight")
        if fmt is not None and (not isinstance(fmt, str) or fmt not in names):
            self.notes.append(f"expert_quant.fmt is {fmt!r}, which nothing else here says")
        if weight is not None and (type(weight) not in (int, float) or
                                   abs(weight - self.stages * self.bits / 8) >= 1e-6):
            self.notes.append(f"expert_quant.bits_per_weight is {weight!r}, which nothing else "
                              "here says")

    def matrix(self, m):
        """Rows and columns of gate, up or down (6.2)."""
        return (self.lat, self.inter) if m == 2 else (self.inter, self.lat)

    def offsets(self):
        """Where the three streams and the scales begin, the bytes in use, the size (6.1, 6.3)."""
        at = [48]
        for m in range(3):
            rows, columns = self.matrix(m)
            at.append(at[-1] + (rows + 63) // 64 * (columns // 8) * 64 * self.cell)
        used = at[3] + 2 * (2 * self.inter + self.lat)
        return at, used, (used + 4095) // 4096 * 4096

    def tensors(self):
        """Section 4.3: (name after the prefix, class, shape), in no particular order."""
        hidden, residuals = [self.hidden], self.residuals
        yield from (("model.embed_tokens.weight", "M", [self.vocab, self.hidden]),
                    ("lm_head.weight", "M", [self.vocab, self.hidden]),
                    ("model.norm.weight", "V", hidden))
        if residuals:
            yield from ((f"model.output_attn_res_{x}.weight", "V", hidden)
                        for x in ("norm", "proj"))
        for layer in range(self.n_layers):
            for name, kind, shape in (*self.layer_norms(), *self.mixer(layer), *self.mlp(layer)):
                yield f"model.layers.{layer}.{name}", kind, shape

    def layer_norms(self):
        names = ["input_layernorm", "post_attention_layernorm"]
        if self.residuals:
            names += ["self_attention_res_norm", "self_attention_res_proj", "mlp_res_norm",
                      "mlp_res_proj"]
        return [(f"{name}.weight", "V", [self.hidden]) for name in names]

    def mixer(self, layer):
        h, nh = self.hidden, self.heads
        if layer in self.kda:
            d, c = self.kda_dim, self.kda_heads * self.kda_dim
            out = [(f"{x}_proj.weight", "M", [c, h]) for x in "qkv"]
            out += [(f"{x}_conv1d.weight", "A", [c, self.taps]) for x in "qkv"]
            out += [("f_a_proj.weight", "M", [d, h]), ("f_b_proj.weight", "M", [c, d]),
                    ("b_proj.weight", "M", [self.kda_heads, h]), ("A_log", "A", [self.kda_heads]),
                    ("dt_bias", "A", [c]), ("o_norm.weight", "V", [d]),
                    ("o_proj.weight", "M", [h, c])]
            out += [("g_proj.weight", "M", [c, h])] if self.full_gate else \
                [("g_a_proj.weight", "M", [d, h]), ("g_b_proj.weight", "M", [c, d])]
        else:
            qd, rank, v = self.nope + self.rope, self.q_lora, self.v_dim
            out = [("q_a_proj.weight", "M", [rank, h]), ("q_a_layernorm.weight", "V", [rank]),
                   ("q_b_proj.weight", "M", [nh * qd, rank])] if rank else \
                [("q_proj.weight", "M", [nh * qd, h])]
            out += [("kv_a_proj_with_mqa.weight", "M", [self.kv_lora + self.rope, h]),
                    ("kv_a_layernorm.weight", "V", [self.kv_lora]),
                    ("kv_b_proj.weight", "M", [nh * (self.nope + v), self.kv_lora]),
                    ("o_proj.weight", "M", [h, nh * v])]
            if self.mla_gate:
                out.append(("g_proj.weight", "M", [nh * v, h]))
        return [(f"self_attn.{name}", kind, shape) for name, kind, shape in out]

    def mlp(self, layer):
        def swiglu(prefix, inner):
            return [(f"{prefix}.{x}_proj.weight", "M",
                     [self.hidden, inner] if x == "down" else [inner, self.hidden])
                    for x in MATRICES]

        if layer not in self.moe:
            return swiglu("mlp", self.dense)
        out = [("gate.weight", "M", [self.experts, self.hidden]),
               *swiglu("shared_experts", self.shared)]
        if self.latent:
            out += [("routed_expert_down_proj.weight", "M", [self.lat, self.hidden]),
                    ("routed_expert_up_proj.weight", "M", [self.hidden, self.lat])]
            if self.latent_norm:
                out.append(("routed_expert_norm.weight", "V", [self.lat]))
        return [(f"block_sparse_moe.{name}", kind, shape) for name, kind, shape in out]


# ---- 4. trunk.bin -------------------------------------------------------------------------------


def finite(halves, rule, what):
    out = halves.astype(np.float32)
    demand(np.isfinite(out).all(), rule, f"{what} is not finite")
    return out


class Tensor:
    """An entry of the trunk's directory: checked alone (T1 to T8), read when asked for."""

    def __init__(self, entry, index, file_bytes):
        where = f"trunk[{index}]"
        demand(isinstance(entry, dict), "J8", f"{where}: no object")
        self.name = name = entry.get("name")
        demand(isinstance(name, str) and 0 < len(name.encode()) <= 255 and
               all(c >= " " and c != "\x7f" for c in name), "T1", f"{where}: name {name!r}")
        self.where = where = f"trunk.bin: {name}"
        self.fmt = integer(entry, "fmt", -2 ** 53, 2 ** 53, None, where)
        demand(self.fmt in FORMATS, "T3", f"{where}: format {self.fmt}")
        shape = self.shape = entry.get("shape")
        demand(isinstance(shape, list) and 1 <= len(shape) <= 4 and all(
            isinstance(d, int) and not isinstance(d, bool) and 1 <= d <= 2 ** 26 for d in shape),
            "T4", f"{where}: shape {shape!r}")
        self.columns, self.elements = shape[-1], math.prod(shape)
        self.rows = self.elements // self.columns
        demand(self.elements <= 8 * file_bytes, "T4",
               f"{where}: {self.elements} elements in a file of {file_bytes} bytes")
        self.groups = (self.columns + 127) // 128
        self.spans, want = self.layout(entry)
        size = integer(entry, "bytes", 0, 2 ** 53, None, where)
        demand(size == want, "T8", f"{where}: bytes is {size}, {FORMATS[self.fmt]} of {shape} "
               f"takes {want}")
        for first, last in self.spans:
            demand(last <= file_bytes, "T6",
                   f"{where}: bytes {first} to {last} of a file of {file_bytes}")
        if len(self.spans) == 2:
            (a, b), (c, d) = sorted(self.spans)
            demand(b <= c, "T7", f"{where}: payload and scales overlap")

    def layout(self, entry):
        off = integer(entry, "off", 0, 2 ** 53, None, self.where)
        if self.fmt == 0:
            return [(off, off + 4 * self.elements)], 4 * self.elements
        group = integer(entry, "group", 0, 2 ** 53, None, self.where)
        demand(group == 128, "T5", f"{self.where}: group {group}, not 128")
        at = integer(entry, "scale_off", 0, 2 ** 53, None, self.where)
        self.row_bytes = {2: 128 * self.groups, 3: 64 * self.groups, 7: 48 * self.groups + 1}[
            self.fmt]
        payload, scales = self.rows * self.row_bytes, 2 * self.rows * self.groups
        return [(off, off + payload), (at, at + scales)], payload + scales

    def read(self, trunk):
        """Its values, f32, in its own shape (4.1)."""
        first, last = self.spans[0]
        payload = np.frombuffer(trunk[first:last], np.uint8)
        if self.fmt == 0:
            out = finite(payload.view("<f4"), "T13", f"{self.where}: a value")
            return out.reshape(self.shape)
        first, last = self.spans[1]
        scales = finite(np.frombuffer(trunk[first:last], "<f2"), "T13", f"{self.where}: a scale")
        rows = payload.reshape(self.rows, self.row_bytes)
        if self.fmt == 2:
            q = rows.view(np.int8)
        elif self.fmt == 3:
            q = np.stack((rows & 15, rows >> 4), -1).reshape(self.rows, -1).astype(np.int8) - 8
        else:
            bits = np.unpackbits(rows[:, :-1], axis=1, bitorder="little")
            q = bits.reshape(self.rows, -1, 3) @ np.array([1, 2, 4], np.uint8)
            q = q.astype(np.int8) - 4
        q = q.astype(np.float32).reshape(self.rows, self.groups, 128)
        out = q * scales.reshape(self.rows, self.groups, 1)
        return out.reshape(self.rows, -1)[:, :self.columns].reshape(self.shape)


# ---- the container ------------------------------------------------------------------------------


class Container:
    def __init__(self, path):
        self.path = path
        demand(os.path.isdir(path), "J1", f"{path}: no such directory")
        demand(os.path.exists(self.at("manifest.json")), "J1", f"{path}: no manifest.json; "
               "was its conversion interrupted?")
        self.manifest = manifest = parse_json(self.slurp("manifest.json", "J2"), "manifest.json")
        demand(isinstance(manifest, dict), "J8", "manifest.json: no object")
        version = manifest.get("format_version")
        demand(version == 0 and not isinstance(version, bool), "J7",
               f"manifest.json: format_version {version!r}, this reader knows 0")
        config = member(manifest, "config", dict, None, "manifest.json")
        demand(config is not None, "J8", "manifest.json: no config")
        self.prefix = member(manifest, "tensor_prefix", str, "", "manifest.json")
        outer = member(config, "_outer", dict, {}, "config")
        if member(config, "text_config", dict, None, "config") is not None:  # as released
            outer, config = config, config["text_config"]
            self.prefix = self.prefix or "language_model."
        self.config, self.arch = config, self.architecture(outer, config)
        self.shape = Shape(config, member(manifest, "expert_quant", dict, {}, "manifest.json"))
        self.trunk = self.map("trunk.bin", "J1")
        self.tensors = self.read_directory()
        self.drives = self.read_drives()
        self.banks = {}
        if self.shape.moe:
            self.codebooks = self.map("codebooks.bin", "C1")
            self.read_banks()

    def architecture(self, *configs):
        for config in configs:
            names = member(config, "architectures", list, [], "config")
            if names:
                demand(isinstance(names[0], str), "J8", f"config.architectures: {names[0]!r}")
                return names[0]
        return member(self.manifest, "arch", str, "-", "manifest.json")

    def at(self, name):
        return os.path.join(self.path, name)

    def slurp(self, name, rule, limit=64 * MIB):
        with self.open(self.at(name), name, rule) as f:
            return f.read(limit + 1)

    @staticmethod
    def open(path, name, rule):
        try:
            f = open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK))
        except OSError as why:
            raise Refused(rule, f"{name}: {why.strerror}") from None
        if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
            f.close()
            raise Refused(rule, f"{name}: not a regular file")
        return f

    def map(self, name, rule, path=None):
        """A file's bytes, read when they are looked at."""
        with self.open(path or self.at(name), name, rule) as f:
            if not os.fstat(f.fileno()).st_size:
                return np.zeros(0, np.uint8)
            return np.memmap(f, np.uint8, "r")

    # -- the trunk

    def read_directory(self):
        entries = member(self.manifest, "trunk", list, [], "manifest.json")
        demand(entries, "J8", "manifest.json: no trunk")
        tensors, spans = {}, []
        for i, entry in enumerate(entries):
            t = Tensor(entry, i, len(self.trunk))
            demand(t.name not in tensors, "T2", f"{t.where}: twice")
            tensors[t.name] = t
            spans += [(first, last, t.name) for first, last in t.spans]
        spans.sort()
        for (_, last, a), (first, _, b) in zip(spans, spans[1:]):
            demand(last <= first, "T9", f"trunk.bin: {a} and {b} overlap")
        self.check_needed(tensors)
        return tensors

    def check_needed(self, tensors):
        for name, kind, shape in self.shape.tensors():
            t = tensors.get(self.prefix + name)
            demand(t, "T10", f"trunk.bin: {self.prefix}{name} is missing")
            n = math.prod(shape)
            fits = t.shape == shape if kind == "M" else \
                t.fmt == 0 and (t.elements == n or kind == "A" and t.elements > n)
            demand(fits, "T10", f"{t.where}: {FORMATS[t.fmt]} of {t.shape}, not "
                   f"{'any format' if kind == 'M' else 'F32'} of {shape}")
        for layer in range(self.shape.n_layers):
            base = f"{self.prefix}model.layers.{layer}.block_sparse_moe.gate."
            bias = tensors.get(base + "e_score_correction_bias")
            demand(layer in self.shape.moe or base + "weight" not in tensors, "T12",
                   f"trunk.bin: {base}weight: layer {layer} is dense")
            demand(not bias or layer not in self.shape.moe or
                   bias.fmt == 0 and bias.elements == self.shape.experts, "T11",
                   f"{bias and bias.where}: {bias and bias.shape}, not {self.shape.experts}")

    # -- codebooks (5)

    def codebook(self, n):
        """Record n: entries x 8, f32."""
        s = self.shape
        size = 16 + 2 * s.entries * s.dim
        record = self.codebooks[n * size:(n + 1) * size].tobytes()
        demand(len(record) == size, "C6", f"codebooks.bin: no record {n}")
        found = (record[:4], int.from_bytes(record[4:6], "little"), record[7],
                 int.from_bytes(record[8:12], "little"))
        want = (b"WCBK", n % 65536, s.dim, s.entries)
        demand(found == want, "C4", f"codebooks.bin: record {n}: header says {found}, "
               f"the manifest {want}")
        vectors = finite(np.frombuffer(record[16:], "<f2"), "C5",
                         f"codebooks.bin: record {n}: an entry")
        return vectors.reshape(s.entries, s.dim)

    # -- banks (3.4, 6, and 8 for experts over several drives)

    def read_drives(self):
        if not os.path.exists(self.at("drives.json")):
            return None
        tree = parse_json(self.slurp("drives.json", "J2"), "drives.json")
        demand(isinstance(tree, dict) and tree.get("version") == 1, "J7",
               "drives.json: no object of version 1")
        drives = member(tree, "drives", list, [], "drives.json")
        spread = member(tree, "layers", list, [], "drives.json")
        demand(1 <= len(drives) <= 16, "F1", f"drives.json: {len(drives)} drives")
        shares = [integer(d, "share", 1 if i else 0, 16, None, f"drives[{i}]")
                  for i, d in enumerate(drives)]
        for i, d in enumerate(drives):
            folder = member(d, "dir", str, "", f"drives[{i}]")
            demand(os.path.isabs(folder) if i else folder == ".", "F1",
                   f"drives.json: drive {i} is {folder!r}")
            if i:
                path = os.path.join(folder, "waste-drive.json")
                with self.open(path, path, "J1") as f:
                    mark = parse_json(f.read(MIB + 1), path, MIB)
                demand(isinstance(mark, dict) and (mark.get("set"), mark.get("drive")) ==
                       (tree.get("set"), i), "J8", f"{path}: not drive {i} of this container")
        account, dealt = [0] * len(shares), []
        for _ in range(sum(shares)):
            account = [a + s for a, s in zip(account, shares)]
            dealt.append(account.index(max(account)))
            account[dealt[-1]] -= sum(shares)
        return {"dirs": [d["dir"] for d in drives], "dealt": dealt, "layers": set(spread)}

    def read_banks(self):
        s = self.shape
        size = 16 + 2 * s.entries * s.dim
        n_records = len(self.codebooks) // size
        demand(len(self.codebooks) % size == 0, "C2", f"codebooks.bin: {len(self.codebooks)} "
               f"bytes are no multiple of a record's {size}")
        demand(n_records <= 65535 + 3 * s.stages and len(self.codebooks) <= 1 << 30, "C3",
               f"codebooks.bin: {n_records} records")
        layers = member(self.manifest, "layers", dict, {}, "manifest.json")
        for key in layers:
            demand(key.isascii() and key.isdigit() and str(int(key)) == key, "B1",
                   f"layers: {key!r} is no layer's number")
            demand(int(key) >= s.n_layers or int(key) in s.moe, "B1",
                   f"layers.{key}: a bank for a dense layer")
        files, bases = {}, []
        for layer in s.moe:
            entry = member(layers, str(layer), dict, None, "layers")
            demand(entry, "B1", f"layers: none for layer {layer}; was this converted in part?")
            where = f"layers.{layer}"
            base = integer(entry, "codebook_base", 0, 65535, None, where)
            demand(base + 3 * s.stages <= min(n_records, 65536), "C6",
                   f"{where}: codebooks {base}...{base + 3 * s.stages - 1} of {n_records}")
            bases.append((base, layer))
            self.banks[layer] = self.open_bank(layer, entry, base, files)
        bases.sort()
        for (a, la), (b, lb) in zip(bases, bases[1:]):
            demand(a + 3 * s.stages <= b, "C7", f"layers {la} and {lb} share codebooks")

    def open_bank(self, layer, entry, base, files):
        s, where = self.shape, f"layers.{layer}"
        name = member(entry, "file", str, "", where)
        demand(0 < len(name.encode()) <= 255 and name[0] != "." and not set(name) & set("/\\:") and
               all(c >= " " and c != "\x7f" for c in name), "B2", f"{where}: file {name!r}")
        demand(files.setdefault(name, layer) == layer, "B7",
               f"{name}: for layers {files[name]} and {layer}")
        n = integer(entry, "experts", 0, 65535, None, where)
        total = integer(entry, "bytes", 0, 2 ** 53, None, where)
        demand(n == s.experts, "B4", f"{where}: {n} experts, config says {s.experts}")
        demand(total > 0 and total % n == 0, "B4", f"{where}: {total} bytes for {n} experts")
        size = s.offsets()[2]
        demand(total // n == size, "B6", f"{where}: {total // n} bytes an expert, the shapes "
               f"take {size}")
        if self.drives and layer in self.drives["layers"]:
            return {"base": base, "places": self.pieces(layer, size)}
        bank = self.map(name, "B3")
        demand(len(bank) == total, "B5", f"{name}: {len(bank)} bytes, the manifest says {total}: "
               f"{'a copy that did not finish' if len(bank) < total else 'of another conversion'}?")
        return {"base": base, "places": [(bank, e * size) for e in range(n)]}

    def pieces(self, layer, size):
        dealt = self.drives["dealt"]
        owner = [dealt[e % len(dealt)] for e in range(self.shape.experts)]
        files = {}
        for drive in sorted(set(owner)):
            path = os.path.join(self.path, self.drives["dirs"][drive], f"experts-L{layer}.piece")
            files[drive] = piece = self.map(path, "B3", path)
            demand(len(piece) == owner.count(drive) * size, "B5", f"{path}: {len(piece)} bytes, "
                   f"not {owner.count(drive)} records of {size}")
        return [(files[d], owner[:e].count(d) * size) for e, d in enumerate(owner)]

    def record(self, layer, expert):
        """The bytes of a record whose every field and checksum is as it has to be (6.1)."""
        demand(layer in self.banks, "B1", f"layer {layer} has no experts")
        demand(0 <= expert < self.shape.experts, "R1", f"layer {layer} has no expert {expert}")
        s, (at, used, size) = self.shape, self.shape.offsets()
        where = f"layer {layer} expert {expert}"
        file, first = self.banks[layer]["places"][expert]
        record = file[first:first + size].tobytes()
        demand(len(record) == size, "R1", f"{where}: {len(record)} bytes of {size}")
        demand(record[:4] == b"WEXP", "R2", f"{where}: magic {record[:4]!r}")

        def field(first, last):
            return int.from_bytes(record[first:last], "little")

        found = (field(4, 6), field(6, 8))
        demand(found == (layer, expert), "R3", f"{where}: header says layer {found[0]} expert "
               f"{found[1]}; were banks swapped?")
        demand(field(16, 20) == size // 4096, "R4", f"{where}: {field(16, 20)} pages")
        demand(record[8] in ((8,) if s.bits == 6 else (4, 5)), "R5",
               f"{where}: format {record[8]} with {s.bits}-bit indices")
        demand(field(12, 14) == 0 and not record[9] & 1, "R6",
               f"{where}: flags {record[9]}, lowrank {field(12, 14)}")
        base = self.banks[layer]["base"]
        demand(field(10, 12) == base, "R7", f"{where}: codebook {field(10, 12)}, not {base}")
        found = [field(20 + 4 * i, 24 + 4 * i) for i in range(4)]
        demand(found == at, "R8", f"{where}: offsets {found}, not {at}")
        crc = zlib.crc32(record[48:used])
        demand(field(36, 40) == crc, "R11",
               f"{where}: checksum {crc:08x}, header says {field(36, 40):08x}")
        return record

    def expert(self, layer, expert):
        """Its three matrices, f32 (6.2, 6.4)."""
        record = self.record(layer, expert)
        s, (at, used, _) = self.shape, self.shape.offsets()
        base = self.banks[layer]["base"]
        where = f"layer {layer} expert {expert}"
        scales = finite(np.frombuffer(record[at[3]:used], "<f2"), "R10", f"{where}: a scale")
        out, first = [], 0
        for m in range(3):
            rows, columns = s.matrix(m)
            entries = self.indices(record[at[m]:at[m + 1]], rows, columns)
            demand(entries.max() < s.entries, "R9",
                   f"{where}: {MATRICES[m]}: entry {entries.max()} of {s.entries}")
            w = np.zeros((rows, columns))
            for stage in range(s.stages):
                book = self.codebook(base + m * s.stages + stage).astype(np.float64)
                w += book[entries[:, :, stage]].reshape(rows, columns)
            out.append((w * scales[first:first + rows, None]).astype(np.float32))
            first += rows
        return out

    def indices(self, stream, rows, columns):
        """[row][position][stage]."""
        s = self.shape
        cells = np.frombuffer(stream, np.uint8).reshape(-1, columns // 8, 64, s.cell)
        cells = cells.transpose(0, 2, 1, 3).reshape(-1, columns // 8, s.cell)[:rows]
        if s.bits == 8:
            return cells
        number = cells.astype(np.uint32) @ np.array([1, 256, 65536], np.uint32)
        return number[:, :, None] >> np.array([0, 6, 12, 18], np.uint32) & 63

    # -- side files (8)

    def ranks(self):
        """The bytes of ids 0, 1, ...; None without a tokenizer."""
        for name in ("tokenizer.model", "tiktoken.model"):
            if os.path.exists(self.at(name)):
                break
        else:
            return None
        out = {}
        for i, line in enumerate(self.slurp(name, "J2").split(b"\n")):
            if not line:
                continue
            try:
                text, rank = line.split(b" ")
                out[int(rank)] = base64.b64decode(text, validate=True)
            except ValueError:
                raise Refused("J3", f"{name}: line {i + 1} is not a token and its rank; "
                              "a SentencePiece model, perhaps?") from None
        demand(sorted(out) == list(range(len(out))), "J8", f"{name}: ranks are not 0, 1, 2, ...")
        return [out[i] for i in range(len(out))]

    def specials(self):
        """Control tokens: {id: text}."""
        if not os.path.exists(self.at("specials.json")):
            return {}
        out = {}
        tree = parse_json(self.slurp("specials.json", "J2"), "specials.json")
        for entry in tree if isinstance(tree, list) else [None]:
            demand(isinstance(entry, dict), "J8", "specials.json: no list of objects")
            i = integer(entry, "id", 0, self.shape.vocab - 1, None, "specials.json")
            demand(i not in out, "J5", f"specials.json: id {i} twice")
            out[i] = member(entry, "text", str, "", f"specials.json: id {i}")
        return out

    # -- what the command line asks for

    def named(self, name):
        kind, *rest = name.split(".")
        try:
            if name in self.tensors:
                return self.tensors[name].read(self.trunk)
            if kind == "codebook" and self.shape.moe:
                return self.codebook(int(rest[0]))
            if kind == "expert":
                layer, expert, matrix = rest
                return self.expert(int(layer), int(expert))[MATRICES.index(matrix)]
        except (IndexError, ValueError):
            pass
        raise Refused("NAME", f"{name}: neither a tensor nor codebook.N nor "
                      "expert.LAYER.EXPERT.gate, .up, .down")

    def check(self):
        """Read everything that a name can reach, and the side files."""
        for t in self.tensors.values():
            t.read(self.trunk)
        for layer, bank in self.banks.items():
            for n in range(3 * self.shape.stages):
                self.codebook(bank["base"] + n)
            for e in range(self.shape.experts):
                self.expert(layer, e)
        self.ranks(), self.specials()
        for name in ("chat.json", "vision.json"):
            if os.path.exists(self.at(name)):
                parse_json(self.slurp(name, "J2"), name)


def show(c):
    s = c.shape
    print(f"architecture  {c.arch}")
    print(f"layers        {s.n_layers}: {len(s.kda)} KDA, {s.n_layers - len(s.kda)} MLA; "
          f"{len(s.moe)} with experts")
    ranks, specials = c.ranks(), c.specials()
    print(f"tokens        {s.vocab} ids: {len(ranks or [])} ranks, {len(specials)} specials")
    if s.moe:
        at, used, size = s.offsets()
        print(f"experts       {s.experts} a layer, {s.top_k} a token; {s.stages} stages of "
              f"{s.entries} entries at {s.bits} bits; records of {size} bytes, {used} used")
    for text in s.notes:
        print(f"note          {text}")
    for t in sorted(c.tensors.values(), key=lambda t: t.spans[0]):
        shape = "x".join(map(str, t.shape))
        print(f"{t.spans[0][0]:12d}  {FORMATS[t.fmt]}  {shape:18s}  {t.name}")
    for layer, bank in c.banks.items():
        print(f"layer {layer:3d}     codebooks {bank['base']}..."
              f"{bank['base'] + 3 * s.stages - 1}, {len(bank['places'])} records")


def main():
    p = argparse.ArgumentParser(description="read a .waste container (docs/FORMAT.md)")
    p.add_argument("container")
    what = p.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="read all of it")
    what.add_argument("--tokens", action="store_true", help="ids, kinds and bytes of all tokens")
    what.add_argument("--dump", nargs=2, metavar=("NAME", "OUT"), help="a matrix to a .npy file")
    args = p.parse_args()
    try:
        c = Container(args.container)
        if args.dump:
            np.save(args.dump[1], c.named(args.dump[0]))
        elif args.tokens:
            for i, text in enumerate(c.ranks() or []):
                print(f"{i}\ttoken\t{text.hex()}")
            for i, text in c.specials().items():
                print(f"{i}\tcontrol\t{text.encode().hex()}")
        else:
            show(c)
            if args.check:
                c.check()
                print("sound")
    except (Refused, OSError) as why:
        sys.exit(f"read_container: {args.container}: {why}")


if __name__ == "__main__":
    main()
