#include <algorithm>
#include <cmath>
#include <span>

#include "reference/recipe/backward.h"

/// dV and dK summed in half. Of dV nothing is looked at: what 512 queries can add fits half
/// (docs/numerics.md). dK is looked at as often, and a warp's exponent rises where it nears the
/// end.
namespace mxfa::reference::recipe::internal {
namespace {

/// Sums of one key tile, in half and what has left it.
struct HalfSums {
  Matrix<float> acc, sum;

  HalfSums(std::int64_t keys, std::int64_t dim) : acc(keys, dim), sum(keys, dim) {}
  void promote() {
    for (std::size_t i = 0; i < acc.data.size(); ++i) sum.data[i] += acc.data[i];
    std::ranges::fill(acc.data, 0.0f);
  }
  void add(const mx::MmaPanel& a, const mx::MmaPanel& b, const mx::MmaTile& tile) {
    mx::tensor_core_gemm(a, b, tile, mx::kHopperFp8HalfAccumulator, acc.data.data(), acc.cols);
  }
  /// Of one warp's keys.
  std::span<float> rows(Matrix<float>& of, std::int64_t group) const {
    const std::int64_t first = group * kWarpKeys;
    const std::int64_t count = std::min(kWarpKeys, acc.rows - first);
    return {of.row(first).data(), static_cast<std::size_t>(count * acc.cols)};
  }
  float largest(std::int64_t group) {
    float most = 0;
    for (const float value : rows(acc, group)) most = std::max(most, std::fabs(value));
    return most;
  }
  void scale(std::int64_t group, int exponent) {
    for (Matrix<float>* of : {&acc, &sum}) {
      const std::span<float> values = rows(*of, group);
      scale_row(values.data(), exponent, values.data(), std::ssize(values));
    }
    const std::span<float> values = rows(acc, group);
    round_f16_row(values.data(), std::ssize(values));
  }
};

}  // namespace

void BackwardRun::half_dv(const KeyTile& tile) {
  mx::MmaPanel panel = p_panel(tile);
  mx::prepare_aligned(panel);
  HalfSums sums(tile.keys, dim_);
  const std::int64_t step = config_.backward_tile_m;
  for (std::int64_t row = tile.row0; row < tile.row1; row += step) {
    if (row % config_.promote_queries == 0) sums.promote();
    sums.add(panel, dout_,
             {.m = tile.keys,
              .n = dim_,
              .depth = std::min(step, seqlen_q_ - row),
              .a_depth = row,
              .b_depth = row});
  }
  sums.promote();
  for (std::int64_t j = 0; j < tile.keys; ++j) {
    for (std::int64_t c = 0; c < dim_; ++c) {
      out_.dv(tile.key0 + j, c) = folded(sums.sum(j, c), rows_.anchor);
    }
  }
}

void BackwardRun::half_dk(const KeyTile& tile) {
  std::vector<int> exponents(static_cast<std::size_t>(mx::ceil_div(tile.keys, kWarpKeys)),
                             kNoExponent);
  HalfSums sums(tile.keys, dim_);
  const std::int64_t step = config_.backward_tile_m;
  for (std::int64_t row0 = tile.row0; row0 < tile.row1; row0 += step) {
    const std::int64_t rows = std::min(step, seqlen_q_ - row0);
    mx::MmaPanel payload(tile.keys, rows);
    if (row0 % config_.promote_dk_queries == 0) sums.promote();
    for (std::int64_t group = 0; group < std::ssize(exponents); ++group) {
      const int old = exponents[group];
      const bool nears_end =
          row0 % config_.promote_queries == 0 && sums.largest(group) > kHalfSumsMostDk;
      const int least = nears_end ? old + kHalfSumsShrink : old;
      exponents[group] = warp_payload(tile, row0, group, least, payload);
      if (old == kNoExponent || exponents[group] == old) continue;
      ++out_.ds_rescales;
      sums.scale(group, old - exponents[group]);
    }
    mx::prepare_aligned(payload);
    sums.add(payload, q_, {.m = tile.keys, .n = dim_, .depth = rows, .b_depth = row0});
  }
  sums.promote();
  for (std::int64_t j = 0; j < tile.keys; ++j) {
    const int exponent = exponents[j / kWarpKeys];
    store_dk(tile.key0 + j, sums.sum.row(j).data(), softmax_scale_,
             exponent == kNoExponent ? 0 : exponent);
  }
}

}  // namespace mxfa::reference::recipe::internal
