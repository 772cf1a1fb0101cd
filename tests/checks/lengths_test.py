import unittest

from planted import PlantedTest

from checks.cpp_functions import scan


def function(lines, name="f"):
    """The text of a function that is `lines` long."""
    return f"int {name}(int a) {{\n" + "  a += 1;\n" * (lines - 2) + "}\n"


class LengthsTest(PlantedTest):
    check = "lengths"

    def test_function_limits(self):
        self.expect_clean("src/a.cc", function(40))
        self.assertFalse(self.run_check({"src/a.cc": function(41)})[0].is_error)
        self.assertFalse(self.run_check({"src/a.cc": function(80)})[0].is_error)
        self.expect_error("src/a.cc", "\n" + function(81), "lines of f: 81", line=2)
        self.expect_clean("src/a.cu", function(80))
        self.expect_error("src/a.cu", function(121), "lines of f: 121")

    def test_file_limits(self):
        for path, limit in (("src/a.h", 450), ("src/a.cc", 500), ("tests/a_test.cc", 600),
                            ("tools/a.py", 500)):
            line = "# x\n" if path.endswith(".py") else "int x;\n"
            findings = self.run_check({path: line * limit})
            self.assertEqual([finding.is_error for finding in findings], [False], path)
            self.expect_error(path, line * (limit + 1), "lines of the file")

    def test_tables_of_constants_are_exempt(self):
        table = "const int kTable[] = {\n" + "    1, 2, 3,\n" * 600 + "};\n"
        self.expect_clean("src/a.cc", table)
        inner = "int f(int a) {\n  static " + table + "  return kTable[a];\n}\n"
        self.expect_clean("src/a.cc", inner)
        short = "const auto x = {\n" + "    [] { return 1; },\n" * 600 + "};\n"
        self.expect_clean("src/a.cc", short)
        long = "const auto x = {\n" + "    [] {\n  return 1;\n},\n" * 200 + "};\n"
        self.expect_error("src/a.cc", long, "lines of the file")

    def test_parameters(self):
        self.expect_clean("src/a.h", "void f(int a, std::map<int, int> b, int c, int d, int e);\n")
        five = "int a, int b, int c, int d, int e"
        self.assertFalse(self.run_check({"src/a.h": f"void f({five}, int g);\n"})[0].is_error)
        self.expect_error("src/a.h", f"void f({five}, int g, int h, int i, int j);\n", ": 9")
        self.expect_error("src/a.cc", f"A::A({five}, int g, int h, int i, int j) : a_(a) {{}}\n",
                          "parameters of A: 9")
        driver_call = f"CUresult cuCall({five}, int g, int h, int i, int j) {{}}\n"
        self.expect_clean("emulator/driver/a.cc", driver_call)

    def test_template_parameters(self):
        self.expect_clean("src/a.h", "template <int A, class B = std::pair<int, int>, int C>\n"
                          "struct X {};\n")
        self.expect_error("src/a.h", "template <int A, int B, int C, int D, int E, int F, int G>\n"
                          "struct X {};\n", "template parameters: 7")

    def test_nesting(self):
        def nested(depth):
            return "void f() {\n" + "for (;;) {\n" * depth + "}\n" * depth + "}\n"

        self.expect_clean("src/a.cc", nested(4))
        self.expect_error("src/a.cc", nested(5), "nesting in f: 5")

    def test_columns(self):
        self.expect_clean("src/a.cc", "//" + "é" * 98 + "\n")
        self.expect_error("src/a.cc", "//" + "x" * 99 + "\n", "columns: 101")
        self.expect_error("cmake/a.cmake", "#" + "x" * 100 + "\n", "columns: 101")

    def test_python_functions(self):
        body = "".join("    a += 1\n" for _ in range(80))
        self.expect_error("tools/a.py", f"def f(a):\n{body}", "lines of f: 81")
        self.expect_error("tools/a.py", "def f(a, b, c, d, e, g, h, i, j):\n    pass\n", ": 9")


class ScanTest(unittest.TestCase):
    def names(self, text):
        return [(f.name, f.parameters, f.nesting) for f in scan(text).functions if f.has_body]

    def test_kinds_of_functions(self):
        cases = {
            "auto f(int a) -> std::vector<int> { return {a}; }": ("f", 1, 0),
            "bool operator==(const A& a, const A& b) { return true; }": ("operator==", 2, 0),
            "struct A { int operator()(int x) const { return x; } };": ("operator()", 1, 0),
            "A::A(int a, int b) : a_{a}, b_(b) { if (a) { b = 1; } }": ("A", 2, 1),
            "A::A(int a, int b) : a_(a), b_{b} {}": ("A", 2, 0),
            "A::~A() { }": ("~A", 0, 0),
            "TEST(Suite, Name) { for (int i : {1, 2}) { f(i); } }": ("TEST", 2, 1),
            "template <class T> requires std::integral<T> T f(T a) { return a; }": ("f", 1, 0),
            "MXFA_HOST_DEVICE constexpr int f(int a = g(1, 2)) { return a; }": ("f", 1, 0),
            "__attribute__((noinline, cold)) void f(int a, int b) { }": ("f", 2, 0),
            "void f() { for (;;) { g([&](int i) { if (i) { h({1, 2}); } }); } }": ("f", 0, 2),
            "namespace { void f() { do { } while (true); } }": ("f", 0, 1),
            "void f() {\n#if A\n  if (a) {\n#else\n  if (b) {\n#endif\n  }\n}": ("f", 0, 1),
            'void f() { g("}{", \'{\', R"x({{)x"); /* { */ }  // {': ("f", 0, 0),
            "int f(int (*g)(int, int), int n = 1'000'000) { return n; }": ("f", 2, 0),
        }
        for text, want in cases.items():
            with self.subTest(text=text):
                self.assertEqual(self.names(text), [want])

    def test_no_functions(self):
        for text in ("struct A { int a = 1; std::array<int, 3> b{1, 2, 3}; };",
                     "constexpr A kTable[] = {{1, f(2)}, {3, 4}};",
                     "enum class E : int { kA, kB };",
                     "alignas(16) const A kA{1, 2};",
                     "namespace a::b { using F = void (*)(int); }"):
            with self.subTest(text=text):
                self.assertEqual(self.names(text), [])

    def test_functions_after_each_other(self):
        text = "int a(int x) { return x; }\nint kB = 1;\nvoid c() {\n  f();\n}\n"
        found = [(f.name, f.line, f.length) for f in scan(text).functions]
        self.assertEqual(found, [("a", 1, 1), ("c", 3, 3)])


if __name__ == "__main__":
    unittest.main()
