import unittest

from planted import ROOT, PlantedTest

STYLE = (ROOT / ".clang-format").read_text()


class FormatTest(PlantedTest):
    check = "format"

    def test_formatting(self):
        (self.root / ".clang-format").write_text(STYLE)
        self.expect_clean("src/a.cc", "int f(int a) { return a; }\n")
        self.expect_error("src/a.cc", "int b;\nint f(int a){return a;}\n", "clang-format", line=2)
        self.expect_error("src/a.cuh", "int  b;\n", "clang-format", line=1)


if __name__ == "__main__":
    unittest.main()
