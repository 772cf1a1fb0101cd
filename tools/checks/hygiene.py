"""Header hygiene: one include guard form, no using-directives, nothing that prints or exits."""

import re

from checks.cpp_text import blank
from checks.tree import Finding

# Unindented: at namespace scope. Inside a function body it harms nobody.
USING = re.compile(r"^using\s+namespace\b")
# The library reports by Error; only programs and tests talk to the terminal or end the process.
LOUD = re.compile(
    r"\bstd::(cout|cerr|clog|exit|abort|terminate|getenv)\b|\bfmt::print\b"
    r"|(?<![\w.:>])(printf|puts|abort|exit|getenv)\s*\("
)
# The progress bar, drawn where a program asks for it, and how programs print their messages.
MAY_DRAW = ("src/io/progress.", "src/core/standard_streams.")


def _header_faults(path, code, lines):
    # A *_inl.h is a part that each of several sources includes in a namespace of its own.
    if "#pragma once" not in code and not path.endswith("_inl.h"):
        yield 1, "a header starts with #pragma once"
    for number, line in enumerate(lines, 1):
        if USING.match(line):
            yield number, "using namespace at header scope"


def _loud_faults(lines):
    for number, line in enumerate(lines, 1):
        found = LOUD.search(line)
        if found:
            yield number, f"the library neither prints, exits nor reads variables: {found[0]}"


def check(tree):
    findings = []
    headers = set(tree.cpp_headers())
    for path in tree.cpp():
        code = blank(tree.text(path) or "")
        lines = code.split("\n")
        faults = list(_header_faults(path, code, lines)) if path in headers else []
        library = path.startswith(("src/", "include/")) and not path.startswith(MAY_DRAW)
        if library and not path.endswith((".cu", ".cuh")):
            faults += _loud_faults(lines)
        findings += [Finding(path, line, message) for line, message in faults]
    return findings
