#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "io/xml_check.h"
#include "module/measure.h"
#include "module/presets.h"
#include "module/zero_gradients.h"
#include "support/program.h"

namespace mxfa::cli {
namespace {

using ModuleCommand = ProgramTest;

/// Small enough for a moment, large enough for figures that mean something.
const std::vector<std::string> kSmall{"module", "--preset", "tiny"};

std::vector<std::string> with(std::vector<std::string> base, const std::vector<std::string>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

TEST_F(ModuleCommand, PrintsAllTensorsAndNoneFails) {
  for (const char* recipe : {"blackwell", "hopper"}) {
    const Outcome outcome =
        run(with(kSmall, {"--recipe", recipe, "--json", path("m.json"), "--plot", path("m.svg")}));
    ASSERT_EQ(outcome.status, 0) << outcome.err << outcome.out;
    EXPECT_EQ(outcome.err, "");
    EXPECT_NE(outcome.out.find("24 tensors: 24 pass, 0 borderline, 0 fail"), std::string::npos)
        << outcome.out;
    const auto json = nlohmann::json::parse(file_text(path("m.json")));
    ASSERT_EQ(json.size(), 5U);
    EXPECT_EQ(json[0]["routine"], "cross_attention_forward");
    EXPECT_EQ(json[0]["impl"], "mxfa mxfp8");
    EXPECT_EQ(json[3]["routine"], "cross_attention_backward");
    EXPECT_EQ(json[3]["impl"], "mxfa bf16");
    EXPECT_GT(json[3]["ms_median"], 0);
    EXPECT_EQ(json[0]["recipe"], recipe);
    const auto& sqnr = json[4]["sqnr"];
    ASSERT_EQ(sqnr.size(), module::kBars.size());
    for (std::size_t i = 0; i < sqnr.size(); ++i) {
      EXPECT_EQ(sqnr[i]["tensor"], module::kBars[i].tensor);
      EXPECT_EQ(sqnr[i]["threshold_db"], module::kBars[i].db);
      EXPECT_EQ(sqnr[i]["verdict"], "pass");
      EXPECT_NE(outcome.out.find(std::string(module::kBars[i].tensor)), std::string::npos);
    }
    const std::string svg = file_text(path("m.svg"));
    EXPECT_EQ(io::xml_fault(svg), "");
    EXPECT_NE(svg.find("dseed_norm_weight"), std::string::npos);
  }
}

TEST_F(ModuleCommand, WritesTheTensorsOfOnePrecision) {
  const Outcome outcome = run(
      with(kSmall, {"--batch", "2", "--precision", "bf16", "--tensors", path("step.safetensors")}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto file = io::SafetensorsReader::open(path("step.safetensors"));
  EXPECT_EQ(file.tensors().size(), 10 + module::kBars.size());
  for (const module::Bar& bar : module::kBars) {
    const io::TensorEntry& entry = file.at(bar.tensor);
    EXPECT_EQ(entry.dtype, DType::kF32);
    const std::vector<float> values = io::to_f32(file.read(entry));
    EXPECT_TRUE(std::ranges::any_of(values, [](float v) { return v != 0; })) << bar.tensor;
  }
  EXPECT_EQ(file.at("dy").dtype, DType::kBF16);
  expect_refused(with(kSmall, {"--tensors", path("x.safetensors")}), "tensors: expected");
}

TEST_F(ModuleCommand, SizesOfTheCommandLineReplaceThePresets) {
  const Outcome outcome =
      run({"module", "--preset",   "s30",         "--batch", "2", "--seed-queries",
           "5",      "--dim",      "64",          "--heads", "2", "--max-kv",
           "100",    "--sparsity", "0.25",        "--seed",  "9", "--precision",
           "mxfp8",  "--json",     path("m.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("these times say nothing about a GPU"), std::string::npos);
  EXPECT_EQ(outcome.out.find("SQNR"), std::string::npos) << "one precision has nothing to compare";
  const auto json = nlohmann::json::parse(file_text(path("m.json")));
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0]["case"]["batch"], 2);
  EXPECT_EQ(json[0]["case"]["seqlen_q"], 5);
  EXPECT_EQ(json[0]["case"]["head_dim"], 32);
  EXPECT_EQ(json[0]["case"]["seqlen_k"], 100);
  EXPECT_EQ(json[0]["sparsity"], 0.25);
  EXPECT_EQ(json[0]["seed"], 9);
  EXPECT_EQ(json[0]["memory_bytes"].count("workspace"), 1U);
}

TEST_F(ModuleCommand, EmptyBatchesRun) {
  for (const std::vector<std::string>& sizes :
       {std::vector<std::string>{"--batch", "0"}, {"--sparsity", "1"}, {"--max-kv", "0"}}) {
    const Outcome outcome = run(with(kSmall, with({"--precision", "mxfp8"}, sizes)));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
  }
}

TEST_F(ModuleCommand, RefusesBadInput) {
  expect_refused({"module", "--preset", "huge"},
                 "preset: expected tiny, default or s30, got 'huge'");
  expect_refused(with(kSmall, {"--dim", "100", "--heads", "3"}),
                 "dim: expected a multiple of the 3 heads, got 100");
  expect_refused(with(kSmall, {"--dim", "100"}), "head_dim: expected 64 or 128");
  expect_refused(with(kSmall, {"--sparsity", "2"}), "sparsity: expected 0 .. 1, got 2");
  expect_refused(with(kSmall, {"--batch", "-1"}), "batch: expected at least 0, got -1");
  expect_refused(with(kSmall, {"--precision", "fp4"}), "precision: expected mxfp8, bf16 or both");
  expect_refused(with(kSmall, {"--recipe", "ampere"}), "recipe: expected hopper or blackwell");
  expect_refused(with(kSmall, {"--precision", "bf16", "--queries-bf16"}),
                 "queries-bf16: expected --precision mxfp8 or both");
  expect_refused(with(kSmall, {"--precision", "bf16", "--plot", path("m.svg")}),
                 "plot: expected --precision both");
  expect_refused(with(kSmall, {"--batch", "0"}), "batch: expected keys");
  expect_refused(with(kSmall, {"--sparsity", "1"}), "sparsity: expected keys");
  expect_refused(with(kSmall, {"--max-kv", "0"}), "max-kv: expected keys");
  expect_refused(with(kSmall, {"--sparsity", "nan"}), "sparsity: expected a finite number");
  expect_refused(with(kSmall, {"--dim", "1048576"}), "which take about 1.06e+05 GB");
  expect_refused(with(kSmall, {"--dim", "1048576"}), "dim: expected sizes whose step fits");
  expect_refused(with(kSmall, {"--max-kv", "2000000000000"}), "max-kv: expected sizes");
  expect_refused(with(kSmall, {"--batch", "1000000000000"}),
                 "batch: expected sizes whose step fits");
  expect_refused(with(kSmall, {"--seed-queries", "9000000000000000000"}),
                 "seed-queries: expected sizes whose step fits");
  expect_refused(with(kSmall, {"--json", path("none/m.json")}), "none/m.json");
  expect_refused(with(kSmall, {"--json", path("same.svg"), "--plot", path("same.svg")}), "same");
}

/// With one key, what goes through the softmax has no gradient, and no SQNR.
TEST_F(ModuleCommand, ZeroGradientsAreHeldToWhatRoundingLeaves) {
  const std::vector<std::string> sizes{"--batch", "3", "--max-kv", "1", "--sparsity", "0"};
  const Outcome outcome = run(with(kSmall, with({"--json", path("m.json")}, sizes)));
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("n/a"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(file_text(path("m.json"))).back()["sqnr"].size(),
            module::kBars.size() - 8);
}

TEST(ModuleZeroGradients, BoundsAreFarBelowWhatAFaultLeaves) {
  const auto batch = reference::make_cross_attention_batch(
      {.batch = 2, .seqlen_q = 4, .dim = 64, .num_heads = 1, .max_seqlen_k = 1});
  ASSERT_GT(batch.total_k(), 0);
  module::Step step(batch, {}, true);
  step.forward();
  step.backward();
  const auto zeros = module::zero_gradients(batch, step);
  EXPECT_EQ(zeros.size(), 8U);
  for (const module::StepTensor& tensor : step.tensors()) {
    if (tensor.name != "dv") continue;
    // dk of a delta that is forgotten is about as large as dv.
    EXPECT_LT(zeros.at("dk"), 0.05 * module::largest_magnitude(module::values_of(tensor)));
  }
  const auto two = reference::make_cross_attention_batch(
      {.batch = 2, .seqlen_q = 4, .dim = 64, .num_heads = 1, .max_seqlen_k = 64});
  EXPECT_TRUE(module::zero_gradients(two, step).empty());
}

TEST(ModuleVerdict, IsABandOfOneDecibel) {
  using module::Verdict;
  EXPECT_EQ(module::judge(20, 20), Verdict::kPass);
  EXPECT_EQ(module::judge(19.99, 20), Verdict::kBorderline);
  EXPECT_EQ(module::judge(19, 20), Verdict::kBorderline);
  EXPECT_EQ(module::judge(18.99, 20), Verdict::kFail);
  EXPECT_EQ(module::judge(std::nan(""), 20), Verdict::kFail);
  EXPECT_EQ(module::judge(INFINITY, 20), Verdict::kPass);
}

/// The bars that the project promises on unit-variance data.
TEST(ModuleBars, AreNoLowerThanPromised) {
  for (const module::Bar& least : module::kLeastBars) {
    EXPECT_GE(std::ranges::find(module::kBars, least.tensor, &module::Bar::tensor)->db, least.db);
  }
}

TEST(ModuleFlops, CountEveryProduct) {
  const auto batch = reference::make_cross_attention_batch(
      {.batch = 2, .seqlen_q = 3, .dim = 16, .num_heads = 2, .max_seqlen_k = 50});
  const double keys = double(batch.total_k());
  const module::Flops flops = module::count_flops(batch);
  const double linear = 2 * 16 * 16 * (3 + 2 * keys + 6), score = 2 * 3 * keys * 16;
  EXPECT_DOUBLE_EQ(flops.forward, linear + 2 * score);
  EXPECT_DOUBLE_EQ(flops.backward, 2 * linear + 5 * score);
}

}  // namespace
}  // namespace mxfa::cli
