#include "mx/realign.h"

#include <gtest/gtest.h>

#include "support/device_batch.h"
#include "support/rng.h"

namespace mxfa::device {
namespace {

struct Case {
  const char* name;
  std::vector<std::int32_t> cu_seqlens;
  std::int64_t num_heads = 1;
  std::int64_t head_dim = 128;
  int spread = 16;           ///< binades between scales
  bool poisoned = false;     ///< some codes are NaN, some scales 0xFF
  std::int64_t padding = 0;  ///< columns of zeros in the transposed copy
  friend std::ostream& operator<<(std::ostream& out, const Case& value) {
    return out << value.name;
  }
};
using Param = std::tuple<Case, BlockShape, DType>;

class RealignOnDevice : public ::testing::TestWithParam<Param> {};

struct Source {
  std::vector<std::uint8_t> codes;   ///< [total, num_heads, head_dim]
  std::vector<std::uint8_t> scales;  ///< [scale rows, num_heads, scale cols]

  Source(const Case& test, BlockShape shape, const mx::JaggedOffsets& offsets) {
    testing::Rng rng(11);
    codes.resize(static_cast<std::size_t>(offsets.tokens.back() * test.num_heads * test.head_dim));
    scales.resize(static_cast<std::size_t>(offsets.scale_rows_total(shape) * test.num_heads *
                                           mx::scale_cols(shape, test.head_dim)));
    const int top = test.poisoned ? 255 : 0x7A;
    for (std::uint8_t& code : codes) {
      code = static_cast<std::uint8_t>(rng.integer(0, 255));
      const bool bad = (code & 0x7F) > 0x7A && rng.integer(0, 200) != 0;
      if (bad || (code & 0x7F) > top) code = 0;
    }
    // Whole rows of zeros: blocks that have no say in their group's scale.
    for (std::size_t row = 0; row < codes.size() / test.head_dim; row += 5) {
      std::fill_n(codes.begin() + row * test.head_dim, test.head_dim, std::uint8_t{0x80});
    }
    for (std::uint8_t& scale : scales) {
      scale = static_cast<std::uint8_t>(100 + rng.integer(0, test.spread));
      if (test.poisoned && rng.integer(0, 500) == 0) scale = 0xFF;
    }
  }
};

struct Expected {
  std::vector<std::uint8_t> codes, scales;
  mx::RealignReport report;

  Expected(const Case& test, BlockShape shape, DType format, const mx::JaggedOffsets& offsets,
           const Source& source)
      : codes(source.codes.size()),
        scales(static_cast<std::size_t>(offsets.groups.back() * test.num_heads)) {
    const std::int64_t cols = mx::scale_cols(shape, test.head_dim);
    const std::int64_t pitch = test.num_heads * test.head_dim;
    mx::GroupRealigner realigner(shape, format, test.head_dim);
    for (std::int64_t s = 0; s < offsets.batch(); ++s) {
      for (std::int64_t first = 0; first < offsets.seqlen(s); first += 32) {
        const int rows = static_cast<int>(std::min<std::int64_t>(32, offsets.seqlen(s) - first));
        for (std::int64_t h = 0; h < test.num_heads; ++h) {
          std::vector<std::uint8_t> own;
          for (int row = 0; row < rows; row += mx::block_rows(shape)) {
            const std::int64_t at =
                (offsets.scale_row(shape, s, first + row) * test.num_heads + h) * cols;
            own.insert(own.end(), source.scales.begin() + at, source.scales.begin() + at + cols);
          }
          const std::int64_t at = (offsets.tokens[s] + first) * pitch + h * test.head_dim;
          scales[(offsets.groups[s] + first / 32) * test.num_heads + h] = realigner.run(
              source.codes.data() + at, pitch, rows, own.data(), codes.data() + at, pitch);
        }
      }
    }
    report = realigner.report();
  }
};

/// Rows of zeros behind each head's.
std::vector<std::uint8_t> widened(const std::vector<std::uint8_t>& codes, std::int64_t head_dim,
                                  std::int64_t padding) {
  std::vector<std::uint8_t> result;
  for (std::size_t at = 0; at < codes.size(); at += static_cast<std::size_t>(head_dim)) {
    result.insert(result.end(), codes.begin() + at, codes.begin() + at + head_dim);
    result.insert(result.end(), static_cast<std::size_t>(padding), std::uint8_t{0});
  }
  return result;
}

TEST_P(RealignOnDevice, BitEqualToTheCpu) {
  const auto& [test, shape, format] = GetParam();
  testing::Machine& machine = testing::machine();
  const testing::DeviceBatch batch(test.cu_seqlens);
  const Source source(test, shape, batch.offsets);
  const Expected want(test, shape, format, batch.offsets, source);
  const std::int64_t width = test.num_heads * test.head_dim;
  const std::int64_t padded = test.head_dim + test.padding;
  const auto want_transposed =
      testing::transposed_copy(batch.offsets, widened(want.codes, test.head_dim, test.padding),
                               test.num_heads * padded, TokenOrder::kPi);

  const auto codes = machine.upload(std::span<const std::uint8_t>(source.codes));
  const auto scales = machine.upload(std::span<const std::uint8_t>(source.scales));
  const auto out_scales = machine.poisoned(want.scales.size());
  const auto transposed = machine.poisoned(want_transposed.size());
  const RealignCounters none;
  const auto counters = machine.upload(std::span<const RealignCounters>(&none, 1));
  const std::int64_t cols = mx::scale_cols(shape, test.head_dim);
  realign(machine.queue(),
          {.codes = codes.as<const std::uint8_t>(),
           .row_stride = width,
           .head_stride = test.head_dim,
           .scales = scales.as<const std::uint8_t>(),
           .scale_strides = {.row = test.num_heads * cols, .head = cols},
           .out = codes.as<std::uint8_t>(),
           .out_row_stride = width,
           .out_head_stride = test.head_dim,
           .out_scales = out_scales.as<std::uint8_t>(),
           .out_scale_strides = {.row = test.num_heads, .head = 1},
           .transposed = transposed.as<std::uint8_t>(),
           .order = TokenOrder::kPi,
           .counters = counters.as<RealignCounters>(),
           .offsets = batch.view,
           .num_heads = static_cast<std::int32_t>(test.num_heads),
           .head_dim = static_cast<std::int32_t>(test.head_dim),
           .transposed_head_dim = static_cast<std::int32_t>(padded),
           .block_shape = shape},
          format, batch.max_tiles());
  machine.synchronize();
  testing::expect_same(codes, want.codes, "codes", width);
  testing::expect_same(out_scales, want.scales, "scales");
  testing::expect_same(transposed, want_transposed, "transposed");
  const RealignCounters got = counters.download<RealignCounters>()[0];
  EXPECT_EQ(got.blocks, static_cast<unsigned long long>(want.report.blocks));
  EXPECT_EQ(got.blocks_shifted, static_cast<unsigned long long>(want.report.blocks_shifted));
  EXPECT_EQ(got.blocks_far, static_cast<unsigned long long>(want.report.blocks_far));
  EXPECT_EQ(got.values_flushed, static_cast<unsigned long long>(want.report.values_flushed));
  EXPECT_EQ(got.groups_poisoned, static_cast<unsigned long long>(want.report.groups_poisoned));
  EXPECT_EQ(got.max_shift, static_cast<unsigned long long>(want.report.max_shift));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RealignOnDevice,
    ::testing::Combine(::testing::Values(Case{"empty", {0, 0}}, Case{"one_row", {0, 1}, 2},
                                         Case{"tails", {0, 129, 129, 160, 161, 400}, 3},
                                         Case{"uniform", {0, 200}, 2, 64, 0},
                                         Case{"far", {0, 70, 200}, 1, 128, 90},
                                         Case{"poisoned", {0, 90, 300}, 2, 128, 8, true},
                                         Case{"narrow", {0, 40, 150}, 2, 40, 20, false, 24}),
                       ::testing::Values(BlockShape::k1x32, BlockShape::k32x1, BlockShape::k32x32,
                                         BlockShape::k32xD, BlockShape::k1xD),
                       ::testing::Values(DType::kE4M3, DType::kE5M2)),
    [](const auto& spec) {
      return std::string(std::get<0>(spec.param).name) + "_" +
             std::string(block_shape_name(std::get<1>(spec.param))) + "_" +
             std::string(dtype_name(std::get<2>(spec.param)));
    });

}  // namespace
}  // namespace mxfa::device
