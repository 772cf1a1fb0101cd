#!/usr/bin/env python3
"""Makes the tables of docs/numerics.md.

    tools/numerics/make_tables.py                  # rewrite all tables
    tools/numerics/make_tables.py --tables kern    # these only
    tools/numerics/make_tables.py --check          # change nothing, exit 1 where they differ

A table lies between `<!-- table: NAME -->` and `<!-- end -->` in the document. SQNR_TABLES come
from `mxfa sqnr --synthetic ... --json`, each cell the mean over the table's seeds; TEST_TABLES from
the figures that tests/reference/numerics_choices_test.cc leaves in its result file. Files that
exist in --json DIR already are not made again.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from document_tables import table_lines, update  # noqa: E402

DOCUMENT = ROOT / "docs" / "numerics.md"
ALL_SETS = (
    "normal diffuse peaky rmsnorm outchan kbias sink lognorm dorow vbias realign tiedmix dom0.9"
).split()
TENSOR_TITLES = {"o": "O", "dv": "dV", "ds": "dS", "dq": "dQ", "dk": "dK", "s": "S", "p": "P"}
GRADIENTS = ("o", "dv", "dq", "dk")


@dataclass(frozen=True)
class Table:
    """Rows are data sets, columns schemes, cells the dB of `tensors`."""

    sets: tuple[str, ...]
    schemes: tuple[str, ...]
    seqlen_k: int
    tensors: tuple[str, ...] = GRADIENTS
    reference: str = "f64"
    seeds: int = 4
    seqlen_q: int = 512
    flags: tuple[str, ...] = field(default=())

    def command(self, name, seed, json_file):
        words = ["mxfa", "sqnr", "--synthetic", name]
        words += ["--seqlen-q", str(self.seqlen_q), "--seqlen-k", str(self.seqlen_k)]
        words += [*self.flags, "--schemes", ",".join(self.schemes)]
        if self.reference == "kern":
            words += ["--reference", "kern"]
        return [*words, "--seed", str(seed), "--json", str(json_file)]


SQNR_TABLES = {
    "schemes": Table(
        sets=tuple(ALL_SETS),
        schemes=("bf16", "fp8-per-tensor", "32x32+floor", "1x32", "32x32", "32xD"),
        seqlen_k=1024,
    ),
    "long": Table(
        sets=tuple(ALL_SETS), schemes=("fp8-per-tensor", "32x32", "32xD"), seqlen_k=4096
    ),
    "kern": Table(
        sets=tuple(ALL_SETS), schemes=("32x32", "32xD"), seqlen_k=4096, reference="kern"
    ),
    "steps": Table(
        sets=tuple(ALL_SETS), schemes=("32xD",), seqlen_k=1024, tensors=("s", "p", "ds")
    ),
    "switches": Table(
        sets=("normal", "rmsnorm", "peaky", "outchan", "kbias", "sink", "lognorm", "vbias"),
        schemes=("32xD", "32xD+smooth-k", "32xD+smooth-v", "32xD+qk-bf16", "32xD+dkq-bf16"),
        seqlen_k=4096,
    ),
    "p-scale": Table(
        sets=("normal", "diffuse", "rmsnorm", "peaky", "sink", "vbias"),
        schemes=("32x32", "p-per-block", "p-unscaled"),
        seqlen_k=4096,
        tensors=("o",),
    ),
    "leak-free": Table(
        sets=("normal", "rmsnorm", "sink", "lognorm", "vbias"),
        schemes=("32x32", "32x32+leak-free", "32xD", "32xD+leak-free"),
        seqlen_k=1024,
        seqlen_q=1024,
        flags=("--causal",),
    ),
}


# What the command has no switch for: properties "TABLE/ROW/COLUMN" of these tests.
TEST_TABLES = {
    "delta": "NumericsFull.DeltaFromTheDpOperand",
    "promotion": "NumericsFull.AccumulatorWithoutPromotion*",
    "dq-accumulation": "NumericsFull.DqAccumulation",
    "rows": "NumericsFull.RowsAndKeysKeepTheirGradients",
}


def read_figures(json_file, reference):
    """{scheme: {tensor: dB}} of one run; infinite where the file has null."""
    key = "sqnr_db" if reference == "f64" else "sqnr_kern_db"
    figures = {}
    for record in json.loads(json_file.read_text()):
        if record["routine"] == "attention_sqnr":
            figures[record["scheme"]] = {
                tensor: math.inf if db is None else db for tensor, db in record[key].items()
            }
    return figures


def run_table(name, table, mxfa, json_dir):
    """{data set: {scheme: {tensor: mean dB}}}"""
    rows = {}
    for data_set in table.sets:
        samples = []
        for seed in range(table.seeds):
            json_file = json_dir / f"{name}-{data_set}-{seed}.json"
            if not json_file.exists():
                command = table.command(data_set, seed, json_file)
                command[0] = str(mxfa)
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            samples.append(read_figures(json_file, table.reference))
        rows[data_set] = {
            scheme: {
                tensor: sum(sample[scheme][tensor] for sample in samples) / len(samples)
                for tensor in table.tensors
            }
            for scheme in samples[0]
        }
    return rows


def markdown(table, rows):
    schemes = list(next(iter(rows.values())))
    titles = " ".join(TENSOR_TITLES[tensor] for tensor in table.tensors)
    texts = {
        data_set: [
            " ".join(f"{cells[scheme][tensor]:.1f}" for tensor in table.tensors)
            for scheme in schemes
        ]
        for data_set, cells in rows.items()
    }
    lines = table_lines(titles, [f"`{scheme}`" for scheme in schemes], texts.items())
    words = table.command("SET", "S", "FILE")
    lines += ["", f"`{' '.join(words)}`, mean of S = 0 .. {table.seeds - 1}."]
    return "\n".join(lines)


def test_table(name, program, json_dir):
    """Runs the table's tests and lays their figures out as markdown."""
    json_file = json_dir / f"{name}.json"
    words = [f"--gtest_filter={TEST_TABLES[name]}", "--gtest_output=json:"]
    if not json_file.exists():
        command = [program, words[0], words[1] + str(json_file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    cells = {}
    for suite in json.loads(json_file.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            for key, value in test.items():
                if key.startswith(name + "/"):
                    _, row, column = key.split("/")
                    cells.setdefault(row, {})[column] = value
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    texts = {
        row: [values.get(column, "") for column in columns] for row, values in cells.items()
    }
    lines = table_lines("", columns, texts.items())
    lines += ["", f"`reference_tests {words[0]} {words[1]}FILE`"]
    return "\n".join(lines)


def main():
    names = [*SQNR_TABLES, *TEST_TABLES]
    build = ROOT / "build" / "release" / "bin"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mxfa", type=Path, default=build / "mxfa")
    parser.add_argument("--reference-tests", type=Path, default=build / "reference_tests")
    parser.add_argument("--json", type=Path, metavar="DIR", help="keep the result files here")
    parser.add_argument("--tables", default=",".join(names), help="names, separated by commas")
    parser.add_argument("--check", action="store_true", help="exit 1 where a table differs")
    options = parser.parse_args()
    for name in options.tables.split(","):
        if name not in names:
            parser.error(f"no table is named {name!r}; there are: {', '.join(names)}")

    with tempfile.TemporaryDirectory() as scratch:
        json_dir = options.json or Path(scratch)
        json_dir.mkdir(parents=True, exist_ok=True)
        bodies = {}
        for name in options.tables.split(","):
            if name in SQNR_TABLES:
                table = SQNR_TABLES[name]
                body = markdown(table, run_table(name, table, options.mxfa, json_dir))
            else:
                body = test_table(name, options.reference_tests, json_dir)
            bodies[name] = body
            print(f"{name}: done", flush=True)
    return update(DOCUMENT, bodies, options.check)


if __name__ == "__main__":
    sys.exit(main())
