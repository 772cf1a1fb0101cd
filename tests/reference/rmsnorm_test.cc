#include "reference/rmsnorm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/check.h"
#include "support/compare.h"
#include "support/gradcheck.h"
#include "support/rng.h"

namespace mxfa::reference {
namespace {

using testing::Rng;

TEST(RmsNorm, SmallCaseByHand) {
  Matrix<double> x(2, 2);
  x.data = {3, 4, 0, 2};
  const RmsNormResult result = rmsnorm_forward(x, {2, -1}, 0);
  const double rstd = 1 / std::sqrt(12.5);
  EXPECT_DOUBLE_EQ(result.rstd[0], rstd);
  EXPECT_DOUBLE_EQ(result.rstd[1], 1 / std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(result.y(0, 0), 6 * rstd);
  EXPECT_DOUBLE_EQ(result.y(0, 1), -4 * rstd);
  EXPECT_DOUBLE_EQ(result.y(1, 0), 0);
  EXPECT_DOUBLE_EQ(result.y(1, 1), -std::sqrt(2.0));
}

TEST(RmsNorm, EpsKeepsZeroRowsFinite) {
  const RmsNormResult result = rmsnorm_forward(Matrix<double>(1, 4), {1, 1, 1, 1}, 0.25);
  EXPECT_EQ(result.rstd[0], 2);
  EXPECT_EQ(result.y.data, std::vector<double>(4));
}

TEST(RmsNorm, GradientsMatchFiniteDifferences) {
  Rng rng(31);
  for (const double eps : {0.0, 1e-6, 0.5}) {
    Matrix<double> x(6, 9);
    x.data = rng.normal_values<double>(54);
    std::vector<double> weight = rng.normal_values<double>(9, 0.3, 1);
    Matrix<double> dy(6, 9);
    dy.data = rng.normal_values<double>(54);
    const auto loss = [&] {
      const Matrix<double> y = rmsnorm_forward(x, weight, eps).y;
      double sum = 0;
      for (std::size_t i = 0; i < y.data.size(); ++i) sum += y.data[i] * dy.data[i];
      return sum;
    };
    const auto got = rmsnorm_backward(x, weight, rmsnorm_forward(x, weight, eps).rstd, dy);
    EXPECT_TRUE(testing::gradient_matches(loss, x.data, got.dx.data, rng)) << "dx, eps " << eps;
    EXPECT_TRUE(testing::gradient_matches(loss, weight, got.dweight, rng)) << "dw, eps " << eps;
  }
}

TEST(RmsNorm, RefusesWhatDoesNotFit) {
  const Matrix<double> x(2, 3);
  EXPECT_THROW(rmsnorm_forward(x, {1, 1}, 0), Error);
  EXPECT_THROW(rmsnorm_forward(x, {1, 1, 1}, -1e-6), Error);
  EXPECT_THROW(rmsnorm_forward(x, {1, 1, 1}, std::nan("")), Error);
  EXPECT_THROW(rmsnorm_backward(x, {1, 1, 1}, {1}, x), Error);
  EXPECT_THROW(rmsnorm_backward(x, {1, 1, 1}, {1, 1}, Matrix<double>(3, 3)), Error);
}

}  // namespace
}  // namespace mxfa::reference
