#include "cpu/rmsnorm_quantize.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/check.h"
#include "core/parallel.h"
#include "cpu/kernels.h"
#include "mx/convert.h"
#include "mx/row_sum.h"
#include "mx/scale_layout.h"

namespace mxfa::cpu {
namespace {

class TileWriter {
 public:
  TileWriter(std::int64_t rows, std::int64_t dim, const RmsNormQuantizeOutputs& outputs)
      : rows_(rows),
        along_dim_{rows, dim / kScaleBlock},
        along_rows_{dim, (rows + kScaleBlock - 1) / kScaleBlock},
        outputs_(outputs) {}

  /// Every byte of both orientations' atoms of one group of 32 rows; `scales` empty for a group
  /// that lies past the matrix. All rows of a group have the same four bytes of an atom.
  void write(std::int64_t group, std::span<const std::uint8_t> scales) const {
    const auto scale_of = [&](std::int64_t square) -> std::uint8_t {
      return square < std::ssize(scales) ? scales[static_cast<std::size_t>(square)] : 0;
    };
    constexpr int kRowBytes = 16;  // from one row of a group to the next
    const std::int64_t first = group * kScaleBlock;
    const std::int64_t real = std::clamp<std::int64_t>(rows_ - first, 0, kScaleBlock);
    for (std::int64_t block = 0; block < along_dim_.k_atoms() * mx::kAtomCols; ++block) {
      std::uint8_t* const out = outputs_.scales_dim.data() + along_dim_.offset(first, block);
      const std::uint8_t scale = scale_of(block);
      for (std::int64_t r = 0; r < kScaleBlock; ++r) out[r * kRowBytes] = r < real ? scale : 0;
    }
    for (std::int64_t square = 0; square < along_rows_.row_atoms() * mx::kAtomCols; ++square) {
      std::uint8_t* const out =
          outputs_.scales_rows.data() + along_rows_.offset(square * kScaleBlock, group);
      const std::uint8_t scale = scale_of(square);
      for (std::int64_t c = 0; c < kScaleBlock; ++c) out[c * kRowBytes] = scale;
    }
  }
  std::int64_t padded_groups() const { return along_rows_.k_atoms() * mx::kAtomCols; }
  std::int64_t bytes_dim() const { return along_dim_.size_bytes(); }
  std::int64_t bytes_rows() const { return along_rows_.size_bytes(); }

 private:
  std::int64_t rows_;
  mx::TiledScaleLayout along_dim_;
  mx::TiledScaleLayout along_rows_;
  const RmsNormQuantizeOutputs& outputs_;
};

}  // namespace

void rmsnorm_quantize(std::span<const std::uint16_t> x, std::span<const std::uint16_t> weight,
                      float eps, const RmsNormQuantizeOutputs& outputs) {
  const auto dim = static_cast<std::int64_t>(weight.size());
  core::expect(dim > 0 && dim % kScaleBlock == 0 && dim <= mx::row_sum::kMaxColumns, "weight",
               fmt::format("a multiple of 32 up to {} values", mx::row_sum::kMaxColumns),
               core::text(dim));
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / dim;
  core::expect(rows * dim == static_cast<std::int64_t>(x.size()), "x",
               fmt::format("whole rows of {}", dim), std::to_string(x.size()));
  const TileWriter writer(rows, dim, outputs);
  const auto expect_size = [](std::int64_t got, std::int64_t want, std::string_view name) {
    core::expect(got == want, name, core::text(want), core::text(got));
  };
  expect_size(std::ssize(outputs.codes), rows * dim, "codes");
  expect_size(std::ssize(outputs.scales_dim), writer.bytes_dim(), "scales_dim");
  expect_size(std::ssize(outputs.scales_rows), writer.bytes_rows(), "scales_rows");
  expect_size(std::ssize(outputs.rstd), rows, "rstd");
  std::vector<float> weights(static_cast<std::size_t>(dim));
  mx::decode_bf16_row(weight.data(), weights.data(), dim);
  const auto quantize_group = [&](std::int64_t group) {
    const std::int64_t first = group * kScaleBlock;
    const std::int64_t count = std::min<std::int64_t>(kScaleBlock, rows - first);
    if (count <= 0) return writer.write(group, {});
    for (std::int64_t r = first; r < first + count; ++r) {
      const float mean =
          kernels().sum_squares_bf16(x.data() + r * dim, dim) / static_cast<float>(dim);
      outputs.rstd[r] = 1.0f / std::sqrt(mean + eps);
    }
    std::uint8_t scales_data[mx::row_sum::kMaxColumns / kScaleBlock];
    const std::span scales(scales_data, static_cast<std::size_t>(dim / kScaleBlock));
    for (std::int64_t col = 0; col < dim; col += kScaleBlock) {
      scales[static_cast<std::size_t>(col / kScaleBlock)] =
          kernels().norm_square({.rows = count,
                                 .x = x.data() + first * dim + col,
                                 .ld = dim,
                                 .rstd = outputs.rstd.data() + first,
                                 .weight = weights.data() + col,
                                 .codes = outputs.codes.data() + first * dim + col});
    }
    writer.write(group, scales);
  };
  constexpr std::int64_t kChunkGroups = 8;
  const std::int64_t groups = writer.padded_groups();
  core::parallel_for((groups + kChunkGroups - 1) / kChunkGroups, [&](std::int64_t chunk) {
    const std::int64_t end = std::min(groups, (chunk + 1) * kChunkGroups);
    for (std::int64_t group = chunk * kChunkGroups; group < end; ++group) quantize_group(group);
  });
}

}  // namespace mxfa::cpu
