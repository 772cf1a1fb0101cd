"""Sizes of files, functions, parameter lists, nesting and lines: a warning, then an error."""

import ast
import re

from checks.cpp_functions import scan
from checks.tree import CPP, Finding

# (warning above, error above)
HEADER_LINES = (300, 450)
SOURCE_LINES = (350, 500)
TEST_LINES = (400, 600)
HOST_FUNCTION_LINES = (40, 80)
DEVICE_FUNCTION_LINES = (80, 120)
PARAMETERS = (5, 8)
TEMPLATE_PARAMETERS = (3, 6)
NESTING = (4, 4)
COLUMNS = (100, 100)
# Calls of the CUDA driver, whose parameters are not ours to choose.
DRIVER_CALL = re.compile(r"cu[A-Z]\w*$")


class _Report:
    def __init__(self, path):
        self.path = path
        self.findings = []

    def measure(self, line, what, value, limits):
        warning, error = limits
        if value > warning:
            limit = error if value > error else warning
            message = f"{what}: {value}, limit {limit}"
            self.findings.append(Finding(self.path, line, message, is_error=value > error))


def is_test(path):
    return path.startswith(("tests/", "emulator/tests/")) or "_test." in path


def _file_limits(path):
    if is_test(path):
        return TEST_LINES
    return HEADER_LINES if path.endswith((".h", ".cuh")) else SOURCE_LINES


def _check_cpp(report, text, limits):
    source = scan(text)
    lines = text.count("\n") - source.table_lines
    report.measure(1, "lines of the file", lines, limits)
    device = report.path.endswith((".cu", ".cuh"))
    function_limits = DEVICE_FUNCTION_LINES if device else HOST_FUNCTION_LINES
    for function in source.functions:
        name = function.name
        if not DRIVER_CALL.match(name):
            report.measure(function.line, f"parameters of {name}", function.parameters, PARAMETERS)
        if function.has_body:
            report.measure(function.line, f"lines of {name}", function.length, function_limits)
            report.measure(function.line, f"nesting in {name}", function.nesting, NESTING)
    for line, count in source.templates:
        report.measure(line, "template parameters", count, TEMPLATE_PARAMETERS)


def _check_python(report, text, limits):
    report.measure(1, "lines of the file", text.count("\n"), limits)
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return  # reported by the check of Python files
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            count = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
            length = node.end_lineno - node.lineno + 1
            report.measure(node.lineno, f"lines of {node.name}", length, HOST_FUNCTION_LINES)
            report.measure(node.lineno, f"parameters of {node.name}", count, PARAMETERS)


def check(tree):
    findings = []
    python, shell = set(tree.python()), set(tree.shell())
    for path in tree.files:
        is_cpp = path.endswith(CPP)
        is_cmake = path.endswith(".cmake") or path.endswith("CMakeLists.txt")
        text = tree.text(path)
        if text is None or not (is_cpp or is_cmake or path in python or path in shell):
            continue
        report = _Report(path)
        for number, line in enumerate(text.splitlines(), 1):
            report.measure(number, "columns", len(line), COLUMNS)
        if is_cpp:
            _check_cpp(report, text, _file_limits(path))
        elif path in python:
            _check_python(report, text, _file_limits(path))
        else:
            report.measure(1, "lines of the file", text.count("\n"), _file_limits(path))
        findings += report.findings
    return findings
