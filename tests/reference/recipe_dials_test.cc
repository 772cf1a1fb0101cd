// Stabilizers, dials and output formats: what each is worth, and that it does what it says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "recipe_support.h"

namespace mxfa::reference::recipe {
namespace {

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

}  // namespace
}  // namespace mxfa::reference::recipe
