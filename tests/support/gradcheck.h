#pragma once

#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "support/compare.h"
#include "support/rng.h"

namespace mxfa::testing {

/// d loss(t) / dt at 0 by central differences of fourth order: the error is of order step^4.
inline double derivative(const std::function<double(double)>& loss, double step) {
  const double near = loss(step) - loss(-step);
  const double far = loss(2 * step) - loss(-2 * step);
  return (8 * near - far) / (12 * step);
}

struct GradientCheck {
  int directions = 3;
  double step = 1e-3;
  /// Of |derivative - gradient . direction| over the gradient's norm, which is the typical size of
  /// that product for a random direction of variance 1.
  double relative = 1e-8;
};

/// Holds `gradient` against differences of `loss`, which reads `values`, along random directions.
inline ::testing::AssertionResult gradient_matches(const std::function<double()>& loss,
                                                   std::vector<double>& values,
                                                   std::span<const double> gradient, Rng& rng,
                                                   const GradientCheck& check = {}) {
  if (gradient.size() != values.size()) {
    return ::testing::AssertionFailure()
           << fmt::format("gradient of {} values, want {}", gradient.size(), values.size());
  }
  const std::vector<double> origin = values;
  for (int trial = 0; trial < check.directions; ++trial) {
    const std::vector<double> direction = rng.normal_values<double>(std::ssize(values));
    double product = 0;
    double norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      product += gradient[i] * direction[i];
      norm += gradient[i] * gradient[i];
    }
    const auto moved = [&](double t) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = origin[i] + t * direction[i];
      return loss();
    };
    const double difference = derivative(moved, check.step);
    values = origin;
    // A gradient that is 0 everywhere leaves the rounding of the differences.
    const double limit = check.relative * std::max(std::sqrt(norm), 1e-3);
    if (!(std::abs(difference - product) <= limit)) {
      return ::testing::AssertionFailure() << fmt::format(
                 "direction {}: differences give {}, the gradient {} (error {}, limit {})", trial,
                 difference, product, std::abs(difference - product), limit);
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace mxfa::testing
