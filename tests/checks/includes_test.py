import unittest

from planted import ROOT, PlantedTest

from checks.includes import ALLOWED


class IncludesTest(PlantedTest):
    check = "includes"

    def quoted(self, path, target):
        return path, f'#pragma once\n\n#include "{target}"\n'

    def test_upward_and_sideways(self):
        for path, target in (
            ("src/core/a.h", "mx/block.h"),
            ("src/mx/a.h", "attention/mask.h"),
            ("src/attention/a.h", "kernels/sm90/forward/config.h"),
            ("src/reference/a.cc", "attention/online_softmax.h"),
            ("src/reference/a.cc", "mx/quantize.h"),
            ("src/reference/a.cc", "cpu/rmsnorm_quantize.h"),
            ("src/ptx/a.cuh", "mx/block.h"),
            ("src/kernels/sm90/forward/a.cuh", "kernels/sm100/forward/tmem.h"),
            ("src/kernels/sm100/forward/a.cuh", "reference/attention.h"),
            ("src/device/a.cuh", "kernels/sm90/forward/config.h"),
            ("src/cross_attention/a.cc", "dispatch/select.h"),
            ("include/mxfa/a.h", "core/check.h"),
            ("emulator/src/exec/a.cc", "driver/driver.h"),
            ("bindings/python/a.cc", "core/check.h"),
        ):
            with self.subTest(path=path, target=target):
                self.expect_error(*self.quoted(path, target), "may not include", line=3)

    def test_downward(self):
        for path, target in (
            ("src/core/a.h", "mxfa/types.h"),
            ("src/mx/a.h", "mx/fp8.h"),
            ("src/reference/a.cc", "attention/mask.h"),
            ("src/reference/a.cc", "mx/fp8.h"),
            ("src/reference/recipe/a.cc", "mx/quantize.h"),
            ("src/device/a.cuh", "attention/jagged_plan.h"),
            ("src/kernels/sm90/forward/a.cuh", "device/fragment.cuh"),
            ("src/kernels/sm90/forward/a.cuh", "kernels/sm90/forward/config.h"),
            ("src/dispatch/a.cc", "kernels/sm90/forward/launch.h"),
            ("emulator/src/exec/a.cc", "ptx/lexer.h"),
            ("tools/mxfa/a.cc", "reference/attention.h"),
            ("tests/mx/a_test.cc", "support/compare.h"),
        ):
            with self.subTest(path=path, target=target):
                self.expect_clean(*self.quoted(path, target))

    def test_external_headers(self):
        for path, target in (
            ("include/mxfa/a.h", "fmt/format.h"),
            ("include/mxfa/a.h", "unistd.h"),
            ("src/core/a.h", "nlohmann/json.hpp"),
            ("src/io/a.h", "CLI/CLI.hpp"),
            ("src/dispatch/a.cc", "cuda.h"),
            ("src/device/a.cu", "cuda_runtime.h"),
            ("src/core/a.cc", "torch/extension.h"),
            ("src/core/a.cc", "gtest/gtest.h"),
            ("src/kernels/sm90/a.cuh", "cute/tensor.hpp"),
        ):
            with self.subTest(path=path, target=target):
                self.expect_error(path, f"#include <{target}>\n", f"<{target}>", line=1)
        self.expect_clean("include/mxfa/a.h", "#include <cstdint>\n")
        self.expect_clean("src/device/a.cuh", "#include <cuda/ptx>\n#include <cuda_fp8.h>\n")
        self.expect_clean("src/io/a.cc", "#include <nlohmann/json.hpp>\n#include <unistd.h>\n")

    def test_the_document_names_every_folder(self):
        document = (ROOT / "docs/architecture.md").read_text()
        for folder in ALLOWED:
            if folder.count("/") < 2 and not folder.startswith("emulator/"):
                self.assertIn(f"| `{folder}` |", document)


if __name__ == "__main__":
    unittest.main()
