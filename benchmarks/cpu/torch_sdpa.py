#!/usr/bin/env python3
"""PyTorch's CPU attention in BF16, for comparison with cpu_bench: forward and backward at batch 1,
8 heads, 2048 tokens, head_dim 128. Prints the best wall time and the best CPU time (divided by the
threads) of each; on a busy machine the latter is the fairer one. Needs PyTorch.

    torch_sdpa.py [THREADS]
"""

import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

HEADS, TOKENS, HEAD_DIM = 8, 2048, 128
REPETITIONS = 15


def timed(call):
    """The call's result, its wall seconds and its CPU seconds for each thread."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = call()
    return (
        result,
        time.perf_counter() - wall,
        (time.process_time() - cpu) / torch.get_num_threads(),
    )


def main():
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(0)
    q, k, v, dout = (torch.randn(1, HEADS, TOKENS, HEAD_DIM).bfloat16() for _ in range(4))
    for tensor in (q, k, v):
        tensor.requires_grad_(True)
    times = {"forward": [], "backward": []}
    for _ in range(REPETITIONS):
        out, *forward = timed(lambda: scaled_dot_product_attention(q, k, v))
        _, *backward = timed(lambda: out.backward(dout))
        times["forward"].append(forward)
        times["backward"].append(backward)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, "
          f"{torch.backends.cpu.get_cpu_capability()}")
    for (name, pairs), products in zip(times.items(), (4, 10)):
        flops = products * HEADS * TOKENS * TOKENS * HEAD_DIM
        wall, cpu = (min(column) for column in zip(*pairs))
        print(f"{name:8}  wall {wall * 1e3:8.1f} ms  cpu {cpu * 1e3:8.1f} ms  "
              f"cpu {flops / cpu * 1e-9:7.1f} GFLOP/s")


if __name__ == "__main__":
    main()
