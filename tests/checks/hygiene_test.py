import unittest

from planted import PlantedTest


class HygieneTest(PlantedTest):
    check = "hygiene"

    def test_using_namespace(self):
        text = "#pragma once\nnamespace a {\nusing namespace std;\n}\n"
        self.expect_error("src/a.h", text, "using namespace", line=3)
        self.expect_clean("src/a.h", "#pragma once\ninline void f() {\n  using namespace b;\n}\n")
        self.expect_clean("src/a.h", "#pragma once\n// using namespace std;\nusing std::byte;\n")
        self.expect_clean("src/a.cc", "using namespace std;\n")

    def test_pragma_once(self):
        self.expect_error("src/a.cuh", "int a();\n", "pragma once")
        self.expect_error("include/mxfa/a.h", "// #pragma once\n", "pragma once")
        self.expect_clean("src/cpu/a_inl.h", "int a();\n")

    def test_the_library_is_quiet(self):
        for call in ("std::cout << 1", "printf(text)", "exit(1)", "std::abort()", "getenv(name)",
                     'fmt::print("x")'):
            with self.subTest(call=call):
                self.expect_error("src/core/a.cc", f"void f() {{\n  {call};\n}}\n", "neither", 2)
                self.expect_clean("tools/mxfa/a.cc", f"void f() {{ {call}; }}\n")
        self.expect_clean("src/core/a.cc", 'int snprintf(char*); int x = f("exit(1)");\n')


if __name__ == "__main__":
    unittest.main()
