"""oracle_checkpoint.py - tiny checkpoints in the form in which the families are published.

    oracle_checkpoint.py FAMILY OUT [--seed N] [--shards N] [--single] [--set KEY=VALUE]...

Writes safetensors shards with their index, config.json, generation_config.json, the tokenizer's
files and, for k3, preprocessor_config.json, from the seeded values of oracle_container.py's tiny
models; the experts, which are drawn already quantised there, are Gaussian here. --set replaces a
member of the text configuration: larger experts than the tiny ones, for example.

    kimi-linear  BF16 and F32, experts w1 w2 w3
    k3           language_model. before every text tensor, nested configuration, experts in MXFP4,
                 a vision tower and its projector
    deepseek     mlp. names, FP8 in blocks that do not divide the matrices, an MTP layer
    k2           the same with a tiktoken.model and no MTP layer

Checkpoint reads one back: every logical tensor as the f32 that its bytes stand for, and the
interface of oracle_container.Container, so that oracle.Model can run it. Slow and literal.
"""
import argparse
import base64
import json
import sys
from pathlib import Path

import numpy as np

import oracle_container as oc

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
FP4_BLOCK = 32
FP8_BLOCK = (32, 24)  # rows, columns: no matrix of the tiny models is made of whole blocks
F32_NAMES = ("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias")
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "U8": 1, "I8": 1}

# Experts in whole MXFP4 blocks.
OVERRIDES = {"k3": {"routed_expert_hidden_size": 64, "moe_intermediate_size": 32}}
ALIASES = {"num_experts": "n_routed_experts", "num_experts_per_token": "num_experts_per_tok",
           "num_shared_experts": "n_shared_experts", "moe_renormalize": "norm_topk_prob"}
VISION = {"vt_hidden_size": 32, "vt_num_attention_heads": 2, "qkv_hidden_size": 48,
          "vt_intermediate_size": 80, "vt_num_hidden_layers": 2, "init_pos_emb_height": 8,
          "init_pos_emb_width": 8, "init_pos_emb_time": 4, "patch_size": 14,
          "merge_kernel_size": [2, 2], "mm_hidden_size": 32}


# Encodings: f32 to bytes and back ---------------------------------------------------------------


def e4m3_values():
    """The 256 values of F8_E4M3."""
    b = np.arange(256)
    exponent, mantissa = b >> 3 & 15, b & 7
    v = np.where(exponent == 0, mantissa * 2.0**-9,
                 (1 + mantissa / 8) * 2.0 ** (exponent.astype(np.float64) - 7))
    v[(b & 127) == 127] = np.nan
    return np.where(b & 128, -v, v).astype(np.float32)


def e5m2_values():
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)


def to_bf16(x):
    """To nearest, ties to even."""
    u = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype("<u2")


def nearest(x, grid):
    """The index of the grid's value nearest to each x; of two, the even one. grid: ascending."""
    mid = (grid[1:].astype(np.float64) + grid[:-1]) / 2
    low, high = np.searchsorted(mid, x, "left"), np.searchsorted(mid, x, "right")
    return np.where(low % 2 == 0, low, high)


def to_fp8(x, block):
    """(codes, scales) of a matrix: every block has its largest magnitude at 448."""
    rows, cols = x.shape
    bm, bn = block
    scale = np.zeros((-(-rows // bm), -(-cols // bn)), np.float32)
    code = np.zeros(x.shape, np.uint8)
    for i, j in np.ndindex(*scale.shape):
        at = np.s_[i * bm : (i + 1) * bm, j * bn : (j + 1) * bn]
        scale[i, j] = max(np.abs(x[at]).max(), 1e-8) / 448
        code[at] = nearest(np.abs(x[at]) / scale[i, j], e4m3_values()[:127])
    return code | (x < 0).astype(np.uint8) << 7, scale.astype("<f4")


def to_mxfp4(x):
    """(packed, scales) of a matrix: the largest magnitude of 32 columns lands in [4, 8)."""
    rows, cols = x.shape
    g = x.reshape(rows, cols // FP4_BLOCK, FP4_BLOCK)
    amax = np.abs(g).max(axis=2)
    e = np.clip(np.floor(np.log2(np.maximum(amax, 1e-38))) - 2 + 127, 0, 254).astype(np.uint8)
    e[amax == 0] = 0
    code = nearest(np.abs(g) / e8m0(e)[:, :, None].clip(2.0**-126), E2M1).astype(np.uint8)
    code = (code | (g < 0).astype(np.uint8) << 3).reshape(rows, cols)
    return code[:, 0::2] | code[:, 1::2] << 4, e


def e8m0(e):
    return np.where(e == 0, 0, 2.0 ** (e.astype(np.float64) - 127)).astype(np.float32)


def from_mxfp4(packed, scale):
    code = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)
    value = np.where(code & 8, -E2M1[code & 7], E2M1[code & 7])
    return value * np.repeat(e8m0(scale), FP4_BLOCK, axis=1)


def from_fp8(values, scale, block):
    full = np.repeat(np.repeat(scale, block[0], axis=0), block[1], axis=1)
    return values * full[: values.shape[0], : values.shape[1]]


# The reader -------------------------------------------------------------------------------------


def read_shard(path):
    """{name: (dtype, shape, bytes)} of one safetensors file."""
    data = Path(path).read_bytes()
    n = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:n])
    header.pop("__metadata__", None)
    out = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        oc.need(0 <= begin <= end <= len(data) - n, f"{path}: {name} lies outside the file")
        oc.need(end - begin == np.prod(t["shape"], dtype=np.int64) * DTYPE_BYTES[t["dtype"]],
                f"{path}: {name} has another size than its shape")
        out[name] = t["dtype"], t["shape"], data[n + begin : n + end]
    return out


class Checkpoint:
    """A checkpoint of any family. logical: {name: f32}, companions applied and left out."""

    prefix = ""

    def __init__(self, path):
        path = Path(path)
        self.whole = json.loads((path / "config.json").read_text("utf-8"))
        self.config = dict(self.whole)
        if "text_config" in self.whole:
            self.config, self.prefix = dict(self.whole["text_config"]), "language_model."
        for ours, theirs in ALIASES.items():
            if theirs in self.config:
                self.config.setdefault(ours, self.config[theirs])
        index = path / "model.safetensors.index.json"
        files = {"model.safetensors"}
        if index.exists():
            files = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        self.stored = {}
        for file in sorted(files):
            self.stored |= read_shard(path / file)
        self.logical = {}
        for name in sorted(self.stored):
            if name.endswith("_packed"):
                self.logical[name.removesuffix("_packed")] = self.packed(name)
            elif not name.endswith(("_scale", "_scale_inv")):
                self.logical[name] = self.plain(name)

    def packed(self, name):
        _, shape, data = self.stored[name]
        _, scale_shape, scale = self.stored[name.removesuffix("_packed") + "_scale"]
        return from_mxfp4(np.frombuffer(data, np.uint8).reshape(shape),
                          np.frombuffer(scale, np.uint8).reshape(scale_shape))

    def plain(self, name):
        dtype, shape, data = self.stored[name]
        if dtype == "F32":
            return np.frombuffer(data, "<f4").reshape(shape)
        if dtype == "F16":
            return np.frombuffer(data, "<f2").astype(np.float32).reshape(shape)
        if dtype == "BF16":
            return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view("f4").reshape(shape)
        table = e4m3_values() if dtype == "F8_E4M3" else e5m2_values()
        quant = self.whole.get("quantization_config", {})
        return from_fp8(table[np.frombuffer(data, np.uint8)].reshape(shape),
                        self.plain(name + "_scale_inv"),
                        quant.get("weight_block_size", (128, 128)))

    def named(self, name):
        """The source's name for a container's tensor."""
        full = self.prefix + name
        return full if full in self.logical else oc.source_name(full)

    def has(self, name):
        return self.named(name) in self.logical

    def tensor(self, name):
        return self.logical[self.named(name)].astype(np.float64)

    def experts(self, layer):
        at = f"{self.prefix}model.layers.{layer}."
        kinds = ("block_sparse_moe", "w1", "w3", "w2")
        if at + "block_sparse_moe.experts.0.w1.weight" not in self.logical:
            kinds = ("mlp", "gate_proj", "up_proj", "down_proj")
        return [tuple(self.logical[f"{at}{kinds[0]}.experts.{e}.{m}.weight"].astype(np.float64)
                      for m in kinds[1:]) for e in range(self.config["num_experts"])]


# The writer -------------------------------------------------------------------------------------


def expert_shapes(config):
    wide = config.get("routed_expert_hidden_size") or config["hidden_size"]
    inter = config["moe_intermediate_size"]
    return {"gate": (inter, wide), "up": (inter, wide), "down": (wide, inter)}


def text_tensors(draw, config, layers):
    """{name without prefix: f32} of `layers` layers, in the names of a container."""
    c = {**config, "num_hidden_layers": layers}
    out = {name: oc.tiny_values(draw, name, shape, config)
           for name, shape in oc.required_tensors(c)}
    for layer in range(c["first_k_dense_replace"], layers):
        for e in range(c["num_experts"]):
            for kind, shape in expert_shapes(c).items():
                x = draw.normal(f"L{layer}E{e}{kind}dense", shape[0] * shape[1])
                out[f"model.layers.{layer}.block_sparse_moe.experts.{e}.{kind}"] = \
                    x.reshape(shape) / np.sqrt(shape[1])
    return out


def mtp_tensors(draw, config):
    """What a multi-token-prediction layer has beside those of an ordinary one."""
    h, at = config["hidden_size"], f"model.layers.{config['num_hidden_layers']}."
    shapes = {"embed_tokens.weight": (config["vocab_size"], h), "enorm.weight": (h,),
              "hnorm.weight": (h,), "eh_proj.weight": (h, 2 * h), "shared_head.norm.weight": (h,),
              "shared_head.head.weight": (config["vocab_size"], h)}
    return {at + name: draw.normal(at + name, int(np.prod(shape))).reshape(shape)
            for name, shape in shapes.items()}


def vision_tensors(draw, vision):
    h, wide, inner = (vision[k] for k in ("vt_hidden_size", "qkv_hidden_size",
                                          "vt_intermediate_size"))
    text, p = vision["text_hidden_size"], vision["patch_size"]
    shapes = {"vision_tower.patch_embed.proj.weight": (h, 3, p, p),
              "vision_tower.patch_embed.pos_emb.weight":
                  (vision["init_pos_emb_height"], vision["init_pos_emb_width"], h),
              "vision_tower.encoder.final_layernorm.weight": (h,),
              "mm_projector.proj.0.weight": (4 * h, 4 * h),
              "mm_projector.proj.2.weight": (text, 4 * h),
              "mm_projector.post_norm.weight": (text,)}
    for i in range(vision["vt_num_hidden_layers"]):
        at = f"vision_tower.encoder.blocks.{i}."
        shapes |= {at + "norm0.weight": (h,), at + "norm1.weight": (h,),
                   at + "wqkv.weight": (3 * wide, h), at + "wo.weight": (h, wide),
                   at + "mlp.fc0.weight": (inner, h), at + "mlp.fc1.weight": (h, inner)}
    out = {}
    for name, shape in shapes.items():
        x = draw.normal(name, int(np.prod(shape))).reshape(shape)
        fan = shape[-1] if len(shape) == 2 else 3 * p * p
        out[name] = 1 + 0.2 * x if len(shape) == 1 else x / np.sqrt(fan)
    return out


def released_name(name, deepseek):
    """A container's name to the release's."""
    if deepseek:
        name = oc.source_name(name)
    parts = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"} if deepseek else \
        {"gate": "w1", "up": "w3", "down": "w2"}
    if ".experts." in name:
        stem, kind = name.rsplit(".", 1)
        name = f"{stem}.{parts[kind]}.weight"
    return name


def is_fp8(name, shape):
    """What a DeepSeek release stores in 8 bits: the matrices inside the layers, router aside."""
    return len(shape) == 2 and "layers" in name and not name.endswith(
        ("mlp.gate.weight", "embed_tokens.weight", "eh_proj.weight", "head.weight"))


def encode(tensors, deepseek, mxfp4, block):
    """{stored name: (dtype, shape, bytes)}."""
    out = {}
    for name, values in tensors.items():
        x = np.ascontiguousarray(values, np.float32)
        if mxfp4 and ".experts." in name:
            packed, scale = to_mxfp4(x)
            out[name + "_packed"] = "U8", packed.shape, packed.tobytes()
            out[name + "_scale"] = "U8", scale.shape, scale.tobytes()
        elif deepseek and is_fp8(name, x.shape):
            code, scale = to_fp8(x, block)
            out[name] = "F8_E4M3", code.shape, code.tobytes()
            out[name + "_scale_inv"] = "F32", scale.shape, scale.tobytes()
        elif name.endswith(F32_NAMES):
            out[name] = "F32", x.shape, x.astype("<f4").tobytes()
        else:
            out[name] = "BF16", x.shape, to_bf16(x).tobytes()
    return out


def write_shard(path, stored):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in stored.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text +
                           b"".join(data for _, _, data in stored.values()))


def cuts(names, sizes, n):
    """Where n shards begin: about equal, and a pair in two of them where there are pairs."""
    total, done, at = sum(sizes), 0, [0]
    pairs = any(name.endswith(("_scale", "_scale_inv")) for name in names)
    for i, (name, size) in enumerate(zip(names, sizes)):
        if len(at) < n and done >= total * len(at) // n and \
                (not pairs or name.endswith(("_scale", "_scale_inv"))):
            at.append(i)
        done += size
    return at


def write_tensors(path, stored, n_shards):
    """n_shards 0: one file without an index."""
    names = sorted(stored)
    if n_shards == 0:
        write_shard(path / "model.safetensors", {n: stored[n] for n in names})
        return
    begin = cuts(names, [len(stored[n][2]) for n in names], n_shards)
    weight_map = {}
    for i, (lo, hi) in enumerate(zip(begin, begin[1:] + [len(names)])):
        file = f"model-{i + 1:05d}-of-{len(begin):05d}.safetensors"
        weight_map |= dict.fromkeys(names[lo:hi], file)
        write_shard(path / file, {n: stored[n] for n in names[lo:hi]})
    total = sum(len(t[2]) for t in stored.values())
    write_json(path / "model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")


def released_config(family, config, deepseek, block):
    """config.json as the release has it: (whole, text configuration)."""
    text = {k: v for k, v in config.items() if k != "_outer"}
    if deepseek:
        text = {k: v for k, v in text.items() if k not in ALIASES}
        text["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3",
                                       "quant_method": "fp8", "weight_block_size": list(block)}
    if family != "k3":
        return text
    del text["eos_token_id"]  # only in generation_config.json
    text["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float",
                                                  "group_size": FP4_BLOCK}}}}
    return {**config["_outer"], "text_config": text, "media_placeholder_token_id": oc.N_RANKS + 7,
            "vision_config": {**VISION, "text_hidden_size": config["hidden_size"]}}


def write_tokenizer(path, family, name, config):
    """The files of a tokenizer, and of generation."""
    added = {oc.N_RANKS + i: text for i, text in family["specials"].items()}
    if name == "k3":
        added[oc.N_RANKS + 7] = "<|media_pad|>"
    tokenizer = {"added_tokens_decoder": {
        str(i): {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
                 "single_word": False, "special": True} for i, text in sorted(added.items())},
        "clean_up_tokenization_spaces": False, "tokenizer_class": "TikTokenTokenizer"}
    if name == "deepseek":
        tokenizer["tokenizer_class"] = "LlamaTokenizerFast"
        tokenizer["chat_template"] = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    else:
        ranks = [bytes([b]) for b in range(256)] + [m.encode("ascii") for m in oc.MERGES]
        (path / "tiktoken.model").write_bytes(
            b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(ranks)))
    if name == "kimi-linear":
        (path / "chat_template.jinja").write_text(
            "{% for m in messages %}<|im_user|>{{ m['content'] }}<|im_end|>{% endfor %}\n")
    write_json(path / "tokenizer_config.json", tokenizer)
    write_json(path / "generation_config.json",
               {"eos_token_id": config["eos_token_id"], "max_length": 1024})


def write_checkpoint(name, path, seed=None, n_shards=3, overrides=None, block=FP8_BLOCK):
    """Write a family's checkpoint below path."""
    family, path = oc.FAMILIES[name], Path(path)
    config = {**family["config"], **OVERRIDES.get(name, {}), **(overrides or {})}
    for ours, theirs in ALIASES.items():
        if theirs in config and ours in (overrides or {}):
            config[theirs] = config[ours]
    draw = oc.Draw(family["seed"] if seed is None else seed)
    deepseek = "n_routed_experts" in config
    mtp = config.get("num_nextn_predict_layers") or 0
    tensors = text_tensors(draw, config, config["num_hidden_layers"] + mtp)
    if mtp:
        tensors |= mtp_tensors(draw, config)
    tensors = {family["prefix"] + released_name(n, deepseek): v for n, v in tensors.items()}
    whole = released_config(name, config, deepseek, block)
    if "vision_config" in whole:
        tensors |= vision_tensors(draw, whole["vision_config"])
    path.mkdir(parents=True, exist_ok=True)
    write_tensors(path, encode(tensors, deepseek, name == "k3", block), n_shards)
    write_json(path / "config.json", whole)
    write_tokenizer(path, family, name, config)
    if name == "k3":
        write_json(path / "preprocessor_config.json", {"media_proc_cfg": {
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "patch_size": 14,
            "in_patch_limit": 65536, "patch_limit_on_one_side": 512}})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("family", choices=list(oc.FAMILIES))
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, help="default: the one of the tiny container")
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--single", action="store_true", help="one file, no index")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="a member of the text configuration, its value in JSON")
    args = parser.parse_args()
    overrides = {k: json.loads(v) for k, v in (s.split("=", 1) for s in args.set)}
    write_checkpoint(args.family, args.out, args.seed, 0 if args.single else args.shards,
                     overrides)
    return 0


if __name__ == "__main__":
    sys.exit(main())
