#include <gtest/gtest.h>

#include <limits>

#include "mx/block.h"
#include "mx/row_sum.h"
#include "mxfa/quantize.h"
#include "support/bf16.h"
#include "support/device_batch.h"

namespace mxfa::device {
namespace {

using testing::Guarded;

/// Rows [total, num_heads, head_dim] of one dtype, on the device and as values.
struct Rows {
  std::vector<float> values;
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint8_t> scales;
  DType dtype;
  BlockShape shape;
  std::int64_t num_heads, head_dim;
  std::optional<Guarded> data, scales_data;

  Rows(DType type, BlockShape block_shape, const std::vector<std::int32_t>& cu_seqlens,
       std::int64_t heads, std::int64_t dim, std::uint64_t seed)
      : dtype(type), shape(block_shape), num_heads(heads), head_dim(dim) {
    const std::int64_t total = cu_seqlens.back();
    values = testing::Rng(seed).normal_values<float>(total * heads * dim, 3);
    bytes.resize(values.size() * dtype_size(type));
    const std::int64_t dims[] = {total, heads, dim};
    if (type == DType::kE4M3) {
      auto lengths = cu_seqlens;
      const QuantizeOptions options{
          .block_shape = shape,
          .cu_seqlens = make_tensor(lengths.data(), DType::kI32, {std::ssize(lengths)})};
      auto tensor = make_tensor(nullptr, DType::kE8M0, scale_shape(dims, options));
      scales.resize(static_cast<std::size_t>(tensor.num_elements()));
      tensor.data = scales.data();
      const auto codes = make_tensor(bytes.data(), DType::kE4M3, dims);
      mxfa::quantize(make_tensor(values.data(), DType::kF32, dims), codes, tensor, options);
      if (!scales.empty()) scales[scales.size() / 2] = 0xFF;
      mxfa::dequantize(codes, tensor, make_tensor(values.data(), DType::kF32, dims), options);
    } else if (type == DType::kBF16) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint16_t code = mx::encode_bf16(values[i]);
        std::memcpy(bytes.data() + i * 2, &code, 2);
        values[i] = mx::decode_bf16(code);
      }
    } else {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    }
    data.emplace(testing::machine().upload(std::span<const std::uint8_t>(bytes)));
    scales_data.emplace(testing::machine().upload(std::span<const std::uint8_t>(scales)));
  }
  RowsView view() const {
    const std::int64_t cols = mx::scale_cols(shape, head_dim);
    return {.data = data->as<const void>(),
            .dtype = dtype,
            .row_stride = num_heads * head_dim,
            .head_stride = head_dim,
            .scales = scales_data->as<const std::uint8_t>(),
            .scale_strides = {.row = num_heads * cols, .head = cols},
            .block_shape = shape};
  }
};

const std::vector<std::int32_t> kLengths = {0, 129, 129, 160, 161, 400};
constexpr std::int64_t kHeads = 3;

using DeltaCase = std::tuple<DType, DType, std::int64_t>;
class Delta : public ::testing::TestWithParam<DeltaCase> {};

TEST_P(Delta, BitEqualToTheCpu) {
  const auto [dout_dtype, o_dtype, head_dim] = GetParam();
  testing::Machine& machine = testing::machine();
  const testing::DeviceBatch batch(kLengths);
  const Rows dout(dout_dtype, BlockShape::k32xD, kLengths, kHeads, head_dim, 1);
  const Rows o(o_dtype, BlockShape::k32x32, kLengths, kHeads, head_dim, 2);
  const auto shift = testing::Rng(3).normal_values<float>(kHeads * head_dim);
  const auto shift_d = machine.upload(std::span<const float>(shift));
  for (const bool shifted : {false, true}) {
    std::vector<float> want(static_cast<std::size_t>(kHeads * batch.total())), sums = want;
    for (std::int64_t at = 0; at < batch.total() * kHeads; ++at) {
      std::vector<float> row(dout.values.begin() + at * head_dim,
                             dout.values.begin() + (at + 1) * head_dim);
      for (float& value : row) value = mx::round_bf16(value);
      const std::int64_t head = at % kHeads;
      for (const float value : row) sums[head * batch.total() + at / kHeads] += std::fabs(value);
      want[head * batch.total() + at / kHeads] =
          mx::row_sum::row_delta(row.data(), o.values.data() + at * head_dim,
                                 shifted ? shift.data() + head * head_dim : nullptr, head_dim);
    }
    const auto delta_d = machine.poisoned(want.size() * sizeof(float)),
               sums_d = machine.poisoned(want.size() * sizeof(float));
    delta(machine.queue(),
          {.dout = dout.view(),
           .o = o.view(),
           .shift_v = shifted ? shift_d.as<const float>() : nullptr,
           .delta = delta_d.as<float>(),
           .delta_head_stride = batch.total(),
           .dout_sums = shifted ? nullptr : sums_d.as<float>(),
           .offsets = batch.view,
           .num_heads = kHeads,
           .head_dim = static_cast<std::int32_t>(head_dim)},
          batch.max_tiles());
    machine.synchronize();
    EXPECT_TRUE(testing::bitwise_equal(testing::canonical(delta_d.download<float>()),
                                       testing::canonical(want), {.label = "delta"}));
    EXPECT_TRUE(delta_d.guards_intact() && sums_d.guards_intact());
    if (shifted) continue;
    const auto sums_got = sums_d.download<float>();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (!mx::is_finite(sums[i])) continue;
      EXPECT_NEAR(sums_got[i], sums[i], sums[i] * 1e-5f) << i;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    DTypes, Delta,
    ::testing::Combine(::testing::Values(DType::kE4M3, DType::kBF16, DType::kF32),
                       ::testing::Values(DType::kE4M3, DType::kBF16, DType::kF32),
                       ::testing::Values(40, 128)));

class DequantizeOnDevice : public ::testing::TestWithParam<BlockShape> {};

TEST_P(DequantizeOnDevice, BitEqualToTheCpu) {
  constexpr std::int64_t kDim = 96;
  testing::Machine& machine = testing::machine();
  const testing::DeviceBatch batch(kLengths);
  const Rows rows(DType::kE4M3, GetParam(), kLengths, kHeads, kDim, 5);
  std::vector<std::uint16_t> want;
  for (const float value : rows.values) want.push_back(mx::encode_bf16(value));
  const auto out = machine.poisoned(want.size() * 2);
  dequantize_bf16(machine.queue(),
                  {.input = rows.view(),
                   .out = out.as<std::uint16_t>(),
                   .out_row_stride = kHeads * kDim,
                   .out_head_stride = kDim,
                   .offsets = batch.view,
                   .num_heads = kHeads,
                   .head_dim = kDim},
                  batch.max_tiles());
  machine.synchronize();
  EXPECT_TRUE(testing::bitwise_equal(testing::canonical_bf16(out.download<std::uint16_t>()),
                                     testing::canonical_bf16(want), {.label = "bf16"}));
  EXPECT_TRUE(out.guards_intact());
}
INSTANTIATE_TEST_SUITE_P(Shapes, DequantizeOnDevice,
                         ::testing::Values(BlockShape::k1x32, BlockShape::k32x1, BlockShape::k32x32,
                                           BlockShape::k32xD, BlockShape::k1xD));

struct SumsCase {
  DType dtype;
  bool padded_rows;
  bool exponents;  ///< one for each (sequence, head)
};
class FinishSums : public ::testing::TestWithParam<SumsCase> {};

TEST_P(FinishSums, CountsWhatOverflowed) {
  constexpr std::int64_t kDim = 64;
  const SumsCase& test = GetParam();
  testing::Machine& machine = testing::machine();
  const testing::DeviceBatch batch(kLengths);
  const mx::JaggedOffsets& offsets = batch.offsets;
  const std::int64_t rows =
      test.padded_rows ? offsets.tiles.back() * mx::kAtomRows : offsets.tokens.back();
  const std::size_t element = dtype_size(test.dtype);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows * kHeads * kDim) * element, 0xFF);
  std::vector<std::uint16_t> want(static_cast<std::size_t>(batch.total() * kHeads * kDim));
  std::vector<float> lse(static_cast<std::size_t>(kHeads * batch.total()), 0.0f), delta = lse;
  lse[5] = delta[batch.total() + 7] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::int32_t> exponents;
  for (std::int64_t i = 0; i < offsets.batch() * kHeads; ++i) {
    exponents.push_back(static_cast<std::int32_t>(i % 12));
  }
  constexpr float kSpecial[] = {std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()};
  std::uint64_t overflows = 0;
  testing::Rng rng(9);
  for (std::int64_t s = 0; s < offsets.batch(); ++s) {
    for (std::int64_t i = 0; i < offsets.seqlen(s) * kHeads * kDim; ++i) {
      const std::int64_t row = i / (kHeads * kDim), head = i / kDim % kHeads;
      const std::int64_t packed = offsets.tokens[s] + row;
      const std::int64_t source =
          test.padded_rows ? offsets.tiles[s] * mx::kAtomRows + row : packed;
      float value = static_cast<float>(1000 * rng.normal());
      // Whole rows whose lse or delta is NaN hold specials too.
      if (rng.integer(0, 60) == 0) value = kSpecial[rng.integer(0, 2)];
      const std::size_t at = static_cast<std::size_t>(source * kHeads * kDim + i % (kHeads * kDim));
      const bool f16 = test.dtype == DType::kF16;
      if (f16) {
        const std::uint16_t code = mx::encode_f16(value);
        std::memcpy(bytes.data() + at * 2, &code, 2);
        value = mx::decode_f16(code);
      } else {
        std::memcpy(bytes.data() + at * 4, &value, 4);
      }
      const std::int64_t at_row = head * batch.total() + packed;
      if (!mx::is_finite(value) && !mx::is_nan(lse[at_row]) && !mx::is_nan(delta[at_row])) {
        if (f16) value = !mx::is_nan(value) && value < 0 ? -65504.0f : 65504.0f;
        ++overflows;
      }
      if (f16) value = std::ldexp(value, test.exponents ? -exponents[s * kHeads + head] : -9);
      want[packed * kHeads * kDim + i % (kHeads * kDim)] = mx::encode_bf16(value);
    }
  }
  const auto data = machine.upload(std::span<const std::uint8_t>(bytes));
  const auto lse_d = machine.upload(std::span<const float>(lse));
  const auto delta_d = machine.upload(std::span<const float>(delta));
  const auto exponents_d = machine.upload(std::span<const std::int32_t>(exponents));
  const std::uint64_t before = 5;
  const auto count = machine.upload(std::span<const std::uint64_t>(&before, 1));
  const auto out = machine.poisoned(want.size() * 2);
  finish_sums_bf16(
      machine.queue(),
      {.data = data.as<const void>(),
       .dtype = test.dtype,
       .row_stride = kHeads * kDim,
       .head_stride = kDim,
       .padded_rows = test.padded_rows,
       .sums = {.exponent = 9,
                .exponents = test.exponents ? exponents_d.as<const std::int32_t>() : nullptr,
                .lse = lse_d.as<const float>(),
                .delta = delta_d.as<const float>(),
                .head_stride = batch.total(),
                .overflows = count.as<unsigned long long>()},
       .out = out.as<std::uint16_t>(),
       .out_row_stride = kHeads * kDim,
       .out_head_stride = kDim,
       .offsets = batch.view,
       .num_heads = kHeads,
       .head_dim = kDim},
      batch.max_tiles());
  machine.synchronize();
  EXPECT_TRUE(testing::bitwise_equal(testing::canonical_bf16(out.download<std::uint16_t>()),
                                     testing::canonical_bf16(want), {.label = "bf16"}));
  EXPECT_TRUE(out.guards_intact());
  EXPECT_EQ(count.download<std::uint64_t>()[0], before + overflows);
  EXPECT_GT(overflows, 0u);
}
INSTANTIATE_TEST_SUITE_P(Forms, FinishSums,
                         ::testing::Values(SumsCase{DType::kF32, false, false},
                                           SumsCase{DType::kF32, true, false},
                                           SumsCase{DType::kF16, false, false},
                                           SumsCase{DType::kF16, true, true}));

}  // namespace
}  // namespace mxfa::device
