#include "reference/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/parallel.h"
#include "support/compare.h"
#include "support/rng.h"

namespace mxfa::reference {
namespace {

using testing::Rng;

Matrix<double> random_matrix(std::int64_t rows, std::int64_t cols, Rng& rng) {
  Matrix<double> result(rows, cols);
  result.data = rng.normal_values<double>(rows * cols);
  return result;
}

/// Sum over k in ascending order, one element at a time.
Matrix<double> plain_product(const Matrix<double>& a, const Matrix<double>& b,
                             const std::vector<attention::KeyRange>& ranges) {
  Matrix<double> out(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    const auto range = ranges.empty() ? attention::KeyRange{0, a.cols} : ranges[i];
    for (std::int64_t j = 0; j < b.cols; ++j) {
      for (std::int64_t k = range.begin; k < range.end; ++k) out(i, j) += a(i, k) * b(k, j);
    }
  }
  return out;
}

struct Size {
  std::int64_t m, k, n;
};
/// Sizes on both sides of every block boundary.
const Size kSizes[] = {{1, 1, 1},    {3, 5, 2}, {7, 64, 33}, {2, 67, 513}, {40, 130, 9},
                       {5, 1, 1025}, {0, 4, 3}, {4, 0, 3},   {4, 3, 0},    {33, 129, 65}};

TEST(Gemm, ProductsHaveTheBitsOfAscendingSums) {
  Rng rng(21);
  for (const Size& size : kSizes) {
    const std::string label = fmt::format("{} x {} x {}", size.m, size.k, size.n);
    const Matrix<double> a = random_matrix(size.m, size.k, rng);
    const Matrix<double> b = random_matrix(size.k, size.n, rng);
    const Matrix<double> want = plain_product(a, b, {});
    const auto expect_bits = [&](const Matrix<double>& got, const char* name) {
      EXPECT_EQ(got.rows, want.rows);
      EXPECT_EQ(got.cols, want.cols);
      EXPECT_TRUE(testing::bitwise_equal(got.data, want.data, {.label = label + name}));
    };
    expect_bits(multiply_nn(a, b), " nn");
    expect_bits(multiply_nt(a, transposed(b)), " nt");
    expect_bits(multiply_tn(transposed(a), b), " tn");
    expect_bits(linear_forward(a, transposed(b)), " linear");
  }
}

TEST(Gemm, RangesBoundTheSumAndHideWhatLiesOutside) {
  Rng rng(22);
  const std::int64_t m = 9, k = 150, n = 40;
  Matrix<double> a = random_matrix(m, k, rng);
  const Matrix<double> b = random_matrix(k, n, rng);
  const Matrix<double> c = random_matrix(m, n, rng);
  std::vector<attention::KeyRange> ranges;
  for (std::int64_t i = 0; i < m; ++i) {
    const std::int64_t begin = rng.integer(0, k);
    ranges.push_back({begin, rng.integer(0, k)});
  }
  ranges[2] = {0, 0};
  Matrix<double> visible(m, k);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < k; ++j) {
      if (j >= ranges[i].begin && j < ranges[i].end) {
        visible(i, j) = a(i, j);
      } else {
        a(i, j) = std::nan("");
      }
    }
  }
  EXPECT_TRUE(testing::bitwise_equal(multiply_nn(a, b, ranges).data,
                                     plain_product(visible, b, ranges).data, {.label = "nn"}));
  EXPECT_TRUE(testing::expect_close(multiply_tn(a, c, ranges).data,
                                    plain_product(transposed(visible), c, {}).data, {.limit = 0},
                                    {.label = "tn"}));
}

TEST(Gemm, LinearGradientsAreTheTransposedProducts) {
  Rng rng(23);
  const Matrix<double> x = random_matrix(600, 70, rng);
  const Matrix<double> weight = random_matrix(65, 70, rng);
  const Matrix<double> dy = random_matrix(600, 65, rng);
  for (const int threads : {1, 4}) {
    core::set_num_threads(threads);
    const LinearGradients got = linear_backward(x, weight, dy);
    EXPECT_TRUE(testing::bitwise_equal(got.dx.data, plain_product(dy, weight, {}).data));
    EXPECT_TRUE(
        testing::bitwise_equal(got.dweight.data, plain_product(transposed(dy), x, {}).data));
  }
  core::set_num_threads(0);
}

TEST(Gemm, RefusesShapesThatDoNotFit) {
  const Matrix<double> a(2, 3);
  EXPECT_THROW(multiply_nn(a, a), Error);
  EXPECT_THROW(multiply_tn(a, Matrix<double>(3, 3)), Error);
  EXPECT_THROW(linear_forward(a, Matrix<double>(4, 2)), Error);
  EXPECT_THROW(linear_backward(a, Matrix<double>(4, 3), Matrix<double>(2, 3)), Error);
  EXPECT_THROW(multiply_nn(a, Matrix<double>(3, 1), std::vector<attention::KeyRange>(1)), Error);
}

}  // namespace
}  // namespace mxfa::reference
