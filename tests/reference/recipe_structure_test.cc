// The recipes' own structure: without rounding they are the oracle, whatever the tiles, masks and
// lengths; with rounding they stay within E4M3 of the oracle on what they multiply.
#include <gtest/gtest.h>

#include <limits>

#include "mx/fp8.h"
#include "recipe_support.h"

namespace mxfa::reference::recipe {
namespace {

using attention::Mask;

struct MaskCase {
  const char* name;
  Shape shape;
  Mask mask;
};
void PrintTo(const MaskCase& c, std::ostream* out) { *out << c.name; }

constexpr auto kTopLeft = CausalAlignment::kTopLeft;
const MaskCase kMasks[] = {
    {"full", {64, 256, 64}, {}},
    {"ragged", {70, 301, 40}, {}},
    {"one_key", {33, 1, 64}, {}},
    {"one_query", {1, 300, 64}, {}},
    {"causal", {200, 200, 64}, {.causal = true}},
    {"causal_more_keys", {96, 300, 64}, {.causal = true}},
    {"causal_more_queries", {300, 96, 64}, {.causal = true}},
    {"causal_top_left", {150, 290, 64}, {.causal = true, .alignment = kTopLeft}},
    {"window", {257, 390, 64}, {.window_left = 100, .window_right = 30}},
    {"causal_window", {320, 320, 64}, {.causal = true, .window_left = 40}},
    {"window_far_left", {64, 512, 64}, {.window_left = 400, .window_right = -1}},
    {"window_tiny", {128, 400, 64}, {.window_left = 0, .window_right = 0}},
    {"head_dim_128", {64, 200, 128}, {.causal = true}},
};

/// Then P is 1 and dS zero but for rounding.
bool one_key_a_row(const MaskCase& c) {
  return c.shape.seqlen_k == 1 || (c.mask.window_left == 0 && c.mask.window_right == 0);
}

class RecipeMasks : public ::testing::TestWithParam<MaskCase> {};

TEST_P(RecipeMasks, WithoutRoundingItIsTheOracle) {
  const MaskCase& c = GetParam();
  const HeadInputs inputs = normal_inputs(c.shape, 3, c.mask);
  const ForwardResult forward = attention_forward(inputs);
  const BackwardResult backward = attention_backward(inputs, forward);
  RecipeConfig config = RecipeConfig::f32();
  for (const int tile_n : {32, 128, 512}) {
    config.tile_n = tile_n;
    const StepTensors step = run_step(inputs, config);
    EXPECT_LE(max_lse_error(forward.lse, step.lse), 4e-6) << tile_n;
    // FP32 and a few roundings; O's error is that of P and of the sum over keys.
    const auto close = [&](const auto& want, const auto& got, const char* name) {
      EXPECT_TRUE(testing::expect_close(
          got.data, want.data, {testing::Metric::kSqnrDb, 118},
          {.label = fmt::format("{} tile {}", name, tile_n), .cols = got.cols}));
    };
    close(forward.s, step.s, "S");
    close(forward.p, step.p, "P");
    close(forward.o, step.o, "O");
    close(backward.dp, step.dp, "dP");
    close(backward.dv, step.dv, "dV");
    if (one_key_a_row(c)) {
      for (const float value : step.ds.data) ASSERT_NEAR(value, 0, 1e-5);
      continue;
    }
    close(backward.ds, step.ds, "dS");
    close(backward.dq, step.dq, "dQ");
    close(backward.dk, step.dk, "dK");
  }
}

TEST_P(RecipeMasks, EveryMachineStaysWithinE4m3OfItsOperands) {
  const MaskCase& c = GetParam();
  const HeadInputs inputs = normal_inputs(c.shape, 4, c.mask);
  for (const NamedConfig& named : mx_configs()) {
    const StepTensors step = run_step(inputs, named.config);
    const ForwardResult forward = attention_forward(step.kern);
    const BackwardResult backward = attention_backward(step.kern, forward);
    const std::string label = fmt::format("{} {}", c.name, named.name);
    // Hopper's accumulator keeps 13 bits of a score.
    const double lse_limit = named.config.accumulator == Accumulator::kHopper ? 1e-3 : 1e-5;
    EXPECT_LE(max_lse_error(forward.lse, step.lse), lse_limit) << label;
    const auto close = [&](const auto& want, const auto& got, const char* name, double limit) {
      EXPECT_TRUE(testing::expect_close(got.data, want.data, {testing::Metric::kSqnrDb, limit},
                                        {.label = label + " " + name, .cols = got.cols}));
    };
    close(forward.s, step.s, "S", 70);
    close(forward.o, step.o, "O", 29.5);
    close(backward.dp, step.dp, "dP", 70);
    close(backward.dv, step.dv, "dV", 29.5);
    if (one_key_a_row(c)) continue;
    close(backward.ds, step.ds, "dS", 29.5);
    close(backward.dq, step.dq, "dQ", 29);
    close(backward.dk, step.dk, "dK", 29);
  }
}

TEST_P(RecipeMasks, RowsWithoutAKeyAndKeysWithoutARowAreZero) {
  const MaskCase& c = GetParam();
  const HeadInputs inputs = normal_inputs(c.shape, 5, c.mask);
  for (const NamedConfig& named : mx_configs()) {
    const StepTensors step = run_step(inputs, named.config);
    std::vector<bool> seen(static_cast<std::size_t>(c.shape.seqlen_k));
    for (std::int64_t i = 0; i < c.shape.seqlen_q; ++i) {
      const attention::KeyRange keys =
          attention::visible_keys(c.mask, c.shape.seqlen_q, c.shape.seqlen_k, i);
      for (std::int64_t j = keys.begin; j < keys.end; ++j) seen[j] = true;
      if (!keys.empty()) continue;
      EXPECT_EQ(step.lse[i], -std::numeric_limits<float>::infinity()) << named.name << " " << i;
      for (const float value : step.o.row(i)) ASSERT_EQ(value, 0.0f) << named.name << " O " << i;
      for (const float value : step.dq.row(i)) ASSERT_EQ(value, 0.0f) << named.name << " dQ " << i;
    }
    for (std::int64_t j = 0; j < c.shape.seqlen_k; ++j) {
      if (seen[j]) continue;
      for (const float value : step.dk.row(j)) ASSERT_EQ(value, 0.0f) << named.name << " dK " << j;
      for (const float value : step.dv.row(j)) ASSERT_EQ(value, 0.0f) << named.name << " dV " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Masks, RecipeMasks, ::testing::ValuesIn(kMasks),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(Recipe, TilesThatNobodySeesMayBeSkipped) {
  const HeadInputs inputs = normal_inputs({300, 700, 64}, 6, {.causal = true, .window_left = 90});
  for (const NamedConfig& named : mx_configs()) {
    RecipeConfig config = named.config;
    const Operands operands = quantize_operands(inputs, config);
    const RecipeForward lean = recipe_forward(operands, problem_of(inputs), config);
    const RecipeBackward lean_back =
        recipe_backward(operands, problem_of(inputs), lean.saved, config);
    config.keep_intermediates = true;
    const RecipeForward full = recipe_forward(operands, problem_of(inputs), config);
    const RecipeBackward full_back =
        recipe_backward(operands, problem_of(inputs), lean.saved, config);
    const auto equal = [&](const auto& got, const auto& want, const char* name) {
      EXPECT_TRUE(testing::bitwise_equal(got, want, {.label = named.name + " " + name}));
    };
    equal(full.saved.o.data, lean.saved.o.data, "O");
    equal(full.saved.lse, lean.saved.lse, "LSE");
    equal(full.saved.row_max, lean.saved.row_max, "row_max");
    equal(full_back.dq.data, lean_back.dq.data, "dQ");
    equal(full_back.dk.data, lean_back.dk.data, "dK");
    equal(full_back.dv.data, lean_back.dv.data, "dV");
  }
}

void scale_by(Matrix<float>& matrix, float factor) {
  for (float& value : matrix.data) value *= factor;
}

// Powers of two move exponents only, so every fold and anchor must follow them exactly.
TEST(Recipe, PowersOfTwoPassThroughExactly) {
  const HeadInputs inputs = normal_inputs({96, 300, 64}, 7, {.causal = true});
  HeadInputs scaled = inputs;
  scale_by(scaled.q, 0x1p9f);
  scale_by(scaled.k, 0x1p-7f);
  scaled.softmax_scale *= 0x1p-2;
  scale_by(scaled.dout, 0x1p11f);
  HeadInputs scaled_v = scaled;
  scale_by(scaled_v.v, 0x1p-5f);
  std::vector<NamedConfig> configs = mx_configs();
  configs.push_back({"bf16", RecipeConfig::bf16()});
  for (const NamedConfig& named : configs) {
    // In leak-free form V's exponents are added to the scores, which rounds.
    const bool with_v = !named.config.leak_free;
    const StepTensors want = run_step(inputs, named.config);
    StepTensors got = run_step(with_v ? scaled_v : scaled, named.config);
    const float v = with_v ? 0x1p-5f : 1.0f;
    scale_by(got.o, 1 / v);
    scale_by(got.dv, 0x1p-11f);
    scale_by(got.ds, 0x1p-11f / v);
    scale_by(got.dq, 0x1p-2f / v);  // dS 2^11 v, softmax_scale 2^-2, K 2^-7
    scale_by(got.dk, 0x1p-18f / v);
    const auto equal = [&](const auto& got_values, const auto& want_values, const char* name) {
      EXPECT_TRUE(
          testing::bitwise_equal(got_values, want_values, {.label = named.name + " " + name}));
    };
    equal(got.s.data, want.s.data, "S");
    equal(got.p.data, want.p.data, "P");
    equal(got.o.data, want.o.data, "O");
    equal(got.lse, want.lse, "LSE");
    equal(got.dv.data, want.dv.data, "dV");
    equal(got.ds.data, want.ds.data, "dS");
    equal(got.dq.data, want.dq.data, "dQ");
    equal(got.dk.data, want.dk.data, "dK");
  }
}

/// Each group of 32 tokens 2^-3 or 2^+3 of the one before. All at most 2^0: large logits would make
/// a row one-hot.
void make_groups_uneven(Matrix<float>& matrix, bool growing) {
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const auto group = static_cast<int>(row * 4 / matrix.rows);
    const int exponent = growing ? 3 * (group - 3) : -3 * group;
    for (float& value : matrix.row(row)) value = std::ldexp(value, exponent);
  }
}

// Folds and block scales must tell groups apart, in each tensor by itself.
TEST(Recipe, GroupsOfVeryDifferentSizeKeepTheirAccuracy) {
  for (int test = 0; test < 8; ++test) {
    HeadInputs inputs = normal_inputs({256, 256, 64}, 8);
    Matrix<float>* const matrices[] = {&inputs.q, &inputs.k, &inputs.v, &inputs.dout};
    make_groups_uneven(*matrices[test / 2], test % 2 == 1);
    for (NamedConfig named : mx_configs()) {
      named.config.tile_n = 64;
      if (named.config.promote_keys > 0) named.config.promote_keys = 64;
      const StepTensors step = run_step(inputs, named.config);
      const ForwardResult forward = attention_forward(step.kern);
      const BackwardResult backward = attention_backward(step.kern, forward);
      const std::string label = fmt::format("{} test {}", named.name, test);
      const auto rows_at_least = [&](const auto& want, const auto& got, const char* name,
                                     double limit) {
        const std::vector<double> rows = sorted_row_sqnr(want, got);
        EXPECT_GE(rows[rows.size() / 10], limit) << label << " " << name << " 10% quantile of rows";
      };
      rows_at_least(forward.o, step.o, "O", 28);
      rows_at_least(backward.dv, step.dv, "dV", 27);
      rows_at_least(backward.dq, step.dq, "dQ", 27);
      rows_at_least(backward.dk, step.dk, "dK", 27);
    }
  }
}

TEST(Recipe, BlockRowMaxEqualsBlockAmax) {
  const HeadInputs inputs = normal_inputs({64, 333, 64}, 9, {.causal = true});
  RecipeConfig config = RecipeConfig::blackwell();
  config.p_scale = PScale::kBlockAmax;
  config.keep_intermediates = true;
  for (const double offset : {0.0, std::log2(448.0)}) {
    config.p_offset = offset;
    config.p_scale = PScale::kBlockAmax;
    const Operands operands = quantize_operands(inputs, config);
    const RecipeForward amax = recipe_forward(operands, problem_of(inputs), config);
    config.p_scale = PScale::kBlockRowMax;
    const RecipeForward row_max = recipe_forward(operands, problem_of(inputs), config);
    EXPECT_TRUE(testing::bitwise_equal(row_max.p_payload.codes, amax.p_payload.codes));
    EXPECT_TRUE(testing::bitwise_equal(row_max.p_payload.scales, amax.p_payload.scales));
    EXPECT_TRUE(testing::bitwise_equal(row_max.saved.o.data, amax.saved.o.data));
  }
}

TEST(Recipe, TheRowMaximumLandsOnAnExactCode) {
  const HeadInputs inputs = normal_inputs({64, 256, 64}, 10);
  for (RecipeConfig config : {RecipeConfig::blackwell(), RecipeConfig::hopper()}) {
    config.keep_intermediates = true;
    const RecipeForward forward =
        recipe_forward(quantize_operands(inputs, config), problem_of(inputs), config);
    for (std::int64_t i = 0; i < 64; ++i) {
      // In the first tile the running maximum is the tile's own.
      const auto first = forward.p_payload.codes.begin() + i * 256;
      EXPECT_EQ(mx::decode_e4m3(*std::max_element(first, first + 128)), 256.0f) << i;
    }
  }
}

TEST(Recipe, LseNormalizesTheKernelsOwnScores) {
  const HeadInputs inputs = normal_inputs({64, 1000, 64}, 11);
  for (const NamedConfig& named : mx_configs()) {
    const StepTensors step = run_step(inputs, named.config);
    for (std::int64_t i = 0; i < 64; ++i) {
      double sum = 0;
      for (const float s : step.s.row(i)) sum += std::exp(double{s} - step.lse[i]);
      ASSERT_NEAR(sum, 1, 1e-5) << named.name << " row " << i;
    }
  }
}

}  // namespace
}  // namespace mxfa::reference::recipe
