#!/usr/bin/env python3
"""demo_eval.py - what a released demonstration model is worth, and whether its torch is right.

    demo_eval.py RELEASE --file TEXT        perplexity and bits per byte of a text
    demo_eval.py RELEASE --sample PROMPT    continue a prompt
    demo_eval.py --check                    the torch model against the oracle, one tiny model

RELEASE is a directory with config.json, the shards and tiktoken.model.
"""
import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import demo_bpe
import demo_model
import demo_release
import oracle
import oracle_container as oc


def load(path):
    """(model, encoder) of a release."""
    config = json.loads((path / "config.json").read_text())
    index = json.loads((path / "model.safetensors.index.json").read_text())
    tensors = {}
    for file in sorted(set(index["weight_map"].values())):
        tensors.update(demo_release.read_safetensors(path / file))
    model = demo_model.KimiLinear(config)
    model.load_release(tensors)
    return model.eval(), demo_bpe.Encoder(demo_bpe.read(path / "tiktoken.model"))


@torch.no_grad()
def perplexity(model, encoder, text, length):
    """(nats, tokens): every token of the text, predicted from at least half a window; the first
    from the marker alone. Windows overlap by half and start from an empty state."""
    ids = torch.tensor([model.config["bos_token_id"], *encoder.encode(text)])
    total, seen = 0.0, 1
    while seen < len(ids):
        start = max(0, min(seen, len(ids) - length // 2) - length // 2)
        window = ids[start : start + length]
        logp = model(window[None, :-1])[0].log_softmax(-1)
        mine = slice(seen - start - 1, None)
        total -= logp[mine].gather(1, window[1:][mine, None]).sum().item()
        seen = start + len(window)
    return total, len(ids) - 1


@torch.no_grad()
def sample(model, encoder, prompt, n, temperature, seed):
    torch.manual_seed(seed)
    end = model.config["eos_token_id"]
    ids = [model.config["bos_token_id"], *encoder.encode(prompt)]
    for _ in range(n):
        logits = model(torch.tensor([ids]))[0, -1]
        p = (logits / temperature).softmax(-1) if temperature else logits == logits.max()
        ids.append(torch.multinomial(p.float(), 1).item())
        if ids[-1] == end:
            break
    return encoder.decode(ids)


@torch.no_grad()
def check():
    """Largest difference of the logits, relative to the largest logit."""
    with tempfile.TemporaryDirectory() as box:
        oc.tiny("kimi-linear", box)
        judge = oracle.Model(box)
        model = demo_model.KimiLinear(judge.c).double()
        tensors = {}
        for name, old in model.release().items():
            part = name.split(".")
            if "experts" in part:
                which = {"w1": 0, "w3": 1, "w2": 2}[part[6]]
                value = judge.box.experts(int(part[2]))[int(part[5])][which]
            else:
                value = judge.box.tensor(name)
            tensors[name] = torch.from_numpy(np.array(value)).view_as(old)
        model.load_release(tensors)
        ids = oc.golden_ids("kimi-linear") * 2
        want = judge.forward(ids).logits
        got = model(torch.tensor([ids]))[0].numpy()
    return np.abs(got - want).max() / np.abs(want).max()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("release", type=Path, nargs="?")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--file", type=Path, help="UTF-8 text")
    parser.add_argument("--length", type=int, default=512, help="tokens in a window")
    parser.add_argument("--sample", metavar="PROMPT")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.check:
        worst = check()
        print(f"torch against oracle: {worst:.1e}")
        return 0 if worst < 1e-11 else 1
    model, encoder = load(args.release)
    if args.file:
        text = args.file.read_text("utf-8")
        nats, n = perplexity(model, encoder, text, args.length)
        size = len(text.encode("utf-8"))
        print(f"{n} tokens, {size} bytes: {nats / n:.4f} nats per token, perplexity "
              f"{math.exp(nats / n):.2f}, {nats / size / math.log(2):.4f} bits per byte")
    if args.sample is not None:
        print(sample(model, encoder, args.sample, args.tokens, args.temperature, args.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
