#include "dispatch/validate.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>
#include <string>

#include "dispatch/tensors.h"
#include "mxfa/error.h"
#include "mxfa/quantize.h"

namespace mxfa {
namespace {

using mxfa::testing::OwnedTensor;

/// The message of the Error that `call` throws, or "accepted".
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

/// One good call of quantize() whose arguments a test may spoil.
struct QuantizeCall {
  OwnedTensor input{DType::kBF16, {4, 2, 64}};
  OwnedTensor payload{DType::kE4M3, {4, 2, 64}};
  OwnedTensor scales{DType::kE8M0, {1, 2, 2}};
  TensorView in = input.view();
  TensorView out = payload.view();
  TensorView sf = scales.view();
  QuantizeOptions options;

  QuantizeCall() { input.fill(std::vector<float>(4 * 2 * 64, 1.0f)); }
  std::string run() {
    return message_of([&] { quantize(in, out, sf, options); });
  }
};

TEST(ValidateQuantize, GoodCallIsAccepted) {
  QuantizeCall call;
  EXPECT_EQ(call.run(), "accepted");
  EXPECT_EQ(call.payload.bytes()[0], 0x78);
}

TEST(ValidateQuantize, DtypesAreNamed) {
  QuantizeCall input;
  OwnedTensor doubles(DType::kF64, {4, 2, 64});
  input.in = doubles.view();
  EXPECT_EQ(input.run(), "input: expected f32, f16 or bf16, got f64 [4, 2, 64]");
  QuantizeCall payload;
  payload.out.dtype = DType::kE5M2;
  EXPECT_EQ(payload.run(), "payload: expected e4m3 or u8, got e5m2 [4, 2, 64]");
  QuantizeCall scales;
  scales.sf.dtype = DType::kE4M3;
  EXPECT_EQ(scales.run(), "scales: expected e8m0 or u8, got e4m3 [1, 2, 2]");
  QuantizeCall format;
  format.options.format = DType::kF32;
  EXPECT_EQ(format.run(), "format: expected e4m3 or e5m2, got f32");
}

TEST(ValidateQuantize, ShapesAreNamed) {
  QuantizeCall payload;
  payload.out.shape[2] = 32;
  EXPECT_EQ(payload.run(), "payload: expected shape [4, 2, 64], got e4m3 [4, 2, 32]");
  QuantizeCall scales;
  scales.sf.shape[1] = 1;
  EXPECT_EQ(scales.run(),
            "scales: expected shape [1, 2, 2] (dimension 0 or more), got e8m0 [1, 1, 2]");
  QuantizeCall rank;
  rank.in = make_tensor(rank.input.view().data, DType::kBF16, {512});
  EXPECT_EQ(rank.run(), "shape: expected [tokens, num_heads, head_dim] or [rows, cols], got [512]");
  QuantizeCall negative;
  negative.in.shape[0] = -4;
  EXPECT_EQ(negative.run(), "input: expected extents of at least 0, got bf16 [-4, 2, 64]");
  QuantizeCall no_columns;
  no_columns.in.shape[2] = 0;
  EXPECT_EQ(no_columns.run(), "shape: expected at least one column (head_dim), got [4, 2, 0]");
  QuantizeCall too_many;
  too_many.in.rank = 9;
  EXPECT_EQ(too_many.run(), "input: expected 0 to 5 dimensions, got 9");
}

TEST(ValidateQuantize, OptionsAreMembersOfTheirEnums) {
  const auto message = [](auto spoil) {
    QuantizeCall call;
    spoil(call.options);
    return call.run();
  };
  EXPECT_EQ(message([](auto& o) { o.block_shape = static_cast<BlockShape>(9); }),
            "block_shape: expected a member of BlockShape, got 9");
  EXPECT_EQ(message([](auto& o) { o.layout = static_cast<ScaleLayout>(9); }),
            "layout: expected row-major or tiled 128x4, got 9");
  EXPECT_EQ(message([](auto& o) { o.rule = static_cast<ScaleRule>(9); }),
            "rule: expected round-up or floor, got 9");
  EXPECT_EQ(message([](auto& o) { o.scale_axis = static_cast<ScaleAxis>(9); }),
            "scale_axis: expected head_dim or tokens, got 9");
  EXPECT_EQ(message([](auto& o) { o.format = static_cast<DType>(77); }),
            "format: expected a member of DType, got 77");
}

/// Sizes whose bytes or offsets do not fit 63 bits.
TEST(ValidateQuantize, SizesThatNoMachineHas) {
  const std::int64_t rows = std::int64_t{1} << 57;
  QuantizeCall input;
  input.in.shape[0] = rows;
  EXPECT_EQ(input.run(),
            "input: expected fewer than 2^56 elements, got bf16 [144115188075855872, 2, 64]");
  QuantizeCall strides;
  strides.out.strides[0] = std::int64_t{1} << 60;
  EXPECT_EQ(strides.run(),
            "payload: expected elements that lie within 2^56 bytes, got e4m3 [4, 2, 64] with "
            "strides [1152921504606846976, 64, 1]");
  EXPECT_EQ(message_of([&] {
              scale_shape(std::array{rows, std::int64_t{64}}, {});
            }),
            "shape: expected fewer than 2^56 elements, got [144115188075855872, 64]");
  EXPECT_EQ(message_of([&] {
              max_scale_shape(std::array<std::int64_t, 2>{4, 64}, INT64_MAX, {});
            }),
            "batch: expected 0 to 2^31 - 1, got 9223372036854775807");
  QuantizeCall offsets;
  std::int32_t zero = 0;
  offsets.options.cu_seqlens = make_tensor(&zero, DType::kI32, {rows >> 6});
  EXPECT_EQ(offsets.run(),
            "cu_seqlens: expected fewer than 2^31 sequences, got i32 [2251799813685248]");
}

TEST(ValidateQuantize, OutputsHaveMemoryOfTheirOwn) {
  QuantizeCall input;
  input.out.data = input.in.data;
  EXPECT_EQ(input.run(),
            "payload: expected memory that no other tensor of the call has, got some of input's");
  QuantizeCall scales;
  scales.sf.data = static_cast<std::uint8_t*>(scales.out.data) + 511;
  EXPECT_EQ(scales.run(),
            "payload: expected memory that no other tensor of the call has, got some of scales's");
}

TEST(ValidateQuantize, DataMustBePresentAndAligned) {
  QuantizeCall null;
  null.in.data = nullptr;
  EXPECT_EQ(null.run(), "input: expected data, got a null pointer for bf16 [4, 2, 64]");
  QuantizeCall absent;
  absent.in = {};
  EXPECT_EQ(absent.run(), "input: expected a tensor, got none");
  QuantizeCall odd;
  odd.in.data = static_cast<std::uint8_t*>(odd.in.data) + 1;
  EXPECT_EQ(odd.run(), "input: expected data aligned to 2 bytes, got an address 1 bytes past that");
}

TEST(Describe, AWrongRankReadsNothingBehindTheShape) {
  TensorView view = make_tensor(nullptr, DType::kF32, {1, 2, 3, 4, 5});
  EXPECT_EQ(describe(view), "f32 [1, 2, 3, 4, 5]");
  view.rank = 100;
  EXPECT_EQ(describe(view), "f32 [1, 2, 3, 4, 5] of rank 100");
  view.rank = -1;
  EXPECT_EQ(describe(view), "f32 [] of rank -1");
}

/// Inputs may be broadcast (all strides 0), outputs may not.
TEST(ValidateQuantize, ZeroStrides) {
  QuantizeCall input;
  input.in.strides = {0, 0, 0};
  EXPECT_EQ(input.run(), "accepted");
  for (const std::uint8_t byte : input.payload.bytes()) ASSERT_EQ(byte, 0x78);
  QuantizeCall output;
  output.out.strides[1] = 0;
  EXPECT_EQ(output.run(),
            "payload: expected an output whose elements do not share memory, got stride 0 in "
            "dimension 1 of e4m3 [4, 2, 64]");
}

TEST(ValidateQuantize, TiledScales) {
  QuantizeCall axis;
  axis.options = {.block_shape = BlockShape::k1x32,
                  .layout = ScaleLayout::kTiled128x4,
                  .scale_axis = ScaleAxis::kTokens};
  EXPECT_EQ(axis.run(), "scale axis: 1x32 scales cannot be tiled along tokens");
  QuantizeCall shape;
  shape.options.layout = ScaleLayout::kTiled128x4;
  EXPECT_EQ(shape.run(),
            "scales: expected shape [2, 1, 1, 512] (dimension 1 or more), got e8m0 [1, 2, 2]");
  QuantizeCall gaps;
  gaps.options.layout = ScaleLayout::kTiled128x4;
  OwnedTensor wide(DType::kU8, {2, 1, 1, 1024});
  gaps.sf = wide.view();
  gaps.sf.shape[3] = 512;
  gaps.sf.strides[3] = 2;
  EXPECT_EQ(gaps.run(),
            "scales: expected atoms without gaps, got u8 [2, 1, 1, 512] with strides [1024, 1024, "
            "1024, 2]");
}

TEST(ValidateQuantize, NothingIsWrittenWhenACallIsRefused) {
  QuantizeCall call;
  call.options.max_seqlen = 3;
  EXPECT_EQ(call.run(), "shape: expected at most 3 tokens (max_seqlen), got [4, 2, 64]");
  for (const std::uint8_t byte : call.payload.bytes()) ASSERT_EQ(byte, 0xFF);
  for (const std::uint8_t byte : call.scales.bytes()) ASSERT_EQ(byte, 0xFF);
}

/// Field failure: bad offsets of packed data must be refused by name and value.
TEST(ValidateCuSeqlens, BadOffsetsAreNamed) {
  const auto message = [](std::vector<std::int32_t> offsets, std::int64_t batch = -1,
                          std::int64_t max_seqlen = -1) {
    const TensorView view =
        make_tensor(offsets.data(), DType::kI32, {static_cast<std::int64_t>(offsets.size())});
    return message_of([&] {
      dispatch::read_cu_seqlens(view, "cu_seqlens_k", {4, batch, max_seqlen});
    });
  };
  EXPECT_EQ(message({0, 2, 4}, 2, 2), "accepted");
  EXPECT_EQ(message({1, 4}), "cu_seqlens_k[0]: expected 0, got 1");
  EXPECT_EQ(message({0, 5}), "cu_seqlens_k[1]: expected at most 4 (the rows given), got 5");
  EXPECT_EQ(message({0, 3, 2, 4}), "cu_seqlens_k[2]: expected at least 3, got 2");
  EXPECT_EQ(message({0, -1, 4}), "cu_seqlens_k[1]: expected at least 0, got -1");
  EXPECT_EQ(message({0, 2, 4}, 3), "cu_seqlens_k: expected shape [4] (batch + 1), got i32 [3]");
  EXPECT_EQ(message({0, 1, 4}, 2, 2),
            "cu_seqlens_k[2]: expected a sequence of at most 2 rows, got one of 3");
  EXPECT_EQ(message({}), "cu_seqlens_k: expected shape [batch + 1], got i32 [0]");
}

/// Field failure: 64-bit offsets are read as such, by value, and never as pairs of 32-bit words.
TEST(ValidateCuSeqlens, Int64IsConvertedByValue) {
  std::vector<std::int64_t> offsets{0, 2, 4};
  TensorView view = make_tensor(offsets.data(), DType::kI64, {3});
  EXPECT_EQ(dispatch::read_cu_seqlens(view, "cu_seqlens", {.total = 4}),
            (std::vector<std::int32_t>{0, 2, 4}));
  view.strides[0] = 2;
  view.shape[0] = 2;
  EXPECT_EQ(dispatch::read_cu_seqlens(view, "cu_seqlens", {.total = 4}),
            (std::vector<std::int32_t>{0, 4}));
  offsets[2] = std::int64_t{1} << 32;  // 0 in its low word
  EXPECT_EQ(message_of([&] { dispatch::read_cu_seqlens(view, "cu_seqlens", {.total = 4}); }),
            "cu_seqlens[1]: expected a value of 32 bits, got 4294967296");
  std::vector<float> floats{0, 4};
  EXPECT_EQ(message_of([&] {
              dispatch::read_cu_seqlens(make_tensor(floats.data(), DType::kF32, {2}), "cu_seqlens",
                                        {.total = 4});
            }),
            "cu_seqlens: expected i32 or i64, got f32 [2]");
}

TEST(ValidateQuantize, OffsetsAreCheckedBeforeAnythingIsWritten) {
  std::vector<std::int32_t> offsets{0, 3, 2};
  QuantizeCall call;
  call.options.cu_seqlens = make_tensor(offsets.data(), DType::kI32, {3});
  EXPECT_EQ(call.run(), "cu_seqlens[2]: expected at least 3, got 2");
  for (const std::uint8_t byte : call.payload.bytes()) ASSERT_EQ(byte, 0xFF);
  EXPECT_TRUE(call.payload.guards_intact() && call.scales.guards_intact());
}

}  // namespace
}  // namespace mxfa
