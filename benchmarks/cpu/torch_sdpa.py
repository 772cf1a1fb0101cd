#!/usr/bin/env python3
"""PyTorch's CPU attention in BF16 beside mxfa's, in one run: batch 1, 8 heads, 2048 tokens,
head_dim 128, forward and backward. Blocks of runs alternate, so that both meet the same machine;
each uses its own threads. Prints medians and their ratio, writes the records of both.

    torch_sdpa.py --mxfa build/release/bin/mxfa --json compared.json
"""

import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

HEADS, TOKENS, HEAD_DIM = 8, 2048, 128
PASSES = {"attention_forward": 4, "attention_backward": 10}
CASE = {"batch": 1, "num_heads": HEADS, "num_heads_kv": HEADS, "seqlen_q": TOKENS,
        "seqlen_k": TOKENS, "total_q": TOKENS, "total_k": TOKENS, "head_dim": HEAD_DIM,
        "causal": False, "jagged": False}


class Torch:
    """Samples in ms: wall, and CPU time divided by the threads."""

    def __init__(self):
        torch.manual_seed(0)
        self.q, self.k, self.v, self.dout = (
            torch.randn(1, HEADS, TOKENS, HEAD_DIM).bfloat16() for _ in range(4)
        )
        for tensor in (self.q, self.k, self.v):
            tensor.requires_grad_(True)
        self.samples = {name: [] for name in PASSES}

    def timed(self, name, call):
        cpu, wall = time.process_time(), time.perf_counter()
        result = call()
        wall = (time.perf_counter() - wall) * 1e3
        cpu = (time.process_time() - cpu) * 1e3 / torch.get_num_threads()
        if name is not None:
            self.samples[name].append((wall, cpu))
        return result

    def run(self, runs, warm_ups=1):
        for i in range(-warm_ups, runs):
            forward, backward = PASSES if i >= 0 else (None, None)
            out = self.timed(
                forward, lambda: scaled_dot_product_attention(self.q, self.k, self.v)
            )
            self.timed(backward, lambda out=out: out.backward(self.dout))

    def records(self, device):
        version = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
        result = []
        for name, samples in self.samples.items():
            wall, cpu = zip(*samples)
            result.append(record(name, "torch sdpa bf16", list(wall), statistics.median(cpu),
                                 torch.get_num_threads(), device) | {"version": version})
        return result


class Mxfa:
    """Blocks of `mxfa bench cpu`, whose records are pooled."""

    def __init__(self, program, threads):
        self.program, self.threads, self.blocks = program, threads, []

    def run(self, runs):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "records.json"
            command = [self.program, "bench", "cpu", "--preset", "peer", "--routines",
                       ",".join(PASSES), "--runs", str(runs), "--threads", str(self.threads),
                       "--json", str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            self.blocks.append(json.loads(path.read_text(encoding="utf-8")))

    def records(self):
        """Medians of the blocks' medians; the rest as the last block says."""
        pooled = []
        for rows in zip(*self.blocks):
            result = dict(rows[-1])
            for field, pool in (("ms_median", statistics.median), ("ms_min", min), ("ms_max", max),
                                ("runs", sum), ("cpu_ms_per_thread", statistics.median)):
                if field in result:
                    result[field] = pool([row[field] for row in rows])
            if result["routine"] in PASSES:
                result["tflops"] = tflops(result["routine"], result["ms_median"])
                ceiling = statistics.median(row["ceiling"]["value"] for row in rows)
                result["ceiling"] = {"name": result["ceiling"]["name"], "value": ceiling}
                result["fraction_of_ceiling"] = result["tflops"] / ceiling
            pooled.append(result)
        return pooled


def tflops(name, ms):
    return PASSES[name] * HEADS * TOKENS * TOKENS * HEAD_DIM / ms * 1e-9


def record(name, impl, wall, cpu, threads, device):
    median = statistics.median(wall)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {"routine": name, "case": CASE, "impl": impl, "ms_median": median, "ms_min": min(wall),
            "ms_max": max(wall), "runs": len(wall), "tflops": tflops(name, median),
            "device": device, "date": today, "threads": threads,
            "cpu_ms_per_thread": cpu}


def report(records):
    """One line for each pass and implementation, with the time of PyTorch's over its own."""
    for name in PASSES:
        rows = [row for row in records if row["routine"] == name]
        peer = next(row for row in rows if row["impl"].startswith("torch"))
        for row in rows:
            print(f"{name:19} {row['impl']:16} {row['ms_median']:9.2f} ms "
                  f"{row['tflops'] * 1e3:8.1f} GFLOP/s "
                  f"{peer['ms_median'] / row['ms_median']:5.2f}x"
                  f"   CPU time {row['cpu_ms_per_thread']:9.2f} ms "
                  f"{peer['cpu_ms_per_thread'] / row['cpu_ms_per_thread']:5.2f}x")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mxfa", required=True, help="the program mxfa")
    parser.add_argument("--rounds", type=int, default=6, help="blocks of each")
    parser.add_argument("--runs", type=int, default=5, help="timed runs in a block")
    parser.add_argument("--threads", type=int, default=0, help="of both; 0: each one's own choice")
    parser.add_argument("--json", help="write the records to FILE")
    arguments = parser.parse_args()
    if arguments.threads > 0:
        torch.set_num_threads(arguments.threads)
    peer, ours = Torch(), Mxfa(arguments.mxfa, arguments.threads)
    for i in range(arguments.rounds):
        for side in (peer, ours) if i % 2 == 0 else (ours, peer):
            side.run(arguments.runs)
    records = ours.records()
    records += peer.records(records[0]["device"])
    report(records)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(records, indent=2) + "\n",
                                                encoding="utf-8")


if __name__ == "__main__":
    main()
