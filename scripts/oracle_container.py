"""oracle_container.py - read and write `.waste` containers in numpy.

Container is the reader: every weight comes back as float64 with the exact value the bytes stand
for. write_container is the writer; golden_mini and tiny build complete containers with it, the
first from the formulas of the format specification's appendix A, the second from a seed, in the
small shapes of each supported family.

Slow and literal on purpose: it exists to be compared with.
"""
import base64
import json
import zlib
from pathlib import Path

import numpy as np

F32, Q8G, Q4G, VQ3R, VQ2R, Q3G, VQ4P = 0, 2, 3, 4, 5, 7, 8
GROUP = 128       # columns that share a trunk scale
BLOCK = 64        # rows interleaved in an index stream
PAGE = 4096
HEADER = 48       # bytes before the first index stream of an expert record
VEC = 8           # columns replaced by one codebook entry per stage
CHUNK = {Q8G: 128, Q4G: 64, Q3G: 48}  # payload bytes of one group
GUARD = {Q8G: 0, Q4G: 0, Q3G: 1}      # zero bytes after the last group of a row
ZERO = {Q8G: 0, Q4G: 8, Q3G: 4}       # what is added to q before it is stored
LIMIT = {Q8G: (127, -127, 127), Q4G: (7, -8, 7), Q3G: (3, -4, 3)}  # Q, lowest, highest


class Malformed(Exception):
    """The container breaks a rule of the format; the text says which and where."""


def need(condition, text):
    if not condition:
        raise Malformed(text)


def halves(data, what):
    """f16 bytes to f64. Subnormals are values; infinities and NaN are damage."""
    values = np.frombuffer(data, "<f2").astype(np.float64)
    need(np.isfinite(values).all(), f"{what}: f16 value is not finite")
    return values


# Trunk tensors ------------------------------------------------------------------------------


def rows_of(shape):
    return int(np.prod(shape[:-1], dtype=np.int64)), shape[-1]


def sizes(fmt, shape):
    """Bytes of (payload, scales)."""
    rows, cols = rows_of(shape)
    if fmt == F32:
        return 4 * rows * cols, 0
    groups = -(-cols // GROUP)
    return rows * (groups * CHUNK[fmt] + GUARD[fmt]), 2 * rows * groups


def unpack(fmt, payload, scales, shape, what):
    """A tensor's bytes to f64 values of its shape."""
    rows, cols = rows_of(shape)
    if fmt == F32:
        return np.frombuffer(payload, "<f4").astype(np.float64).reshape(shape)
    groups = -(-cols // GROUP)
    raw = np.frombuffer(payload, np.uint8).reshape(rows, -1)
    if fmt == Q8G:
        q = raw.view(np.int8).astype(np.int64)
    elif fmt == Q4G:
        q = np.stack([raw & 15, raw >> 4], axis=-1).reshape(rows, -1).astype(np.int64) - ZERO[fmt]
    else:
        bits = np.unpackbits(raw, axis=1, bitorder="little")[:, : 3 * groups * GROUP]
        q = bits.reshape(rows, -1, 3).astype(np.int64) @ np.array([1, 2, 4]) - ZERO[fmt]
    s = halves(scales, what).reshape(rows, groups)
    return (q * np.repeat(s, GROUP, axis=1))[:, :cols].reshape(shape)


def pack(fmt, q):
    """Integers [rows][cols] to a payload: the stored form of q, padded to whole groups."""
    rows, cols = q.shape
    padded = np.zeros((rows, -(-cols // GROUP) * GROUP), np.int64)
    padded[:, :cols] = q
    code = ((padded + ZERO[fmt]) & 255).astype(np.uint8)
    if fmt == Q8G:
        return code.tobytes()
    if fmt == Q4G:
        return (code[:, 0::2] | code[:, 1::2] << 4).astype(np.uint8).tobytes()
    bits = (code[:, :, None] >> np.arange(3)) & 1
    packed = np.packbits(bits.reshape(rows, -1).astype(np.uint8), axis=1, bitorder="little")
    return np.pad(packed, ((0, 0), (0, GUARD[fmt]))).tobytes()


def quantise(fmt, values):
    """f32 [rows][cols] to (payload, scales) by the writer's recipe: amax/Q, true division."""
    top, lo, hi = LIMIT[fmt]
    x = np.asarray(values, np.float32)
    rows, cols = x.shape
    groups = -(-cols // GROUP)
    x = np.pad(x, ((0, 0), (0, groups * GROUP - cols))).reshape(rows, groups, GROUP)
    s = np.maximum(np.abs(x).max(axis=2), np.float32(1e-8)) / np.float32(top)
    q = np.clip(np.rint(x / s[:, :, None]), lo, hi).astype(np.int64).reshape(rows, -1)[:, :cols]
    return pack(fmt, q), s.astype("<f2").tobytes()


# Expert records -----------------------------------------------------------------------------


def blocked(index, bits):
    """Index [rows][positions][stages] to its stream: row blocks of 64, the last one padded."""
    if bits == 6:
        word = index.astype(np.int64) @ (1 << 6 * np.arange(4))
        index = np.stack([word & 255, word >> 8 & 255, word >> 16], axis=-1)
    rows, nv, width = index.shape
    out = np.zeros((-(-rows // BLOCK) * BLOCK, nv, width), np.uint8)
    out[:rows] = index
    return out.reshape(-1, BLOCK, nv, width).transpose(0, 2, 1, 3).tobytes()


def unblocked(stream, rows, nv, width, block, bits):
    """The inverse of blocked, for any block size; block 0 is plain row-major."""
    raw = np.frombuffer(stream, np.uint8)
    if block:
        raw = raw.reshape(-1, nv, block, width).transpose(0, 2, 1, 3)
    raw = raw.reshape(-1, nv, width)[:rows].astype(np.int64)
    if bits == 6:
        word = raw @ np.array([1, 1 << 8, 1 << 16])
        raw = np.stack([word >> 6 * s & 63 for s in range(4)], axis=-1)
    return raw


def record_bytes(layer, expert, base, bits, index, scales):
    """One expert record. index, scales: gate, up, down; the scales are raw f16 bits."""
    streams = [blocked(i, bits) for i in index]
    offsets = HEADER + np.cumsum([0] + [len(s) for s in streams])
    payload = b"".join(streams) + b"".join(np.asarray(s, "<u2").tobytes() for s in scales)
    pages = -(-(HEADER + len(payload)) // PAGE)
    ints = [(b"WEXP", 0), (layer, 2), (expert, 2), (VQ4P if bits == 6 else VQ3R, 1), (0, 1),
            (base, 2), (0, 2), (0, 2), (pages, 4), *[(int(o), 4) for o in offsets],
            (zlib.crc32(payload), 4), (0, 8)]
    header = b"".join(v.to_bytes(n, "little") if n else v for v, n in ints)
    return (header + payload).ljust(pages * PAGE, b"\0")


def codebook_bytes(number, entries):
    """One codebook record. entries: raw f16 bits [entries][8]; the fmt byte is always 4."""
    head = b"WCBK" + number.to_bytes(2, "little") + bytes([VQ3R, VEC])
    return head + len(entries).to_bytes(4, "little") + bytes(4) + entries.astype("<u2").tobytes()


# The reader ---------------------------------------------------------------------------------


class Container:
    """A container of any family.

    config: the text model's configuration. tensor(name): f64, name without the prefix.
    experts(layer): [(gate, up, down), ...] in f64. Both are decoded once and kept."""

    def __init__(self, path):
        self.path = Path(path)
        self.manifest = json.loads((self.path / "manifest.json").read_text("ascii"))
        version = self.manifest.get("format_version")
        need(version == 0 and type(version) is int, f"format_version {version}: only 0 is known")
        self.config = self.manifest["config"]
        self.prefix = self.manifest.get("tensor_prefix", "")
        if "text_config" in self.config:  # a release's configuration, as it was
            self.config = self.config["text_config"]
            self.prefix = self.prefix or "language_model."
        self.entries = {t["name"]: t for t in self.manifest["trunk"]}
        need(len(self.entries) == len(self.manifest["trunk"]), "trunk: a tensor is listed twice")
        self.trunk = (self.path / "trunk.bin").read_bytes()
        self.decoded = {}

        quant = self.manifest.get("expert_quant", {})
        self.stages = quant.get("stages", 3)
        self.n_entries = quant.get("entries", 256)
        self.block = quant.get("index_block", 0)
        self.bits = quant.get("index_bits", 8)
        need(quant.get("vec_dim", VEC) == VEC, "expert_quant.vec_dim is not 8")
        need(self.block in (0, BLOCK), f"expert_quant.index_block {self.block}")
        need(self.bits == 8 or (self.bits, self.stages, self.n_entries) == (6, 4, 64),
             f"expert_quant.index_bits {self.bits} with {self.stages} x {self.n_entries}")
        self.width = 3 if self.bits == 6 else self.stages
        self.codebooks = b""
        if (self.path / "codebooks.bin").exists():
            self.codebooks = (self.path / "codebooks.bin").read_bytes()

    def has(self, name):
        return self.prefix + name in self.entries

    def tensor(self, name):
        full = self.prefix + name
        if full not in self.decoded:
            need(full in self.entries, f'trunk: "{full}" is not listed')
            t = self.entries[full]
            need(t["fmt"] in (F32, Q8G, Q4G, Q3G), f'trunk: "{full}" has format {t["fmt"]}')
            need(t.get("group", GROUP) == GROUP, f'trunk: "{full}" has group {t.get("group")}')
            payload, scales = sizes(t["fmt"], t["shape"])
            need(t["bytes"] == payload + scales, f'trunk: "{full}" says {t["bytes"]} bytes')
            at, scales_at = t["off"], t.get("scale_off", 0)
            need(max(at + payload, scales_at + scales) <= len(self.trunk),
                 f'trunk.bin: "{full}" reaches beyond the file')
            w = unpack(t["fmt"], self.trunk[at : at + payload],
                       self.trunk[scales_at : scales_at + scales], t["shape"], full)
            need(np.isfinite(w).all(), f'trunk.bin: "{full}" holds a non-finite value')
            self.decoded[full] = w
        return self.decoded[full]

    def codebook(self, number):
        """Record `number` as [entries][8]."""
        size = 16 + 2 * self.n_entries * VEC
        rec = self.codebooks[number * size : (number + 1) * size]
        need(len(rec) == size, f"codebooks.bin: no record {number}")
        need(rec[:4] == b"WCBK" and rec[7] == VEC, f"codebooks.bin: record {number} is damaged")
        need(int.from_bytes(rec[4:6], "little") == number & 0xFFFF
             and int.from_bytes(rec[8:12], "little") == self.n_entries,
             f"codebooks.bin: record {number} describes another one")
        return halves(rec[16:], f"codebooks.bin: record {number}").reshape(self.n_entries, VEC)

    def expert_shapes(self):
        """(rows, columns) of gate, up and down."""
        c = self.config
        wide = c.get("routed_expert_hidden_size") or c["hidden_size"]
        inter = c["moe_intermediate_size"]
        return [(inter, wide), (inter, wide), (wide, inter)]

    def record(self, layer, expert):
        """A record's bytes, header and checksum proven: (record, [stream offsets], used)."""
        bank = self.manifest["layers"][str(layer)]
        what = f"layer {layer} expert {expert}"
        data = (self.path / bank["file"]).read_bytes()
        need(len(data) == bank["bytes"] and len(data) % bank["experts"] == 0,
             f"{bank['file']}: {len(data)} bytes, the manifest says {bank['bytes']}")
        size = len(data) // bank["experts"]
        rec = data[expert * size : (expert + 1) * size]
        offsets = [HEADER]
        for rows, cols in self.expert_shapes():
            padded = -(-rows // self.block) * self.block if self.block else rows
            offsets.append(offsets[-1] + padded * (cols // VEC) * self.width)
        used = offsets[-1] + 2 * sum(rows for rows, _ in self.expert_shapes())
        need(size == -(-used // PAGE) * PAGE, f"{what}: record of {size} bytes")

        def at(o, n):
            return int.from_bytes(rec[o : o + n], "little")

        need(rec[:4] == b"WEXP", f"{what}: not an expert record")
        need((at(4, 2), at(6, 2)) == (layer, expert), f"{what}: the record is another expert's")
        need(rec[8] in ((VQ4P,) if self.bits == 6 else (VQ3R, VQ2R)), f"{what}: format {rec[8]}")
        need(at(10, 2) == bank["codebook_base"] and at(12, 2) == 0, f"{what}: codebook {at(10, 2)}")
        need(at(16, 4) * PAGE == size, f"{what}: {at(16, 4)} pages")
        need([at(o, 4) for o in (20, 24, 28, 32)] == offsets, f"{what}: offsets differ")
        need(zlib.crc32(rec[HEADER:used]) == at(36, 4), f"{what}: checksum differs")
        return rec, offsets, used

    def expert(self, layer, expert):
        """Gate, up and down of one expert as f64 matrices."""
        rec, offsets, used = self.record(layer, expert)
        what = f"layer {layer} expert {expert}"
        base = self.manifest["layers"][str(layer)]["codebook_base"]
        shapes = self.expert_shapes()
        scales = halves(rec[offsets[3] : used], what)
        scales = np.split(scales, np.cumsum([rows for rows, _ in shapes])[:-1])
        out = []
        for m, (rows, cols) in enumerate(shapes):
            index = unblocked(rec[offsets[m] : offsets[m + 1]], rows, cols // VEC, self.width,
                              self.block, self.bits)
            need(index.max() < self.n_entries, f"{what}: an index is beyond the codebook")
            w = sum(self.codebook(base + m * self.stages + s)[index[:, :, s]]
                    for s in range(self.stages))
            out.append(scales[m][:, None] * w.reshape(rows, cols))
        return tuple(out)

    def experts(self, layer):
        if layer not in self.decoded:
            n = self.config["num_experts"]
            self.decoded[layer] = [self.expert(layer, e) for e in range(n)]
        return self.decoded[layer]


# The writer ---------------------------------------------------------------------------------


def required_tensors(config):
    """[(name without prefix, shape)] a container of this configuration must have."""
    c = config
    h, n_h = c["hidden_size"], c["num_attention_heads"]
    lin = c.get("linear_attn_config") or {}
    heads, dim = lin.get("num_heads", 0), lin.get("head_dim", 0)
    ch, taps = heads * dim, lin.get("short_conv_kernel_size", 4)
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    lat, inter = c.get("routed_expert_hidden_size") or 0, c["moe_intermediate_size"]
    res = c.get("attn_res_block_size", 0) > 0
    out = [("model.embed_tokens.weight", [c["vocab_size"], h]), ("model.norm.weight", [h]),
           ("lm_head.weight", [c["vocab_size"], h])]
    if res:
        out += [("model.output_attn_res_norm.weight", [h]),
                ("model.output_attn_res_proj.weight", [1, h])]

    def mlp(at, width):
        return [(at + "gate_proj.weight", [width, h]), (at + "up_proj.weight", [width, h]),
                (at + "down_proj.weight", [h, width])]

    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        a, m = p + "self_attn.", p + "block_sparse_moe."
        out += [(p + "input_layernorm.weight", [h]), (p + "post_attention_layernorm.weight", [h])]
        if res:
            for site in ("self_attention_res", "mlp_res"):
                out += [(p + site + "_norm.weight", [h]), (p + site + "_proj.weight", [1, h])]
        if layer + 1 in lin.get("kda_layers", []):
            for x in "qkv":
                out += [(a + x + "_proj.weight", [ch, h]),
                        (a + x + "_conv1d.weight", [ch, 1, taps])]
            full = lin.get("use_full_rank_gate") is True
            out += [(a + "f_a_proj.weight", [dim, h]), (a + "f_b_proj.weight", [ch, dim]),
                    (a + "b_proj.weight", [heads, h]), (a + "dt_bias", [ch]),
                    (a + "A_log", [heads + 5] if full else [1, 1, heads, 1]),  # K3 pads it
                    (a + "o_norm.weight", [dim]), (a + "o_proj.weight", [h, ch])]
            out += ([(a + "g_proj.weight", [ch, h])] if full else
                    [(a + "g_a_proj.weight", [dim, h]), (a + "g_b_proj.weight", [ch, dim])])
        else:
            if c.get("q_lora_rank"):
                out += [(a + "q_a_proj.weight", [c["q_lora_rank"], h]),
                        (a + "q_a_layernorm.weight", [c["q_lora_rank"]]),
                        (a + "q_b_proj.weight", [n_h * (nope + rope), c["q_lora_rank"]])]
            else:
                out += [(a + "q_proj.weight", [n_h * (nope + rope), h])]
            out += [(a + "kv_a_proj_with_mqa.weight", [c["kv_lora_rank"] + rope, h]),
                    (a + "kv_a_layernorm.weight", [c["kv_lora_rank"]]),
                    (a + "kv_b_proj.weight", [n_h * (nope + v), c["kv_lora_rank"]]),
                    (a + "o_proj.weight", [h, n_h * v])]
            if c.get("mla_use_output_gate") is True:
                out += [(a + "g_proj.weight", [n_h * v, h])]
        if layer < c["first_k_dense_replace"]:
            out += mlp(p + "mlp.", c["intermediate_size"])
            continue
        out += [(m + "gate.weight", [c["num_experts"], h]),
                (m + "gate.e_score_correction_bias", [c["num_experts"]])]
        out += mlp(m + "shared_experts.", inter * max(1, c["num_shared_experts"]))
        if lat:
            out += [(m + "routed_expert_down_proj.weight", [lat, h]),
                    (m + "routed_expert_up_proj.weight", [h, lat])]
            if c.get("latent_moe_use_norm") is True:
                out += [(m + "routed_expert_norm.weight", [lat])]
    return out


def write_container(path, config, tensors, quant, codebooks, banks, prefix="", arch="", order=str):
    """Write a whole container.

    tensors: {name without prefix: (fmt, shape, payload, scales)}, stored in ascending order(name).
    quant: (stages, entries, index_bits). codebooks: {layer: [3 * stages arrays of f16 bits]}.
    banks: {layer: [(index, scales) per expert]}, index and scales for gate, up, down."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    stages, entries, bits = quant
    trunk, listed = b"", []
    for name in sorted(tensors, key=order):
        fmt, shape, payload, scales = tensors[name]
        entry = {"name": prefix + name, "fmt": fmt, "off": len(trunk), "shape": shape,
                 "bytes": len(payload) + len(scales)}
        if fmt != F32:
            entry.update(group=GROUP, scale_off=len(trunk) + len(payload))
        listed.append(entry)
        trunk += payload + scales
    layers, books, base = {}, b"", 0
    for layer in sorted(banks):
        books += b"".join(codebook_bytes(base + i, b) for i, b in enumerate(codebooks[layer]))
        bank = b"".join(record_bytes(layer, e, base, bits, index, scales)
                        for e, (index, scales) in enumerate(banks[layer]))
        file = f"experts-L{layer}.bin"
        (path / file).write_bytes(bank)
        layers[str(layer)] = {"file": file, "experts": len(banks[layer]), "bytes": len(bank),
                              "codebook_base": base}
        base += 3 * stages
    (path / "trunk.bin").write_bytes(trunk)
    (path / "codebooks.bin").write_bytes(books)
    fmt = "VQ4P" if bits == 6 else "VQ2R" if stages == 2 else "VQ3R"
    manifest = {
        "format_version": 0, "arch": arch, "tensor_prefix": prefix, "config": config,
        "expert_quant": {"fmt": fmt, "stages": stages, "vec_dim": VEC, "entries": entries,
                         "index_block": BLOCK, "index_bits": bits,
                         "bits_per_weight": stages * bits / 8},
        "layers": layers, "trunk": listed,
    }
    (path / "manifest.json").write_text(json.dumps(manifest, indent=1), "ascii")


# The golden mini container --------------------------------------------------------------------

MINI_CONFIG = {
    "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "hidden_size": 136,
    "num_hidden_layers": 3, "first_k_dense_replace": 1, "intermediate_size": 160,
    "moe_intermediate_size": 72, "num_experts": 4, "num_experts_per_token": 2,
    "num_shared_experts": 1, "moe_renormalize": True, "routed_scaling_factor": 1.5,
    "num_attention_heads": 2, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "kv_lora_rank": 24, "q_lora_rank": None, "mla_use_nope": True, "rms_norm_eps": 1e-5,
    "vocab_size": 64, "eos_token_id": 2,
    "linear_attn_config": {"head_dim": 16, "num_heads": 2, "short_conv_kernel_size": 4,
                           "kda_layers": [1, 2], "full_attn_layers": [3]},
}

MINI_SHA256 = {
    "vq3r": {
        "trunk.bin": "54b429551eb477728773f7586aa45807df19716d7c53c7639069fd33a79ec7d2",
        "codebooks.bin": "23c513e32705e249a19ff74d22f4dfab450903e761c0d28a08d19ab6f277ea27",
        "experts-L1.bin": "b2990f83920fa4492f583cbcf125149a27410e385321ecdd53c057afa522db97",
        "experts-L2.bin": "a2b0f4ba79764bea2ce14d30d686cf5cfaae96e02944df5c2df1061d4e691ab7",
    },
    "vq4p": {
        "trunk.bin": "54b429551eb477728773f7586aa45807df19716d7c53c7639069fd33a79ec7d2",
        "codebooks.bin": "592aa1c3652076d03ddf5656f38ad252971290fecdc19b71ac958ac748e6f931",
        "experts-L1.bin": "59d68e7c8fc9b3c4c42a11424b09af0fc801f58c442c9d2ccc9badb6e7685e5a",
        "experts-L2.bin": "de6fe5f5b3b051a0e77c34f7ae9f06543e26b63b4523f3c241b903f96f763928",
    },
}


def stream(label, n):
    """n bytes of the label's stream: a linear congruential generator seeded by its CRC-32."""
    x = zlib.crc32(label.encode("ascii"))
    out = bytearray(n)
    for i in range(n):
        x = (1664525 * x + 1013904223) & 0xFFFFFFFF
        out[i] = x >> 24
    return np.frombuffer(bytes(out), np.uint8).astype(np.int64)


def mini_format(name):
    if "norm" in name or name.endswith(("_conv1d.weight", "A_log", "dt_bias", "correction_bias")):
        return F32
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        return Q8G
    if name.endswith("f_a_proj.weight") or name == "model.layers.0.mlp.up_proj.weight":
        return Q3G
    return Q4G


def mini_tensor(name, shape):
    fmt = mini_format(name)
    rows, cols = rows_of(shape)
    b = stream(name, rows * cols)
    if fmt == F32:
        values = (b - 128) / 1024 + (1 if "norm" in name else 0)
        return fmt, shape, values.astype("<f4").tobytes(), b""
    b[b == 128] = 129
    mask = {Q8G: 255, Q4G: 15, Q3G: 7}[fmt]
    groups = -(-cols // GROUP)
    scales = {Q8G: 0x1400, Q4G: 0x2000, Q3G: 0x2400}[fmt] + stream(name + "#s", rows * groups)
    if name == "model.layers.0.mlp.down_proj.weight":
        scales[3 * groups] = 0x0155
    q = ((b & mask) - ZERO[fmt]).reshape(rows, cols)
    return fmt, shape, pack(fmt, q), scales.astype("<u2").tobytes()


def golden_mini(path, vq4p=False):
    """Build the container of appendix A at path."""
    stages, entries, bits = quant = (4, 64, 6) if vq4p else (3, 256, 8)
    c = MINI_CONFIG
    inter, h = c["moe_intermediate_size"], c["hidden_size"]
    tensors = {name: mini_tensor(name, shape) for name, shape in required_tensors(c)}
    codebooks, banks = {}, {}
    for n, layer in enumerate((1, 2)):
        base = n * 3 * stages
        codebooks[layer] = [
            ((stream(f"cb{base + i}", entries * VEC) - 128) / 256).astype("<f2")
            .view("<u2").reshape(entries, VEC) for i in range(3 * stages)]
        banks[layer] = []
        for e in range(c["num_experts"]):
            index, scales = [], []
            for kind, rows, cols in (("gate", inter, h), ("up", inter, h), ("down", h, inter)):
                label, nv = f"L{layer}E{e}{kind}", cols // VEC
                index.append((stream(label, rows * nv * stages) & (entries - 1))
                             .reshape(rows, nv, stages))
                scales.append(0x2C00 + stream(label + "#s", rows))
            banks[layer].append((index, scales))
    write_container(path, c, tensors, quant, codebooks, banks, arch="kimi-linear")


# Tiny seeded containers -----------------------------------------------------------------------

MERGES = [" t", "he", "in", "er", " a", "on", "re", " the", "at", "en", "is", "it", "an", "nd",
          " and", "ing"]  # each is a pair of earlier tokens
N_RANKS = 256 + len(MERGES)
VOCAB = N_RANKS + 11  # some ids belong to nobody, as in the releases

COMMON = {"vocab_size": VOCAB, "eos_token_id": N_RANKS + 2, "bos_token_id": N_RANKS,
          "pad_token_id": VOCAB - 1, "tie_word_embeddings": False}
DEEPSEEK = {
    **COMMON, "num_hidden_layers": 5, "intermediate_size": 152, "moe_intermediate_size": 16,
    "n_shared_experts": 1, "num_shared_experts": 1, "norm_topk_prob": True,
    "moe_renormalize": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "moe_layer_freq": 1, "num_experts_per_tok": 3, "num_experts_per_token": 3,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "hidden_act": "silu", "rms_norm_eps": 1e-6,
}
YARN = {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "beta_slow": 1}

# seed: one whose router is nowhere undecided on the golden prompt. quant: stages, entries,
# index bits. formats: by the last part of a tensor's name; a list turns every two layers.
FAMILIES = {
    "kimi-linear": {
        "arch": "kimi-linear", "seed": 8, "quant": (3, 128, 8), "prefix": "",
        "formats": {"k_proj": Q8G, "v_proj": Q3G, "f_a_proj": Q8G, "g_a_proj": Q3G, "b_proj": F32,
                    "gate": [Q8G, F32], "up_proj": Q3G, "down_proj": Q8G,
                    "kv_b_proj": [Q4G, Q3G]},
        "specials": {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>",
                     4: "<|im_assistant|>", 5: "<|im_system|>", 6: "<|im_middle|>"},
        "config": {
            **COMMON, "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear",
            "hidden_size": 72, "num_hidden_layers": 5, "first_k_dense_replace": 1,
            "intermediate_size": 152, "moe_intermediate_size": 24, "num_experts": 5,
            "num_experts_per_token": 2, "num_shared_experts": 1, "num_expert_group": 1,
            "topk_group": 1, "moe_router_activation_func": "sigmoid", "moe_renormalize": True,
            "routed_scaling_factor": 2.446, "num_attention_heads": 3, "num_key_value_heads": 3,
            "head_dim": 9, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
            "kv_lora_rank": 24, "q_lora_rank": None, "mla_use_nope": True, "hidden_act": "silu",
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None,
            "num_nextn_predict_layers": 0,
            "linear_attn_config": {"head_dim": 16, "num_heads": 3, "short_conv_kernel_size": 4,
                                   "kda_layers": [1, 2, 4], "full_attn_layers": [3, 5]},
        },
    },
    "k3": {
        "arch": "kimi-k3", "seed": 6, "quant": (4, 64, 6), "prefix": "language_model.",
        "formats": {"kv_b_proj": [Q8G, F32], "q_a_proj": Q8G, "b_proj": F32,
                    "gate": [Q4G, Q8G], "f_b_proj": Q3G, "k_proj": Q3G, "v_proj": Q3G,
                    "gate_proj": Q3G, "lm_head": Q4G},
        "specials": {0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>",
                     5: "<|sep|>"},
        "config": {
            **COMMON, "model_type": "kimi_linear", "hidden_size": 72, "num_hidden_layers": 7,
            "first_k_dense_replace": 1, "intermediate_size": 136, "moe_intermediate_size": 24,
            "num_experts": 5, "num_experts_per_token": 3, "num_shared_experts": 2,
            "num_expert_group": 1, "topk_group": 1, "moe_router_activation_func": "sigmoid",
            "moe_renormalize": True, "routed_scaling_factor": 1.0,
            "routed_expert_hidden_size": 40, "latent_moe_use_norm": True,
            "attn_res_block_size": 2, "num_attention_heads": 3, "num_key_value_heads": 3,
            "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "kv_lora_rank": 24,
            "q_lora_rank": 32, "mla_use_nope": True, "mla_use_output_gate": True,
            "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
            "rms_norm_eps": 1e-5,
            "linear_attn_config": {"head_dim": 24, "num_heads": 2, "short_conv_kernel_size": 4,
                                   "kda_layers": [1, 2, 3, 5], "full_attn_layers": [4, 6, 7],
                                   "use_full_rank_gate": True, "gate_lower_bound": -5.0},
            "_outer": {"architectures": ["KimiK3ForConditionalGeneration"],
                       "model_type": "kimi_k3", "tie_word_embeddings": False},
        },
    },
    "deepseek": {
        "arch": "DeepseekV3ForCausalLM", "seed": 4, "quant": (3, 64, 8), "prefix": "",
        "formats": {"lm_head": Q4G, "kv_b_proj": [Q8G, Q4G], "q_b_proj": [Q3G, Q4G, Q8G]},
        "specials": {0: "<|begin|>", 2: "<|end|>"},
        "config": {
            **DEEPSEEK, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
            "hidden_size": 56, "first_k_dense_replace": 2, "n_routed_experts": 12,
            "num_experts": 12, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
            "num_attention_heads": 3, "num_key_value_heads": 3, "v_head_dim": 44,
            "kv_lora_rank": 40, "q_lora_rank": 32, "rope_theta": 10000,
            "rope_scaling": {**YARN, "factor": 40, "beta_fast": 32}, "num_nextn_predict_layers": 1,
        },
    },
    "k2": {
        "arch": "DeepseekV3ForCausalLM", "seed": 3, "quant": (2, 256, 8), "prefix": "",
        "formats": {"lm_head": Q4G, "kv_b_proj": [Q4G, F32], "o_proj": [Q8G, Q3G]},
        "specials": {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>",
                     4: "<|im_assistant|>", 5: "<|im_system|>", 6: "<|im_middle|>"},
        "config": {
            **DEEPSEEK, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2",
            "hidden_size": 88, "first_k_dense_replace": 1, "n_routed_experts": 8,
            "num_experts": 8, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827,
            "num_attention_heads": 3, "num_key_value_heads": 3, "v_head_dim": 16,
            "kv_lora_rank": 24, "q_lora_rank": 24, "rope_theta": 50000.0,
            "rope_scaling": {**YARN, "factor": 32.0, "beta_fast": 1}, "num_nextn_predict_layers": 0,
        },
    },
}


class Draw:
    """Random numbers that depend on a seed and a label alone: raw words of a fixed generator,
    so that no library's idea of a distribution can change a container."""

    def __init__(self, seed):
        self.seed = seed

    def words(self, label, n):
        """n integers in [0, 2^16)."""
        source = np.random.PCG64([self.seed, zlib.crc32(label.encode("ascii"))])
        raw = source.random_raw(-(-n // 4)).astype("<u8")
        return raw.view("<u2").astype(np.int64)[:n]

    def uniform(self, label, n):
        return (self.words(label, n) + 0.5) / 65536

    def normal(self, label, n):
        """The sum of four uniforms, scaled to variance 1: near enough, and exact."""
        s = self.words(label, 4 * n).reshape(n, 4).sum(axis=1) - 2 * 65535
        return s / 65536 * np.sqrt(3.0)

    def pick(self, label, n, below):
        return self.words(label, n) * below >> 16


def tiny_values(draw, name, shape, config):
    """A tensor's f64 values, sized so that activations stay near 1 whatever the depth."""
    rows, cols = rows_of(shape)
    x = draw.normal(name, rows * cols)
    if name.endswith("A_log"):
        heads = config["linear_attn_config"]["num_heads"]
        x = 2.5 * draw.uniform(name, rows * cols) - 1.5
        x[heads:] = 0  # what lies beyond the heads belongs to none
    elif name.endswith("dt_bias"):
        x = x - 1.5
    elif name.endswith("correction_bias"):
        x = 0.15 * x
    elif "norm" in name:
        x = 1 + 0.2 * x
    elif name.endswith("conv1d.weight"):
        x = 0.5 * x + np.tile([0, 0, 0, 0.5], rows)
    elif not name.endswith("embed_tokens.weight"):
        gain = {"lm_head.weight": 2.5, "gate.weight": 1.5}
        x = x / np.sqrt(cols) * next((g for end, g in gain.items() if name.endswith(end)), 1)
    x = x.reshape(shape)
    if name.endswith("mlp.down_proj.weight"):
        x[3] *= 1e-4  # so that its scales are subnormal
    return x


def tiny_format(family, name, shape):
    """F32 for what must be, the family's choice for the rest."""
    if rows_of(shape)[0] == 1 or name.endswith(("conv1d.weight", "A_log")):
        return F32
    layer = int(name.split(".")[2]) if name.startswith("model.layers.") else 0
    leaf = name.removesuffix(".weight").split(".")[-1]
    fmt = family["formats"].get(leaf)
    if fmt is not None:
        return fmt[layer // 2 % len(fmt)] if isinstance(fmt, list) else fmt
    return Q8G if leaf in ("embed_tokens", "lm_head") else Q4G


def tiny_layer(draw, layer, config, quant):
    """A layer's codebooks and experts, drawn already quantised: there is nothing to fit."""
    stages, entries, _ = quant
    inter, wide = config["moe_intermediate_size"], \
        config.get("routed_expert_hidden_size") or config["hidden_size"]
    books = []
    for i in range(3 * stages):
        x = draw.normal(f"L{layer}cb{i}", entries * VEC).reshape(entries, VEC)
        x *= 0.9 * 0.4 ** (i % stages)
        x[-1] *= 1e-5  # f16 subnormals
        books.append(x.astype("<f2").view("<u2"))
    bank = []
    for e in range(config["num_experts"]):
        index, scales = [], []
        for kind, rows, cols in (("gate", inter, wide), ("up", inter, wide), ("down", wide, inter)):
            label, nv = f"L{layer}E{e}{kind}", cols // VEC
            index.append(draw.pick(label, rows * nv * stages, entries).reshape(rows, nv, stages))
            a = (0.8 + draw.uniform(label + "#s", rows)) / np.sqrt(cols)
            scales.append(a.astype("<f2").view("<u2"))
        bank.append((index, scales))
    return books, bank


def source_name(name):
    """The name a DeepSeek checkpoint has for this tensor: what the trunk is sorted by."""
    return name.replace(".block_sparse_moe.", ".mlp.")


def tiny(name, path, seed=None):
    """Build the tiny container of a family at path, tokenizer included."""
    family = FAMILIES[name]
    config, quant = family["config"], family["quant"]
    draw = Draw(family["seed"] if seed is None else seed)
    tensors = {}
    for tensor, shape in required_tensors(config):
        fmt = tiny_format(family, tensor, shape)
        values = tiny_values(draw, tensor, shape, config)
        data = (values.astype("<f4").tobytes(), b"") if fmt == F32 else quantise(fmt, values)
        tensors[tensor] = (fmt, shape, *data)
    codebooks, banks = {}, {}
    for layer in range(config["first_k_dense_replace"], config["num_hidden_layers"]):
        codebooks[layer], banks[layer] = tiny_layer(draw, layer, config, quant)
    order = source_name if "n_routed_experts" in config else str
    write_container(path, config, tensors, quant, codebooks, banks, family["prefix"],
                    family["arch"], order)
    ranks = [bytes([b]) for b in range(256)] + [m.encode("ascii") for m in MERGES]
    (Path(path) / "tokenizer.model").write_bytes(
        b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(ranks)))
    specials = [{"id": N_RANKS + i, "text": t} for i, t in family["specials"].items()]
    (Path(path) / "specials.json").write_text(json.dumps(specials, indent=1), "ascii")


def golden_ids(name):
    """The 40 ids of a family's golden prompt."""
    return [int(i) for i in Draw(40).pick("prompt " + name, 40, VOCAB)]
