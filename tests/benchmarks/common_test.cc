#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/accuracy.h"
#include "common/attention_case.h"
#include "common/bars.h"
#include "common/cpu_suite.h"
#include "common/key_gradients.h"
#include "common/operands.h"
#include "common/timing.h"
#include "mx/bits.h"
#include "mxfa/error.h"

namespace mxfa::bench {
namespace {

TEST(Timing, RoundsGoThereAndBackAndWarmUpsDoNotCount) {
  std::string order;
  const std::vector<std::function<void()>> bodies = {[&] { order += 'a'; }, [&] { order += 'b'; },
                                                     [&] { order += 'c'; }};
  int calls = 0;
  const auto samples = time_alternating(bodies, {.warm_ups = 1, .runs = 3}, [&] { ++calls; });
  EXPECT_EQ(order, "abccbaabccba");
  EXPECT_EQ(calls, 12);
  for (const Samples& one : samples) {
    EXPECT_EQ(one.wall_ms.size(), 3U);
    EXPECT_EQ(one.cpu_ms.size(), 3U);
  }
}

TEST(Timing, MedianAndRange) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  const io::TimingRecord record = timing_record({.wall_ms = {9, 2, 4}, .cpu_ms = {}});
  EXPECT_EQ(record.ms_median, 4);
  EXPECT_EQ(record.ms_min, 2);
  EXPECT_EQ(record.ms_max, 9);
  EXPECT_EQ(record.runs, 3);
}

/// The lengths that scripts for other libraries have to draw, too.
TEST(AttentionCase, LengthsAreDrawnAsDocumented) {
  AttentionCase c{
      .name = {}, .batch = 4, .seqlen_q = 512, .seqlen_k = 16384, .lengths = Lengths::kUniform};
  // splitmix64 from seed 1 begins with 0x910A2DEC89025CC1, 0xBEEB8DA1658EEC67, ...
  const std::int64_t first = 1 + std::int64_t(0x910A2DEC89025CC1u % 16384u);
  const std::int64_t second = 1 + std::int64_t(0xBEEB8DA1658EEC67u % 16384u);
  EXPECT_EQ(c.cu_seqlens_k()[1], first);
  EXPECT_EQ(c.cu_seqlens_k()[2], first + second);
  EXPECT_EQ(c.cu_seqlens_q(), (std::vector<std::int32_t>{0, 512, 1024, 1536, 2048}));
  c.lengths = Lengths::kSkewed;
  EXPECT_EQ(c.cu_seqlens_k()[1], std::min(first, second));
  c.lengths = Lengths::kEqual;
  EXPECT_EQ(c.total_k(), 4 * 16384);
}

TEST(AttentionCase, FlopsCountWhatIsSeen) {
  AttentionCase c{
      .name = {}, .batch = 2, .num_heads = 3, .seqlen_q = 10, .seqlen_k = 20, .head_dim = 64};
  EXPECT_EQ(c.forward_flops(), 4.0 * 3 * (2 * 10 * 20) * 64);
  EXPECT_EQ(c.backward_flops(), 10.0 * 3 * (2 * 10 * 20) * 64);
  c.causal = true;
  EXPECT_EQ(c.forward_flops(), 2.0 * 3 * (2 * 10 * 20) * 64);
  EXPECT_EQ(c.record().total_k, 40);
  EXPECT_EQ(c.record().jagged, false);
}

TEST(AttentionCase, PresetsAreKnownByName) {
  for (const Scale scale : {Scale::kCpu, Scale::kGpu}) {
    std::size_t count = 0;
    for (const char* name : {"dense", "causal", "jagged"}) count += preset(name, scale).size();
    EXPECT_EQ(preset("all", scale).size(), count);
    for (const AttentionCase& c : preset("all", scale)) {
      EXPECT_EQ(c.num_heads % c.num_heads_kv, 0) << c.name;
      EXPECT_GT(c.total_k(), 0) << c.name;
    }
  }
  EXPECT_THROW(preset("fast", Scale::kCpu), Error);
}

/// Outputs made by the oracle's formula for one query and two keys.
// 83 keys are no whole number of tiles; the first 17 of 100 causal queries see none.
TEST(KeyGradients, AreTheOracles) {
  for (const bool causal : {false, true}) {
    AttentionCase c{
        .name = {}, .batch = 1, .seqlen_q = 100, .seqlen_k = 83, .lengths = Lengths::kEqual};
    c.causal = causal;
    const auto noise = [](std::int64_t rows, std::uint64_t seed) {
      reference::Matrix<float> matrix(rows, 64);
      const auto codes = random_bf16(rows * 64, seed);
      std::transform(codes.begin(), codes.end(), matrix.data.begin(), mx::decode_bf16);
      return matrix;
    };
    const reference::HeadInputs inputs{.q = noise(100, 1),
                                       .k = noise(83, 2),
                                       .v = noise(83, 3),
                                       .dout = noise(100, 4),
                                       .mask = c.mask(),
                                       .softmax_scale = 0.25};
    const auto want = reference::attention_backward(inputs, reference::attention_forward(inputs));
    const KeyGradients got = first_key_gradients(inputs, 17);
    ASSERT_EQ(got.dk.size(), 17U * 64);
    for (std::size_t i = 0; i < got.dk.size(); ++i) {
      ASSERT_NEAR(got.dk[i], want.dk.data[i], 1e-12) << causal << ", " << i;
      ASSERT_NEAR(got.dv[i], want.dv.data[i], 1e-12) << causal << ", " << i;
    }
  }
}

TEST(Bars, ANanMissesThem) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> want{1, 2, 4};
  for (std::size_t at = 0; at < want.size(); ++at) {
    std::vector<double> got{1.5, 2.5, 4.5};
    got[at] = kNan;
    for (const double value :
         {largest_difference(want, got), largest_relative_difference(want, got)}) {
      EXPECT_TRUE(std::isnan(value)) << at;
      EXPECT_EQ(difference_bar(value, 1e9)["verdict"], "fail");
    }
    EXPECT_EQ(sqnr_bar("o", {want, got, {1, 2, 3}}, std::nullopt, 1).verdict, "fail");
    EXPECT_EQ(sqnr_bar("o", {want, got, got}, 0, 1).verdict, "fail");
  }
}

TEST(Bars, DifferencesAreOfEachRowsOwnSize) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> want{-infinity, 0.5, -100}, got{-infinity, 0.625, -101};
  EXPECT_EQ(largest_difference(want, got), 1);
  EXPECT_EQ(largest_relative_difference(want, got), 0.125);
  const std::vector<double> finite{0, 0.5, -100};
  EXPECT_EQ(difference_bar(largest_difference(want, finite), 1e9)["verdict"], "fail");
  EXPECT_EQ(difference_bar(largest_relative_difference(want, finite), 1e9)["verdict"], "fail");
  EXPECT_EQ(difference_bar(0.125, 0.125)["verdict"], "pass");
  EXPECT_EQ(difference_bar(0.125, 0.124)["verdict"], "fail");
}

TEST(Bars, SqnrIsHeldToTheRecipeAndToTheListedFigure) {
  // 10 and 20 dB.
  const std::vector<double> want{10, 0}, got{10, std::sqrt(10)}, by_recipe{10, 1};
  EXPECT_EQ(sqnr_bar("o", {want, got, by_recipe}, std::nullopt, 9).verdict, "fail");
  EXPECT_EQ(sqnr_bar("o", {want, got, by_recipe}, std::nullopt, 11).verdict, "pass");
  EXPECT_EQ(sqnr_bar("o", {want, got, by_recipe}, 22, 11).verdict, "fail");
  EXPECT_NEAR(sqnr_bar("o", {want, got, by_recipe}, 22, 11).threshold_db, 11, 1e-9);
  EXPECT_EQ(sqnr_bar("o", {want, got, by_recipe}, 22, 11).fixed_verdict, "fail");
  // The recipe has 20 dB and so misses a fixed bar of 21 itself: named, not asked.
  const io::SqnrRecord missed = sqnr_bar("o", {want, got, by_recipe}, 32, 11);
  EXPECT_EQ(missed.verdict, "pass");
  EXPECT_EQ(*missed.fixed_db, 21);
  EXPECT_EQ(missed.fixed_verdict, "missed by the recipe too");
  EXPECT_EQ(sqnr_bar("o", {want, got, by_recipe}, 20, 11).fixed_verdict, "pass");
  EXPECT_FALSE(sqnr_bar("o", {want, got, by_recipe}, std::nullopt, 11).fixed_db.has_value());
  // No recipe excuses NaN.
  const std::vector<double> nan{NAN, 0};
  EXPECT_EQ(sqnr_bar("o", {want, nan, by_recipe}, 32, 11).verdict, "fail");
  EXPECT_EQ(sqnr_bar("o", {want, got, nan}, 32, 11).verdict, "fail");
}

TEST(Accuracy, MeasuresAgainstAttentionInFloat64) {
  const AttentionCase c{.name = {},
                        .batch = 1,
                        .num_heads = 2,
                        .num_heads_kv = 1,
                        .seqlen_q = 1,
                        .seqlen_k = 2,
                        .head_dim = 8};
  const auto q = random_bf16(16, 1), k = random_bf16(16, 2), v = random_bf16(16, 3);
  std::vector<std::uint16_t> o;
  const auto at = [](const auto& tensor, std::size_t i) {
    return static_cast<double>(mx::decode_bf16(tensor[i]));
  };
  for (std::size_t head = 0; head < 2; ++head) {
    double weights[2] = {};
    for (std::size_t key = 0; key < 2; ++key) {
      for (std::size_t d = 0; d < 8; ++d) weights[key] += at(q, head * 8 + d) * at(k, key * 8 + d);
      weights[key] = std::exp(weights[key] / std::sqrt(8.0));
    }
    for (std::size_t d = 0; d < 8; ++d) {
      const double sum = weights[0] * at(v, d) + weights[1] * at(v, 8 + d);
      o.push_back(mx::encode_bf16(static_cast<float>(sum / (weights[0] + weights[1]))));
    }
  }
  const auto measure = [&] {
    const auto result =
        sqnr_db(c, {.q = q, .k = k, .v = v, .dout = {}, .o = o, .dq = {}, .dk = {}, .dv = {}}, 100);
    EXPECT_EQ(result.size(), 1U);
    EXPECT_EQ(result.front().first, "o");
    return result.front().second;
  };
  const double exact = measure();
  EXPECT_GT(exact, 45);  // what rounding to BF16 leaves
  EXPECT_LT(exact, 70);
  for (std::uint16_t& code : o) code = mx::encode_bf16(mx::decode_bf16(code) * 1.1f);
  EXPECT_NEAR(measure(), 20, 0.5);  // an error of a tenth
}

TEST(CpuSuite, RecordsHoldRatesAndCeilings) {
  Benchmark benchmark{.label = "x", .record = {}, .flops = 4e9, .bytes = 0, .body = [] {}};
  benchmark.accuracy = [] { return std::vector<std::pair<std::string, double>>{{"o", 25.0}}; };
  const Samples samples{.wall_ms = {10, 20, 30}, .cpu_ms = {40, 40, 40}};
  CpuCeilings ceilings{.fp32_fma_tflops = 2, .bf16_matrix = {}, .copy_gbps = 100};
  io::Record record = finished(benchmark, samples, ceilings);
  EXPECT_DOUBLE_EQ(*record.tflops, 0.2);
  EXPECT_EQ(record.ceiling->name, "fp32_fma_tflops");
  EXPECT_DOUBLE_EQ(*record.fraction_of_ceiling, 0.1);
  EXPECT_EQ(record.sqnr_db.size(), 1U);
  ceilings.bf16_matrix = {"amx_bf16_tflops", 4};
  EXPECT_EQ(finished(benchmark, samples, ceilings).ceiling->name, "amx_bf16_tflops");
  benchmark.flops = 0;
  benchmark.bytes = 1e9;
  record = finished(benchmark, samples, ceilings);
  EXPECT_DOUBLE_EQ(*record.gbps, 50);
  EXPECT_DOUBLE_EQ(*record.fraction_of_ceiling, 0.5);
  EXPECT_FALSE(record.tflops.has_value());
}

TEST(CpuSuite, RoutinesAreChosenByName) {
  EXPECT_EQ(cpu_groups({}).size(), 4U);
  EXPECT_EQ(cpu_groups({.routines = {"quantize"}}).size(), 1U);
  EXPECT_EQ(cpu_groups({.mxfp8 = false}).size(), 1U);
  EXPECT_THROW(cpu_groups({.routines = {"flying"}}), Error);
}

}  // namespace
}  // namespace mxfa::bench
