"""Who may include whom: only downwards (docs/architecture.md shows the same table as layers)."""

import re

from checks.tree import Finding

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)

_ATTENTION_DEFINITIONS = ("attention/problem.h", "attention/mask.h", "attention/seqlen.h")
_KERNEL_BASE = ("device/", "ptx/", "attention/", "mx/", "core/", "driver/", "mxfa/")

# Folder -> what its files may include besides their own folder. The longest matching folder
# counts. A name that ends in "/" is a folder, any other one file.
ALLOWED = {
    "include/mxfa": ("mxfa/",),
    "src/core": ("mxfa/",),
    "src/mx": ("core/", "mxfa/"),
    "src/attention": ("mx/", "core/", "mxfa/"),
    # The oracle shares code tables and definitions with the code under test, never an algorithm.
    "src/reference": _ATTENTION_DEFINITIONS
    + ("mx/bits.h", "mx/fp8.h", "mx/e8m0.h", "core/", "mxfa/"),
    "src/reference/recipe": ("reference/", "attention/", "mx/", "core/", "mxfa/"),
    "src/cpu": ("attention/", "mx/", "core/", "mxfa/"),
    "src/io": ("mx/bits.h", "core/", "mxfa/"),
    "src/driver": ("core/", "mxfa/"),
    "src/ptx": (),
    "src/device": ("driver/", "ptx/", "attention/", "mx/", "core/", "mxfa/"),
    "src/kernels": _KERNEL_BASE,
    "src/kernels/sm90": _KERNEL_BASE,
    "src/kernels/sm100": _KERNEL_BASE,
    "src/dispatch": ("kernels/", "device/", "cpu/", "driver/", "attention/", "mx/", "core/")
    + ("mxfa/",),
    "src/cross_attention": (
        "mxfa/",
        "core/",
        "dispatch/members.h",
        "dispatch/overlap.h",
        "dispatch/validate.h",
    ),
    "emulator": ("core/", "mx/", "mxfa/", "mxemu/"),
    "emulator/cli": ("core/", "mx/", "mxfa/", "mxemu/", "io/"),
    "emulator/tests": ("core/", "mx/", "mxfa/", "mxemu/", "support/"),
    "bindings": ("mxfa/",),
}
# The heads of what is included by "folder/": anything else in quotes lies beside the includer.
PROJECT_HEADS = {"mxfa", "mxemu"} | {
    folder.split("/")[1] for folder in ALLOWED if folder.startswith("src/")
}

_ABOVE_IO = ("src/io/", "tools/", "benchmarks/", "tests/", "emulator/", "bindings/")
_DEVICE = ("src/driver/", "src/device/", "src/kernels/", "src/ptx/", "src/mx/")
_CUDA_USERS = _DEVICE + ("emulator/", "tests/", "benchmarks/")
# A library's include path -> folders that may use it.
EXTERNAL = {
    r"(torch|ATen|c10)/": ("bindings/", "examples/"),
    r"nanobind/": ("bindings/",),
    r"CLI/": ("tools/", "benchmarks/", "examples/", "emulator/"),
    r"nlohmann/": _ABOVE_IO,
    r"benchmark/": ("benchmarks/",),
    r"(gtest|gmock)/": ("tests/", "emulator/tests/"),
    r"fmt/": ("src/", "tools/", "tests/", "benchmarks/", "examples/", "emulator/", "bindings/"),
    r"(cuda\.h$|cuda/|cuda_(?!runtime)\w+\.h)": _CUDA_USERS,
    # Programs that record what a GPU does, for tests to replay; the library calls the driver only.
    r"cuda_runtime": ("emulator/tests/", "tests/"),
    r"(cutlass|cute|cudnn)": (),
}


def allowed_for(path):
    """(folder, allowed names) of the rule for a file; None where no rule binds it."""
    rules = [folder for folder in ALLOWED if path.startswith(folder + "/")]
    if not rules:
        return None
    folder = max(rules, key=len)
    return folder, ALLOWED[folder]


def _own(folder):
    inner = folder.split("/", 1)[1] if folder.startswith("src/") else folder
    return inner + "/"


def _quoted_fault(path, target):
    rule = allowed_for(path)
    if rule is None or target.split("/")[0] not in PROJECT_HEADS or "/" not in target:
        return None
    folder, names = rule
    if folder.startswith("emulator"):
        # The emulator's own folders bear names of their own; only the library's are bound.
        if (target.split("/")[0] in ("ptx", "io")) and "emulator" in path:
            return None
    if target.startswith(_own(folder)):
        return None
    if any(target.startswith(name) if name.endswith("/") else target == name for name in names):
        return None
    shown = ", ".join(names) or "nothing"
    return f'{folder} may not include "{target}" (allowed: its own folder, {shown})'


def _external_fault(path, target):
    if path.startswith("include/"):
        if "/" in target or "." in target:
            return f"<{target}>: public headers include the C++ standard library only"
        return None
    for pattern, folders in EXTERNAL.items():
        if re.match(pattern, target) and not path.startswith(folders):
            where = ", ".join(folders) or "nowhere"
            return f"<{target}> may be included in {where}, not here"
    return None


def check(tree):
    findings = []
    for path in tree.cpp():
        text = tree.text(path) or ""
        for match in INCLUDE.finditer(text):
            quoted, angled = match.groups()
            if quoted is not None:
                fault = _quoted_fault(path, quoted)
            else:
                fault = _external_fault(path, angled)
            if fault:
                line = text.count("\n", 0, match.start(1 if quoted else 2)) + 1
                findings.append(Finding(path, line, fault))
    return findings
