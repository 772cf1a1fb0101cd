#!/usr/bin/env python3
"""Makes the tables of docs/benchmarks.md that stand mxfa beside other libraries.

    benchmarks/peers/tables.py             # rewrite them
    benchmarks/peers/tables.py --check     # change nothing, exit 1 where they differ

A table lies between `<!-- table: NAME -->` and `<!-- end -->` in the document; its figures come
from benchmarks/results/nvidia_h200/attention_{forward,backward}_peers.json alone.
"""

import argparse
import json
import sys
from pathlib import Path

from known import tflops as known_tflops

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from document_tables import table_lines, update  # noqa: E402

DOCUMENT = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results" / "nvidia_h200"
FP32, HALF = "mxfa mxfp8", "mxfa mxfp8 (half scores)"
HALF_FP16 = "mxfa mxfp8 (half scores, dq fp16)"
WHOLE, WHOLE_HALF = "mxfa mxfp8 (whole call)", "mxfa mxfp8 (half scores, whole call)"


class Shape:
    """TFLOP/s of one shape by implementation; None where one refused it."""

    def __init__(self, case):
        self.case, self.rates = case, {}

    def name(self, twins):
        """`twins`: how many shapes differ in their keys alone; of these the shortest is skewed."""
        case = self.case
        text = f"{case['batch']} x {case['num_heads']} x {case['seqlen_q']}"
        if case["jagged"]:
            text += f", keys to {case['seqlen_k']}"
            if twins > 1:
                text += ", skewed" if self.is_skewed() else ", uniform"
        elif case["seqlen_k"] != case["seqlen_q"]:
            text += f" x {case['seqlen_k']}"
        return text + (" causal" if case["causal"] else "")

    def is_skewed(self):
        """Lengths that are the lesser of two draws have a mean of a third, not half."""
        return self.case["total_k"] < 0.42 * self.case["batch"] * self.case["seqlen_k"]

    def rate(self, impl):
        rate = self.rates.get(impl)
        return "-" if rate is None else f"{rate:.0f}"

    def best(self, kind):
        rates = [rate for impl, rate in self.rates.items()
                 if rate is not None and not impl.startswith("mxfa") and impl.endswith(kind)]
        return max(rates, default=None)

    def ratio(self, impl, kind):
        rate, best = self.rates.get(impl), self.best(kind)
        return "-" if rate is None or best is None else f"{rate / best:.2f}"

    def best_rate(self, kind):
        best = self.best(kind)
        return "-" if best is None else f"{best:.0f}"


def read_shapes(file):
    shapes = {}
    for record in json.loads(file.read_text()):
        if "case" in record:
            key = json.dumps(record["case"], sort_keys=True)
            shape = shapes.setdefault(key, Shape(record["case"]))
            shape.rates[record["impl"]] = record.get("tflops")
    return list(shapes.values())


def known_fa3(shape):
    """FlashAttention-3's backward on another day, in brackets."""
    case = shape.case
    if case["seqlen_q"] == case["seqlen_k"]:
        name = f"b{case['batch']}h{case['num_heads']}n{case['seqlen_q']}"
        name += " causal" if case["causal"] else ""
    else:
        lengths = ("skewed" if shape.is_skewed() else "uniform") if case["jagged"] else "equal"
        name = f"b{case['batch']}h3q512 k {lengths} {case['seqlen_k']}"
    return f"({known_tflops(name, 'fa3 bf16', True) or '-'})"


def rate_of(*impls):
    return lambda shape: " / ".join(shape.rate(impl) for impl in impls)


def ratio_of(impl, kind):
    return lambda shape: shape.ratio(impl, kind)


def best_of(kind):
    return lambda shape: shape.best_rate(kind)


FORWARD_RATIOS = {
    "prepared, FP32 scores": ratio_of(FP32, "bf16"),
    "prepared, half scores": ratio_of(HALF, "bf16"),
    "prepared, `qk=bf16`": ratio_of("mxfa mxfp8 (qk bf16)", "bf16"),
    "whole call, FP32 scores": ratio_of(WHOLE, "bf16"),
    "whole call, half scores": ratio_of(WHOLE_HALF, "bf16"),
    "prepared, half scores / best FP8": ratio_of(HALF, "fp8"),
}
FORWARD_RATES = {
    "prepared, FP32 scores": rate_of(FP32),
    "half scores": rate_of(HALF),
    "`qk=bf16`": rate_of("mxfa mxfp8 (qk bf16)"),
    "leak-free, FP32 / half": rate_of("mxfa mxfp8 (leak-free)",
                                      "mxfa mxfp8 (leak-free, half scores)"),
    "whole call, FP32 / half": rate_of(WHOLE, WHOLE_HALF),
    "cuDNN BF16": rate_of("cudnn bf16"),
    "FA3 BF16": rate_of("fa3 bf16"),
    "PyTorch BF16": rate_of("torch bf16"),
    "cuDNN FP8": rate_of("cudnn fp8"),
    "FA3 FP8": rate_of("fa3 fp8"),
}
BACKWARD_RATIOS = {
    "prepared, FP32 scores": ratio_of(FP32, "bf16"),
    "prepared, half scores": ratio_of(HALF, "bf16"),
    "prepared, half scores, FP16 sums": ratio_of(HALF_FP16, "bf16"),
    "whole call, FP32 scores": ratio_of(WHOLE, "bf16"),
    "prepared, half scores / best FP8": ratio_of(HALF, "fp8"),
}
BACKWARD_RATES = {
    "prepared, FP32 scores": rate_of(FP32),
    "half scores": rate_of(HALF),
    "FP16 sums, FP32 / half": rate_of("mxfa mxfp8 (dq fp16)", HALF_FP16),
    "in order": rate_of("mxfa mxfp8 (deterministic)"),
    "whole call, FP32": rate_of(WHOLE),
    "cuDNN BF16": rate_of("cudnn bf16"),
    "PyTorch BF16": rate_of("torch bf16"),
    "cuDNN FP8": rate_of("cudnn fp8"),
    "FA3 BF16": known_fa3,
}
TABLES = {
    "forward-ratios": ("forward", FORWARD_RATIOS),
    "forward-rates": ("forward", FORWARD_RATES),
    "backward-ratios": ("backward", BACKWARD_RATIOS),
    "backward-rates": ("backward", BACKWARD_RATES),
}


def markdown(shapes, columns):
    rows = []
    for shape in shapes:
        twins = sum(other.case | {"total_k": 0} == shape.case | {"total_k": 0} for other in shapes)
        rows.append((shape.name(twins), [column(shape) for column in columns.values()]))
    return "\n".join(table_lines("batch x heads x queries (x keys)", columns, rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where a table differs")
    options = parser.parse_args()
    bodies = {
        name: markdown(read_shapes(RESULTS / f"attention_{direction}_peers.json"), columns)
        for name, (direction, columns) in TABLES.items()
    }
    return update(DOCUMENT, bodies, options.check)


if __name__ == "__main__":
    sys.exit(main())
