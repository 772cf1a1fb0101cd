#include "cpu/ds_rounding.h"

#include <algorithm>
#include <cmath>

#include "cpu/operand.h"
#include "mx/bits.h"
#include "mx/e8m0.h"

namespace mxfa::cpu {
namespace {

std::uint8_t scale_of(std::uint32_t amax_bits, ScaleRule rule) {
  return mx::scale_from_amax<mx::E4M3>(mx::bits_float(amax_bits), rule);
}

/// Powers of two relative to `anchor`. Returns whether any differs from 1.
bool fill_folds(const int* exponents, std::int64_t count, int anchor, int least, float* fold,
                float* unfold) {
  bool any = false;
  for (std::int64_t i = 0; i < count; ++i) {
    // A block of zeros folds nothing: its products are zero, and what it shares a payload with must
    // not shrink.
    const int relative =
        exponents[i] == -mx::kE8M0Bias ? 0 : std::max(exponents[i] - anchor, least);
    fold[i] = power_of_two(relative);
    unfold[i] = power_of_two(-relative);
    any = any || relative != 0;
  }
  return any;
}

}  // namespace

void DsRounding::round_squares(const Kernels& kernels, const RoundTile& tile,
                               TokenExponents exponents, std::optional<DsAnchors> anchors,
                               ScaleRule rule) {
  constexpr int kLeast = -100;
  RoundTile square = tile;
  if (anchors) {
    fill_folds(exponents.q, tile.cols, anchors->q, kLeast, col_fold_.data(), col_unfold_.data());
    fill_folds(exponents.k, tile.rows, anchors->k, kLeast, row_fold_.data(), row_unfold_.data());
  }
  square.rows = square.cols = kSquare;
  square.saturates = rule == ScaleRule::kFloor;
  for (std::int64_t row = 0; row < tile.rows; row += kSquare) {
    for (std::int64_t col = 0; col < tile.cols; col += kSquare) {
      square.values = tile.values + row * tile.ld + col;
      square.out = tile.out + tile.out_layout.at(row, col);
      square.pairs = tile.pairs + row * tile.pair_ld + col * 2;
      if (anchors) {
        square.row_fold = row_fold_.data() + row;
        square.row_unfold = row_unfold_.data() + row;
        square.col_fold = col_fold_.data() + col;
        square.col_unfold = col_unfold_.data() + col;
      }
      const std::uint8_t scale = scale_of(kernels.magnitude(square), rule);
      square.inverse = mx::inverse_e8m0(scale);
      square.scale = mx::decode_e8m0(scale);
      kernels.round(square);
    }
  }
}

void DsRounding::round_warps(const Kernels& kernels, const RoundTile& tile, std::int64_t first,
                             TokenExponents exponents, ScaleRule rule) {
  constexpr int kLeast = -126;
  const int q_top = *std::max_element(exponents.q, exponents.q + tile.cols);
  RoundTile warp = tile;
  warp.rows = kWarpKeys;
  warp.saturates = rule == ScaleRule::kFloor;
  warp.pairs = nullptr;
  if (fill_folds(exponents.q, tile.cols, q_top, kLeast, col_fold_.data(), col_unfold_.data())) {
    warp.col_fold = col_fold_.data();
    warp.col_unfold = col_unfold_.data();
  }
  for (std::int64_t row = 0; row < tile.rows; row += kWarpKeys) {
    warp.values = tile.values + row * tile.ld;
    warp.out = tile.out + tile.out_layout.at(row);
    const std::uint32_t amax = kernels.magnitude(warp);
    const std::uint8_t scale = scale_of(amax, rule);
    const bool nan = scale == mx::kE8M0Nan;
    int& exponent = warp_exponents_[static_cast<std::size_t>((first + row) / kWarpKeys)];
    if (amax > 0 && !nan) exponent = std::max(exponent, scale_exponent(scale) + q_top);
    const int shift = exponent == kNoExponent ? 0 : exponent - q_top;
    warp.inverse = nan ? std::nanf("") : power_of_two(-shift);
    warp.scale = power_of_two(shift);
    kernels.round(warp);
  }
  RoundTile part = tile;
  part.out = nullptr;
  part.saturates = rule == ScaleRule::kFloor;
  const bool folds = fill_folds(exponents.k, tile.rows, exponents.k_top, kLeast, row_fold_.data(),
                                row_unfold_.data());
  for (std::int64_t row = 0; row < tile.rows; row += kDqKeys) {
    part.rows = std::min(kDqKeys, tile.rows - row);
    part.values = tile.values + row * tile.ld;
    part.pairs = tile.pairs + row * tile.pair_ld;
    if (folds) {
      part.row_fold = row_fold_.data() + row;
      part.row_unfold = row_unfold_.data() + row;
    }
    const std::uint8_t scale = scale_of(kernels.magnitude(part), rule);
    part.inverse = mx::inverse_e8m0(scale);
    part.scale = mx::decode_e8m0(scale);
    kernels.round(part);
  }
}

}  // namespace mxfa::cpu
