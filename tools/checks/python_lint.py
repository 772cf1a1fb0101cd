"""Python and shell: every file parses; ruff's rules too where ruff is installed."""

import ast
import json
import shutil
import subprocess

from checks.tree import Finding

# pyflakes, pycodestyle errors, import order, and likely bugs
RUFF_RULES = "F,E,I,B"


def _ruff(tree):
    program = shutil.which("ruff")
    if program is None:
        return []
    command = [program, "check", "--isolated", "--no-cache", "--line-length=100",
               f"--select={RUFF_RULES}", "--output-format=json", *tree.python()]
    done = subprocess.run(command, cwd=tree.root, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        return [Finding("tools/checks/python_lint.py", 1, f"ruff: {done.stderr.strip()}")]
    findings = []
    for item in json.loads(done.stdout):
        path = item["filename"]
        root = f"{tree.root}/"
        findings.append(Finding(path[len(root):] if path.startswith(root) else path,
                                item["location"]["row"], f"{item['code']} {item['message']}"))
    return findings


def check(tree):
    findings = []
    for path in tree.python():
        try:
            ast.parse(tree.text(path) or "", filename=path)
        except SyntaxError as error:
            findings.append(Finding(path, error.lineno or 1, f"does not parse: {error.msg}"))
    bash = shutil.which("bash")
    for path in tree.shell() if bash else []:
        done = subprocess.run([bash, "-n", path], cwd=tree.root, capture_output=True, text=True)
        if done.returncode != 0:
            findings.append(Finding(path, 1, f"does not parse: {done.stderr.strip()}"))
    return findings if findings else _ruff(tree)
