#include "reference/gemm.h"

#include <algorithm>
#include <functional>

#include "core/check.h"
#include "core/parallel.h"
#include "core/simd_clones.h"

namespace mxfa::reference {
namespace {

// Blocks that keep a piece of B and of the output in the second and first level cache.
constexpr std::int64_t kColumnBlock = 512;
constexpr std::int64_t kDepthBlock = 64;
constexpr std::int64_t kOutputRowBlock = 32;
constexpr std::int64_t kTokenBlock = 256;

/// out[j] += sum over r < count of weights[r] * rows[r * stride + j], in ascending r.
MXFA_SIMD_CLONES void add_weighted_rows(double* out, const double* weights, const double* rows,
                                        std::int64_t stride, std::int64_t count, std::int64_t n) {
  std::int64_t r = 0;
  for (; r + 4 <= count; r += 4) {
    const double w0 = weights[r], w1 = weights[r + 1], w2 = weights[r + 2], w3 = weights[r + 3];
    const double* b0 = rows + r * stride;
    const double* b1 = b0 + stride;
    const double* b2 = b1 + stride;
    const double* b3 = b2 + stride;
    for (std::int64_t j = 0; j < n; ++j) {
      out[j] = (((out[j] + w0 * b0[j]) + w1 * b1[j]) + w2 * b2[j]) + w3 * b3[j];
    }
  }
  for (; r < count; ++r) {
    const double w = weights[r];
    const double* b = rows + r * stride;
    for (std::int64_t j = 0; j < n; ++j) out[j] += w * b[j];
  }
}

/// out[r * stride + j] += weights[r] * row[j].
MXFA_SIMD_CLONES void add_outer_product(double* out, std::int64_t stride, const double* weights,
                                        std::int64_t count, const double* row, std::int64_t n) {
  for (std::int64_t r = 0; r < count; ++r) {
    const double w = weights[r];
    double* target = out + r * stride;
    for (std::int64_t j = 0; j < n; ++j) target[j] += w * row[j];
  }
}

/// The part of row `i`'s range that lies in [begin, end).
attention::KeyRange clipped(std::span<const attention::KeyRange> ranges, std::int64_t i,
                            std::int64_t begin, std::int64_t end) {
  if (ranges.empty()) return {begin, end};
  return {std::max(begin, ranges[i].begin), std::min(end, ranges[i].end)};
}

void expect_ranges(std::span<const attention::KeyRange> ranges, const Matrix<double>& a) {
  core::expect(ranges.empty() || std::int64_t(ranges.size()) == a.rows, "ranges",
               fmt::format("none, or one for each of {} rows", a.rows), core::text(ranges.size()));
}

/// Rows `rows` of A B.
void multiply_nn_rows(const Matrix<double>& a, const Matrix<double>& b,
                      std::span<const attention::KeyRange> ranges, attention::KeyRange rows,
                      Matrix<double>& out) {
  for (std::int64_t column = 0; column < b.cols; column += kColumnBlock) {
    const std::int64_t width = std::min(kColumnBlock, b.cols - column);
    for (std::int64_t depth = 0; depth < a.cols; depth += kDepthBlock) {
      const std::int64_t depth_end = std::min(a.cols, depth + kDepthBlock);
      for (std::int64_t i = rows.begin; i < rows.end; ++i) {
        const auto range = clipped(ranges, i, depth, depth_end);
        if (range.empty()) continue;
        add_weighted_rows(&out(i, column), &a(i, range.begin), &b(range.begin, column), b.cols,
                          range.end - range.begin, width);
      }
    }
  }
}

/// Rows `rows` of A^T B, which are columns of A.
void multiply_tn_rows(const Matrix<double>& a, const Matrix<double>& b,
                      std::span<const attention::KeyRange> ranges, attention::KeyRange rows,
                      Matrix<double>& out) {
  for (std::int64_t i = 0; i < a.rows && b.cols > 0; ++i) {
    const auto range = clipped(ranges, i, rows.begin, rows.end);
    if (range.empty()) continue;
    add_outer_product(&out(range.begin, 0), b.cols, &a(i, range.begin), range.end - range.begin,
                      &b(i, 0), b.cols);
  }
}

/// Calls body on [0, count) cut into pieces of `block`.
void for_blocks(std::int64_t count, std::int64_t block,
                const std::function<void(attention::KeyRange)>& body) {
  core::parallel_for((count + block - 1) / block, [&](std::int64_t index) {
    body({index * block, std::min(count, (index + 1) * block)});
  });
}

}  // namespace

Matrix<double> to_double(const Matrix<float>& values) {
  Matrix<double> result(values.rows, values.cols);
  std::copy(values.data.begin(), values.data.end(), result.data.begin());
  return result;
}

Matrix<double> transposed(const Matrix<double>& a) {
  Matrix<double> result(a.cols, a.rows);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.cols; ++j) result(j, i) = a(i, j);
  }
  return result;
}

Matrix<double> multiply_nn(const Matrix<double>& a, const Matrix<double>& b,
                           std::span<const attention::KeyRange> ranges) {
  core::expect(a.cols == b.rows, "b", fmt::format("{} rows", a.cols), core::text(b.rows));
  expect_ranges(ranges, a);
  Matrix<double> out(a.rows, b.cols);
  multiply_nn_rows(a, b, ranges, {0, a.rows}, out);
  return out;
}

Matrix<double> multiply_tn(const Matrix<double>& a, const Matrix<double>& b,
                           std::span<const attention::KeyRange> ranges) {
  core::expect(a.rows == b.rows, "b", fmt::format("{} rows", a.rows), core::text(b.rows));
  expect_ranges(ranges, a);
  Matrix<double> out(a.cols, b.cols);
  for (std::int64_t block = 0; block < a.cols; block += kOutputRowBlock) {
    multiply_tn_rows(a, b, ranges, {block, std::min(a.cols, block + kOutputRowBlock)}, out);
  }
  return out;
}

Matrix<double> multiply_nt(const Matrix<double>& a, const Matrix<double>& b) {
  return multiply_nn(a, transposed(b));
}

Matrix<double> linear_forward(const Matrix<double>& x, const Matrix<double>& weight) {
  core::expect(x.cols == weight.cols, "weight", fmt::format("[out, {}]", x.cols),
               fmt::format("[{}, {}]", weight.rows, weight.cols));
  const Matrix<double> weight_t = transposed(weight);
  Matrix<double> y(x.rows, weight.rows);
  for_blocks(x.rows, kTokenBlock,
             [&](attention::KeyRange rows) { multiply_nn_rows(x, weight_t, {}, rows, y); });
  return y;
}

LinearGradients linear_backward(const Matrix<double>& x, const Matrix<double>& weight,
                                const Matrix<double>& dy) {
  core::expect(dy.rows == x.rows && dy.cols == weight.rows, "dy",
               fmt::format("[{}, {}]", x.rows, weight.rows),
               fmt::format("[{}, {}]", dy.rows, dy.cols));
  LinearGradients result{.dx = Matrix<double>(x.rows, x.cols),
                         .dweight = Matrix<double>(weight.rows, weight.cols)};
  for_blocks(x.rows, kTokenBlock,
             [&](attention::KeyRange rows) { multiply_nn_rows(dy, weight, {}, rows, result.dx); });
  for_blocks(weight.rows, kOutputRowBlock,
             [&](attention::KeyRange rows) { multiply_tn_rows(dy, x, {}, rows, result.dweight); });
  return result;
}

}  // namespace mxfa::reference
