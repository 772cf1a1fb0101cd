"""A scratch tree with planted files, for the tests of tools/checks."""

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from checks import CHECKS  # noqa: E402
from checks.tree import Tree  # noqa: E402


class PlantedTest(unittest.TestCase):
    """Runs the check named by `check` over files that a test writes."""

    check = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def run_check(self, files):
        """files: path -> text or bytes. Returns the findings."""
        for path, content in files.items():
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content if isinstance(content, bytes) else content.encode())
        return CHECKS[self.check](Tree(self.root))

    def expect_error(self, path, content, word, line=None):
        """One planted file gives exactly one error, and its message holds `word`."""
        findings = self.run_check({path: content})
        errors = [finding for finding in findings if finding.is_error]
        self.assertEqual(len(errors), 1, f"{path}: {findings}")
        self.assertEqual(errors[0].path, path)
        self.assertIn(word, errors[0].message)
        if line is not None:
            self.assertEqual(errors[0].line, line)
        (self.root / path).unlink()

    def expect_clean(self, path, content):
        findings = self.run_check({path: content})
        self.assertEqual(findings, [], path)
        (self.root / path).unlink()
