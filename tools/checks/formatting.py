"""clang-format, version 14 exactly: versions differ in what they write."""

import re
import shutil
import subprocess

from checks.tree import Finding

VERSION = 14
_BATCH = 64


def find_clang_format():
    """The path of a clang-format of the pinned version; None where there is none."""
    for name in (f"clang-format-{VERSION}", "clang-format"):
        program = shutil.which(name)
        if program:
            told = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
            found = re.search(r"version (\d+)\.", told)
            if found and int(found[1]) == VERSION:
                return program
    return None


def check(tree):
    program = find_clang_format()
    if program is None:
        return [Finding("tools/setup", 1, f"clang-format {VERSION} is missing: run tools/setup")]
    findings = []
    files = tree.cpp()
    for begin in range(0, len(files), _BATCH):
        done = subprocess.run(
            [program, "--dry-run", "--style=file", *files[begin : begin + _BATCH]],
            cwd=tree.root, capture_output=True, text=True,
        )
        places = re.findall(r"^(.+?):(\d+):\d+: warning: code should be", done.stderr, re.MULTILINE)
        first = {}
        for path, line in places:
            first.setdefault(path, int(line))
        message = f"differs from clang-format {VERSION}: run tools/format"
        findings += [Finding(path, line, message) for path, line in first.items()]
        if done.returncode != 0 and not places:
            findings.append(Finding(".clang-format", 1, done.stderr.strip()))
    return findings
