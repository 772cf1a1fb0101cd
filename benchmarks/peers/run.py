#!/usr/bin/env python3
"""Attention of other libraries on this GPU, beside mxfa's: cuDNN (BF16, FP8), FlashAttention-3
(BF16, FP8) and PyTorch, forward and backward, with the GPU's ceilings, in one run. Medians of 30
after 10 warm-ups, in turns. What a machine does not have is named as missing, with a known figure
beside it.

    run.py --json peers.json
    run.py --mxfa build/release/lib/libmxfa_peer.so --json peers.json
    run.py --dry-run          what would run, and which packages are there; needs no GPU
"""

import argparse
import datetime
import gc
import importlib.util
import json
import pathlib
import signal
import statistics
import subprocess
import sys

import known
from cases import PRESETS
from clocks import Clocks

IMPLS = ("cudnn bf16", "cudnn fp8", "fa3 bf16", "fa3 fp8", "torch bf16")
OURS = "mxfa "
PASSES = ("forward", "backward")
MODULES = {"cudnn": ("cudnn",), "fa3": ("flash_attn_interface", "fa3_fwd_interface"),
           "torch": ("torch",)}


def selected_passes(impl, passes):
    """FlashAttention-3 has no FP8 backward; mxfa's variants are of one pass or both."""
    if impl.startswith(OURS):
        import mxfa_peer

        return [name for name in passes if impl in mxfa_peer.IMPLS[name]]
    return [name for name in passes if not (impl == "fa3 fp8" and name == "backward")]


def installed(modules):
    return any(importlib.util.find_spec(module) is not None for module in modules)


def dry_run(arguments):
    for library, modules in MODULES.items():
        state = "is there" if installed(modules) else "is MISSING"
        print(f"{library}: {' or '.join(modules)} {state}")
    for preset in arguments.presets:
        for case in PRESETS[preset]:
            print(f"{preset}: {case.name}: {case.total_k()} keys, "
                  f"{case.flops(False) * 1e-12:.1f} TFLOP forward")
            for impl in arguments.impls:
                for name in selected_passes(impl, arguments.passes):
                    figure = known.tflops(case.name, impl, name == "backward")
                    print(f"    {impl:11} {name:8} known {figure or '-'} TFLOP/s")


def make_calls(impl, tensors):
    library, precision = impl.split()
    if library == "torch":
        import torch_peer

        return torch_peer.calls(tensors)
    if library == "fa3":
        import fa3_peer

        return fa3_peer.calls(tensors, precision == "fp8")
    import cudnn_peer

    return cudnn_peer.calls(tensors, precision == "fp8")


def attempt(call):
    """Runs it once; the exception that it ends with, or None."""
    import torch

    try:
        call()
        torch.cuda.synchronize()
    except Exception as error:  # a pass that the library was built without
        return error
    return None


class Run:
    """Collects records."""

    def __init__(self, arguments):
        import torch

        self.arguments, self.records, self.ceilings = arguments, [], {}
        self.impls = list(arguments.impls)
        self.library = None
        if arguments.mxfa:
            import mxfa_peer

            self.library = mxfa_peer.Library(arguments.mxfa)
            self.impls = mxfa_peer.NAMES + self.impls
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
        self.common = {"device": torch.cuda.get_device_name(),
                       "driver": driver[0] if driver else "",
                       "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat()}

    def timing(self, samples):
        return {"ms_median": statistics.median(samples), "ms_min": min(samples),
                "ms_max": max(samples), "runs": len(samples)}

    def measure_ceilings(self):
        import ceilings
        from gpu import time_in_turns

        found = ceilings.calls()
        samples = time_in_turns([call for call, _, _ in found.values()], self.arguments.runs)
        for (impl, (_, amount, is_bytes)), times in zip(found.items(), samples):
            rate = amount / statistics.median(times) * (1e-6 if is_bytes else 1e-9)
            field = "gbps" if is_bytes else "tflops"
            self.ceilings[impl] = rate
            self.records.append({"routine": "ceiling", "impl": impl, **self.timing(times),
                                 field: rate, **self.common})
            print(f"{'ceiling':30} {impl:11} {rate:9.1f} {'GB/s' if is_bytes else 'TFLOP/s'}",
                  flush=True)

    def missing(self, case, impl, name, reason):
        figure = known.tflops(case.name, impl, name == "backward")
        record = {"routine": f"attention_{name}", "case": case.record(), "impl": impl,
                  "missing": reason.strip().splitlines()[0][:200] if reason.strip() else "refused",
                  **self.common}
        if figure is not None:
            record |= {"known_tflops": figure, "known_date": known.DATE}
        self.records.append(record)
        print(f"{case.name:30} {impl:11} {name:8}   missing ({record['missing']}), "
              f"known: {figure or '-'}", flush=True)

    def measured(self, case, impl, name, times, accuracy):
        rate = case.flops(name == "backward") / statistics.median(times) * 1e-9
        gemm = "fp8_gemm" if "fp8" in impl else "bf16_gemm"
        record = {
            "routine": f"attention_{name}", "case": case.record(), "impl": impl,
            **self.timing(times), "tflops": rate,
            "ceiling": {"name": f"{gemm}_tflops", "value": self.ceilings[gemm]},
            "fraction_of_ceiling": rate / self.ceilings[gemm]}
        if accuracy is not None:
            record["sqnr_db"] = accuracy
        self.records.append(record | self.common)
        return self.records[-1]

    def compare(self, case, records):
        """What ours are against the best peers of the run, and all of them on a line each."""
        best = {kind: max((r["tflops"] for r in records if not r["impl"].startswith(OURS)
                           and r["impl"].endswith(kind)), default=None)
                for kind in ("bf16", "fp8")}
        for record in records:
            text = f"{case.name:30} {record['impl']:37} {record['tflops']:8.1f} TFLOP/s"
            if record["impl"].startswith(OURS):
                for kind, rate in best.items():
                    if rate is not None:
                        record[f"vs_best_{kind}"] = record["tflops"] / rate
                        text += f"  {record['tflops'] / rate:.3f}x {kind}"
                text += "".join(f"  {tensor} {db:.2f} dB"
                                for tensor, db in record["sqnr_db"].items())
            print(text, flush=True)

    def measure_case(self, case):
        from gpu import Tensors, time_in_turns

        tensors = Tensors(case)
        ready = []
        for impl in self.impls:
            passes = selected_passes(impl, self.arguments.passes)
            try:
                calls = self.make_calls(impl, tensors, passes)
            except Exception as error:  # not installed, or refused: told as missing
                calls = dict.fromkeys(passes, error)
            for name in passes:
                error = calls[name] if isinstance(calls[name], Exception) else attempt(calls[name])
                if error is not None:
                    self.missing(case, impl, name, f"{error}")
                else:
                    ready.append((impl, name, calls[name],
                                  calls.get("accuracy", {}).get(name)))
        calls = [call for _, _, call, _ in ready]
        with Clocks() as clocks:
            samples = time_in_turns(calls, self.arguments.runs)
            clocks.keep_busy(calls)
        state = clocks.state()
        for name in self.arguments.passes:
            measured = [self.measured(case, impl, own, times, accuracy and accuracy()) | state
                        for (impl, own, _, accuracy), times in zip(ready, samples) if own == name]
            self.records[len(self.records) - len(measured):] = measured
            self.compare(case, measured)
        print(f"{case.name:30} {state}", flush=True)

    def make_calls(self, impl, tensors, passes):
        if impl.startswith(OURS):
            import mxfa_peer

            return mxfa_peer.calls(self.library, tensors, impl, passes)
        return make_calls(impl, tensors)

    def run(self):
        import torch

        self.measure_ceilings()
        for preset in self.arguments.presets:
            for case in PRESETS[preset]:
                self.measure_case(case)
                # Errors and calls refer to each other, and to tensors of tens of GB.
                gc.collect()
                torch.cuda.empty_cache()


def names(known_names):
    """An option's type: names separated by commas."""

    def parse(text):
        chosen = text.split(",")
        for name in chosen:
            if name not in known_names:
                raise argparse.ArgumentTypeError(
                    f"expected some of {', '.join(known_names)}, got '{name}'")
        return chosen

    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", type=names(PRESETS), default=["dense", "causal", "jagged"])
    parser.add_argument("--impls", type=names(IMPLS), default=list(IMPLS))
    parser.add_argument("--passes", type=names(PASSES), default=list(PASSES))
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--mxfa", metavar="LIBRARY",
                        help="libmxfa_peer.so: mxfa's calls in turns with the others")
    parser.add_argument("--json", help="write the records to FILE")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    if arguments.dry_run:
        # A reader that has seen enough, such as head, ends the list: that is no error.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        dry_run(arguments)
        return 0
    import torch

    if not torch.cuda.is_available():
        print("run.py: no GPU; --dry-run lists what would run", file=sys.stderr)
        return 3
    run = Run(arguments)
    try:
        run.run()
    finally:
        if arguments.json:
            pathlib.Path(arguments.json).write_text(json.dumps(run.records, indent=2) + "\n",
                                                    encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
