#include "mx/jagged_scale.h"

#include <algorithm>

#include "core/check.h"
#include "core/seqlens.h"

namespace mxfa::mx {
namespace {

JaggedOffsets count_groups(std::vector<std::int64_t> tokens) {
  JaggedOffsets offsets{.tokens = std::move(tokens), .groups = {0}, .tiles = {0}};
  for (std::int64_t s = 0; s < offsets.batch(); ++s) {
    const std::int64_t seqlen = offsets.seqlen(s);
    offsets.groups.push_back(offsets.groups[s] + ceil_div(seqlen, kScaleBlock));
    offsets.tiles.push_back(offsets.tiles[s] + ceil_div(seqlen, kAtomRows));
  }
  return offsets;
}

}  // namespace

JaggedOffsets make_jagged_offsets(std::span<const std::int32_t> cu_seqlens, std::int64_t total,
                                  std::string_view name) {
  core::check_cu_seqlens(cu_seqlens, name, total);
  return count_groups({cu_seqlens.begin(), cu_seqlens.end()});
}

JaggedOffsets make_single_sequence(std::int64_t total) { return count_groups({0, total}); }

void check_scale_axis(BlockShape shape, ScaleAxis axis) {
  if (tiles_along(shape, axis)) return;
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("scale axis: {} scales cannot be tiled along {}", block_shape_name(shape),
                          scale_axis_name(axis)));
}

void tile_scales(const JaggedOffsets& offsets, SequenceHead which,
                 const CompactScales<const std::uint8_t>& compact,
                 const TiledScales<std::uint8_t>& tiled) {
  check_scale_axis(compact.shape, tiled.axis);
  const auto [sequence, head] = which;
  const bool rows_are_tokens = tiled.axis == ScaleAxis::kHeadDim;
  const TiledScaleLayout layout =
      sequence_layout(tiled.axis, offsets.seqlen(sequence), tiled.head_dim);
  std::uint8_t* base = tiled.data + tiled.offset(head, offsets.tiles[sequence]);
  std::fill(base, base + layout.size_bytes(), std::uint8_t{0});
  for (std::int64_t row = 0; row < layout.rows; ++row) {
    for (std::int64_t k_block = 0; k_block < layout.k_blocks; ++k_block) {
      const std::int64_t token = rows_are_tokens ? row : k_block * kScaleBlock;
      const std::int64_t col = rows_are_tokens ? k_block * kScaleBlock : row;
      base[layout.offset(row, k_block)] =
          compact.at(offsets.scale_row(compact.shape, sequence, token), head, col);
    }
  }
}

void untile_scales(const JaggedOffsets& offsets, SequenceHead which,
                   const TiledScales<const std::uint8_t>& tiled,
                   const CompactScales<std::uint8_t>& compact) {
  check_scale_axis(compact.shape, tiled.axis);
  const auto [sequence, head] = which;
  const bool rows_are_tokens = tiled.axis == ScaleAxis::kHeadDim;
  const std::int64_t seqlen = offsets.seqlen(sequence);
  const TiledScaleLayout layout = sequence_layout(tiled.axis, seqlen, tiled.head_dim);
  const std::uint8_t* base = tiled.data + tiled.offset(head, offsets.tiles[sequence]);
  const int width = block_cols(compact.shape);
  const std::int64_t col_step = width == 0 ? std::max<std::int64_t>(tiled.head_dim, 1) : width;
  for (std::int64_t token = 0; token < seqlen; token += block_rows(compact.shape)) {
    const std::int64_t scale_row = offsets.scale_row(compact.shape, sequence, token);
    for (std::int64_t col = 0; col < tiled.head_dim; col += col_step) {
      compact.at(scale_row, head, col) = rows_are_tokens
                                             ? base[layout.offset(token, col / kScaleBlock)]
                                             : base[layout.offset(col, token / kScaleBlock)];
    }
  }
}

}  // namespace mxfa::mx
