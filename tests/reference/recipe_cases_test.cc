// The field failures through every recipe, and causal leakage.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "recipe_support.h"
#include "reference/batch.h"
#include "support/cases.h"

namespace mxfa::reference::recipe {
namespace {

using testing::AttentionCase;
using testing::CaseEntry;
using testing::Precision;

constexpr Precision kBf16{.rounding = 0x1p-8, .quantized = true};
/// LSE: FP32, but Hopper's accumulator keeps 14 bits of a score.
Precision lse_precision(const RecipeConfig& config) {
  const bool narrow = config.accumulator == Accumulator::kHopper;
  return {.rounding = narrow ? 0x1p-12 : 1e-6, .quantized = true};
}

Matrix<double> to_double(const Matrix<float>& matrix) {
  Matrix<double> result(matrix.rows, matrix.cols);
  std::copy(matrix.data.begin(), matrix.data.end(), result.data.begin());
  return result;
}

PackedOutputs run_batch(const AttentionCase& c, const RecipeConfig& config) {
  const PackedInputs packed{.problem = c.problem(), .q = c.q, .k = c.k, .v = c.v, .dout = c.dout};
  return run_heads(packed, [&](const HeadInputs& inputs, HeadIndex) {
    const Operands operands = quantize_operands(inputs, config);
    const RecipeForward forward = recipe_forward(operands, problem_of(inputs), config);
    HeadOutputs out{.o = to_double(forward.saved.o),
                    .lse = {forward.saved.lse.begin(), forward.saved.lse.end()},
                    .delta = {},
                    .dq = Matrix<double>(inputs.q.rows, inputs.q.cols),
                    .dk = Matrix<double>(inputs.k.rows, inputs.k.cols),
                    .dv = Matrix<double>(inputs.k.rows, inputs.k.cols)};
    out.delta.assign(static_cast<std::size_t>(inputs.q.rows), 0.0);
    if (inputs.dout.data.empty()) return out;
    const RecipeBackward backward =
        recipe_backward(operands, problem_of(inputs), forward.saved, config);
    out.dq = to_double(backward.dq);
    out.dk = to_double(backward.dk);
    out.dv = to_double(backward.dv);
    return out;
  });
}

void expect_answers(const AttentionCase& c, const RecipeConfig& config) {
  const PackedOutputs out = run_batch(c, config);
  EXPECT_TRUE(testing::matches(out.o, c.o, kBf16, "o"));
  EXPECT_TRUE(testing::matches(out.lse, c.lse, lse_precision(config), "lse"));
  EXPECT_TRUE(testing::matches(out.dq, c.dq, kBf16, "dq"));
  EXPECT_TRUE(testing::matches(out.dk, c.dk, kBf16, "dk"));
  EXPECT_TRUE(testing::matches(out.dv, c.dv, kBf16, "dv"));
}

struct CaseAndConfig {
  CaseEntry entry;
  NamedConfig named;
};
void PrintTo(const CaseAndConfig& c, std::ostream* out) { *out << c.entry.name << c.named.name; }

std::vector<CaseAndConfig> combinations(bool large) {
  std::vector<CaseAndConfig> result;
  // Not FP8 per tensor: its FP32 scales are not exact where the cases are.
  std::vector<NamedConfig> configs = mx_configs();
  configs.push_back({"bf16", RecipeConfig::bf16()});
  for (const CaseEntry& entry : testing::field_failure_cases()) {
    if (entry.large != large) continue;
    for (const NamedConfig& named : configs) {
      // One machine each is enough where a case is only long.
      if (large && named.name != "hopper" && named.name != "blackwell") continue;
      result.push_back({entry, named});
    }
  }
  return result;
}

class RecipeFieldFailures : public ::testing::TestWithParam<CaseAndConfig> {};
class RecipeFieldFailuresFull : public ::testing::TestWithParam<CaseAndConfig> {};

void run(const CaseAndConfig& param) {
  const AttentionCase c = param.entry.make();
  if (c.refusal.empty()) {
    expect_answers(c, param.named.config);
  } else {
    EXPECT_THROW(run_batch(c, param.named.config), Error);
  }
}

TEST_P(RecipeFieldFailures, RightAnswer) { run(GetParam()); }
TEST_P(RecipeFieldFailuresFull, RightAnswer) { run(GetParam()); }

const auto name_of = [](const ::testing::TestParamInfo<CaseAndConfig>& instance) {
  return instance.param.entry.name + "_" + instance.param.named.name;
};
INSTANTIATE_TEST_SUITE_P(Cases, RecipeFieldFailures, ::testing::ValuesIn(combinations(false)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cases, RecipeFieldFailuresFull, ::testing::ValuesIn(combinations(true)),
                         name_of);

HeadInputs head_of(const AttentionCase& c) {
  return gather_head({.problem = c.problem(), .q = c.q, .k = c.k, .v = c.v, .dout = c.dout}, {});
}

// B03(b): |dQ| * 2^9 = 2^18 is more than FP16 holds.
TEST(RecipeCases, Fp16DqSaturatesAndIsCounted) {
  const HeadInputs inputs = head_of(testing::cases::fix(1024));
  for (RecipeConfig config : {RecipeConfig::blackwell(), RecipeConfig::hopper()}) {
    config.dq_accum = DqAccum::kF16;
    config.dq_out = OutputFormat::kF32;
    StepTensors step = run_step(inputs, config);
    EXPECT_EQ(step.dq(0, 1), 127.9375f);
    EXPECT_EQ(step.dq_overflows, 1);
    HeadInputs negative = inputs;
    for (float& value : negative.dout.data) value = -value;
    step = run_step(negative, config);
    EXPECT_EQ(step.dq(0, 1), -127.9375f);
    EXPECT_EQ(step.dq_overflows, 1);
    config.dq_exponent = 6;
    step = run_step(inputs, config);
    EXPECT_EQ(step.dq(0, 1), 512.0f);
    EXPECT_EQ(step.dq_overflows, 0);
    config.dq_accum = DqAccum::kF16Dynamic;
    step = run_step(inputs, config);
    EXPECT_EQ(step.dq(0, 1), 512.0f);
    EXPECT_EQ(step.dq_overflows, 0);
  }
}

// Two key tiles whose dQ overflow with opposite signs meet as NaN.
TEST(RecipeCases, OppositeFp16OverflowsAreCountedNotNan) {
  HeadInputs inputs;
  inputs.q = Matrix<float>(1, 32);
  inputs.k = inputs.v = Matrix<float>(256, 32);
  inputs.dout = Matrix<float>(1, 32);
  inputs.dout(0, 0) = 4096;
  inputs.k(0, 1) = inputs.k(200, 1) = 128;
  inputs.v(0, 0) = 1;
  inputs.v(200, 0) = -1;
  RecipeConfig config = RecipeConfig::blackwell();
  config.dq_accum = DqAccum::kF16;
  const StepTensors step = run_step(inputs, config);
  EXPECT_EQ(step.dq(0, 1), 128.0f);  // 127.9375 in BF16
  EXPECT_EQ(step.dq_overflows, 1);
}

// B25 on the machine that has the narrow accumulator.
TEST(RecipeCases, NarrowAccumulatorNeedsPromotion) {
  const AttentionCase c = testing::cases::large_and_small_values();
  RecipeConfig config = RecipeConfig::hopper();
  EXPECT_EQ(run_batch(c, config).o[0], 258.0);
  config.promote_keys = 0;
  EXPECT_EQ(run_batch(c, config).o[0], 256.0);
  config.accumulator = Accumulator::kExact;
  EXPECT_EQ(run_batch(c, config).o[0], 258.0);
}

/// O and LSE of the rows before `row` where everything at and after it changes.
void change_future(HeadInputs& inputs, std::int64_t row, std::uint64_t seed) {
  testing::Rng rng(seed);
  for (Matrix<float>* matrix : {&inputs.q, &inputs.k, &inputs.v}) {
    for (std::int64_t i = row; i < matrix->rows; ++i) {
      for (float& value : matrix->row(i)) {
        value = mx::round_bf16(static_cast<float>(200 * rng.normal()));
      }
    }
  }
}

bool same_before(const StepTensors& a, const StepTensors& b, std::int64_t row) {
  return std::equal(a.lse.begin(), a.lse.begin() + row, b.lse.begin()) &&
         std::equal(a.o.data.begin(), a.o.data.begin() + row * a.o.cols, b.o.data.begin());
}

TEST(RecipeLeakage, FutureTokensChangeNothingInLeakFreeForm) {
  const HeadInputs inputs = normal_inputs({300, 300, 64}, 31, {.causal = true});
  for (const NamedConfig& named : mx_configs()) {
    if (!named.config.leak_free) continue;
    const StepTensors want = run_step(inputs, named.config);
    for (const std::int64_t row : {1, 15, 33, 100, 128, 250, 299}) {
      HeadInputs changed = inputs;
      change_future(changed, row, 77);
      EXPECT_TRUE(same_before(want, run_step(changed, named.config), row))
          << named.name << " from row " << row;
    }
  }
}

// Without it a scale shared with a future token does change earlier outputs.
TEST(RecipeLeakage, SharedScalesLeak) {
  const HeadInputs inputs = normal_inputs({300, 300, 64}, 31, {.causal = true});
  for (const NamedConfig& named : mx_configs()) {
    if (named.config.leak_free) continue;
    const StepTensors want = run_step(inputs, named.config);
    HeadInputs changed = inputs;
    for (float& value : changed.v.row(40)) value *= 0x1p12f;
    EXPECT_FALSE(same_before(want, run_step(changed, named.config), 40)) << named.name;
  }
}

TEST(RecipeLeakage, TinyAndZeroValueRowsAreClampedNotLost) {
  HeadInputs inputs = normal_inputs({128, 128, 64}, 32, {.causal = true});
  for (std::int64_t j = 0; j < 128; ++j) {
    for (float& value : inputs.v.row(j)) {
      if (j % 4 == 1) value = 0;
      if (j % 4 == 2) value *= 0x1p-90f;
      if (j % 4 == 3) value *= 0x1p-20f;
    }
  }
  for (const RecipeConfig& base : {RecipeConfig::blackwell(), RecipeConfig::hopper()}) {
    RecipeConfig config = RecipeConfig::leak_free_of(base);
    const Operands operands = quantize_operands(inputs, config);
    for (const std::uint8_t scale : operands.v.along_d.scales) EXPECT_GE(scale, 127 - 64);
    const StepTensors step = run_step(inputs, config);
    const ForwardResult want = attention_forward(step.kern);
    EXPECT_LE(max_lse_error(want.lse, step.lse), 1e-3);
    EXPECT_GE(db(want.o, step.o), 30);
  }
}

}  // namespace
}  // namespace mxfa::reference::recipe
