#!/usr/bin/env python3
"""train_demo.py - train the demonstration model from scratch on two CPU cores.

    train_demo.py --run DIR [--steps N] [--text FILE...]
    train_demo.py --run DIR --export OUT        release the last checkpoint

The text is fetched, tokenised and split once, into DIR/text. Every worker is a process with one
thread; parameters, moments and gradients are flat arrays in memory that the workers share, and
each worker averages and updates its own part. Started again, it goes on from the last checkpoint.
Nothing depends on the clock: the same machine, library and N give the same bits, however often the
run was stopped between. Torch from Debian wants libopenblas0-pthread beside it.
"""
import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # before the import

import numpy as np
import torch
from torch import multiprocessing as mp
from torch.nn import functional as F

import demo_bpe
import demo_chat
import demo_model
import demo_release
import demo_text

SEED = 20
WORKERS = 2
STEPS = 1500
ROWS = 1024             # tokens per worker and step
LENGTHS = [(0.0, 256), (0.7, 512)]  # sequence length from this part of the schedule on
PEAK, FLOOR, WARMUP = 2.5e-3, 0.04, 0.03
BETAS, DECAY, CLIP = (0.9, 0.95), 0.1, 1.0
BALANCE = 5e-3          # step of the experts' biases, at the peak rate
CHAT = 0.25             # part of the sequences that are conversations
CHECK = 100             # steps between checkpoints


def prepare(run, files, config):
    """DIR/text: train.npy, chat.npy, held.npy, heldout.txt, tiktoken.model. A chapter is [BOS],
    its text and the end of a turn; chat.npy holds the training chapters as conversations."""
    out = run / "text"
    if (out / "held.npy").exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    books = demo_text.read(files) if files else demo_text.fetch(run / "packages")
    train, held = demo_text.split(books)
    n_ranks, end = config["bos_token_id"], config["eos_token_id"]
    ranks, marker = demo_bpe.train(train, n_ranks), demo_chat.markers(n_ranks)
    demo_bpe.write(out / "tiktoken.model", ranks)
    (out / "heldout.txt").write_text("\n".join(held), "utf-8")
    encode = demo_bpe.Encoder(ranks).encode
    chats = [demo_chat.conversations(d, encode, marker, i) for i, d in enumerate(train)]
    plain = {name: [[n_ranks, *encode(d), end] for d in docs]
             for name, docs in (("train", train), ("held", held))}
    for name, docs in (("train", plain["train"]), ("chat", chats), ("held", plain["held"])):
        np.save(out / f"{name}.npy", np.concatenate(docs).astype(np.int16))
        print(f"{name}: {len(docs)} chapters, {sum(map(len, docs))} tokens", flush=True)


@torch.no_grad()
def held_out_loss(model, ids, length=256):
    """Nats per token, over windows that overlap by nothing."""
    n = (len(ids) - 1) // length
    x = torch.from_numpy(ids[: n * length].astype(np.int64)).view(n, length)
    y = torch.from_numpy(ids[1 : n * length + 1].astype(np.int64)).view(n, length)
    losses = [F.cross_entropy(model(a).flatten(0, 1), b.flatten(), reduction="sum").item()
              for a, b in zip(x.split(8), y.split(8))]
    return sum(losses) / (n * length)


class Shared:
    """What the workers have in common: flat f32 arrays, and the counts of the experts."""

    def __init__(self, model):
        n = sum(p.numel() for p in model.parameters())
        self.values, self.m, self.v = (torch.zeros(n).share_memory_() for _ in range(3))
        self.grads = torch.zeros(WORKERS, n).share_memory_()
        self.counts = torch.zeros(WORKERS, len(model.moes()), model.config["num_experts"],
                                  dtype=torch.float).share_memory_()
        self.numbers = torch.zeros(WORKERS, 4, dtype=torch.double).share_memory_()
        self.barrier = mp.get_context("fork").Barrier(WORKERS, timeout=900)


def adopt(model, values, grads):
    """Make the model's parameters and gradients views of flat arrays. Returns which elements
    decay: those of matrices."""
    decays, at = torch.zeros(len(values)), 0
    for p in model.parameters():
        there = slice(at, at + p.numel())
        values[there] = p.data.flatten()
        p.data, p.grad = values[there].view_as(p), grads[there].view_as(p)
        decays[there] = p.dim() >= 2 and p.shape[-1] > 4
        at += p.numel()
    return decays


def reduce(shared, part):
    """Leave the mean gradient of a part in the first worker's array; the sum of its squares."""
    g = shared.grads[0, part]
    for other in shared.grads[1:, part]:
        g.add_(other)
    g.div_(WORKERS)
    return g.dot(g)


def update(shared, part, decays, step, rate, scale):
    """AdamW on one part of the flat arrays."""
    g = shared.grads[0, part].mul_(scale)
    m, v, x = shared.m[part], shared.v[part], shared.values[part]
    m.mul_(BETAS[0]).add_(g, alpha=1 - BETAS[0])
    v.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
    root = v.div(1 - BETAS[1] ** step).sqrt_().add_(1e-8)
    x.mul_(1 - rate * DECAY * decays[part])
    x.addcdiv_(m, root, value=-rate / (1 - BETAS[0] ** step))


def rate_at(done):
    if done < WARMUP:
        return PEAK * (done / WARMUP + 0.01)
    turn = math.cos(math.pi * (done - WARMUP) / (1 - WARMUP))
    return PEAK * (FLOOR + (1 - FLOOR) * (1 + turn) / 2)


def batch(plain, chat, step, rank, length):
    rng = np.random.default_rng([SEED, step, rank])
    rows = []
    for _ in range(ROWS // length):
        ids = chat if rng.random() < CHAT else plain
        start = rng.integers(0, len(ids) - length - 1)
        rows.append(ids[start : start + length + 1])
    both = np.stack(rows).astype(np.int64)
    return torch.from_numpy(both[:, :-1].copy()), torch.from_numpy(both[:, 1:].copy())


def worker(rank, shared, model, start, args):
    torch.set_num_threads(1)
    decays = adopt(model, shared.values, shared.grads[rank])
    if start:
        shared.values.copy_(start["values"])
        shared.m.copy_(start["m"])
        shared.v.copy_(start["v"])
        for moe, bias in zip(model.moes(), start["biases"]):
            moe.gate.e_score_correction_bias.copy_(bias)
    text = args.run / "text"
    train, chat, held = (np.load(text / f"{name}.npy") for name in ("train", "chat", "held"))
    n, step, tokens = len(shared.values), start.get("step", 0), start.get("tokens", 0)
    part = slice(rank * n // WORKERS, (rank + 1) * n // WORKERS)
    log = open(args.run / "log.jsonl", "a") if rank == 0 else None
    began = time.time() - start.get("seconds", 0)
    last, sums = (time.time(), tokens), []
    shared.barrier.wait()

    def save():
        loss = held_out_loss(model, held)
        state = {"values": shared.values, "m": shared.m, "v": shared.v, "step": step,
                 "tokens": tokens, "seconds": time.time() - began, "config": model.config,
                 "biases": [x.gate.e_score_correction_bias for x in model.moes()],
                 "held_out_loss": loss, "steps": args.steps}
        torch.save(state, args.run / "last.tmp")
        (args.run / "last.tmp").rename(args.run / "last.pt")
        note(step=step, tokens=tokens, held_out_loss=round(loss, 4),
             seconds=round(state["seconds"]))

    def note(**line):
        print(json.dumps(line), file=log, flush=True)
        print(line, flush=True)

    while step < args.steps:
        done = step / args.steps
        length = max(le for at, le in LENGTHS if done >= at)
        shared.grads[rank].zero_()
        x, y = batch(train, chat, step, rank, length)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        shared.numbers[rank, 0] = loss.item()
        shared.counts[rank] = torch.stack([m.counts for m in model.moes()])
        shared.barrier.wait()
        shared.numbers[rank, 1] = reduce(shared, part)
        shared.barrier.wait()
        norm = shared.numbers[:, 1].sum().sqrt().item()
        step, tokens = step + 1, tokens + ROWS * WORKERS
        rate = rate_at(done)
        update(shared, part, decays, step, rate, min(1, CLIP / norm))
        shared.barrier.wait()
        counts = shared.counts.sum(0)
        for moe, row in zip(model.moes(), counts):
            moe.balance(row, BALANCE * rate / PEAK)
        sums.append(shared.numbers[:, 0].mean().item())
        if rank == 0 and step % 20 == 0:
            now = time.time()
            spread = (counts.max(1).values / counts.mean(1)).mean().item()
            note(step=step, tokens=tokens, loss=round(sum(sums) / len(sums), 4),
                 norm=round(norm, 3), rate=round(rate, 6), max_load=round(spread, 2),
                 tokens_s=round((tokens - last[1]) / (now - last[0])), seconds=round(now - began))
            last, sums = (now, tokens), []
        if step % CHECK == 0 or step == args.steps:
            if rank == 0:
                save()
            shared.barrier.wait()


def load(path):
    """(model, checkpoint) as training left it."""
    state = torch.load(path)
    model, at = demo_model.KimiLinear(state["config"]), 0
    for p in model.parameters():
        p.data = state["values"][at : at + p.numel()].view_as(p)
        at += p.numel()
    for moe, bias in zip(model.moes(), state["biases"]):
        moe.gate.e_score_correction_bias.copy_(bias)
    return model, state


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, required=True, help="where everything is kept")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the whole schedule")
    parser.add_argument("--text", nargs="+", help="plain text files instead of the packages")
    parser.add_argument("--export", type=Path, help="write the last checkpoint as a release")
    args = parser.parse_args()
    if args.export:
        model, _ = load(args.run / "last.pt")
        demo_release.write(args.export, model, args.run / "text" / "tiktoken.model")
        return 0
    torch.manual_seed(SEED)
    prepare(args.run, args.text, demo_model.CONFIG)
    model = demo_model.KimiLinear(demo_model.CONFIG)
    last = args.run / "last.pt"
    start = torch.load(last) if last.exists() else {}
    if start and (start.get("steps"), start["config"]) != (args.steps, model.config):
        print(f"{last}: of a run with --steps {start.get('steps')} or of another model; give that "
              "number, or another directory", file=sys.stderr)
        return 1
    shared = Shared(model)
    context = mp.get_context("fork")
    others = [context.Process(target=worker, args=(r, shared, model, start, args), daemon=True)
              for r in range(1, WORKERS)]
    for p in others:
        p.start()
    worker(0, shared, model, start, args)
    for p in others:
        p.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
