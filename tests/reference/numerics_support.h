#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/attention.h"
#include "reference/datasets.h"
#include "reference/recipe/recipe.h"

/// Measuring a recipe on a data set, averaged over seeds.
namespace mxfa::reference {

enum Quantity { kO, kDv, kDq, kDk, kDs, kP, kQuantities };
inline constexpr const char* kQuantityNames[] = {"O", "dV", "dQ", "dK", "dS", "P"};
using Figures = std::array<double, kQuantities>;  ///< dB

inline double tensor_db(const Matrix<double>& want, const Matrix<float>& got) {
  double signal = 0;
  double noise = 0;
  for (std::size_t i = 0; i < want.data.size(); ++i) {
    const double error = want.data[i] - got.data[i];
    signal += want.data[i] * want.data[i];
    noise += error * error;
  }
  return 10 * std::log10(signal / noise);
}

/// SQNR of each row, rows whose reference is zero left out, ascending.
inline std::vector<double> sorted_row_db(const Matrix<double>& want, const Matrix<float>& got) {
  std::vector<double> rows;
  for (std::int64_t i = 0; i < want.rows; ++i) {
    double signal = 0;
    double noise = 0;
    for (std::int64_t c = 0; c < want.cols; ++c) {
      const double error = want(i, c) - got(i, c);
      signal += want(i, c) * want(i, c);
      noise += error * error;
    }
    if (signal > 0) rows.push_back(10 * std::log10(signal / noise));
  }
  std::ranges::sort(rows);
  return rows;
}
inline double quantile(const std::vector<double>& sorted, double fraction) {
  return sorted[static_cast<std::size_t>(fraction * static_cast<double>(sorted.size() - 1))];
}

struct Oracle {
  ForwardResult forward;
  BackwardResult backward;
};
inline Oracle oracle_of(const HeadInputs& inputs) {
  Oracle result{attention_forward(inputs), {}};
  if (!inputs.dout.data.empty()) result.backward = attention_backward(inputs, result.forward);
  return result;
}

/// `o_shift` is added to the oracle's O: what V smoothing took away.
inline Figures figures_of(Oracle oracle, const recipe::StepTensors& step,
                          const std::vector<float>& o_shift = {}) {
  for (std::int64_t i = 0; !o_shift.empty() && i < oracle.forward.o.rows; ++i) {
    for (std::int64_t c = 0; c < oracle.forward.o.cols; ++c) oracle.forward.o(i, c) += o_shift[c];
  }
  return {tensor_db(oracle.forward.o, step.o),    tensor_db(oracle.backward.dv, step.dv),
          tensor_db(oracle.backward.dq, step.dq), tensor_db(oracle.backward.dk, step.dk),
          tensor_db(oracle.backward.ds, step.ds), tensor_db(oracle.forward.p, step.p)};
}

/// One draw of a data set and the oracle on it.
struct Sample {
  HeadInputs inputs;
  Oracle oracle;

  Sample(const std::string& dataset, const DatasetOptions& options)
      : inputs(make_dataset(dataset, options)), oracle(oracle_of(inputs)) {}

  /// Against the oracle on the BF16 inputs: what MXFP8 costs.
  Figures f64(const recipe::StepTensors& step) const { return figures_of(oracle, step); }
  /// Against the oracle on the dequantized inputs: what the kernel adds.
  static Figures kern(const recipe::StepTensors& step) {
    return figures_of(oracle_of(step.kern), step, step.shift_v);
  }
};

/// Mean and spread over seeds.
class Average {
 public:
  void add(const Figures& figures) { samples_.push_back(figures); }
  double mean(Quantity quantity) const {
    double sum = 0;
    for (const Figures& sample : samples_) sum += sample[quantity];
    return sum / static_cast<double>(samples_.size());
  }
  /// Standard deviation of one sample.
  double spread(Quantity quantity) const {
    double sum = 0;
    for (const Figures& sample : samples_) {
      sum += (sample[quantity] - mean(quantity)) * (sample[quantity] - mean(quantity));
    }
    return samples_.size() < 2 ? 0 : std::sqrt(sum / static_cast<double>(samples_.size() - 1));
  }

 private:
  std::vector<Figures> samples_;
};

}  // namespace mxfa::reference
