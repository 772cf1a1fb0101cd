#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "mx/fp8.h"
#include "mx/tensor_core_gemm.h"
#include "support/compare.h"

/// Results of single wgmma instructions as an H200 gave them (driver 580.159, CUDA 13.0), in
/// tests/data/mma_h200.bin: 15 records of
///   kind u32 (0 e4m3 -> f32, 1 e4m3 -> f16, 2 bf16 -> f32), distribution u32,
///   A [64, 32 bytes], B [8, 32 bytes] (K contiguous), C and D [64, 8] f32.
/// Operands: any code; normal times 8; nine tenths zero; subnormals and small normals; one binade
/// (for bf16: 2^+-20, normal, nine tenths zero, 2^+-8, normal). C spans 2^+-25 (f16: 2^+-10).
namespace mxfa::mx {
namespace {

constexpr std::int64_t kRows = 64;
constexpr std::int64_t kCols = 8;
constexpr std::int64_t kBytes = 32;

struct Record {
  std::uint32_t kind = 0;
  std::uint32_t distribution = 0;
  std::uint8_t a[kRows][kBytes];
  std::uint8_t b[kCols][kBytes];
  float c[kRows][kCols];
  float d[kRows][kCols];
};
static_assert(sizeof(Record) == 8 + 2048 + 256 + 2048 + 2048);

std::vector<Record> records() {
  std::ifstream file(std::string(MXFA_TEST_DATA_DIR) + "/mma_h200.bin", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<Record> result(bytes.size() / sizeof(Record));
  std::memcpy(result.data(), bytes.data(), result.size() * sizeof(Record));
  return result;
}

std::vector<float> operands(const std::uint8_t* bytes, std::uint32_t kind) {
  std::vector<float> values;
  for (std::int64_t k = 0; k < kBytes; k += kind == 2 ? 2 : 1) {
    std::uint16_t bf16 = 0;
    std::memcpy(&bf16, bytes + k, kind == 2 ? 2 : 0);
    values.push_back(kind == 2 ? decode_bf16(bf16) : decode_e4m3(bytes[k]));
  }
  return values;
}

TEST(TensorCoreOnH200, ScalarDefinitionGivesTheCardsBits) {
  const std::vector<Record> all = records();
  ASSERT_EQ(all.size(), 15u);
  for (const Record& r : all) {
    const MmaType type = r.kind == 2 ? MmaType::kBF16 : MmaType::kE4M3;
    const AccumulatorRule rule = r.kind == 2 ? kHopperF16Accumulator : kHopperFp8Accumulator;
    const MmaElement element{type, type, rule, 0};
    std::vector<float> got;
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < kCols; ++j) {
        const std::vector<float> a = operands(r.a[i], r.kind);
        const std::vector<float> b = operands(r.b[j], r.kind);
        got.push_back(r.kind == 1 ? decode_f16(element.f16(a, b, encode_f16(r.c[i][j])))
                                  : element.f32(a, b, r.c[i][j]));
      }
    }
    EXPECT_TRUE(testing::bitwise_equal(
        got, std::span<const float>(&r.d[0][0], kRows * kCols),
        {.label = fmt::format("kind {} distribution {}", r.kind, r.distribution), .cols = kCols}));
  }
}

TEST(TensorCoreOnH200, VectorGemmGivesTheCardsBits) {
  for (const Record& r : records()) {
    if (r.kind == 2) continue;
    const bool half = r.kind == 1;
    MmaPanel a(kRows, kBytes);
    MmaPanel b(kBytes, kCols);
    for (std::int64_t k = 0; k < kBytes; ++k) {
      for (std::int64_t i = 0; i < kRows; ++i) a.row(i)[k] = decode_e4m3(r.a[i][k]);
      for (std::int64_t j = 0; j < kCols; ++j) b.row(k)[j] = decode_e4m3(r.b[j][k]);
    }
    prepare_aligned(a);
    prepare_aligned(b);
    std::vector<float> got(&r.c[0][0], &r.c[0][0] + kRows * kCols);
    for (float& value : got) value = half ? round_f16(value) : value;
    tensor_core_gemm(a, b, {.m = kRows, .n = kCols, .depth = kBytes},
                     half ? kHopperFp8HalfAccumulator : kHopperFp8Accumulator, got.data(), kCols);
    EXPECT_TRUE(testing::bitwise_equal(
        got, std::span<const float>(&r.d[0][0], kRows * kCols),
        {.label = fmt::format("kind {} distribution {}", r.kind, r.distribution), .cols = kCols}));
  }
}

}  // namespace
}  // namespace mxfa::mx
