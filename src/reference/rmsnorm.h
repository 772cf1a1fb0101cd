#pragma once

#include <vector>

#include "reference/matrix.h"

/// RMSNorm over the last dimension in double: y = x * rstd * weight,
/// rstd = 1 / sqrt(mean(x^2) + eps) for each row.
namespace mxfa::reference {

struct RmsNormResult {
  Matrix<double> y;          ///< [tokens, dim]
  std::vector<double> rstd;  ///< [tokens]
};

struct RmsNormGradients {
  Matrix<double> dx;            ///< [tokens, dim]
  std::vector<double> dweight;  ///< [dim], summed over tokens in ascending order
};

/// x [tokens, dim], weight [dim]; eps >= 0.
RmsNormResult rmsnorm_forward(const Matrix<double>& x, const std::vector<double>& weight,
                              double eps);

/// dy [tokens, dim]; rstd from the forward. With g = dy * weight:
/// dx = rstd * (g - x * rstd^2 * mean(g * x)), dweight = sum over tokens of dy * x * rstd.
RmsNormGradients rmsnorm_backward(const Matrix<double>& x, const std::vector<double>& weight,
                                  const std::vector<double>& rstd, const Matrix<double>& dy);

}  // namespace mxfa::reference
