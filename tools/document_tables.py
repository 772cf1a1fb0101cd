"""Tables in documents that scripts make: between `<!-- table: NAME -->` and `<!-- end -->`."""

import re
import sys


def table_lines(corner, columns, rows):
    """Markdown of a table, line by line; `rows` are (name, texts)."""
    head = f"| {corner} | " if corner else "| | "
    lines = [head + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1)]
    return lines + [f"| {name} | " + " | ".join(texts) + " |" for name, texts in rows]


def update(document, bodies, check):
    """Puts `bodies`, {name: markdown}, into their places; with `check` changes nothing. The exit
    status: 1 where `check` finds another text."""
    text = made = document.read_text()
    for name, body in bodies.items():
        pattern = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        if len(pattern.findall(made)) != 1:
            sys.exit(f"{document}: expected one place for table {name!r}")
        made = pattern.sub(lambda match, body=body: match[1] + body + "\n" + match[2], made)
    if check:
        return 0 if made == text else 1
    document.write_text(made)
    return 0
