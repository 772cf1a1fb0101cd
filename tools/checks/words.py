"""Words and files that do not belong in the repository."""

import re

from checks.tree import Finding

_CODE = ("src/", "include/", "emulator/", "bindings/")
# The letters in brackets keep these patterns from matching this file.
EVERYWHERE = [
    (r"(?i)\b(C[E]O|sub[a]gent|farm-[b]ench|farm-[s]tudio|H[0]1)\b", "a word"),
    (r"(?i)\bissue #?[0-9]+ of\b|\b(this|last) s[e]ssion\b", "a phrase"),
    (r"(?<![\w./-])/(w[o]rk|r[o]ot|h[o]me)/\w", "a path of one machine"),
    (r"(?<![\w/])sh[a]red/", "a path outside the repository"),
    (r"\b(p[y]pi\.org|python[h]osted\.org|deb\.d[e]bian\.org)\b", "a registry host"),
    (r"\b(T[O]DO|F[I]XME)\b", "work left open in the text"),
]
IN_CODE = [(r"\b(X[X]X|[Uu]nimplemented|[Nn]ot [i]mplemented)\b", "work left open in the code")]
SKIPPED_TEST = (
    r"\bGTEST_S[K]IP\b|\bDISABLED_[A-Z]|@unittest\.s[k]ip|mark\.s[k]ip|\bx[f]ail\b"
)
MAX_FILE_BYTES = 2_000_000


def check(tree):
    findings = []
    for path in tree.files:
        size = (tree.root / path).stat().st_size
        if size > MAX_FILE_BYTES:
            message = f"{size} bytes: larger than {MAX_FILE_BYTES}"
            findings.append(Finding(path, 1, message))
        if tree.text(path) is None:
            continue
        patterns = EVERYWHERE + (IN_CODE if path.startswith(_CODE) else [])
        for number, line in enumerate(tree.lines(path), 1):
            for pattern, kind in patterns:
                found = re.search(pattern, line)
                if found:
                    message = f"{kind} that does not belong here: {found[0]!r}"
                    findings.append(Finding(path, number, message))
            if path.startswith(("tests/", "emulator/tests/")) and re.search(SKIPPED_TEST, line):
                findings.append(Finding(path, number, "a skipped or disabled test", is_error=False))
    return findings
