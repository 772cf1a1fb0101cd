#!/usr/bin/env python3
"""RMSNorm, then quantization to MXFP8 in 32x32 squares with both scale layouts, as two steps in
PyTorch: eager, each step compiled, and PyTorch's own fused rms_norm before a compiled quantization.
What rmsnorm_quantize does in one pass is timed by device_bench; with --ours (its JSON of the same
run) the ratio is printed. The two steps are also timed alone. Needs a CUDA PyTorch.

    torch_rmsnorm.py [--ours FILE] [--json FILE] [--commit TEXT]
"""

import argparse
import datetime
import json
import statistics

import torch

SHAPES = [(2097152, 384), (1048576, 512)]
WARM_UPS, RUNS = 3, 30


def norm(x, weight):
    return torch.nn.functional.rms_norm(x, (x.shape[1],), weight, 1e-6)


def tiled(scales):
    """[rows, blocks] to atoms of 128 rows x 4 blocks."""
    rows, blocks = scales.shape
    atoms = scales.view(rows // 128, 4, 32, blocks // 4, 4).permute(0, 3, 2, 1, 4)
    return atoms.contiguous()


def quantize(y):
    """Payload, scales along columns and scales along rows; rows and columns in whole atoms."""
    rows, dim = y.shape
    squares = y.float().view(rows // 32, 32, dim // 32, 32)
    bits = squares.abs().amax((1, 3)).view(torch.int32)
    scale = ((bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000).int()).clamp(min=0)
    inverse = ((254 - scale) << 23).view(torch.float32)
    codes = (squares * inverse[:, None, :, None]).to(torch.float8_e4m3fn).view(rows, dim)
    byte = scale.to(torch.uint8)
    along_columns = tiled(byte.repeat_interleave(32, 0))
    along_rows = tiled(byte.repeat_interleave(32, 1).t().contiguous())
    return codes, along_columns, along_rows


def milliseconds(call):
    times = []
    for run in range(-WARM_UPS, RUNS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        stop.synchronize()
        if run >= 0:
            times.append(start.elapsed_time(stop))
    return times


def steps():
    yield "eager", norm, quantize
    compiled_quantize = torch.compile(quantize, dynamic=False)
    yield "compiled", torch.compile(norm, dynamic=False), compiled_quantize
    yield "fused norm, compiled quantize", norm, compiled_quantize


def record(name, rows, dim, times, arguments):
    return {
        "routine": "rmsnorm_quantize",
        "impl": f"torch {torch.__version__} rms_norm, quantize ({name})",
        "ms_median": statistics.median(times),
        "ms_min": min(times),
        "ms_max": max(times),
        "runs": len(times),
        "rows": rows,
        "dim": dim,
        "device": torch.cuda.get_device_name(),
        "commit": arguments.commit,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def ours_of(path, rows, dim):
    if not path:
        return None
    with open(path, encoding="utf-8") as file:
        for entry in json.load(file):
            same = entry["rows"] == rows and entry["dim"] == dim and entry["dtype"] == "bf16"
            if same and entry["impl"].startswith("mxfa"):
                return entry["ms_median"]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", help="rmsnorm_quantize.json of device_bench")
    parser.add_argument("--json", help="write records to this file")
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    records = []
    for rows, dim in SHAPES:
        x = torch.randn(rows, dim, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(dim, device="cuda", dtype=torch.bfloat16)
        ours = ours_of(arguments.ours, rows, dim)
        for name, norm_step, quantize_step in steps():
            times = milliseconds(lambda: quantize_step(norm_step(x, weight)))
            records.append(record(name, rows, dim, times, arguments))
            median = statistics.median(times)
            ratio = f", {median / ours:.2f} times ours" if ours else ""
            y = norm_step(x, weight)
            norm_ms = statistics.median(milliseconds(lambda: norm_step(x, weight)))
            quantize_ms = statistics.median(milliseconds(lambda: quantize_step(y)))
            print(
                f"[{rows}, {dim}] torch {name}: {median:.3f} ms{ratio}"
                f" (norm {norm_ms:.3f}, quantize {quantize_ms:.3f})",
                flush=True,
            )
            torch.cuda.empty_cache()
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(records, file, indent=2)
                file.write("\n")


if __name__ == "__main__":
    main()
