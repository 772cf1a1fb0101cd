import unittest

from planted import PlantedTest


class WordsTest(PlantedTest):
    check = "words"

    # Written in two halves, so that this file passes the check that it tests.
    def test_words_anywhere(self):
        for first, second in (
            ("the C", "EO wants it"),
            ("a sub", "agent wrote it"),
            ("issue #12", " of the list"),
            ("as in this ses", "sion"),
            ("TO", "DO: later"),
            ("FIX", "ME"),
        ):
            self.expect_error("README.md", f"one\n{first}{second}\n", "does not belong", line=2)

    def test_paths_and_hosts(self):
        for first, second in (
            ("see /wo", "rk/main/src"),
            ("see /ro", "ot/build"),
            ("see /ho", "me/ann/build"),
            ("see sha", "red/spec.md"),
            ("from py", "pi.org"),
        ):
            self.expect_error("docs/a.md", first + second, "does not belong", line=1)

    def test_open_work_in_code_only(self):
        text = "not " + "implemented"
        self.expect_error("src/mx/a.cc", f"// {text}\n", "left open")
        self.expect_clean("docs/a.md", f"Stochastic rounding is {text}.\n")

    def test_innocent_neighbours(self):
        self.expect_clean("src/a.cc", "int networks;  // rooted, homework, shared memory, H100\n")
        self.expect_clean("docs/b.md", "Run it in ./work/dir and docs/home/x, not in a session.\n")

    def test_large_and_binary_files(self):
        self.expect_error("big.bin", b"\0" * 2_000_001, "larger than")
        self.expect_clean("small.bin", b"\0 TO" + b"DO")

    def test_skipped_tests_are_warned_about(self):
        findings = self.run_check({"tests/a_test.cc": "  GTEST_S" + "KIP();\n"})
        self.assertEqual([finding.is_error for finding in findings], [False])


if __name__ == "__main__":
    unittest.main()
