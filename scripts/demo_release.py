"""demo_release.py - a model as a released checkpoint: two safetensors shards, an index, the
configuration and the tokenizer. And how large a container it makes.
"""
import json
import struct

import torch

import demo_chat
import oracle_container as oc

SHARDS = 2
KEPT_F32 = ("A_log", "dt_bias", "conv1d.weight", "o_norm.weight", "e_score_correction_bias")


def payload(name, tensor):
    """(dtype, little-endian bytes)"""
    if name.endswith(KEPT_F32):
        return "F32", tensor.float().contiguous().numpy().tobytes()
    return "BF16", tensor.bfloat16().contiguous().view(torch.int16).numpy().tobytes()


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}. The header ends on a multiple of 8 bytes."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


def read_safetensors(path):
    """{name: f32 tensor}"""
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    out = {}
    for name, t in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        raw = bytearray(data[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]])
        kind = {"F32": torch.float32, "BF16": torch.bfloat16}[t["dtype"]]
        out[name] = torch.frombuffer(raw, dtype=kind).float().view(t["shape"])
    return out


def dump(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", "ascii")


def write(out, model, ranks):
    out.mkdir(parents=True, exist_ok=True)
    tensors = {n: (*payload(n, t), list(t.shape)) for n, t in model.release().items()}
    total = sum(len(data) for _, data, _ in tensors.values())
    shards, at = [{} for _ in range(SHARDS)], 0
    for name, (dtype, data, shape) in tensors.items():
        shards[at * SHARDS // total][name] = (dtype, shape, data)
        at += len(data)
    where = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{SHARDS:05d}.safetensors"
        write_safetensors(out / file, shard)
        where.update({name: file for name in shard})
    dump(out / "model.safetensors.index.json",
         {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))})
    config, marker = model.config, demo_chat.markers(model.config["bos_token_id"])
    dump(out / "config.json", {**config, "torch_dtype": "bfloat16"})
    named = {f"{k}_token": config[f"{k}_token_id"] for k in ("bos", "eos", "pad")}
    dump(out / "generation_config.json", {f"{k}_id": v for k, v in named.items()})
    text = {v: k for k, v in marker.items()}
    special = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
               "special": True}
    dump(out / "tokenizer_config.json", {
        "added_tokens_decoder": {str(i): {"content": t, **special} for i, t in text.items()},
        **{k: text[v] for k, v in named.items()}, "model_max_length": config["model_max_length"],
        "tokenizer_class": "TikTokenTokenizer"})
    (out / "tiktoken.model").write_bytes(ranks.read_bytes())
    print(f"{out}: {len(tensors)} tensors, {total} bytes; as a container about "
          f"{container_bytes(config) / 2**20:.2f} MiB")


def container_bytes(config, stages=3, entries=256):
    """Bytes of a container's trunk, banks and codebooks; side files not counted."""
    total = 0
    for name, shape in oc.required_tensors(config):
        n = torch.Size(shape).numel()
        fmt = oc.F32 if len(shape) == 1 or n < 65536 else oc.Q4G
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            fmt = oc.Q8G
        total += sum(oc.sizes(fmt, shape))
    h, m = config["hidden_size"], config["moe_intermediate_size"]
    index = sum(-(-rows // 64) * 64 * (cols // 8) * stages for rows, cols in
                ((m, h), (m, h), (h, m)))
    record = -(-(48 + index + 2 * (2 * m + h)) // 4096) * 4096
    layers = config["num_hidden_layers"] - config["first_k_dense_replace"]
    return total + layers * (config["num_experts"] * record + 3 * stages * (16 + 16 * entries))
