#!/usr/bin/env python3
"""The cross-attention module's step beside PyTorch's autograd in double precision, on the same
inputs: prints the SQNR in dB of each of the 24 tensors.

    python3 -m venv venv && venv/bin/pip install torch safetensors numpy
    mxfa module --preset tiny --precision bf16 --tensors step.safetensors
    venv/bin/python tools/golden/check_module_torch.py step.safetensors --least 40

The forward is torch's own (rms_norm, linear, scaled_dot_product_attention); gradients of inner
tensors are retained by autograd. Exit status 1: a tensor lies below --least.
"""

import argparse
import math
import sys

import torch
from safetensors import safe_open
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention


def read(path):
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        return tensors, file.metadata()


def heads_first(x, heads):
    """[rows, heads * head_dim] to [heads, rows, head_dim]."""
    return x.reshape(x.shape[0], heads, -1).transpose(0, 1)


def attend(q, k, v, group):
    """One sequence; q [heads, rows, head_dim]. Returns o and lse [heads, rows]."""
    k, v = (x.repeat_interleave(group, dim=0) for x in (k, v))
    if k.shape[1] == 0:
        return torch.zeros_like(q), torch.full(q.shape[:2], -math.inf, dtype=q.dtype)
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    return scaled_dot_product_attention(q, k, v), scores.logsumexp(dim=-1)


def step(given, heads, heads_kv, eps):
    """All 24 tensors in float64."""
    names = ("seeds", "kv", "seed_norm_weight", "kv_norm_weight", "wq", "wk", "wv", "wo")
    leaf = {name: given[name].double().requires_grad_() for name in names}
    dim = leaf["seeds"].shape[1]
    t = {"seed_norm": rms_norm(leaf["seeds"], (dim,), leaf["seed_norm_weight"], eps),
         "kv_norm": rms_norm(leaf["kv"], (dim,), leaf["kv_norm_weight"], eps)}
    t["q"] = linear(t["seed_norm"], leaf["wq"])
    t["k"], t["v"] = (linear(t["kv_norm"], leaf[name]) for name in ("wk", "wv"))
    bounds = given["cu_seqlens_k"].tolist()
    batch, rows = len(bounds) - 1, leaf["seeds"].shape[0]
    t["q_seq"] = t["q"].repeat(batch, 1)
    outputs, lses = [], []
    for i in range(batch):
        keys = slice(bounds[i], bounds[i + 1])
        o, lse = attend(heads_first(t["q_seq"][i * rows:(i + 1) * rows], heads),
                        heads_first(t["k"][keys], heads_kv), heads_first(t["v"][keys], heads_kv),
                        heads // heads_kv)
        outputs.append(o.transpose(0, 1).reshape(rows, -1))
        lses.append(lse)
    t["o"], t["lse"] = torch.cat(outputs), torch.cat(lses, dim=1)
    t["y"] = linear(t["o"], leaf["wo"])
    inner = ("seed_norm", "kv_norm", "q", "q_seq", "k", "v", "o")
    for name in inner:
        t[name].retain_grad()
    t["y"].backward(given["dy"].double())
    gradients = {"d" + name: leaf[name].grad for name in names}
    gradients |= {"d" + name: t[name].grad for name in inner if name != "o"}
    gradients["dout"] = t["o"].grad
    gradients["delta"] = (heads_first(t["o"], heads) * heads_first(t["o"].grad, heads)).sum(-1)
    del t["q_seq"]
    return {name: value.detach() for name, value in (t | gradients).items()}


def sqnr_db(got, want):
    got, want = got.double().flatten(), want.flatten()
    finite = torch.isfinite(want)
    if not torch.equal(torch.isfinite(got), finite):
        return -math.inf
    noise = (got - want)[finite].square().sum().item()
    return math.inf if noise == 0 else 10 * math.log10(want[finite].square().sum().item() / noise)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="of mxfa module --tensors")
    parser.add_argument("--least", type=float, default=-math.inf, help="dB of every tensor")
    arguments = parser.parse_args()
    given, metadata = read(arguments.file)
    want = step(given, int(metadata["num_heads"]), int(metadata["num_heads_kv"]),
                float(metadata["eps"]))
    figures = {name: sqnr_db(given[name], value) for name, value in want.items()}
    for name, db in figures.items():
        print(f"{name:18} {db:7.2f} dB")
    worst = min(figures, key=figures.get)
    print(f"{len(figures)} tensors, the lowest {worst} at {figures[worst]:.2f} dB")
    return 0 if figures[worst] >= arguments.least else 1


if __name__ == "__main__":
    sys.exit(main())
