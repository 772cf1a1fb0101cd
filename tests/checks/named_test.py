import unittest

from planted import PlantedTest


class NamedTest(PlantedTest):
    check = "named"

    def test_missing_includes(self):
        for path, text, word in (
            ("src/core/a.h", "std::vector<int> f();\n", "<vector>"),
            ("src/core/a.cc", "#include <vector>\n\nstd::optional<int> f();\n", "<optional>"),
            ("emulator/src/a.cc", "auto f(int x) { return fmt::format(\"{}\", x); }\n", "<fmt/"),
            ("tests/core/a_test.cc", "TEST(A, B) {}\n", "<gtest/gtest.h>"),
            ("tests/core/a_test.cc", "bool f(float x) { return std::isnan(x); }\n", "<cmath>"),
        ):
            with self.subTest(path=path, word=word):
                self.expect_error(path, text, word, line=1 + text.count("\n\n") * 2)

    def test_what_a_header_of_the_project_includes(self):
        header = {"src/core/b.h": "#include <vector>\n"}
        use = "std::vector<int> f();\n"
        for include in ("core/b.h", "b.h"):
            source = {"src/core/a.cc": f'#include "{include}"\n{use}'}
            self.assertEqual(self.run_check(header | source), [])
        self.assertEqual(len(self.run_check({"src/core/b.h": "", "src/core/a.cc": use})), 1)

    def test_what_needs_none(self):
        self.expect_clean("src/core/a.cc", "// std::vector\nint vector(std::vectors x);\n")
        self.expect_clean("tests/core/a_test.cc", "#include <gmock/gmock.h>\nTEST(A, B) {}\n")
        self.expect_clean("src/core/a_inl.h", "std::vector<int> f();\n")


if __name__ == "__main__":
    unittest.main()
