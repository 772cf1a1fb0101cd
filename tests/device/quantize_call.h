#pragma once

#include <limits>
#include <ostream>

#include "mx/bits.h"
#include "mx/block.h"
#include "mx/lower.h"
#include "mxfa/quantize.h"
#include "support/device_batch.h"
#include "support/rng.h"

/// One call of the device's quantize, compared with the CPU's.
namespace mxfa::device::testing_quantize {

using testing::Guarded;

struct Case {
  const char* name;
  std::vector<std::int32_t> cu_seqlens;
  std::int64_t num_heads = 1;
  std::int64_t head_dim = 128;
  TokenOrder order = TokenOrder::kPlain;
  bool shifted = false;
  float corner = 0.0f;  ///< value planted in the last row; 0 = none

  /// How the input lies in memory, and what it is.
  DType dtype = DType::kBF16;
  std::int64_t missing_columns = 0;  ///< of head_dim that the input lacks
  std::int64_t row_gap = 0;          ///< elements between rows
  std::int64_t misplaced = 0;        ///< elements by which the address is off
  bool dense = false;
  bool padded_rows = false;
  bool round_bf16 = false;
  std::uint8_t min_scale = 0;
  std::uint8_t lowered = 0;
  bool coarse = false;
  float half_sums = 0.0f;
  bool sums = false;       ///< some of them overflowed
  int exponent = 0;        ///< kF16: of the sums
  double magnitude = 1.0;  ///< of values

  std::int64_t input_head_dim() const { return head_dim - missing_columns; }
  friend std::ostream& operator<<(std::ostream& out, const Case& value) {
    return out << value.name;
  }
};

/// The input as it lies in memory, NaN wherever no value is, and the values it stands for.
struct Input {
  std::vector<std::uint8_t> bytes;
  std::vector<float> values;  ///< [total, num_heads, head_dim], what is quantized
  std::vector<float> shift;   ///< [num_heads, input head_dim]
  std::vector<float> lse;     ///< [num_heads, total]: NaN in one row
  std::int64_t row_stride = 0;
  std::int64_t batch_stride = 0;
  std::int64_t rows = 0;  ///< QuantizeInput::rows
  std::uint64_t overflows = 0;

  Input(const Case& test, const mx::JaggedOffsets& offsets)
      : row_stride(test.num_heads * test.input_head_dim() + test.row_gap) {
    const std::int64_t total = offsets.tokens.back();
    rows = test.padded_rows ? offsets.tiles.back() * mx::kAtomRows
           : test.dense     ? offsets.seqlen(0)
                            : total;
    batch_stride = test.dense && !test.padded_rows ? (rows + 3) * row_stride : 0;
    constexpr std::int64_t kSlackRows = 130;
    const std::int64_t elements = test.misplaced +
                                  std::max<std::int64_t>(1, offsets.batch()) * batch_stride +
                                  (rows + kSlackRows) * row_stride;
    bytes.assign(static_cast<std::size_t>(elements) * dtype_size(test.dtype), 0xFF);
    values.resize(static_cast<std::size_t>(total * test.num_heads * test.head_dim));
    lse.resize(static_cast<std::size_t>(test.num_heads * total), 1.0f);
    if (total > 0) lse[0] = std::numeric_limits<float>::quiet_NaN();
    testing::Rng rng(7);
    shift = rng.normal_values<float>(test.num_heads * test.input_head_dim());
    for (std::int64_t s = 0; s < offsets.batch(); ++s) {
      for (std::int64_t row = 0; row < offsets.seqlen(s); ++row) {
        for (std::int64_t c = 0; c < test.num_heads * test.input_head_dim(); ++c) {
          place(test, offsets, s, row, c, draw(test, rng, s, row, c, offsets));
        }
      }
    }
  }

 private:
  static float draw(const Case& test, testing::Rng& rng, std::int64_t s, std::int64_t row,
                    std::int64_t c, const mx::JaggedOffsets& offsets) {
    const auto value = static_cast<float>(test.magnitude * rng.normal());
    const bool last = s + 1 == offsets.batch() && row + 1 == offsets.seqlen(s) &&
                      c + 1 == test.num_heads * test.input_head_dim();
    if (last && test.corner != 0.0f) return test.corner;
    if (!test.sums) return value;
    // In FP32 each makes a block NaN.
    const std::int64_t dice = rng.integer(0, test.dtype == DType::kF16 ? 400 : 9000);
    if (dice == 0) return std::numeric_limits<float>::infinity();
    if (dice == 1) return -std::numeric_limits<float>::infinity();
    return dice == 2 ? std::numeric_limits<float>::quiet_NaN() : value;
  }

  void place(const Case& test, const mx::JaggedOffsets& offsets, std::int64_t s, std::int64_t row,
             std::int64_t c, float value) {
    const std::int64_t packed = offsets.tokens[s] + row;
    const std::int64_t source_row = test.padded_rows ? offsets.tiles[s] * mx::kAtomRows + row
                                    : test.dense     ? row
                                                     : packed;
    const std::int64_t at = test.misplaced + s * batch_stride + source_row * row_stride + c;
    const std::int64_t head = c / test.input_head_dim();
    const bool counted = !mx::is_nan(lse[head * offsets.tokens.back() + packed]);
    float meant = value;
    if (test.dtype == DType::kF32) {
      std::memcpy(bytes.data() + at * 4, &value, 4);
      if (test.round_bf16) meant = mx::round_bf16(value);
      if (!mx::is_finite(meant) && counted) ++overflows;
    } else {
      const bool f16 = test.dtype == DType::kF16;
      const std::uint16_t code = f16 ? mx::encode_f16(value) : mx::encode_bf16(value);
      std::memcpy(bytes.data() + at * 2, &code, 2);
      meant = f16 ? mx::decode_f16(code) : mx::decode_bf16(code);
      if (f16) meant = finish(test, meant, counted);
    }
    if (test.shifted) meant -= shift[c];
    values[(packed * test.num_heads + head) * test.head_dim + c % test.input_head_dim()] = meant;
  }

  float finish(const Case& test, float sum, bool counted) {
    if (!mx::is_finite(sum) && counted) {
      ++overflows;
      sum = !mx::is_nan(sum) && sum < 0 ? -65504.0f : 65504.0f;
    }
    return std::ldexp(sum, -test.exponent);
  }
};

/// What the CPU makes of the values.
struct Expected {
  std::vector<std::uint8_t> codes, compact, tiled_dim, tiled_tokens;

  Expected(const Case& test, BlockShape shape, const std::vector<float>& values)
      : codes(values.size()) {
    const std::int64_t dims[] = {test.cu_seqlens.back(), test.num_heads, test.head_dim};
    auto cu_seqlens = test.cu_seqlens;
    QuantizeOptions options{
        .block_shape = shape,
        .cu_seqlens = make_tensor(cu_seqlens.data(), DType::kI32, {std::ssize(cu_seqlens)})};
    const auto scales_of = [&](ScaleLayout layout, ScaleAxis axis) {
      options.layout = layout;
      options.scale_axis = axis;
      auto tensor = make_tensor(nullptr, DType::kE8M0, scale_shape(dims, options));
      std::vector<std::uint8_t> scales(static_cast<std::size_t>(tensor.num_elements()));
      tensor.data = scales.data();
      mxfa::quantize(make_tensor(const_cast<float*>(values.data()), DType::kF32, dims),
                     make_tensor(codes.data(), DType::kE4M3, dims), tensor, options);
      return scales;
    };
    if (shape != BlockShape::k32x1) {
      tiled_dim = scales_of(ScaleLayout::kTiled128x4, ScaleAxis::kHeadDim);
    }
    if (mx::block_rows(shape) == kScaleBlock) {
      tiled_tokens = scales_of(ScaleLayout::kTiled128x4, ScaleAxis::kTokens);
    }
    compact = scales_of(ScaleLayout::kRowMajor, ScaleAxis::kHeadDim);
    if (test.min_scale > 0 || test.lowered > 0 || test.coarse) raise(test, shape, values);
    if (test.half_sums > 0 && shape == BlockShape::k32xD) fit_half_sums(test, values);
  }

 private:
  void fit_half_sums(const Case& test, const std::vector<float>& values) {
    const auto offsets = mx::make_jagged_offsets(test.cu_seqlens, test.cu_seqlens.back());
    for (std::int64_t i = 0; i < offsets.batch() * test.num_heads; ++i) {
      const std::int64_t s = i / test.num_heads, head = i % test.num_heads;
      const std::int64_t rows = offsets.seqlen(s), width = test.num_heads * test.head_dim;
      const std::int64_t first = (offsets.tokens[s] * test.num_heads + head) * test.head_dim;
      const mx::FloatView view{values.data() + first, rows, test.head_dim, width, 1};
      const auto matrix = mx::for_half_sums(
          mx::lowered(mx::quantize(view, {BlockShape::k32xD}), view, test.lowered, test.coarse),
          view, test.half_sums, test.coarse);
      for (std::int64_t row = 0; row < rows; ++row) {
        std::copy_n(matrix.codes.begin() + row * test.head_dim, test.head_dim,
                    codes.begin() + first + row * width);
        compact[offsets.scale_row(BlockShape::k32xD, s, row) * test.num_heads + head] =
            matrix.scale(row, 0);
      }
    }
    tiled_dim.clear();
    tiled_tokens.clear();
  }
  void raise(const Case& test, BlockShape shape, const std::vector<float>& values) {
    const auto offsets = mx::make_jagged_offsets(test.cu_seqlens, test.cu_seqlens.back());
    const std::vector<std::uint8_t> before = compact;
    for (std::int64_t s = 0; s < offsets.batch(); ++s) {
      for (std::int64_t i = 0; i < offsets.seqlen(s) * test.num_heads * test.head_dim; ++i) {
        const std::int64_t row = i / (test.num_heads * test.head_dim);
        const std::int64_t head = i / test.head_dim % test.num_heads;
        const std::int64_t cols = mx::scale_cols(shape, test.head_dim);
        const std::int64_t at = (offsets.scale_row(shape, s, row) * test.num_heads + head) * cols +
                                mx::scale_col(shape, i % test.head_dim);
        if (before[at] == mx::kE8M0Nan) continue;
        int scale = std::max(before[at], test.min_scale);
        while (test.coarse && scale < 254 && scale % 4 != 1) ++scale;
        compact[at] = static_cast<std::uint8_t>(std::min<int>(scale + test.lowered, 254));
        const std::int64_t element = offsets.tokens[s] * test.num_heads * test.head_dim + i;
        codes[element] = mx::encode_scaled<mx::E4M3>(values[element], compact[at]);
      }
    }
    tiled_dim.clear();
    tiled_tokens.clear();
  }
};

inline void check(const Case& test, BlockShape shape) {
  testing::Machine& machine = testing::machine();
  const testing::DeviceBatch batch(test.cu_seqlens, test.dense);
  const Input input(test, batch.offsets);
  const Expected want(test, shape, input.values);
  const std::int64_t width = test.num_heads * test.head_dim;
  const std::int64_t tiles = batch.offsets.tiles.back();
  const auto want_transposed =
      testing::transposed_copy(batch.offsets, want.codes, width, test.order);

  const auto x = machine.upload(std::span<const std::uint8_t>(input.bytes));
  const auto shift = machine.upload(std::span<const float>(input.shift));
  const auto lse = machine.upload(std::span<const float>(input.lse));
  const std::uint64_t zero = 0;
  const auto overflows = machine.upload(std::span<const std::uint64_t>(&zero, 1));
  const auto codes = machine.poisoned(want.codes.size());
  const auto compact = machine.poisoned(want.compact.size());
  const auto dim = machine.poisoned(want.tiled_dim.size());
  const auto tokens = machine.poisoned(want.tiled_tokens.size());
  const auto transposed = machine.poisoned(want_transposed.size());
  const std::int64_t cols = mx::scale_cols(shape, test.head_dim);
  const AtomStrides atoms{.head_bytes = tiles * mx::kAtomBytes};
  quantize(machine.queue(),
           {.input = {.data = x.as<std::uint8_t>() +
                              test.misplaced * static_cast<std::int64_t>(dtype_size(test.dtype)),
                      .dtype = test.dtype,
                      .row_stride = input.row_stride,
                      .head_stride = test.input_head_dim(),
                      .batch_stride = input.batch_stride,
                      .rows = input.rows,
                      .head_dim = static_cast<std::int32_t>(test.input_head_dim()),
                      .padded_rows = test.padded_rows,
                      .round_bf16 = test.round_bf16,
                      .shift = test.shifted ? shift.as<const float>() : nullptr,
                      .sums = {.exponent = test.exponent,
                               .lse = lse.as<const float>(),
                               .head_stride = batch.total(),
                               .overflows = overflows.as<unsigned long long>()}},
            .codes = codes.as<std::uint8_t>(),
            .codes_row_stride = width,
            .codes_head_stride = test.head_dim,
            .compact = compact.as<std::uint8_t>(),
            .compact_strides = {.row = test.num_heads * cols, .head = cols},
            .tiled_dim = want.tiled_dim.empty() ? nullptr : dim.as<std::uint8_t>(),
            .dim_strides = atoms,
            .tiled_tokens = want.tiled_tokens.empty() ? nullptr : tokens.as<std::uint8_t>(),
            .token_strides = atoms,
            .transposed = transposed.as<std::uint8_t>(),
            .offsets = batch.view,
            .num_heads = static_cast<std::int32_t>(test.num_heads),
            .head_dim = static_cast<std::int32_t>(test.head_dim),
            .block_shape = shape,
            .order = test.order,
            .min_scale = test.min_scale,
            .lowered = test.lowered,
            .coarse = test.coarse,
            .half_sums = test.half_sums},
           batch.max_tiles());
  machine.synchronize();
  testing::expect_same(codes, want.codes, "codes", width);
  testing::expect_same(compact, want.compact, "compact");
  testing::expect_same(dim, want.tiled_dim, "tiled along head_dim");
  testing::expect_same(tokens, want.tiled_tokens, "tiled along tokens");
  testing::expect_same(transposed, want_transposed, "transposed", mx::kAtomRows);
  if (test.dtype != DType::kBF16) {
    EXPECT_EQ(overflows.download<std::uint64_t>()[0], input.overflows);
    EXPECT_TRUE(!test.sums || input.overflows > 0);
  }
}

}  // namespace mxfa::device::testing_quantize
