#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "cpu/attention_call.h"
#include "reference/batch.h"
#include "reference/recipe/recipe.h"
#include "support/compare.h"
#include "support/rng.h"

/// Random problems against the recipe emulation, whose arithmetic the CPU follows, and against the
/// oracle on the same dequantized operands.
namespace mxfa::testing {
namespace {

namespace ref = mxfa::reference;
namespace recipe = mxfa::reference::recipe;

struct Shape {
  std::string name;
  std::int64_t num_heads, num_heads_kv, head_dim;
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;
  attention::Mask mask = {};
  double sigma = 1;  ///< of q: larger is peakier
  double mean = 0;   ///< of v
  double decay = 0;  ///< dout shrinks by 2^-decay with each 64 rows, v grows with each 128
};

std::vector<Shape> shapes() {
  using enum CausalAlignment;
  const attention::Mask causal{.causal = true};
  const attention::Mask top_left{.causal = true, .alignment = kTopLeft};
  const attention::Mask window{.window_left = 40, .window_right = 9};
  return {
      {"OneTile", 1, 1, 64, {0, 64}, {0, 128}},
      {"Jagged", 2, 2, 64, {0, 100, 100, 131}, {0, 300, 317, 317}},
      {"Grouped", 4, 2, 128, {0, 70, 200}, {0, 257, 300}},
      {"Causal", 2, 1, 64, {0, 200, 230}, {0, 200, 430}, causal},
      {"CausalTopLeft", 1, 1, 32, {0, 150}, {0, 90}, top_left},
      {"Window", 2, 2, 96, {0, 180}, {0, 220}, window},
      {"OddDim", 1, 1, 40, {0, 33}, {0, 65}},
      {"ManyKeys", 1, 1, 128, {0, 65}, {0, 1500}, {}, 1, 2},
      {"Peaky", 1, 1, 64, {0, 96}, {0, 512}, {}, 4, 0},
      {"Diffuse", 1, 1, 32, {0, 40}, {0, 9000}, {}, 0.1, 0},
      {"Decaying", 1, 1, 64, {0, 250}, {0, 250}, window, 1, 0, 14},
      {"DecayingCausal", 2, 1, 64, {0, 300}, {0, 300}, causal, 1, 0, 13},
  };
}

AttentionCall make_call(const Shape& shape, const Mode& mode) {
  AttentionCall call{.num_heads = shape.num_heads,
                     .num_heads_kv = shape.num_heads_kv,
                     .head_dim = shape.head_dim,
                     .cu_seqlens_q = shape.cu_seqlens_q,
                     .cu_seqlens_k = shape.cu_seqlens_k,
                     .options = mode.options};
  Rng rng(7);
  const std::int64_t width_q = shape.num_heads * shape.head_dim;
  const std::int64_t width_k = shape.num_heads_kv * shape.head_dim;
  call.q = rng.normal_values<float>(shape.cu_seqlens_q.back() * width_q, shape.sigma);
  call.k = rng.normal_values<float>(shape.cu_seqlens_k.back() * width_k);
  call.v = rng.normal_values<float>(shape.cu_seqlens_k.back() * width_k, 1, shape.mean);
  call.dout = rng.normal_values<float>(shape.cu_seqlens_q.back() * width_q, 1e-3);
  for (std::size_t i = 0; i < call.dout.size(); ++i) {
    call.dout[i] *= float(std::exp2(-shape.decay * double(std::int64_t(i) / width_q / 64)));
  }
  for (std::size_t i = 0; i < call.v.size(); ++i) {
    const std::int64_t row = std::int64_t(i) / width_k;
    call.v[i] *= float(std::exp2(shape.decay * double(row / 128)));
    // Keys of a tile whose scales differ, so that dQ's payload has something to fold.
    if (shape.decay > 0) call.k[i] *= float(std::exp2(-6 * double(row / 32 % 3)));
  }
  call.options.causal = shape.mask.causal;
  call.options.causal_alignment = shape.mask.alignment;
  call.options.window_left = shape.mask.window_left;
  call.options.window_right = shape.mask.window_right;
  return call;
}

recipe::RecipeConfig make_config(const attention::Options& options) {
  recipe::RecipeConfig config = recipe::RecipeConfig::blackwell();
  if (options.precision == attention::Precision::kBf16) {
    config = recipe::RecipeConfig::bf16();
  } else if (options.recipe == attention::Recipe::kHopper) {
    config = recipe::RecipeConfig::hopper();
    config.accumulator = recipe::Accumulator::kExact;
  }
  if (options.leak_free) config = recipe::RecipeConfig::leak_free_of(config);
  config.qk_bf16 = options.qk_bf16;
  config.dp_bf16 = options.dp_bf16;
  config.o_out = config.dq_out = config.dkv_out = recipe::OutputFormat::kF32;
  return config;
}

ref::Matrix<double> to_double(const ref::Matrix<float>& values) {
  ref::Matrix<double> result(values.rows, values.cols);
  result.data.assign(values.data.begin(), values.data.end());
  return result;
}
std::vector<double> to_double(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

struct Expected {
  ref::PackedOutputs recipe;
  ref::PackedOutputs oracle;  ///< on the recipe's dequantized operands
};

Expected expected(const AttentionCall& call, const recipe::RecipeConfig& config) {
  const ref::PackedInputs inputs{.problem = {.batch = call.batch(),
                                             .num_heads = call.num_heads,
                                             .num_heads_kv = call.num_heads_kv,
                                             .head_dim = call.head_dim,
                                             .total_q = call.total_q(),
                                             .total_k = call.total_k(),
                                             .cu_seqlens_q = call.cu_seqlens_q,
                                             .cu_seqlens_k = call.cu_seqlens_k,
                                             .mask = {.causal = call.options.causal,
                                                      .alignment = call.options.causal_alignment,
                                                      .window_left = call.options.window_left,
                                                      .window_right = call.options.window_right}},
                                 .q = call.q,
                                 .k = call.k,
                                 .v = call.v,
                                 .dout = call.dout};
  const auto by_recipe = [&](const ref::HeadInputs& head, ref::HeadIndex) -> ref::HeadOutputs {
    const recipe::Operands operands = recipe::quantize_operands(head, config);
    const recipe::HeadProblem problem{head.mask, head.softmax_scale};
    const recipe::RecipeForward f = recipe::recipe_forward(operands, problem, config);
    const recipe::RecipeBackward b = recipe::recipe_backward(operands, problem, f.saved, config);
    return {to_double(f.saved.o), to_double(f.saved.lse), to_double(b.delta),
            to_double(b.dq),      to_double(b.dk),        to_double(b.dv)};
  };
  const auto by_oracle = [&](const ref::HeadInputs& head, ref::HeadIndex) -> ref::HeadOutputs {
    const recipe::Operands operands = recipe::quantize_operands(head, config);
    const recipe::HeadProblem problem{head.mask, head.softmax_scale};
    const ref::HeadInputs kern = recipe::kern_inputs(operands, problem, config);
    const ref::ForwardResult f = ref::attention_forward(kern);
    const ref::BackwardResult b = ref::attention_backward(kern, f);
    return {f.o, f.lse, b.delta, b.dq, b.dk, b.dv};
  };
  return {ref::run_heads(inputs, by_recipe), ref::run_heads(inputs, by_oracle)};
}

using Param = std::tuple<Shape, Mode>;
class CpuAgainstRecipe : public ::testing::TestWithParam<Param> {};

/// The two differ in the order of sums and in the last place of exp2, so a few roundings of payload
/// fall the other way: measured 0.01 dB of noise and 67 dB between them at worst.
void expect_same_noise(const std::vector<float>& got, const std::vector<double>& by_recipe,
                       const std::vector<double>& oracle, const std::string& label) {
  const double recipe_db = std::min(sqnr_db_of(by_recipe, oracle), 120.0);
  EXPECT_TRUE(expect_close(got, oracle, {.metric = Metric::kSqnrDb, .limit = recipe_db - 0.05},
                           {.label = label + " against the oracle"}));
  EXPECT_TRUE(expect_close(got, by_recipe, {.metric = Metric::kSqnrDb, .limit = 60},
                           {.label = label + " against the recipe"}));
}

/// The worst row's distance: where payload is flushed to zero the whole tensor may not show it. One
/// payload that rounds the other way costs a row 36 dB at worst.
/// Rows that are zero but for rounding, as dq of a query with one key, do not count.
void expect_same_rows(const std::vector<float>& got, const std::vector<double>& by_recipe,
                      const std::vector<double>& oracle, std::int64_t width,
                      const std::string& label) {
  double worst = 200;
  std::size_t row = 0;
  for (std::size_t at = 0; at < by_recipe.size(); at += std::size_t(width)) {
    const std::span row_got(got.data() + at, std::size_t(width));
    const std::span row_recipe(by_recipe.data() + at, std::size_t(width));
    const std::span row_oracle(oracle.data() + at, std::size_t(width));
    const bool zero = std::ranges::all_of(row_oracle, [](double v) { return v == 0; });
    if (zero || sqnr_db_of(row_recipe, row_oracle) < 6) continue;
    const double db = sqnr_db_of(row_got, row_recipe);
    if (db >= worst) continue;
    worst = db;
    row = at / std::size_t(width);
  }
  EXPECT_GE(worst, 30) << label << ", row " << row << ", dB";
}

TEST_P(CpuAgainstRecipe, SameNoise) {
  const auto& [shape, mode] = GetParam();
  AttentionCall call = make_call(shape, mode);
  call.run();
  const Expected want = expected(call, make_config(call.options));
  expect_same_noise(call.o, want.recipe.o, want.oracle.o, "o");
  expect_same_noise(call.dq, want.recipe.dq, want.oracle.dq, "dq");
  expect_same_noise(call.dk, want.recipe.dk, want.oracle.dk, "dk");
  expect_same_noise(call.dv, want.recipe.dv, want.oracle.dv, "dv");
  const std::int64_t dim = call.head_dim;
  expect_same_rows(call.o, want.recipe.o, want.oracle.o, dim, "o");
  expect_same_rows(call.dq, want.recipe.dq, want.oracle.dq, dim, "dq");
  expect_same_rows(call.dk, want.recipe.dk, want.oracle.dk, dim, "dk");
  expect_same_rows(call.dv, want.recipe.dv, want.oracle.dv, dim, "dv");
  EXPECT_TRUE(expect_close(call.lse, want.recipe.lse, {.metric = Metric::kMaxAbs, .limit = 4e-6},
                           {.label = "lse"}));
}

const auto name_of = [](const ::testing::TestParamInfo<Param>& param) {
  return std::get<0>(param.param).name + "_" + std::get<1>(param.param).name;
};
INSTANTIATE_TEST_SUITE_P(Shapes, CpuAgainstRecipe,
                         ::testing::Combine(::testing::ValuesIn(shapes()),
                                            ::testing::ValuesIn(all_modes())),
                         name_of);

}  // namespace
}  // namespace mxfa::testing
