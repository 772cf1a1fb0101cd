"""tools/check as a command: its exit status, and which files it looks at."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


class CommandTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def run_check(self, *arguments):
        command = [sys.executable, str(ROOT / "tools/check"), "--root", str(self.root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout

    def test_exit_status(self):
        (self.root / "a.h").write_text("#pragma once\n")
        self.assertEqual(self.run_check("hygiene")[0], 0)
        (self.root / "a.h").write_text("int f();\n")
        status, output = self.run_check("words", "hygiene")
        self.assertEqual(status, 1)
        self.assertIn("a.h:1: error: [hygiene] a header starts with #pragma once", output)
        self.assertEqual(self.run_check("nonsense")[0], 2)

    def test_warnings_alone_pass(self):
        (self.root / "a.cc").write_text("int x;\n" * 351)
        status, output = self.run_check("lengths")
        self.assertEqual(status, 0)
        self.assertIn("a.cc:1: warning: [lengths]", output)
        self.assertNotIn("warning:", self.run_check("lengths", "--no-warnings")[1])

    def test_git_ignored_files_are_left_alone(self):
        subprocess.run(["git", "init", "-q", str(self.root)], check=True)
        (self.root / ".gitignore").write_text("/ignored/\n")
        for folder in ("ignored", "src"):
            (self.root / folder).mkdir()
            (self.root / folder / "a.h").write_text("int f();\n")
        status, output = self.run_check("hygiene")
        self.assertEqual(status, 1)
        self.assertIn("src/a.h:1", output)
        self.assertNotIn("ignored", output)


if __name__ == "__main__":
    unittest.main()
