#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "mx/block.h"

namespace mxfa::mx {
namespace {

/// tests/data/mx_golden.bin, written by tools/golden/make_mx_golden.py, which says what it holds.
class Golden {
 public:
  Golden() {
    std::ifstream file(MXFA_TEST_DATA_DIR "/mx_golden.bin", std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }
  std::size_t left() const { return bytes_.size() - position_; }
  std::uint8_t byte() { return static_cast<std::uint8_t>(bytes_.at(position_++)); }
  float value() {
    float result = 0;
    EXPECT_LE(position_ + 4, bytes_.size());
    std::memcpy(&result, &bytes_.at(position_), 4);
    position_ += 4;
    return result;
  }

 private:
  std::vector<char> bytes_;
  std::size_t position_ = 0;
};

constexpr int kFirstBf16 = 0x3580;
constexpr int kLastBf16 = 0x4880;

void expect_same_float(float got, float want, int code) {
  if (std::isnan(want)) {
    ASSERT_TRUE(std::isnan(got)) << code;
  } else {
    ASSERT_EQ(float_bits(got), float_bits(want)) << code;
  }
}

template <class Format>
void check_format(Golden& golden) {
  for (int code = 0; code < 256; ++code) {
    expect_same_float(decode_fp8<Format>(static_cast<std::uint8_t>(code)), golden.value(), code);
  }
  int saturated = 0;
  for (const int sign : {0, 0x8000}) {
    for (int bits = kFirstBf16; bits < kLastBf16; ++bits) {
      const float value = decode_bf16(static_cast<std::uint16_t>(bits | sign));
      const int theirs = golden.byte();
      const int ours = encode_fp8<Format>(value);
      if ((theirs & 0x7F) > Format::kMaxCode) {  // NaN or infinity there, saturated here
        ++saturated;
        ASSERT_EQ(ours, (sign >> 8) | Format::kMaxCode) << value;
        ASSERT_GT(std::abs(value), Format::kMaxValue);
      } else {
        ASSERT_EQ(ours, theirs) << value;
      }
    }
  }
  EXPECT_GT(saturated, 0);
}

void check_block(const std::vector<float>& values, ScaleRule rule, Golden& golden) {
  const Block block = quantize_block<E4M3>(values, rule);
  ASSERT_EQ(int{block.scale}, int{golden.byte()});
  for (const std::uint8_t code : block.codes) ASSERT_EQ(int{code}, int{golden.byte()});
}

TEST(MxGolden, AgreesWithMlDtypes) {
  Golden golden;
  ASSERT_EQ(golden.left(), 2 * (1024 + 2 * (kLastBf16 - kFirstBf16)) + 1024 + 128 * (128 + 66));
  check_format<E4M3>(golden);
  check_format<E5M2>(golden);
  for (int byte = 0; byte < 256; ++byte) {
    expect_same_float(decode_e8m0(static_cast<std::uint8_t>(byte)), golden.value(), byte);
  }
  for (int index = 0; index < 128; ++index) {
    std::vector<float> values;
    for (int i = 0; i < kScaleBlock; ++i) values.push_back(golden.value());
    check_block(values, ScaleRule::kRoundUp, golden);
    check_block(values, ScaleRule::kFloor, golden);
  }
  EXPECT_EQ(golden.left(), 0u);
}

}  // namespace
}  // namespace mxfa::mx
