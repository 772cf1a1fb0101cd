// Surprising inputs, stabilizers, dials, outputs, and requests that no machine can execute.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "mx/fp8.h"
#include "mxfa/error.h"
#include "recipe_support.h"

namespace mxfa::reference::recipe {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<NamedConfig> all_configs() {
  std::vector<NamedConfig> configs = mx_configs();
  configs.push_back({"bf16", RecipeConfig::bf16()});
  configs.push_back({"fp8_per_tensor", RecipeConfig::fp8_per_tensor()});
  return configs;
}

bool all_finite(const StepTensors& step) {
  for (const Matrix<float>* matrix : {&step.o, &step.dq, &step.dk, &step.dv, &step.p, &step.ds}) {
    for (const float value : matrix->data) {
      if (!std::isfinite(value)) return false;
    }
  }
  return true;
}
bool all_zero(const Matrix<float>& matrix) {
  for (const float value : matrix.data) {
    if (value != 0) return false;
  }
  return true;
}
std::size_t count_nan(std::span<const float> values) {
  return static_cast<std::size_t>(
      std::count_if(values.begin(), values.end(), [](float v) { return std::isnan(v); }));
}

class RecipeSpecial : public ::testing::TestWithParam<NamedConfig> {};

// 0xFF is loud: what a NaN or an infinity of Q touches is NaN, and only that.
TEST_P(RecipeSpecial, BadQueryRowsAreNanOthersAreNot) {
  const RecipeConfig& config = GetParam().config;
  for (const float bad : {kNan, kInf, -kInf}) {
    HeadInputs inputs = normal_inputs({64, 150, 64}, 41);
    inputs.q(40, 7) = bad;
    const StepTensors step = run_step(inputs, config);
    EXPECT_TRUE(std::isnan(step.lse[40])) << bad;
    EXPECT_EQ(count_nan(step.o.row(40)), 64u) << bad;
    EXPECT_EQ(count_nan(step.dq.row(40)), 64u) << bad;
    EXPECT_EQ(count_nan(step.dv.data), step.dv.data.size()) << bad;
    EXPECT_EQ(count_nan(step.dk.data), step.dk.data.size()) << bad;
    if (config.machine == Machine::kFp8PerTensor) continue;  // one scale: all rows are touched
    for (std::int64_t i = 0; i < 32; ++i) {                  // another group of 32
      EXPECT_EQ(count_nan(step.o.row(i)), 0u) << bad << " row " << i;
      EXPECT_FALSE(std::isnan(step.lse[i])) << bad << " row " << i;
    }
  }
}

TEST_P(RecipeSpecial, BadKeysAndValuesReachEveryRow) {
  const RecipeConfig& config = GetParam().config;
  for (const float bad : {kNan, kInf}) {
    HeadInputs inputs = normal_inputs({40, 150, 64}, 42);
    inputs.k(70, 3) = bad;
    StepTensors step = run_step(inputs, config);
    // In BF16 an infinite key is one that half of the rows ignore.
    const bool nan = std::isnan(bad) || config.machine != Machine::kBf16;
    for (std::int64_t i = 0; i < 40 && nan; ++i) {
      ASSERT_TRUE(std::isnan(step.lse[i])) << i;
      ASSERT_EQ(count_nan(step.o.row(i)), 64u) << i;
      ASSERT_EQ(count_nan(step.dq.row(i)), 64u) << i;
    }
    inputs = normal_inputs({40, 150, 64}, 42);
    inputs.v(70, 3) = bad;
    step = run_step(inputs, config);
    EXPECT_EQ(count_nan(step.lse), 0u);
    for (std::int64_t i = 0; i < 40; ++i) {
      // An infinity in BF16 stays one.
      EXPECT_FALSE(std::isfinite(step.o(i, 3))) << i;
      EXPECT_EQ(count_nan(step.dq.row(i)), 64u) << i;
    }
    inputs = normal_inputs({40, 150, 64}, 42);
    inputs.dout(20, 5) = bad;
    step = run_step(inputs, config);
    EXPECT_EQ(count_nan(step.dq.row(20)), 64u);
    EXPECT_EQ(count_nan(step.lse), 0u);
    for (std::int64_t j = 0; j < 150; ++j) EXPECT_FALSE(std::isfinite(step.dv(j, 5))) << j;
  }
}

TEST_P(RecipeSpecial, ZeroGradientGivesZeroGradients) {
  HeadInputs inputs = normal_inputs({96, 200, 64}, 43);
  std::ranges::fill(inputs.dout.data, 0.0f);
  const StepTensors step = run_step(inputs, GetParam().config);
  EXPECT_TRUE(all_zero(step.dq));
  EXPECT_TRUE(all_zero(step.dk));
  EXPECT_TRUE(all_zero(step.dv));
}

TEST_P(RecipeSpecial, AllZeroInputs) {
  HeadInputs inputs = normal_inputs({40, 100, 64}, 44);
  for (Matrix<float>* matrix : {&inputs.q, &inputs.k, &inputs.v}) {
    std::ranges::fill(matrix->data, 0.0f);
  }
  const StepTensors step = run_step(inputs, GetParam().config);
  // In leak-free form the maximum is -64 and l 2^64 times larger: LSE is their difference.
  for (const float lse : step.lse) ASSERT_NEAR(lse, std::log(100.0), 6e-6);
  EXPECT_TRUE(all_zero(step.o));
  EXPECT_TRUE(all_zero(step.dq));
  EXPECT_TRUE(all_zero(step.dk));
  EXPECT_TRUE(all_finite(step));
}

// V = 0 next to normal tiles: O must not notice, and l must be the un-folded sum.
TEST_P(RecipeSpecial, ZeroValueTilesCountInTheSum) {
  // Leak-free form spans 2^134 of V at most: its sum undoes each key's exponent in FP32.
  const float huge = GetParam().config.leak_free ? 0x1p30f : 0x1p100f;
  for (const float scale : {1.0f, huge}) {
    HeadInputs inputs = normal_inputs({64, 512, 64}, 45);
    for (std::int64_t j = 0; j < 512; ++j) {
      const bool zero = j / 128 == 0 || j / 32 == 9;
      for (float& value : inputs.v.row(j)) value *= zero ? 0.0f : scale;
    }
    inputs.dout = {};
    const StepTensors step = run_step(inputs, GetParam().config);
    const ForwardResult want = attention_forward(step.kern);
    EXPECT_LE(max_lse_error(want.lse, step.lse), 1e-3) << scale;
    EXPECT_GE(db(want.o, step.o), 29) << scale;
    EXPECT_TRUE(all_finite(step)) << scale;
  }
}

// Tiles of dO so far apart that P' of one would underflow: its own dQ must not notice.
TEST_P(RecipeSpecial, TinyGradientTilesKeepTheirDq) {
  HeadInputs inputs = normal_inputs({128, 200, 64}, 49);
  for (std::int64_t i = 0; i < 128; ++i) {
    for (float& value : inputs.dout.row(i)) value *= i < 64 ? 0x1p60f : 0x1p-100f;
  }
  const StepTensors step = run_step(inputs, GetParam().config);
  const BackwardResult want = attention_backward(step.kern, attention_forward(step.kern));
  const std::vector<double> rows = sorted_row_sqnr(want.dq, step.dq);
  // One scale for all tokens has flushed the tiny half of dO itself: rows are the others then.
  EXPECT_GE(rows.front(), 24) << "worst row of dQ";
  EXPECT_GE(db(want.dv, step.dv), 28.5);
  EXPECT_GE(db(want.dk, step.dk), 28.5);
}

TEST_P(RecipeSpecial, ZeroQueriesStillHaveGradients) {
  HeadInputs inputs = normal_inputs({64, 200, 64}, 46);
  for (std::int64_t i = 17; i < 64; i += 2) std::ranges::fill(inputs.q.row(i), 0.0f);
  const StepTensors step = run_step(inputs, GetParam().config);
  const BackwardResult want = attention_backward(step.kern, attention_forward(step.kern));
  EXPECT_GE(db(want.dq, step.dq), 28.5);
  const std::vector<double> rows = sorted_row_sqnr(want.dq, step.dq);
  EXPECT_GE(rows.front(), 22) << "worst row of dQ";
}

TEST_P(RecipeSpecial, TinyAndHugeInputsStayFinite) {
  for (const float scale : {0x1p-120f, 0x1p-60f, 0x1p40f}) {
    HeadInputs inputs = normal_inputs({64, 130, 64}, 47);
    for (float& value : inputs.v.data) value *= scale;
    for (float& value : inputs.q.data) value /= scale;
    for (float& value : inputs.k.data) value *= scale;
    const StepTensors step = run_step(inputs, GetParam().config);
    EXPECT_TRUE(all_finite(step)) << scale;
    const ForwardResult want = attention_forward(step.kern);
    EXPECT_LE(max_lse_error(want.lse, step.lse), 1e-3) << scale;
    if (scale > 0x1p-100f) {
      EXPECT_GE(db(want.o, step.o), 29) << scale;
    }
  }
}

TEST_P(RecipeSpecial, LengthsOfZero) {
  const RecipeConfig& config = GetParam().config;
  const StepTensors no_keys = run_step(normal_inputs({40, 0, 64}), config);
  for (const float lse : no_keys.lse) EXPECT_EQ(lse, -kInf);
  EXPECT_TRUE(all_zero(no_keys.o));
  EXPECT_TRUE(all_zero(no_keys.dq));
  EXPECT_EQ(no_keys.dk.rows, 0);
  const StepTensors no_queries = run_step(normal_inputs({0, 40, 64}), config);
  EXPECT_EQ(no_queries.o.rows, 0);
  EXPECT_EQ(no_queries.dk.rows, 40);
  EXPECT_TRUE(all_zero(no_queries.dk));
  EXPECT_TRUE(all_zero(no_queries.dv));
}

TEST_P(RecipeSpecial, ForwardAloneEqualsTheStepsForward) {
  HeadInputs inputs = normal_inputs({40, 150, 64}, 48);
  const StepTensors both = run_step(inputs, GetParam().config);
  inputs.dout = {};
  const StepTensors forward = run_step(inputs, GetParam().config);
  EXPECT_TRUE(testing::bitwise_equal(forward.o.data, both.o.data));
  EXPECT_TRUE(testing::bitwise_equal(forward.lse, both.lse));
  EXPECT_EQ(forward.dq.rows, 0);
}

TEST_P(RecipeSpecial, NanIsNotTakenForAnFp16Overflow) {
  HeadInputs inputs = normal_inputs({64, 300, 64}, 50);
  inputs.dout(3, 3) = kNan;
  inputs.q(40, 1) = kNan;
  RecipeConfig config = GetParam().config;
  config.dq_accum = DqAccum::kF16;
  const StepTensors step = run_step(inputs, config);
  EXPECT_EQ(count_nan(step.dq.row(3)), 64u);
  EXPECT_EQ(count_nan(step.dq.row(40)), 64u);
}

INSTANTIATE_TEST_SUITE_P(Machines, RecipeSpecial, ::testing::ValuesIn(all_configs()),
                         [](const auto& instance) { return instance.param.name; });

// ---- Stabilizers and dials -----------------------------------------------------------------

TEST(RecipeDials, ShiftsAreExactWithoutRounding) {
  HeadInputs inputs = normal_inputs({48, 200, 64}, 51, {.causal = true});
  // On a grid of 1/16, so that shifted values are BF16 too.
  for (float& value : inputs.k.data) value = std::round(value * 16) / 16;
  for (float& value : inputs.v.data) value = std::round(value * 16) / 16 + 3;
  const BackwardResult want = attention_backward(inputs, attention_forward(inputs));
  RecipeConfig config = RecipeConfig::f32();
  config.smooth_k = config.smooth_v = true;
  config.shift_k.assign(64, 1.5f);
  config.shift_v.assign(64, 3.0f);
  const StepTensors step = run_step(inputs, config);
  EXPECT_GE(db(attention_forward(inputs).o, step.o), 115);
  EXPECT_GE(db(want.dv, step.dv), 115);
  EXPECT_GE(db(want.ds, step.ds), 115);
  EXPECT_GE(db(want.dq, step.dq), 110);  // rows of dS sum to 0 only but for rounding
  EXPECT_GE(db(want.dk, step.dk), 115);
}

TEST(RecipeDials, SmoothingHelpsWhereThereIsAMean) {
  HeadInputs inputs = normal_inputs({64, 512, 64}, 52);
  testing::Rng rng(53);
  for (std::int64_t c = 0; c < 64; ++c) {
    const auto mean = static_cast<float>(4 * rng.normal());
    for (std::int64_t j = 0; j < 512; ++j) {
      inputs.k(j, c) = mx::round_bf16(inputs.k(j, c) + mean);
      inputs.v(j, c) = mx::round_bf16(inputs.v(j, c) + mean);
    }
  }
  inputs.softmax_scale /= 4;
  const ForwardResult forward = attention_forward(inputs);
  const BackwardResult want = attention_backward(inputs, forward);
  for (RecipeConfig config : {RecipeConfig::blackwell(), RecipeConfig::hopper()}) {
    const StepTensors plain = run_step(inputs, config);
    config.smooth_k = config.smooth_v = true;
    const StepTensors smooth = run_step(inputs, config);
    EXPECT_GE(db(forward.p, smooth.p), db(forward.p, plain.p) + 3.5);
    EXPECT_GE(db(want.dq, smooth.dq), db(want.dq, plain.dq) + 8);
    EXPECT_GE(db(want.dk, smooth.dk), db(want.dk, plain.dk) + 6);
    // The oracle on the dequantized, shifted operands plus the shift is the kern reference.
    ForwardResult kern = attention_forward(smooth.kern);
    for (std::int64_t i = 0; i < 64; ++i) {
      for (std::int64_t c = 0; c < 64; ++c) kern.o(i, c) += smooth.shift_v[c];
    }
    EXPECT_GE(db(kern.o, smooth.o), 45);
  }
}

TEST(RecipeDials, Bf16GemmsRemoveTheirShareOfTheError) {
  const HeadInputs inputs = normal_inputs({64, 512, 128}, 54);
  const ForwardResult forward = attention_forward(inputs);
  const BackwardResult want = attention_backward(inputs, forward);
  for (RecipeConfig config : {RecipeConfig::blackwell(), RecipeConfig::hopper()}) {
    const StepTensors plain = run_step(inputs, config);
    config.qk_bf16 = true;
    const StepTensors qk = run_step(inputs, config);
    EXPECT_GE(db(forward.s, qk.s), 120);
    EXPECT_GE(db(forward.o, qk.o), db(forward.o, plain.o) + 2.5);
    config.dp_bf16 = true;
    const StepTensors dp = run_step(inputs, config);
    EXPECT_GE(db(want.dp, dp.dp), 120);
    EXPECT_GE(db(want.ds, dp.ds), db(want.ds, qk.ds) + 2);
    config.dkq_bf16 = true;
    const StepTensors dkq = run_step(inputs, config);
    EXPECT_GE(db(want.dq, dkq.dq), db(want.dq, dp.dq) + 5);
    EXPECT_GE(db(want.dk, dkq.dk), db(want.dk, dp.dk) + 5);
  }
}

// delta of another dO than dP's leaves a bias in dS wherever V has a mean.
TEST(RecipeDials, DeltaMustUseTheDoutOfDp) {
  HeadInputs inputs = normal_inputs({64, 512, 64}, 55);
  for (float& value : inputs.v.data) value = mx::round_bf16(value + 2);
  const BackwardResult want = attention_backward(inputs, attention_forward(inputs));
  for (RecipeConfig config : {RecipeConfig::blackwell(), RecipeConfig::hopper()}) {
    const double right = db(want.dq, run_step(inputs, config).dq);
    config.delta_source = DeltaSource::kBf16;
    EXPECT_GE(right, db(want.dq, run_step(inputs, config).dq) + 3);
  }
}

TEST(RecipeDials, FoldingTheRowMaximumKeepsDiffuseRows) {
  HeadInputs inputs = normal_inputs({32, 16384, 32}, 56);
  for (float& value : inputs.q.data) value *= 0.25f;
  const StepTensors folded = run_step(inputs, hopper_exact());
  RecipeConfig config = hopper_exact();
  config.fold_row_max = false;
  const StepTensors plain = run_step(inputs, config);
  const BackwardResult want = attention_backward(folded.kern, attention_forward(folded.kern));
  EXPECT_GE(db(want.dv, folded.dv), 30.5);
  EXPECT_GE(db(want.dv, folded.dv), db(want.dv, plain.dv) + 2);
}

TEST(RecipeDials, PromotionKeepsOneSignedSums) {
  HeadInputs inputs = normal_inputs({32, 4096, 64}, 57);
  for (float& value : inputs.v.data) value = mx::round_bf16(value + 2);
  RecipeConfig config = RecipeConfig::hopper();
  const StepTensors promoted = run_step(inputs, config);
  const ForwardResult want = attention_forward(promoted.kern);
  EXPECT_GE(db(want.o, promoted.o), 44);
  config.promote_keys = 256;
  EXPECT_GE(db(want.o, run_step(inputs, config).o), 42);
  config.promote_keys = 0;
  const double never = db(want.o, run_step(inputs, config).o);
  EXPECT_LE(never, 26);
  EXPECT_GE(never, 20);
}

TEST(RecipeDials, StochasticDsIsUnbiasedAndFollowsItsSeed) {
  const HeadInputs inputs = normal_inputs({64, 256, 64}, 58);
  RecipeConfig config = RecipeConfig::blackwell();
  config.keep_intermediates = true;
  const Operands operands = quantize_operands(inputs, config);
  const SavedForward saved = recipe_forward(operands, problem_of(inputs), config).saved;
  config.stochastic_ds = true;
  double error = 0;
  double magnitude = 0;
  constexpr int kSeeds = 64;
  Matrix<double> mean(64, 256);
  RecipeBackward last;
  for (int seed = 0; seed < kSeeds; ++seed) {
    config.seed = static_cast<std::uint64_t>(seed);
    last = recipe_backward(operands, problem_of(inputs), saved, config);
    for (std::size_t i = 0; i < mean.data.size(); ++i) {
      mean.data[i] += last.ds_dequantized.data[i] / double{kSeeds};
    }
  }
  for (std::size_t i = 0; i < mean.data.size(); ++i) {
    error += (mean.data[i] - last.ds.data[i]) * (mean.data[i] - last.ds.data[i]);
    magnitude += double{last.ds.data[i]} * last.ds.data[i];
  }
  // One draw is 28.5 dB; the mean of 64 gains 18.
  EXPECT_NEAR(10 * std::log10(magnitude / error), 28.5 + 18, 1.0);
  const RecipeBackward again = recipe_backward(operands, problem_of(inputs), saved, config);
  EXPECT_TRUE(testing::bitwise_equal(again.ds_dk_codes.data, last.ds_dk_codes.data));
}

TEST(RecipeDials, TieShiftKeepsPBelowOneWhereTheMaximumRepeats) {
  HeadInputs inputs = normal_inputs({32, 256, 64}, 59);
  for (std::int64_t j = 0; j < 256; ++j) {
    std::ranges::copy(inputs.k.row(j % 8), inputs.k.row(j).begin());
  }
  RecipeConfig config = RecipeConfig::bf16();
  config.keep_intermediates = true;
  const Operands operands = quantize_operands(inputs, config);
  const RecipeForward plain = recipe_forward(operands, problem_of(inputs), config);
  config.tie_shift = 0.3;
  const RecipeForward shifted = recipe_forward(operands, problem_of(inputs), config);
  EXPECT_NEAR(*std::ranges::max_element(plain.p.data), 1, 1e-6);
  EXPECT_NEAR(*std::ranges::max_element(shifted.p.data), std::exp(-0.3), 1e-6);
  EXPECT_TRUE(testing::bitwise_equal(shifted.saved.row_max, plain.saved.row_max));
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_NEAR(shifted.saved.lse[i], plain.saved.lse[i], 1e-5);
  }
}

TEST(RecipeDials, DqAccumulationFormats) {
  const HeadInputs inputs = normal_inputs({64, 2048, 64}, 60);
  RecipeConfig config = RecipeConfig::blackwell();
  config.dq_out = OutputFormat::kF32;
  const StepTensors f32 = run_step(inputs, config);
  const auto against_f32 = [&](DqAccum format) {
    config.dq_accum = format;
    const StepTensors step = run_step(inputs, config);
    EXPECT_EQ(step.dq_overflows, 0);
    return db(f32.dq, step.dq);
  };
  EXPECT_NEAR(against_f32(DqAccum::kF16), 63, 3);
  EXPECT_NEAR(against_f32(DqAccum::kF16Dynamic), 63, 3);
  EXPECT_NEAR(against_f32(DqAccum::kBf16), 45, 3);
}

TEST(RecipeDials, DynamicExponentFollowsTheSizeOfDq) {
  for (const float scale : {1e-6f, 1.0f, 1e5f}) {
    HeadInputs inputs = normal_inputs({64, 1024, 64}, 61);
    for (float& value : inputs.dout.data) value = mx::round_bf16(value * scale);
    RecipeConfig config = RecipeConfig::hopper();
    config.dq_out = OutputFormat::kF32;
    const StepTensors f32 = run_step(inputs, config);
    config.dq_accum = DqAccum::kF16Dynamic;
    const StepTensors dynamic = run_step(inputs, config);
    EXPECT_EQ(dynamic.dq_overflows, 0) << scale;
    EXPECT_GE(db(f32.dq, dynamic.dq), 58) << scale;
  }
}

TEST(RecipeDials, Mxfp8OutputsAreQuantizedAsStated) {
  const HeadInputs inputs = normal_inputs({70, 150, 64}, 62);
  RecipeConfig config = RecipeConfig::blackwell();
  config.o_out = config.dkv_out = OutputFormat::kF32;
  const Operands operands = quantize_operands(inputs, config);
  const RecipeForward exact = recipe_forward(operands, problem_of(inputs), config);
  const RecipeBackward exact_back =
      recipe_backward(operands, problem_of(inputs), exact.saved, config);
  config.o_out = config.dkv_out = OutputFormat::kMxfp8;
  const auto quantized = [](const Matrix<float>& m) {
    return mx::dequantize(mx::quantize(mx::row_major(m.data.data(), m.rows, m.cols), {}));
  };
  EXPECT_TRUE(testing::bitwise_equal(
      recipe_forward(operands, problem_of(inputs), config).saved.o.data, quantized(exact.saved.o)));
  const RecipeBackward back = recipe_backward(operands, problem_of(inputs), exact.saved, config);
  EXPECT_TRUE(testing::bitwise_equal(back.dk.data, quantized(exact_back.dk)));
  EXPECT_TRUE(testing::bitwise_equal(back.dv.data, quantized(exact_back.dv)));
}

TEST(RecipeDials, AnotherExp2CanBeSubstituted) {
  const HeadInputs inputs = normal_inputs({32, 100, 64}, 63);
  RecipeConfig config = RecipeConfig::blackwell();
  const StepTensors want = run_step(inputs, config);
  config.exp2 = [](const float* x, float* y, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = exp2_f32(x[i]) * 1.001f;
  };
  const StepTensors got = run_step(inputs, config);
  EXPECT_NEAR(got.lse[3] - want.lse[3], std::log(1.001), 2e-6);
}

// ---- Refusals ------------------------------------------------------------------------------

struct Refusal {
  const char* field;
  std::function<void(RecipeConfig&)> change;
  RecipeConfig base = RecipeConfig::hopper();
};

TEST(RecipeConfigCheck, NamesTheFieldThatCannotBeExecuted) {
  const Refusal refusals[] = {
      {"qk_shape", [](auto& c) { c.qk_shape = BlockShape::k32x32; }},
      {"v_shape", [](auto& c) { c.v_shape = BlockShape::k1x32; }},
      {"dout_shape", [](auto& c) { c.dout_shape = BlockShape::k32x1; }},
      {"p_scale", [](auto& c) { c.p_scale = PScale::kBlockAmax; }},
      {"ds_scale", [](auto& c) { c.ds_scale = DsScale::kSquare32; }},
      {"accumulator", [](auto& c) { c.accumulator = Accumulator::kBlackwell; }},
      {"promote_keys", [](auto& c) { c.promote_keys = 100; }},
      {"promote_queries", [](auto& c) { c.promote_queries = 96; }},
      {"p_offset", [](auto& c) { c.p_offset = 9; }},
      {"p_offset", [](auto& c) { c.p_offset = std::nan(""); }},
      {"tile_n", [](auto& c) { c.tile_n = 0; }},
      {"tile_n", [](auto& c) { c.tile_n = 40; }},
      {"backward_tile_m", [](auto& c) { c.backward_tile_m = 16; }},
      {"tie_shift", [](auto& c) { c.tie_shift = 0.3; }},
      {"exp2", [](auto& c) { c.exp2 = nullptr; }},
      {"dq_exponent", [](auto& c) { c.dq_exponent = 200; }},
      {"v_shape", [](auto& c) { c.leak_free = true; }},
      {"v_shape", [](auto& c) { c.v_shape = BlockShape::k1xD; }, RecipeConfig::blackwell()},
      {"promote_keys", [](auto& c) { c.promote_keys = 128; }, RecipeConfig::blackwell()},
      {"accumulator", [](auto& c) { c.accumulator = Accumulator::kHopper; },
       RecipeConfig::blackwell()},
      {"leak_free", [](auto& c) { c.leak_free = true; }, RecipeConfig::bf16()},
      {"accumulator", [](auto& c) { c.accumulator = Accumulator::kHopper; }, RecipeConfig::bf16()},
      {"ds_scale", [](auto& c) { c.ds_scale = DsScale::kWarp16; }, RecipeConfig::fp8_per_tensor()},
      {"shift_v",
       [](auto& c) {
         c = RecipeConfig::leak_free_of(c);
         c.smooth_v = true;
       }},
  };
  for (const Refusal& refusal : refusals) {
    RecipeConfig config = refusal.base;
    EXPECT_NO_THROW(config.check());
    refusal.change(config);
    try {
      config.check();
      FAIL() << refusal.field << " was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).rfind(std::string(refusal.field) + ":", 0), 0u)
          << error.what();
    }
  }
}

TEST(RecipeConfigCheck, NamesTheOperandThatDoesNotFit) {
  const RecipeConfig config = RecipeConfig::hopper();
  const auto expect_refusal = [](const char* name, const std::function<void()>& call) {
    try {
      call();
      FAIL() << name << " was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).rfind(std::string(name) + ":", 0), 0u) << error.what();
    }
  };
  HeadInputs inputs = normal_inputs({32, 64, 64});
  inputs.v = Matrix<float>(63, 64);
  expect_refusal("v", [&] { quantize_operands(inputs, config); });
  inputs = normal_inputs({32, 64, 64});
  inputs.dout = Matrix<float>(31, 64);
  expect_refusal("dout", [&] { quantize_operands(inputs, config); });
  inputs = normal_inputs({32, 64, 64});
  RecipeConfig shifted = config;
  shifted.smooth_k = true;
  shifted.shift_k.assign(3, 0.0f);
  expect_refusal("shift_k", [&] { quantize_operands(inputs, shifted); });

  const HeadProblem problem = problem_of(inputs);
  const Operands operands = quantize_operands(inputs, config);
  const SavedForward saved = recipe_forward(operands, problem, config).saved;
  Operands bad = operands;
  bad.k = quantize_operands(inputs, RecipeConfig::blackwell()).k;
  expect_refusal("operands.k", [&] { recipe_forward(bad, problem, config); });
  bad = operands;
  bad.v.along_tokens.rows = 50;
  expect_refusal("operands.v", [&] { recipe_forward(bad, problem, config); });
  bad = operands;
  bad.dout = {};
  expect_refusal("operands.dout", [&] { recipe_backward(bad, problem, saved, config); });
  SavedForward short_lse = saved;
  short_lse.lse.pop_back();
  expect_refusal("forward.lse", [&] { recipe_backward(operands, problem, short_lse, config); });
  // Codes alone are enough: what a kernel's producers hand over.
  Operands codes = operands;
  codes.q.bf16 = codes.k.bf16 = codes.v.bf16 = codes.dout.bf16 = {};
  const RecipeForward again = recipe_forward(codes, problem, config);
  EXPECT_TRUE(testing::bitwise_equal(again.saved.o.data, saved.o.data));
  EXPECT_NO_THROW(recipe_backward(codes, problem, saved, config));
}

TEST(RecipeExp2, NearestFp32Value) {
  std::int64_t wrong = 0;
  for (std::uint64_t bits = 0; bits < 0x100000000u; bits += 9973) {
    const float x = mx::bits_float(static_cast<std::uint32_t>(bits));
    if (!(x > -152 && x < 129)) continue;
    const auto want = static_cast<float>(std::exp2(static_cast<long double>(x)));
    if (exp2_f32(x) != want) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
  for (int e = -149; e < 128; ++e) EXPECT_EQ(exp2_f32(float(e)), std::ldexp(1.0f, e)) << e;
  EXPECT_EQ(exp2_f32(-kInf), 0.0f);
  EXPECT_EQ(exp2_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(exp2_f32(kNan)));
  EXPECT_EQ(exp2_f32(-1e30f), 0.0f);
  EXPECT_EQ(exp2_f32(128.0f), kInf);
}

}  // namespace
}  // namespace mxfa::reference::recipe
