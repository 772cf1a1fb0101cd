"""Finds the functions of a C++ file by its braces: enough for lengths, not a parser.

Every `{` is classified by what stands before it since the last statement end: a namespace, a
type, a function body, a control block, a lambda, or an initializer.
"""

import re
from dataclasses import dataclass, field

from checks.cpp_text import blank, without_directives

_LAMBDA = re.compile(
    r"\]\s*(<[^<>]*>\s*)?(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)?"
    r"(mutable\s*|noexcept\s*|constexpr\s*|MXFA_\w+\s*)*(->\s*[\w:<>,&*\s]+)?$"
)
_NAMESPACE = re.compile(r"^(inline\s+)?namespace\b|^extern\s*\"\s*\"$")
_TYPE = re.compile(r"^(typedef\s+)?(class|struct|union|enum)\b")
_CONTROL = re.compile(r"^(\}?\s*else\b|if|for|while|switch|do|try|catch)\b")
_LABEL = re.compile(r"^((public|private|protected|default)\s*:|case\b[^;{}]*?(?<!:):(?!:))\s*")
_AFTER_PARAMETERS = re.compile(r"(\)|\b(const|noexcept|override|final|mutable|try|&&?))$")
_NOT_A_NAME = {"__attribute__", "alignas", "decltype", "noexcept", "explicit", "requires",
               "__launch_bounds__", "static_assert", "defined", "sizeof"}
_INITIALIZER_LINES = 10  # longer initializers are tables of constants


@dataclass
class Function:
    name: str
    line: int
    length: int = 0  # lines from the head to the closing brace, without tables of constants
    parameters: int = 0
    nesting: int = 0
    has_body: bool = True


@dataclass
class Source:
    functions: list = field(default_factory=list)
    templates: list = field(default_factory=list)  # (line, number of parameters)
    table_lines: int = 0


@dataclass
class _Scope:
    kind: str
    line: int
    function: Function = None
    outer_head: str = ""
    outer_head_line: int = 0
    outer_parens: int = 0
    tables_before: int = 0
    has_code: bool = False  # a statement, or a lambda longer than a line: no table of constants


def split_top(text):
    """The comma-separated parts of a parameter list."""
    parts, depth, angle, begin = [], 0, 0, 0
    for at, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "<" and depth == 0 and at and (text[at - 1].isalnum() or text[at - 1] == "_"):
            angle += 1
        elif char == ">" and depth == 0 and angle and text[at - 1] != "-":
            angle -= 1
        elif char == "," and depth == 0 and angle == 0:
            parts.append(text[begin:at])
            begin = at + 1
    parts.append(text[begin:])
    return [part.strip() for part in parts if part.strip() and part.strip() != "void"]


def _closing(text, begin, pair="()"):
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] == pair[0]) - (text[at] == pair[1] and text[at - 1] != "-")
        if depth == 0:
            return at
    return len(text) - 1


def strip_templates(head):
    """The head without `template <...>` and without labels before it."""
    while True:
        label = _LABEL.match(head)
        if label:
            head = head[label.end():]
            continue
        found = re.match(r"template\s*(?=<)", head)
        if not found:
            return head
        head = head[_closing(head, found.end(), "<>") + 1:].lstrip()


def signature(head):
    """(name, number of parameters) of a function head; None where it holds no parameter list."""
    for match in re.finditer(r"(operator\s*(?:\(\s*\)|[^\s\w(]+|[\w ]+)|~?\w+)\s*\(", head):
        name = match[1]
        if name in _NOT_A_NAME or head.count("(", 0, match.start()) != head.count(
                ")", 0, match.start()):
            continue
        end = _closing(head, match.end() - 1)
        return name, len(split_top(head[match.end(): end]))
    return None


def _assigns(head):
    """Is there a `=` outside all brackets that is no part of an operator's name?"""
    depth = 0
    for at, char in enumerate(head):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "=" and depth == 0 and "operator" not in head[max(0, at - 12): at]:
            return True
    return False


def _is_function(head):
    if not signature(head) or _assigns(head):
        return False
    if _AFTER_PARAMETERS.search(head) and not re.search(r"\)\s*:\s*[^:].*\w\s*$", head):
        return True
    if re.search(r"\)\s*(const|noexcept|override|final|\s)*->", head):
        return True
    if re.search(r"\)\s*(noexcept\s*)?:\s*[^:]", head):  # constructor with initializers
        return head.endswith((")", "}"))
    return bool(re.search(r"\brequires\b", head))


class _Scanner:
    def __init__(self, code):
        self.code = code
        self.source = Source()
        self.scopes = [_Scope("namespace", 1)]
        self.line = 1
        self.head, self.head_line, self.parens = "", 1, 0

    def run(self):
        for char in self.code:
            if char == "{":
                self._open()
            elif char == "}":
                self._close()
            elif char == ";" and self.parens == 0:
                self._statement()
            elif char == "," and self.parens == 0 and self.scopes[-1].kind == "initializer":
                self.head = ""
            else:
                if not self.head and not char.isspace():
                    self.head_line = self.line
                if self.head or not char.isspace():
                    self.head += char
                self.parens += (char == "(") - (char == ")")
            self.line += char == "\n"
        return self.source

    def _in_declarations(self):
        return self.scopes[-1].kind in ("namespace", "type")

    def _classify(self, head):
        if _LAMBDA.search(head) and re.search(r"\[[^\[\]]*\][^\[\]]*$", head):
            return "lambda"
        if self.parens > 0:
            return "initializer"
        bare = strip_templates(head)
        if _NAMESPACE.match(bare):
            return "namespace"
        if _TYPE.match(bare) and not _assigns(bare):
            return "type"
        if self._in_declarations():
            return "function" if _is_function(bare) else "initializer"
        if not bare:
            return "block"
        if _CONTROL.match(bare) or (bare.endswith(")") and not _assigns(bare)):
            return "control"
        return "initializer"

    def _open(self):
        head = self.head.strip()
        kind = self._classify(head)
        scope = _Scope(kind, self.line, outer_head=self.head, outer_head_line=self.head_line,
                       outer_parens=self.parens, tables_before=self.source.table_lines)
        if kind == "function" or (kind == "lambda" and self._function() is None):
            name, count = signature(strip_templates(head)) or ("lambda", 0)
            scope.function = Function(name, self.head_line, parameters=count)
            self.source.functions.append(scope.function)
        self.scopes.append(scope)
        function = self._function()
        if function:
            depth = self._depth()
            function.nesting = max(function.nesting, depth)
        self.head, self.parens = "", 0

    def _function(self):
        for scope in reversed(self.scopes):
            if scope.function:
                return scope.function
        return None

    def _depth(self):
        depth = 0
        for scope in reversed(self.scopes):
            if scope.function:
                return depth
            depth += scope.kind == "control"  # a lambda is no level of its own
        return depth

    def _close(self):
        if len(self.scopes) == 1:
            return
        scope = self.scopes.pop()
        lines = self.line - scope.line - 1
        is_table = scope.kind == "initializer" and not scope.has_code
        if is_table and lines > _INITIALIZER_LINES and self.scopes[-1].kind != "initializer":
            self.source.table_lines += lines
        if scope.function:
            tables = self.source.table_lines - scope.tables_before
            scope.function.length = self.line - scope.function.line + 1 - tables
        if scope.kind == "lambda" and self.line > scope.line:
            for outer in self.scopes:
                outer.has_code = True
        if scope.kind in ("initializer", "lambda"):
            self.head = scope.outer_head + "{}"
            self.head_line, self.parens = scope.outer_head_line, scope.outer_parens
        else:
            self.head, self.parens = "", 0

    def _statement(self):
        self.scopes[-1].has_code = True
        if self._in_declarations():
            head = strip_templates(self.head.strip())
            head = re.sub(r"=\s*(0|default|delete)$", "", head).strip()
            plain = not re.match(r"(using|typedef|static_assert|friend|extern template)\b", head)
            if plain and not _TYPE.match(head) and _is_function(head):
                name, count = signature(head)
                self.source.functions.append(
                    Function(name, self.head_line, parameters=count, has_body=False))
        self.head, self.parens = "", 0


def _templates(code):
    for match in re.finditer(r"\btemplate\s*<", code):
        end = _closing(code, match.end() - 1, "<>")
        yield code.count("\n", 0, match.start()) + 1, len(split_top(code[match.end(): end]))


def scan(text):
    """The Source of one file's text."""
    code = without_directives(blank(text))
    source = _Scanner(code).run()
    source.templates = list(_templates(code))
    return source
