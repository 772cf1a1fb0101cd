#include <nlohmann/json.hpp>

#include "support/program.h"

namespace mxfa::cli {
namespace {

using BenchCommand = ProgramTest;

TEST_F(BenchCommand, MeasuresAndWritesRecords) {
  const Outcome outcome = run({"bench", "cpu", "--routines", "gemm_quantize", "--runs", "1",
                               "--json", path("cpu.json"), "--plot", path("cpu.svg")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto records = nlohmann::json::parse(file_text(path("cpu.json")));
  double fp32 = 0;
  int measured = 0;
  for (const auto& record : records) {
    EXPECT_FALSE(record["device"].empty());
    EXPECT_FALSE(record["date"].empty());
    if (record["routine"] == "ceiling" && record["impl"] == "fp32_fma") fp32 = record["tflops"];
    if (record["routine"] != "gemm_quantize") continue;
    ++measured;
    EXPECT_EQ(record["runs"], 1);
    EXPECT_GT(record["ms_median"], 0);
    const double flops = 2.0 * double(record["m"]) * double(record["n"]) * double(record["k"]);
    EXPECT_NEAR(double(record["tflops"]), flops / double(record["ms_median"]) * 1e-9, 1e-9);
  }
  EXPECT_EQ(measured, 2);
  EXPECT_GT(fp32, 0);
  EXPECT_NE(file_text(path("cpu.svg")).find("</svg>"), std::string::npos);
}

TEST_F(BenchCommand, RefusesWhatItDoesNotKnow) {
  expect_refused({"bench"}, "A subcommand is required");
  expect_refused({"bench", "cpu", "--preset", "fast"}, "peer");
  expect_refused({"bench", "cpu", "--routines", "fly"}, "rmsnorm_quantize");
  expect_refused({"bench", "cpu", "--recipe", "cake"}, "blackwell");
  expect_refused({"bench", "cpu", "--runs", "0"}, "runs");
}

TEST_F(BenchCommand, HelpTeachesAndSucceeds) {
  const Outcome help = run({"bench", "cpu", "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("Examples:"), std::string::npos);
}

}  // namespace
}  // namespace mxfa::cli
