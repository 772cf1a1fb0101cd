#include <gtest/gtest.h>

#include "support/device_batch.h"
#include "support/rng.h"

namespace mxfa::device {
namespace {

struct Case {
  const char* name;
  std::vector<std::int32_t> cu_seqlens;
  std::int64_t num_heads;
  std::int64_t head_dim;
  friend std::ostream& operator<<(std::ostream& out, const Case& value) {
    return out << value.name;
  }
};
using Param = std::tuple<Case, BlockShape, ScaleAxis>;

class JaggedScales : public ::testing::TestWithParam<Param> {};

// Strides of the compact scales are not those of a packed tensor: heads vary slowest.
TEST_P(JaggedScales, TileClearAndUntileAreTheCpus) {
  const auto& [test, shape, axis] = GetParam();
  if (!mx::tiles_along(shape, axis)) return;
  const testing::DeviceBatch batch(test.cu_seqlens);
  const std::int64_t rows = batch.offsets.scale_rows_total(shape);
  const std::int64_t cols = mx::scale_cols(shape, test.head_dim);
  std::vector<std::uint8_t> compact(static_cast<std::size_t>(rows * cols * test.num_heads));
  testing::Rng rng(1);
  for (std::uint8_t& scale : compact) scale = static_cast<std::uint8_t>(rng.integer(1, 254));
  const std::int64_t tiles = batch.offsets.tiles.back() + 2;  // two behind the last sequence
  const std::int64_t head_bytes = tiles * mx::tile_bytes(test.head_dim);
  std::vector<std::uint8_t> tiled(static_cast<std::size_t>(head_bytes * test.num_heads));
  for (std::int64_t s = 0; s < batch.offsets.batch(); ++s) {
    for (std::int64_t h = 0; h < test.num_heads; ++h) {
      mx::tile_scales(batch.offsets, {s, h}, {compact.data(), shape, cols, rows * cols, 1},
                      {tiled.data(), axis, test.head_dim, head_bytes});
    }
  }
  testing::Machine& machine = testing::machine();
  const auto compact_d = machine.upload(std::span<const std::uint8_t>(compact));
  const auto tiled_d = machine.poisoned(tiled.size());
  const auto back_d = machine.poisoned(compact.size());
  TileScalesParams params{.compact = compact_d.as<std::uint8_t>(),
                          .row_stride = cols,
                          .head_stride = rows * cols,
                          .tiled = tiled_d.as<std::uint8_t>(),
                          .head_bytes = head_bytes,
                          .offsets = batch.view,
                          .num_heads = static_cast<std::int32_t>(test.num_heads),
                          .head_dim = static_cast<std::int32_t>(test.head_dim),
                          .block_shape = shape,
                          .axis = axis};
  tile_scales(machine.queue(), params, batch.max_tiles());
  clear_tiles_behind(machine.queue(), params, tiles);
  params.compact = back_d.as<std::uint8_t>();
  untile_scales(machine.queue(), params, batch.max_tiles());
  machine.synchronize();
  batch.expect_offsets();
  testing::expect_same(tiled_d, tiled, "tiled");
  testing::expect_same(back_d, compact, "compact again");
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, JaggedScales,
    ::testing::Combine(
        ::testing::Values(Case{"empty", {0, 0}, 1, 128}, Case{"one_row", {0, 1}, 2, 32},
                          Case{"tails", {0, 129, 129, 160, 161, 500}, 3, 128},
                          Case{"narrow", {0, 70, 200}, 2, 40},
                          Case{"wide", {0, 300, 300, 333}, 1, 320},
                          Case{"many", testing::Rng(3).cu_seqlens(1500, 0, 40), 1, 64}),
        ::testing::Values(BlockShape::k1x32, BlockShape::k32x1, BlockShape::k32x32,
                          BlockShape::k32xD, BlockShape::k1xD),
        ::testing::Values(ScaleAxis::kHeadDim, ScaleAxis::kTokens)),
    [](const auto& spec) {
      return std::string(std::get<0>(spec.param).name) + "_" +
             std::string(block_shape_name(std::get<1>(spec.param))) + "_" +
             std::string(scale_axis_name(std::get<2>(spec.param)));
    });

}  // namespace
}  // namespace mxfa::device
