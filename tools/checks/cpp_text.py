"""C++ text with comments and literals blanked out, line for line and column for column."""

import re

_TOKEN = re.compile(
    r"""//(?:[^\n\\]|\\.)*(?:\\\n[^\n]*)*
      | /\*.*?\*/
      | R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"
      | "(?:[^"\\\n]|\\.)*"
      | (?<![0-9a-fA-F_])'(?:[^'\\\n]|\\.)+'
    """,
    re.DOTALL | re.VERBOSE,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)
_NOT_NEWLINE = re.compile(r"[^\n]")


def _spaces(text):
    return _NOT_NEWLINE.sub(" ", text)


def blank(text):
    """Comments become spaces; literals keep their quotes and lose what is inside."""

    def replace(match):
        token = match.group()
        if token.startswith("/"):
            return _spaces(token)
        return token[0] + _spaces(token[1:-1]) + token[-1]

    return _TOKEN.sub(replace, text)


def without_directives(code):
    """Blanked text without preprocessor lines; of #if ... #else ... only the first branch stays."""
    lines = code.split("\n")
    skipping = []  # one flag for each open #if: is this branch dropped?
    continued = False
    for number, line in enumerate(lines):
        directive = re.match(r"\s*#\s*(\w+)", line)
        if directive:
            word = directive[1]
            if word in ("if", "ifdef", "ifndef"):
                skipping.append(False)
            elif word in ("else", "elif") and skipping:
                skipping[-1] = True
            elif word == "endif" and skipping:
                skipping.pop()
        if directive or continued or any(skipping):
            continued = line.endswith("\\") and (directive is not None or continued)
            lines[number] = ""
    return "\n".join(lines)
