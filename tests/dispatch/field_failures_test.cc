/// Faults that users of MX and jagged libraries met elsewhere, cut down to numbers whose right
/// answer follows from the definitions.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dispatch/tensors.h"
#include "mx/bits.h"
#include "mx/scale_layout.h"
#include "mxfa/producers.h"
#include "mxfa/quantize.h"
#include "support/compare.h"

namespace mxfa {
namespace {

using mxfa::testing::bitwise_equal;
using mxfa::testing::OwnedTensor;
using Shape = std::vector<std::int64_t>;

constexpr BlockShape kShapes[] = {BlockShape::k1x32, BlockShape::k32x1, BlockShape::k32x32,
                                  BlockShape::k32xD, BlockShape::k1xD};

struct Quantized {
  Quantized(const std::vector<float>& values, const Shape& shape, const QuantizeOptions& options)
      : payload(options.format, shape), scales(DType::kE8M0, scale_shape(shape, options)) {
    OwnedTensor input(DType::kBF16, shape);
    input.fill(values);
    quantize(input.view(), payload.view(), scales.view(), options);
  }
  OwnedTensor payload;
  OwnedTensor scales;
};

/// Rows of normalized ones of any width, multiples of no power of two included.
TEST(FieldFailures, WidthsThatAreNoPowerOfTwo) {
  for (const std::int64_t width : {512, 769, 1152, 2880, 3584, 3585, 4096, 16384}) {
    for (const ScaleRule rule : {ScaleRule::kRoundUp, ScaleRule::kFloor}) {
      Quantized got(std::vector<float>(3 * width, 1.0f), {3, width},
                    {.block_shape = BlockShape::k1x32, .rule = rule});
      EXPECT_EQ(got.scales.view().shape[1], (width + 31) / 32);
      const auto is = [](std::uint8_t want) {
        return [want](std::uint8_t b) { return b == want; };
      };
      EXPECT_TRUE(std::ranges::all_of(got.payload.bytes(), is(0x78))) << width;
      EXPECT_TRUE(std::ranges::all_of(got.scales.bytes(), is(119))) << width;
      EXPECT_TRUE(got.payload.guards_intact() && got.scales.guards_intact()) << width;
    }
  }
}

/// The same from RMSNorm: each row is a power of two, and without eps all of them become ones.
/// Where 1/rms is taken one ulp low, the floor rule may saturate.
TEST(FieldFailures, WidthsThatAreNoPowerOfTwoUnderRmsNorm) {
  constexpr std::int64_t kRows = 3;
  for (const std::int64_t width : {512, 769, 1152, 2880, 3584, 3585, 4096, 16384}) {
    OwnedTensor x(DType::kBF16, {kRows, width}), weight(DType::kBF16, {width});
    OwnedTensor rstd(DType::kF32, {kRows});
    std::vector<float> values;
    for (std::int64_t i = 0; i < kRows * width; ++i) {
      values.push_back(static_cast<float>(1 << i / width));
    }
    x.fill(values);
    weight.fill(std::vector<float>(std::size_t(width), 1.0f));
    for (const ScaleRule rule : {ScaleRule::kRoundUp, ScaleRule::kFloor}) {
      OwnedTensor payload(DType::kE4M3, {kRows, width});
      OwnedTensor scales(DType::kE8M0, scale_shape(Shape{kRows, width}, {.rule = rule}));
      producers::rmsnorm({.x = x.view(),
                          .weight = weight.view(),
                          .eps = 0,
                          .y = {payload.view(), scales.view()},
                          .rstd = rstd.view(),
                          .rule = rule});
      for (std::size_t i = 0; i < payload.bytes().size(); ++i) {
        const bool saturates = rule == ScaleRule::kFloor && scales.bytes()[0] == 118;
        ASSERT_EQ(payload.bytes()[i], saturates ? 0x7E : 0x78) << width << " at " << i;
      }
      for (const std::uint8_t scale : scales.bytes()) {
        ASSERT_EQ(scale, rule == ScaleRule::kFloor ? scales.bytes()[0] : 119) << width;
      }
      EXPECT_TRUE(scales.bytes()[0] == 119 || scales.bytes()[0] == 118) << width;
      EXPECT_TRUE(payload.guards_intact() && scales.guards_intact()) << width;
    }
  }
}

/// One block of 32768 beside many threes: sums of 14 bits would lose the threes. Products of MXFP8
/// into FP32, and into BF16 where it is a projection.
TEST(FieldFailures, SmallTermsBesideLargeOnesOfAProduct) {
  constexpr std::int64_t kTerms = 4096;
  constexpr float kSum = 32 * 32768.0f + (kTerms - 32) * 3.0f;
  std::vector<float> values(kTerms, 3.0f);
  std::fill_n(values.begin(), 32, 32768.0f);
  const QuantizeOptions options{.block_shape = BlockShape::k32x32};
  Quantized large(values, {1, kTerms}, options);
  Quantized ones(std::vector<float>(32 * kTerms, 1.0f), {32, kTerms}, options);
  const producers::Matrix x{.tensor = {large.payload.view(), large.scales.view()}};
  producers::Matrix w{.tensor = {ones.payload.view(), ones.scales.view()}};
  OwnedTensor rounded(DType::kBF16, {1, 1, 32});
  producers::project({.x = x, .w = w, .y = {rounded.view(), {}}});
  for (const std::uint16_t code : rounded.as<std::uint16_t>()) {
    EXPECT_EQ(code, mx::encode_bf16(kSum));
  }
  w.transposed = true;
  OwnedTensor sums(DType::kF32, {1, 32});
  producers::gemm(x, w, sums.view());
  for (const float sum : sums.as<float>()) EXPECT_EQ(sum, kSum);
}

/// The short last block takes nothing from the next row, though that lies right behind it, and
/// writes nothing into it.
TEST(FieldFailures, ShortLastBlockStaysInItsRow) {
  for (const std::int64_t width : {769, 3585, 40, 33}) {
    std::vector<float> values(7 * width, 1.0f);
    for (std::int64_t row = 1; row < 7; row += 2) {
      std::fill_n(values.begin() + row * width, width, 0x1p20f);
    }
    Quantized got(values, {7, width}, {.block_shape = BlockShape::k1x32});
    const std::int64_t blocks = (width + 31) / 32;
    for (std::int64_t row = 0; row < 7; ++row) {
      for (std::int64_t block = 0; block < blocks; ++block) {
        ASSERT_EQ(got.scales.bytes()[row * blocks + block], row % 2 == 0 ? 119 : 139)
            << "width " << width << " row " << row << " block " << block;
      }
    }
    // Rows further apart than their width: the columns between them stay as they were.
    OwnedTensor input(DType::kBF16, {7, width});
    input.fill(values);
    OwnedTensor wide(DType::kE4M3, {7, width + 64});
    TensorView payload = wide.view();
    payload.shape[1] = width;
    OwnedTensor scales(DType::kE8M0, {7, blocks});
    quantize(input.view(), payload, scales.view(), {.block_shape = BlockShape::k1x32});
    for (std::int64_t row = 0; row < 7; ++row) {
      for (std::int64_t col = 0; col < width + 64; ++col) {
        ASSERT_EQ(wide.bytes()[row * (width + 64) + col], col < width ? 0x78 : 0xFF);
      }
    }
  }
}

/// The exponent of the largest value must be lowered by that of the largest payload.
TEST(FieldFailures, ScaleOfABlockWithOneLargeValue) {
  std::vector<float> values(32, 0.0f);
  values[0] = 957.0f;
  values[1] = 0.75f;
  OwnedTensor input(DType::kF32, {1, 32});
  input.fill(values);
  const struct {
    ScaleRule rule;
    std::uint8_t scale, first, second;
    float value;
  } cases[] = {{ScaleRule::kRoundUp, 129, 0x77, 0x24, 960.0f},
               {ScaleRule::kFloor, 128, 0x7E, 0x2C, 896.0f}};
  for (const BlockShape block_shape : {BlockShape::k1x32, BlockShape::k32xD, BlockShape::k32x32}) {
    for (const auto& want : cases) {
      const QuantizeOptions options{.block_shape = block_shape, .rule = want.rule};
      OwnedTensor payload(DType::kE4M3, {1, 32});
      OwnedTensor scales(DType::kE8M0, scale_shape(Shape{1, 32}, options));
      quantize(input.view(), payload.view(), scales.view(), options);
      EXPECT_EQ(scales.bytes()[0], want.scale);
      EXPECT_EQ(payload.bytes()[0], want.first);
      EXPECT_EQ(payload.bytes()[1], want.second);
      OwnedTensor back(DType::kF32, {1, 32});
      dequantize(payload.view(), scales.view(), back.view(), options);
      EXPECT_EQ(back.as<float>()[0], want.value);
      EXPECT_EQ(back.as<float>()[1], 0.75f);
      EXPECT_EQ(back.as<float>()[31], 0.0f);
    }
  }
}

/// A row maximum just below 1: the floor rule saturates it to 0.875, round up gives 1.
TEST(FieldFailures, MaximumJustBelowAPowerOfTwo) {
  std::vector<float> values(32, std::nextafter(1.0f, 0.0f));
  OwnedTensor input(DType::kF32, {1, 32});
  input.fill(values);
  for (const auto& [rule, want] :
       {std::pair(ScaleRule::kRoundUp, 1.0f), std::pair(ScaleRule::kFloor, 0.875f)}) {
    const QuantizeOptions options{.block_shape = BlockShape::k1x32, .rule = rule};
    OwnedTensor payload(DType::kE4M3, {1, 32});
    OwnedTensor scales(DType::kE8M0, {1, 1});
    OwnedTensor back(DType::kF32, {1, 32});
    quantize(input.view(), payload.view(), scales.view(), options);
    dequantize(payload.view(), scales.view(), back.view(), options);
    for (const float value : back.as<float>()) ASSERT_EQ(value, want);
  }
}

/// A block of zeros has scale 0 and payload zeros; its neighbours are not touched by it.
TEST(FieldFailures, ZeroMaximum) {
  std::vector<float> values(2 * 64, 1.0f);
  std::fill_n(values.begin(), 32, 0.0f);
  Quantized rows(values, {2, 64}, {.block_shape = BlockShape::k1x32});
  EXPECT_TRUE(bitwise_equal(rows.scales.bytes(), std::vector<std::uint8_t>{0, 119, 119, 119}));
  for (int i = 0; i < 128; ++i) ASSERT_EQ(rows.payload.bytes()[i], i < 32 ? 0x00 : 0x78);

  for (const BlockShape block_shape : kShapes) {
    for (const float zero : {0.0f, -0.0f}) {
      const QuantizeOptions options{.block_shape = block_shape};
      Quantized zeros(std::vector<float>(40 * 64, zero), {40, 64}, options);
      for (const std::uint8_t byte : zeros.scales.bytes()) ASSERT_EQ(byte, 0);
      for (const std::uint8_t byte : zeros.payload.bytes()) {
        ASSERT_EQ(byte, std::signbit(zero) ? 0x80 : 0x00);
      }
      OwnedTensor back(DType::kF32, {40, 64});
      dequantize(zeros.payload.view(), zeros.scales.view(), back.view(), options);
      for (const float value : back.as<float>()) ASSERT_EQ(value, 0.0f);
    }
  }
}

/// One product of 160 ones: 5 scales a row, padded to 8 in the tiled layout. Padding must not
/// matter, whatever it holds.
TEST(FieldFailures, PoisonedPaddingOfTiledScales) {
  const Shape shape{1, 160};
  const QuantizeOptions options{.block_shape = BlockShape::k1x32,
                                .layout = ScaleLayout::kTiled128x4};
  for (const int fill : {0x00, 0x7F, 0xFF}) {
    OwnedTensor payload(DType::kE4M3, shape);
    std::ranges::fill(payload.bytes(), std::uint8_t{0x38});
    OwnedTensor scales(DType::kE8M0, scale_shape(shape, options));
    ASSERT_EQ(scales.bytes().size(), 2 * 512u);
    std::ranges::fill(scales.bytes(), static_cast<std::uint8_t>(fill));
    const mx::TiledScaleLayout layout{1, 5};
    for (int block = 0; block < 5; ++block) scales.bytes()[layout.offset(0, block)] = 127;
    OwnedTensor values(DType::kF32, shape);
    dequantize(payload.view(), scales.view(), values.view(), options);
    const auto row = values.as<float>();
    EXPECT_EQ(std::inner_product(row.begin(), row.end(), row.begin(), 0.0f), 160.0f) << fill;
  }
}

/// Payload 1.0 under every interesting scale byte: 2^-127 is not zero, 255 is NaN, not infinity.
TEST(FieldFailures, DecodedScales) {
  const std::uint8_t bytes[] = {0, 1, 127, 134, 254, 255};
  const double want[] = {0x1p-127, 0x1p-126, 1.0, 128.0, 0x1p127, std::nan("")};
  OwnedTensor payload(DType::kE4M3, {6, 32});
  std::ranges::fill(payload.bytes(), std::uint8_t{0x38});
  OwnedTensor scales(DType::kE8M0, {6, 1});
  std::copy(std::begin(bytes), std::end(bytes), scales.bytes().begin());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    OwnedTensor values(dtype, {6, 32});
    dequantize(payload.view(), scales.view(), values.view(), {.block_shape = BlockShape::k1x32});
    for (int row = 0; row < 6; ++row) {
      for (int col = 0; col < 32; ++col) {
        const float got = dtype == DType::kF32
                              ? values.as<float>()[row * 32 + col]
                              : mx::decode_bf16(values.as<std::uint16_t>()[row * 32 + col]);
        if (row == 5) {
          ASSERT_TRUE(std::isnan(got));
        } else {
          ASSERT_EQ(got, want[row]);
        }
      }
    }
  }
}

/// Address space without memory behind it: pages exist once they are touched.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t size)
      : size_(size),
        data_(mmap(nullptr, size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() { munmap(data_, size_); }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool valid() const { return data_ != MAP_FAILED; }
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(data_); }

 private:
  std::size_t size_;
  void* data_;
};

/// Two tokens 2^31 + 128 elements apart: offsets do not fit in 32 bits, signed or not.
TEST(FieldFailures, OffsetsBeyond32Bits) {
  for (const std::int64_t apart : {(std::int64_t{1} << 31) + 128, (std::int64_t{1} << 32) + 128}) {
    const SparseMemory input_memory(static_cast<std::size_t>(apart + 128) * 2);
    const SparseMemory payload_memory(static_cast<std::size_t>(apart + 128));
    const SparseMemory scale_memory(static_cast<std::size_t>(apart + 4));
    ASSERT_TRUE(input_memory.valid() && payload_memory.valid() && scale_memory.valid());
    TensorView input = make_tensor(input_memory.data(), DType::kBF16, {2, 128});
    TensorView payload = make_tensor(payload_memory.data(), DType::kE4M3, {2, 128});
    TensorView scales = make_tensor(scale_memory.data(), DType::kE8M0, {2, 4});
    for (TensorView* view : {&input, &payload, &scales}) view->strides[0] = apart;
    for (int i = 0; i < 128; ++i) {
      reinterpret_cast<std::uint16_t*>(input.data)[apart + i] = mx::encode_bf16(1.0f);
    }
    quantize(input, payload, scales, {.block_shape = BlockShape::k1x32});
    for (int i = 0; i < 128; ++i) {
      ASSERT_EQ(payload_memory.data()[i], 0x00);
      ASSERT_EQ(payload_memory.data()[apart + i], 0x78);
    }
    for (int i = 0; i < 4; ++i) {
      ASSERT_EQ(scale_memory.data()[i], 0);
      ASSERT_EQ(scale_memory.data()[apart + i], 119);
    }
  }
}

/// 2^24 + 1 tokens x 128: 2^31 + 128 elements without gaps, all 0 but for the last row. Takes
/// 2.2 GB: the input's zero pages cost nothing, the payload does.
TEST(FieldFailuresFull, MoreThan2To31Elements) {
  constexpr std::int64_t kTokens = (std::int64_t{1} << 24) + 1;
  const SparseMemory input_memory(static_cast<std::size_t>(kTokens) * 128 * 2);
  const SparseMemory payload_memory(static_cast<std::size_t>(kTokens) * 128);
  ASSERT_TRUE(input_memory.valid() && payload_memory.valid());
  const TensorView input = make_tensor(input_memory.data(), DType::kBF16, {kTokens, 128});
  const TensorView payload = make_tensor(payload_memory.data(), DType::kE4M3, {kTokens, 128});
  auto* values = reinterpret_cast<std::uint16_t*>(input.data);
  std::fill_n(values + (kTokens - 1) * 128, 128, mx::encode_bf16(1.0f));
  const QuantizeOptions options{.block_shape = BlockShape::k1x32,
                                .layout = ScaleLayout::kTiled128x4};
  OwnedTensor scales(DType::kE8M0, scale_shape(input.dims(), options));
  quantize(input, payload, scales.view(), options);
  const std::uint8_t* codes = payload_memory.data();
  EXPECT_EQ(std::count(codes, codes + 128 * 128, 0), 128 * 128);
  EXPECT_EQ(std::count(codes + (kTokens - 1) * 128, codes + kTokens * 128, 0x78), 128);
  const mx::TiledScaleLayout layout{kTokens, 4};
  ASSERT_EQ(scales.bytes().size(), static_cast<std::size_t>(layout.size_bytes()));
  EXPECT_EQ(std::count(scales.bytes().begin(), scales.bytes().end(), 0), layout.size_bytes() - 4);
  for (int block = 0; block < 4; ++block) {
    EXPECT_EQ(scales.bytes()[layout.offset(kTokens - 1, block)], 119);
  }
}

}  // namespace
}  // namespace mxfa
