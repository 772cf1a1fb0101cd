#include "cpu/gemm.h"

#include <algorithm>
#include <functional>

#include "core/check.h"
#include "core/parallel.h"
#include "cpu/attention_tiles.h"
#include "cpu/packed_product.h"
#include "mx/bits.h"

namespace mxfa::cpu {
namespace {

constexpr std::int64_t kLongDepth = 8192;  // from here on the sum is cut among threads

void store_row(const TensorView& c, std::int64_t row, const float* sums, float scale,
               bool accumulate) {
  const std::int64_t n = c.shape[1];
  if (c.dtype == DType::kF32) {
    float* to = static_cast<float*>(c.data) + row * c.strides[0];
    for (std::int64_t j = 0; j < n; ++j) {
      float& value = to[j * c.strides[1]];
      value = accumulate ? value + sums[j] * scale : sums[j] * scale;
    }
    return;
  }
  auto* to = static_cast<std::uint16_t*>(c.data) + row * c.strides[0];
  for (std::int64_t j = 0; j < n; ++j) to[j * c.strides[1]] = mx::encode_bf16(sums[j] * scale);
}

/// A sum over very many rows: chunks of it in parallel, then added in ascending order. The cut
/// depends on the shape alone.
class SplitProduct {
 public:
  SplitProduct(const MatrixReader& a, const MatrixReader& b, Extents size)
      : a_(a), b_(b), size_(size), n_(round_up(size.n, kPanel)) {
    constexpr std::int64_t kMostChunks = 64;
    constexpr std::int64_t kMostElems = std::int64_t{1} << 26;  // 256 MB of partial sums
    const std::int64_t fitting =
        std::max<std::int64_t>(1, kMostElems / std::max<std::int64_t>(1, size.m * n_));
    const std::int64_t chunks =
        std::min({kMostChunks, fitting, mx::ceil_div(size.k, kLongDepth / 2)});
    step_ = round_up(mx::ceil_div(size.k, chunks), kGemmDepth);
    chunks_ = mx::ceil_div(size.k, step_);
  }

  void run(const std::function<void(std::int64_t row, const float* sums)>& store) {
    partial_.resize(chunks_ * size_.m * n_);
    for_each_unit<GemmScratch>(chunks_,
                               [&](GemmScratch& scratch, std::int64_t i) { chunk(i, scratch); });
    core::parallel_for(size_.m, [&](std::int64_t row) {
      float* const sums = partial_.data() + row * n_;
      for (std::int64_t i = 1; i < chunks_; ++i) {
        const float* part = partial_.data() + (i * size_.m + row) * n_;
        for (std::int64_t j = 0; j < n_; ++j) sums[j] += part[j];
      }
      store(row, sums);
    });
  }

 private:
  void chunk(std::int64_t i, GemmScratch& scratch) {
    const std::int64_t end = std::min((i + 1) * step_, round_up(size_.k, 2));
    std::uint16_t* const panels = scratch.panels.reserve(kGemmDepth * n_);
    for (std::int64_t depth = i * step_; depth < end; depth += kGemmDepth) {
      const std::int64_t count = std::min(kGemmDepth, end - depth);
      read_right(b_, {depth, count}, {0, n_}, scratch.plain, panels);
      for (std::int64_t row = 0; row < size_.m; row += kGemmRows) {
        const std::int64_t rows = std::min(kGemmRows, size_.m - row);
        const LeftBlock left = read_left(a_, {row, rows}, {depth, count}, scratch);
        kernels().product({.m = rows,
                           .n = n_,
                           .k = count,
                           .a = left.data,
                           .a_layout = left.layout,
                           .a_pair = left.pair_stride,
                           .b = panels,
                           .b_panel = count * kPanel,
                           .c = partial_.data() + (i * size_.m + row) * n_,
                           .c_layout = SumLayout::rows(n_),
                           .accumulate = depth > i * step_});
      }
    }
  }

  const MatrixReader& a_;
  const MatrixReader& b_;
  Extents size_;
  std::int64_t n_;
  std::int64_t step_ = 0;
  std::int64_t chunks_ = 0;
  Buffer<float> partial_;
};

}  // namespace

void gemm(const MatrixOperand& a, const MatrixOperand& b, const TensorView& c, float alpha,
          bool accumulate) {
  const MatrixReader left(a, "a");
  const MatrixReader right(b, "b");
  const Extents size = extents(left, right);
  core::expect(c.rank == 2 && c.shape[0] == size.m && c.shape[1] == size.n, "c",
               core::later("shape [{}, {}]", size.m, size.n), c);
  core::expect(c.dtype == DType::kF32 || (c.dtype == DType::kBF16 && !accumulate), "c",
               accumulate ? "f32" : "f32 or bf16", c);
  if (size.m == 0 || size.n == 0) return;
  const float scale = folded(alpha, left.anchor() + right.anchor());
  if (size.k > kLongDepth) {
    SplitProduct(left, right, size).run([&](std::int64_t row, const float* sums) {
      store_row(c, row, sums, scale, accumulate);
    });
    return;
  }
  PackedRight packed(right, size.n, size.k);
  for_each_unit<GemmScratch>(
      mx::ceil_div(size.m, kGemmRows), [&](GemmScratch& scratch, std::int64_t i) {
        const std::int64_t rows = std::min(kGemmRows, size.m - i * kGemmRows);
        packed.multiply(left, {i * kGemmRows, rows}, scratch);
        for (std::int64_t r = 0; r < rows; ++r) {
          store_row(c, i * kGemmRows + r, scratch.sums.data() + r * packed.n_padded(), scale,
                    accumulate);
        }
      });
}

}  // namespace mxfa::cpu
