#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "common/accuracy.h"
#include "common/attention_case.h"
#include "common/cpu_suite.h"
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
