"""Moves the scales of O(1) over O(0), where a published layout has them.

The hazard checker is to report it.

moved_scales.py PTXEMU PTX LAUNCH: exit status 0 where the launch is clean as it stands and has
races with moved scales.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ENTRY = "attention_forward_d64_constant"
# Columns in TmemPlan (kernels/sm100/forward/tmem.h): of P's and V's scales, from S(1) to O(0).
MOVED = {136: 256, 140: 260}


def move(ptx: str) -> str:
    """The text in which every operand of a copy of scales, or of a product, has moved."""
    begin = ptx.index(f".entry {ENTRY}(")
    end = ptx.find(".entry ", begin + 1)
    entry = ptx[begin : end if end > 0 else None]
    copied = set(re.findall(r"tcgen05\.cp\S* \[(%r\d+)\]", entry))
    moved = 0

    def column(match: re.Match) -> str:
        nonlocal moved
        if match[2] not in copied or int(match[3]) not in MOVED:
            return match[0]
        moved += 1
        return f"{match[1]}{MOVED[int(match[3])]};"

    text = re.sub(r"(add\.s32\s+(%r\d+), %r\d+, )(\d+);", column, entry)
    if moved == 0:
        sys.exit(f"{ENTRY}: no copy of scales to columns {list(MOVED)}")
    return ptx[:begin] + text + ptx[begin + len(entry) :]


def check(ptxemu: str, ptx: pathlib.Path, launch: str) -> str:
    """What ptxemu check prints."""
    command = [ptxemu, "check", ptx, "--entry", ENTRY, f"@{launch}", "--seeds", "1"]
    done = subprocess.run(
        [*command, "--policy", "latest"], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def main() -> None:
    """See the module."""
    ptxemu, ptx, launch = sys.argv[1:]
    intact = check(ptxemu, pathlib.Path(ptx), launch)
    if "clean: 0 errors" not in intact:
        sys.exit(f"not clean as it stands:\n{intact}")
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "moved.ptx"
        copy.write_text(move(pathlib.Path(ptx).read_text()))
        report = check(ptxemu, copy, launch)
    if "error: race: tensor memory" not in report:
        sys.exit(f"moved scales were not reported:\n{report}")


if __name__ == "__main__":
    main()
