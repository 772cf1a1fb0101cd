#include "sqnr/measure.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "core/parallel.h"
#include "reference/datasets.h"

namespace mxfa::cli::sqnr {
namespace {

using reference::HeadInputs;
using reference::Matrix;

/// Three sequences of 50, 0 and 70 queries and 60, 9 and 80 keys, 4 heads on 2, head_dim 32.
Input jagged_input(bool with_dout) {
  Input input;
  input.cu_seqlens_q = {0, 50, 50, 120};
  input.cu_seqlens_k = {0, 60, 69, 149};
  const auto draw = [](std::int64_t rows, std::int64_t heads, std::uint64_t seed) {
    const HeadInputs drawn = reference::make_dataset(
        "normal", {.seqlen_q = rows * heads, .seqlen_k = 0, .head_dim = 32, .seed = seed});
    return io::from_f32(drawn.q.data, DType::kF32, std::vector<std::int64_t>{rows, heads, 32});
  };
  input.q = draw(120, 4, 1);
  input.k = draw(149, 2, 2);
  input.v = draw(149, 2, 3);
  if (with_dout) input.dout = draw(120, 4, 4);
  input.problem = {.batch = 3,
                   .num_heads = 4,
                   .num_heads_kv = 2,
                   .head_dim = 32,
                   .total_q = 120,
                   .total_k = 149,
                   .cu_seqlens_q = input.cu_seqlens_q,
                   .cu_seqlens_k = input.cu_seqlens_k};
  return input;
}

void expect_rows(const io::HostTensor& packed, std::int64_t head, std::int64_t first_row,
                 const Matrix<float>& got) {
  const std::vector<float> all = io::to_f32(packed);
  for (std::int64_t i = 0; i < got.rows; ++i) {
    for (std::int64_t d = 0; d < got.cols; ++d) {
      const std::int64_t at = ((first_row + i) * packed.shape[1] + head) * packed.shape[2] + d;
      ASSERT_EQ(got(i, d), all[static_cast<std::size_t>(at)]) << "row " << i << " channel " << d;
    }
  }
}

TEST(SqnrInput, AUnitHoldsItsOwnRows) {
  const Input input = jagged_input(true);
  const HeadInputs head =
      gather_unit(input, {.index = {2, 3}, .first_row = 10, .rows = 32, .seqlen_k = 80});
  EXPECT_EQ(head.q.rows, 32);
  EXPECT_EQ(head.k.rows, 80);
  expect_rows(input.q, 3, 60, head.q);
  expect_rows(*input.dout, 3, 60, head.dout);
  expect_rows(input.k, 1, 69, head.k);
  expect_rows(input.v, 1, 69, head.v);
  EXPECT_DOUBLE_EQ(head.softmax_scale, 1 / std::sqrt(32.0));
}

TEST(SqnrInput, DrawnDoutBelongsToTheHeadNotToTheSample) {
  const Input input = jagged_input(false);
  const HeadInputs whole = gather_unit(input, {{2, 1}, 0, 70, 80});
  const HeadInputs part = gather_unit(input, {{2, 1}, 38, 32, 80});
  for (std::int64_t i = 0; i < 32; ++i) {
    for (std::int64_t d = 0; d < 32; ++d) ASSERT_EQ(part.dout(i, d), whole.dout(38 + i, d));
  }
  EXPECT_NE(gather_unit(input, {{2, 2}, 0, 70, 80}).dout.data, whole.dout.data);
  const HeadInputs other = gather_unit(input, {{0, 1}, 0, 50, 60});
  EXPECT_NE(other.dout(0, 0), whole.dout(0, 0));
}

Measurement measure_all(const Input& input, const std::vector<std::string>& names,
                        bool with_kern = false) {
  std::vector<Scheme> schemes;
  for (const std::string& name : names) schemes.push_back(parse_scheme(name));
  io::Progress progress("test", 1);
  return measure(input, choose_units(input.problem, 1'000'000'000), schemes, with_kern, progress);
}

Input synthetic(const char* name, const MaskOptions& mask = {}) {
  return make_synthetic({.name = name, .seqlen_q = 64, .seqlen_k = 160, .head_dim = 64}, mask, 3);
}

/// A shift of K moves whole rows of S and LSE, one of V rows of dP: without adding it back the
/// "error" would be the shift itself.
TEST(SqnrMeasure, ShiftsOfSmoothingAreAddedBack) {
  const Measurement k = measure_all(synthetic("kbias"), {"32x32", "smooth-k"}, true);
  const StepEnergies& smooth_k = k.schemes[1].f64;
  EXPECT_GT(smooth_k[StepTensor::kS].db(), k.schemes[0].f64[StepTensor::kS].db() + 10);
  EXPECT_LT(smooth_k.lse_abs_error, 0.2);
  const Measurement v = measure_all(synthetic("vbias"), {"32x32", "smooth-v"}, true);
  const StepEnergies& smooth_v = v.schemes[1].f64;
  EXPECT_GT(smooth_v[StepTensor::kDp].db(), v.schemes[0].f64[StepTensor::kDp].db() + 4);
  EXPECT_GT(smooth_v[StepTensor::kO].db(), 45);
  for (const Measurement* m : {&k, &v}) {
    const StepEnergies& kern = m->schemes[1].kern;
    EXPECT_GT(kern[StepTensor::kS].db(), 100);
    EXPECT_GT(kern[StepTensor::kDp].db(), 100);
    EXPECT_GT(kern[StepTensor::kO].db(), 30);
    EXPECT_LT(kern.lse_abs_error, 1e-4);
  }
}

TEST(SqnrMeasure, OnlyVisibleScoresCount) {
  const MaskOptions causal{.mask = {.causal = true}, .softmax_scale = {}};
  const Input input = synthetic("peaky", causal);
  const Measurement measured = measure_all(input, {"32x32"});
  const HeadInputs head = gather_unit(input, {{0, 0}, 0, 64, 160});
  const auto forward = reference::attention_forward(head);
  const auto backward = reference::attention_backward(head, forward);
  const auto step = reference::recipe::run_step(head, parse_scheme("32x32").config);
  Energy s;
  Energy dp;
  for (std::int64_t i = 0; i < 64; ++i) {
    for (std::int64_t j = 0; j <= i + 160 - 64; ++j) {
      s.add(forward.s(i, j), step.s(i, j));
      dp.add(backward.dp(i, j), step.dp(i, j));
    }
  }
  EXPECT_EQ(measured.schemes[0].f64[StepTensor::kS].count, s.count);
  EXPECT_DOUBLE_EQ(measured.schemes[0].f64[StepTensor::kS].db(), s.db());
  EXPECT_DOUBLE_EQ(measured.schemes[0].f64[StepTensor::kDp].db(), dp.db());
}

TEST(SqnrMeasure, SumsAndWorstUnitsDoNotDependOnThreads) {
  Input input = jagged_input(true);
  // One head of the last sequence is far peakier than all others.
  std::vector<float> q = io::to_f32(input.q);
  for (std::int64_t i = 50; i < 120; ++i) {
    for (std::int64_t d = 0; d < 32; ++d) q[std::size_t((i * 4 + 2) * 32 + d)] *= 12;
  }
  input.q = io::from_f32(q, DType::kF32, input.q.shape);
  const Sample sample = choose_units(input.problem, 1'000'000);
  ASSERT_EQ(sample.units.size(), 8U);
  std::vector<std::pair<double, std::size_t>> results;
  for (const int threads : {1, 5}) {
    core::set_num_threads(threads);
    const Measurement measured = measure_all(input, {"32xD"});
    const WorstUnit& worst = measured.schemes[0].worst[std::size_t(StepTensor::kDv)];
    results.emplace_back(measured.schemes[0].f64[StepTensor::kDv].db(), worst.unit);
    EXPECT_EQ(sample.units[worst.unit].index.sequence, 2);
    EXPECT_EQ(sample.units[worst.unit].index.head, 2);
  }
  core::set_num_threads(0);
  EXPECT_EQ(results[0], results[1]);
}

TEST(SqnrMeasure, EnergiesGiveDecibels) {
  Energy energy;
  energy.add(3, 3.3);
  energy.add(4, 4.4);
  EXPECT_NEAR(energy.db(), 20, 1e-9);
  EXPECT_NEAR(energy.rms_noise(), std::sqrt(0.25 / 2), 1e-9);
  EXPECT_EQ(Energy{}.db(), std::numeric_limits<double>::infinity());
  energy.add(1, std::nan(""));
  EXPECT_TRUE(std::isnan(energy.db()));
}

}  // namespace
}  // namespace mxfa::cli::sqnr
