#include "cpu/rmsnorm_quantize.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/check.h"
#include "core/parallel.h"
#include "cpu/kernels.h"
#include "mx/convert.h"
#include "mx/quantize.h"
#include "mx/row_sum.h"
#include "mx/scale_layout.h"

namespace mxfa::cpu {
namespace {

class TileWriter {
 public:
  TileWriter(std::int64_t rows, std::int64_t dim, const RmsNormQuantizeOutputs& outputs)
      : rows_(rows),
        dim_(dim),
        along_dim_{rows, dim / kScaleBlock},
        along_rows_{dim, (rows + kScaleBlock - 1) / kScaleBlock},
        outputs_(outputs) {}

  /// Every byte of both orientations' atoms of one group of 32 rows; `scales` empty for a group
  /// that lies past the matrix.
  void write(std::int64_t group, std::span<const std::uint8_t> scales) const {
    const auto scale_of = [&](std::int64_t row, std::int64_t column) -> std::uint8_t {
      if (scales.empty() || row >= rows_ || column >= dim_) return 0;
      return scales[static_cast<std::size_t>(column / kScaleBlock)];
    };
    for (std::int64_t row = group * kScaleBlock; row < (group + 1) * kScaleBlock; ++row) {
      for (std::int64_t block = 0; block < along_dim_.k_atoms() * mx::kAtomCols; ++block) {
        outputs_.scales_dim[along_dim_.offset(row, block)] = scale_of(row, block * kScaleBlock);
      }
    }
    const std::int64_t padded_dim = along_rows_.row_atoms() * mx::kAtomRows;
    for (std::int64_t column = 0; column < padded_dim; ++column) {
      outputs_.scales_rows[along_rows_.offset(column, group)] =
          scale_of(group * kScaleBlock, column);
    }
  }
  std::int64_t padded_groups() const { return along_rows_.k_atoms() * mx::kAtomCols; }
  std::int64_t bytes_dim() const { return along_dim_.size_bytes(); }
  std::int64_t bytes_rows() const { return along_rows_.size_bytes(); }

 private:
  std::int64_t rows_;
  std::int64_t dim_;
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
  core::parallel_for(writer.padded_groups(), [&](std::int64_t group) {
    const std::int64_t first = group * kScaleBlock;
    const std::int64_t count = std::min<std::int64_t>(kScaleBlock, rows - first);
    if (count <= 0) return writer.write(group, {});
    std::vector<float> y(static_cast<std::size_t>(count * dim));
    for (std::int64_t r = 0; r < count; ++r) {
      float* const row = y.data() + r * dim;
      mx::decode_bf16_row(x.data() + (first + r) * dim, row, dim);
      const float mean = kernels().sum_squares(row, dim) / static_cast<float>(dim);
      const float rstd = 1.0f / std::sqrt(mean + eps);
      outputs.rstd[first + r] = rstd;
      kernels().normalize(row, rstd, weights.data(), row, dim);
    }
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(dim / kScaleBlock));
    mx::RowGroupQuantizer({.block_shape = BlockShape::k32x32}, dim)
        .run(y.data(), dim, static_cast<int>(count), outputs.codes.data() + first * dim, dim,
             scales.data());
    writer.write(group, scales);
  });
}

}  // namespace mxfa::cpu
