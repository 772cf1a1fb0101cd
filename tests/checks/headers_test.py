"""The object libraries of cmake/MxfaHeaderCheck.cmake reject a header that leans on others."""

import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = f"""cmake_minimum_required(VERSION 3.22)
project(planted LANGUAGES CXX)
include({ROOT}/cmake/MxfaHeaderCheck.cmake)
file(GLOB headers ${{PROJECT_SOURCE_DIR}}/include/*.h)
mxfa_check_headers(TARGET headers ROOT ${{PROJECT_SOURCE_DIR}}/include HEADERS ${{headers}})
"""


class HeadersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "include").mkdir()
        (self.root / "CMakeLists.txt").write_text(PROJECT)

    def build(self, name, text):
        """(exit status, output) of building a project with this header alone."""
        header = self.root / "include" / name
        header.write_text(text)
        output = ""
        for step in (["-S", ".", "-B", "build", "-G", "Ninja"], ["--build", "build"]):
            done = subprocess.run(["cmake", *step], cwd=self.root, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            output += done.stdout
            if done.returncode != 0:
                break
        header.unlink()
        return done.returncode, output

    def test_planted_headers(self):
        self.assertEqual(self.build("good.h", "#pragma once\n#include <string>\n"
                                    "inline std::string f() { return {}; }\n")[0], 0)
        status, output = self.build("leans.h", "#pragma once\nstd::string f();\n")
        self.assertNotEqual(status, 0)
        self.assertIn("leans.h", output)
        status, output = self.build("unguarded.h", "inline int f() { return 1; }\n")
        self.assertNotEqual(status, 0)
        self.assertIn("redefinition", output)


if __name__ == "__main__":
    unittest.main()
