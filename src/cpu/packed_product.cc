#include "cpu/packed_product.h"

#include <algorithm>

#include "core/check.h"
#include "cpu/operand.h"

namespace mxfa::cpu {

LeftBlock read_left(const MatrixReader& a, Part rows, Part depths, GemmScratch& scratch) {
  std::uint16_t* const plain = scratch.plain.reserve(rows.count * depths.count);
  if (!a.transposed()) {
    a.read({rows.first, rows.count, depths.first, depths.count}, plain, depths.count);
    return {plain, LeftLayout::rows(depths.count), 2};
  }
  std::uint16_t* const packed = scratch.packed.reserve(rows.count * depths.count);
  a.read({depths.first, depths.count, rows.first, rows.count}, plain, rows.count);
  for (std::int64_t k = 0; k < depths.count; k += 2) {
    const std::uint16_t* even = plain + k * rows.count;
    kernels().interleave(even, even + rows.count, packed + k * rows.count, rows.count);
  }
  // Pairs of a row lie apart, and those of adjacent rows together.
  const std::int64_t pair = 2 * rows.count;
  return {packed, {2, 2 * kTile, kTileDepth / 2 * pair}, pair};
}

void read_right(const MatrixReader& b, Part depths, Part cols, Buffer<std::uint16_t>& plain,
                std::uint16_t* panels) {
  std::uint16_t* const rows = plain.reserve(cols.count * depths.count);
  if (b.transposed()) {
    b.read({cols.first, cols.count, depths.first, depths.count}, rows, depths.count);
    pack_columns(kernels(), rows, depths.count, cols.count, depths.count, panels);
  } else {
    b.read({depths.first, depths.count, cols.first, cols.count}, rows, cols.count);
    pack_rows(kernels(), rows, cols.count, depths.count, cols.count, panels, depths.count * kPanel);
  }
}

Extents extents(const MatrixReader& a, const MatrixReader& b) {
  const std::int64_t k = a.transposed() ? a.rows() : a.cols();
  const std::int64_t k_b = b.transposed() ? b.cols() : b.rows();
  core::expect(k == k_b, "b", core::later("{} values along the sum, as a", k), k_b);
  return {a.transposed() ? a.cols() : a.rows(), b.transposed() ? b.rows() : b.cols(), k};
}

PackedRight::PackedRight(const MatrixReader& b, std::int64_t n, std::int64_t k)
    : n_(round_up(n, kPanel)), k_(round_up(k, 2)), panels_(n_ * std::max<std::int64_t>(k_, 2)) {
  const std::int64_t columns = n_ / kPanel;
  const std::int64_t depths = mx::ceil_div(k_, kGemmDepth);
  for_each_unit<GemmScratch>(columns * depths, [&](GemmScratch& scratch, std::int64_t i) {
    const std::int64_t depth = i / columns * kGemmDepth;
    const std::int64_t col = i % columns * kPanel;
    const std::int64_t count = std::min(kGemmDepth, k_ - depth);
    read_right(b, {depth, count}, {col, kPanel}, scratch.plain,
               panels_.data() + depth * n_ + col * count);
  });
}

void PackedRight::multiply(const MatrixReader& a, Part rows, GemmScratch& scratch) {
  float* const sums = scratch.sums.reserve(rows.count * n_);
  if (k_ == 0) std::fill_n(sums, rows.count * n_, 0.0f);
  for (std::int64_t depth = 0; depth < k_; depth += kGemmDepth) {
    const std::int64_t count = std::min(kGemmDepth, k_ - depth);
    const LeftBlock left = read_left(a, rows, {depth, count}, scratch);
    kernels().product({.m = rows.count,
                       .n = n_,
                       .k = count,
                       .a = left.data,
                       .a_layout = left.layout,
                       .a_pair = left.pair_stride,
                       .b = panels_.data() + depth * n_,
                       .b_panel = count * kPanel,
                       .c = sums,
                       .c_layout = SumLayout::rows(n_),
                       .accumulate = depth > 0});
  }
}

}  // namespace mxfa::cpu
