import unittest

from planted import PlantedTest


class PythonTest(PlantedTest):
    check = "python"

    def test_syntax(self):
        self.expect_error("tools/a.py", "x = 1\ndef f(:\n", "does not parse", line=2)
        self.expect_error("tools/run", "#!/usr/bin/env bash\nif true; then\n", "does not parse")
        self.expect_error("tools/check", "#!/usr/bin/env python3\nx = (\n", "does not parse")
        self.expect_clean("tools/b.py", "x = 1\n")
        self.expect_clean("tools/run", "#!/usr/bin/env bash\ntrue\n")


if __name__ == "__main__":
    unittest.main()
