#include "cpu/rmsnorm_quantize.h"

#include <algorithm>
#include <cmath>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "core/check.h"
#include "core/parallel.h"
#include "cpu/kernels.h"
#include "mx/convert.h"
#include "mx/row_sum.h"
#include "mx/scale_layout.h"

namespace mxfa::cpu {
namespace {

constexpr std::int64_t kTileGroups = mx::kAtomRows / kScaleBlock;
/// Outputs that do not stay in a cache until they are read are written past them.
constexpr std::int64_t kStreamBytes = std::int64_t{8} << 20;

/// One call's work, in tiles of 128 rows: atoms of both orientations are written whole.
class NormQuantizer {
 public:
  NormQuantizer(std::span<const std::uint16_t> x, std::span<const float> weight, float eps,
                const RmsNormQuantizeOutputs& outputs)
      : x_(x),
        weight_(weight),
        eps_(eps),
        outputs_(outputs),
        dim_(std::ssize(weight)),
        rows_(std::ssize(x) / dim_),
        along_dim_{rows_, dim_ / kScaleBlock},
        along_rows_{dim_, (rows_ + kScaleBlock - 1) / kScaleBlock},
        stream_(std::ssize(outputs.codes) > kStreamBytes && dim_ % kLine == 0 &&
                reinterpret_cast<std::uintptr_t>(outputs.codes.data()) % kLine == 0) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t tiles() const { return along_dim_.row_atoms(); }
  std::int64_t bytes_dim() const { return along_dim_.size_bytes(); }
  std::int64_t bytes_rows() const { return along_rows_.size_bytes(); }

  void run(std::int64_t tile) const {
    const std::int64_t blocks = along_dim_.k_atoms() * mx::kAtomCols;
    std::uint8_t scales[kTileGroups * kMostBlocks];
    std::fill_n(scales, kTileGroups * blocks, std::uint8_t{0});
    for (std::int64_t g = 0; g < kTileGroups; ++g) {
      const std::int64_t first = tile * mx::kAtomRows + g * kScaleBlock;
      if (first < rows_) quantize_group(first, scales + g * blocks);
    }
    write_scales(tile, scales, blocks);
  }
  /// Streamed stores of this thread reach memory before what it does next.
  void finish() const {
#if defined(__x86_64__)
    if (stream_) _mm_sfence();  // elsewhere no kernel streams
#endif
  }

 private:
  static constexpr std::int64_t kMostBlocks = mx::row_sum::kMaxColumns / kScaleBlock;
  static constexpr std::int64_t kLine = 64;

  void quantize_group(std::int64_t first, std::uint8_t* scales) const {
    const Kernels& kernel = kernels();
    const std::int64_t count = std::min<std::int64_t>(kScaleBlock, rows_ - first);
    for (std::int64_t r = first; r < first + count; ++r) {
      const float sum = kernel.sum_squares_bf16(x_.data() + r * dim_, dim_);
      outputs_.rstd[static_cast<std::size_t>(r)] =
          1.0f / std::sqrt(sum / static_cast<float>(dim_) + eps_);
    }
    const bool more = first + 2 * kScaleBlock <= rows_;
    for (std::int64_t col = 0; col < dim_; col += kLine) {
      const std::uint16_t* const x = x_.data() + first * dim_ + col;
      const bool two = col + kLine <= dim_;
      kernel.norm_squares({.rows = count,
                           .squares = two ? 2 : 1,
                           .x = x,
                           .ld = dim_,
                           .rstd = outputs_.rstd.data() + first,
                           .weight = weight_.data() + col,
                           .codes = outputs_.codes.data() + first * dim_ + col,
                           .scales = scales + col / kScaleBlock,
                           .stream = stream_ && two,
                           .ahead = more ? x + kScaleBlock * dim_ : nullptr});
    }
  }

  /// Every byte of a tile's atoms from `scales` [4 groups, blocks], 0 in padding. An atom is 16
  /// bytes for each of 32 rows, the same where all rows exist.
  void write_scales(std::int64_t tile, const std::uint8_t* scales, std::int64_t blocks) const {
    constexpr std::int64_t kRowBytes = 16;
    const std::int64_t real = rows_ - tile * mx::kAtomRows;
    for (std::int64_t first = 0; first < blocks; first += mx::kAtomCols) {
      std::uint8_t by_dim[kRowBytes], by_rows[kRowBytes];
      for (std::int64_t g = 0; g < kTileGroups; ++g) {
        for (std::int64_t b = 0; b < mx::kAtomCols; ++b) {
          by_dim[g * 4 + b] = by_rows[b * 4 + g] = scales[g * blocks + first + b];
        }
      }
      std::uint8_t* const dim_atom =
          outputs_.scales_dim.data() + along_dim_.offset(tile * mx::kAtomRows, first);
      std::uint8_t* const rows_atom =
          outputs_.scales_rows.data() + along_rows_.offset(first * kScaleBlock, tile * kTileGroups);
      for (std::int64_t r = 0; r < kScaleBlock; ++r) {
        std::copy_n(by_dim, kRowBytes, dim_atom + r * kRowBytes);
        std::copy_n(by_rows, kRowBytes, rows_atom + r * kRowBytes);
      }
      for (std::int64_t row = std::max<std::int64_t>(real, 0); row < mx::kAtomRows; ++row) {
        std::fill_n(dim_atom + mx::byte_in_atom(static_cast<int>(row), 0), mx::kAtomCols,
                    std::uint8_t{0});
      }
    }
  }

  std::span<const std::uint16_t> x_;
  std::span<const float> weight_;
  float eps_;
  const RmsNormQuantizeOutputs& outputs_;
  std::int64_t dim_, rows_;
  mx::TiledScaleLayout along_dim_, along_rows_;
  bool stream_;
};

}  // namespace

void rmsnorm_quantize(std::span<const std::uint16_t> x, std::span<const std::uint16_t> weight,
                      float eps, const RmsNormQuantizeOutputs& outputs) {
  const auto dim = static_cast<std::int64_t>(weight.size());
  core::expect(dim > 0 && dim % kScaleBlock == 0 && dim <= mx::row_sum::kMaxColumns, "weight",
               core::later("a multiple of 32 up to {} values", mx::row_sum::kMaxColumns), dim);
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / dim;
  core::expect(rows * dim == static_cast<std::int64_t>(x.size()), "x",
               core::later("whole rows of {}", dim), x.size());
  std::vector<float> weights(static_cast<std::size_t>(dim));
  mx::decode_bf16_row(weight.data(), weights.data(), dim);
  const NormQuantizer quantizer(x, weights, eps, outputs);
  const auto expect_size = [](std::int64_t got, std::int64_t want, std::string_view name) {
    core::expect(got == want, name, want, got);
  };
  expect_size(std::ssize(outputs.codes), rows * dim, "codes");
  expect_size(std::ssize(outputs.scales_dim), quantizer.bytes_dim(), "scales_dim");
  expect_size(std::ssize(outputs.scales_rows), quantizer.bytes_rows(), "scales_rows");
  expect_size(std::ssize(outputs.rstd), rows, "rstd");
  constexpr std::int64_t kChunkTiles = 2;
  const std::int64_t tiles = quantizer.tiles();
  core::parallel_for((tiles + kChunkTiles - 1) / kChunkTiles, [&](std::int64_t chunk) {
    const std::int64_t end = std::min(tiles, (chunk + 1) * kChunkTiles);
    for (std::int64_t tile = chunk * kChunkTiles; tile < end; ++tile) quantizer.run(tile);
    quantizer.finish();
  });
}

}  // namespace mxfa::cpu
