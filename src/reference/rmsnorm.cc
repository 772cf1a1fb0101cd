#include "reference/rmsnorm.h"

#include <cmath>

#include "core/check.h"

namespace mxfa::reference {
namespace {

void expect_weight(const Matrix<double>& x, const std::vector<double>& weight) {
  core::expect(std::int64_t(weight.size()) == x.cols, "weight", fmt::format("[{}]", x.cols),
               fmt::format("[{}]", weight.size()));
}

}  // namespace

RmsNormResult rmsnorm_forward(const Matrix<double>& x, const std::vector<double>& weight,
                              double eps) {
  expect_weight(x, weight);
  core::expect(eps >= 0, "eps", "at least 0", fmt::format("{}", eps));
  RmsNormResult result{.y = Matrix<double>(x.rows, x.cols), .rstd = std::vector<double>(x.rows)};
  for (std::int64_t i = 0; i < x.rows; ++i) {
    double sum = 0;
    for (const double value : x.row(i)) sum += value * value;
    const double rstd = 1 / std::sqrt(sum / double(x.cols) + eps);
    result.rstd[i] = rstd;
    for (std::int64_t d = 0; d < x.cols; ++d) result.y(i, d) = x(i, d) * rstd * weight[d];
  }
  return result;
}

RmsNormGradients rmsnorm_backward(const Matrix<double>& x, const std::vector<double>& weight,
                                  const std::vector<double>& rstd, const Matrix<double>& dy) {
  expect_weight(x, weight);
  core::expect(std::int64_t(rstd.size()) == x.rows, "rstd", fmt::format("[{}]", x.rows),
               fmt::format("[{}]", rstd.size()));
  core::expect(dy.rows == x.rows && dy.cols == x.cols, "dy",
               fmt::format("[{}, {}]", x.rows, x.cols), fmt::format("[{}, {}]", dy.rows, dy.cols));
  RmsNormGradients result{.dx = Matrix<double>(x.rows, x.cols),
                          .dweight = std::vector<double>(x.cols)};
  for (std::int64_t i = 0; i < x.rows; ++i) {
    double dot = 0;
    for (std::int64_t d = 0; d < x.cols; ++d) {
      dot += dy(i, d) * weight[d] * x(i, d);
      result.dweight[d] += dy(i, d) * x(i, d) * rstd[i];
    }
    const double pull = rstd[i] * rstd[i] * dot / double(x.cols);
    for (std::int64_t d = 0; d < x.cols; ++d) {
      result.dx(i, d) = rstd[i] * (dy(i, d) * weight[d] - x(i, d) * pull);
    }
  }
  return result;
}

}  // namespace mxfa::reference
