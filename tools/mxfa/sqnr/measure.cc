#include "sqnr/measure.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "reference/attention.h"
#include "reference/recipe/recipe.h"

namespace mxfa::cli::sqnr {
namespace {

using reference::HeadInputs;
using reference::Matrix;
using reference::recipe::RecipeConfig;
using reference::recipe::StepTensors;

/// (query, key) pairs whose oracle tensors are held at a time: 32 bytes each.
constexpr std::int64_t kPairsInFlight = std::int64_t{1} << 25;

struct Oracle {
  reference::ForwardResult forward;
  reference::BackwardResult backward;
};

Oracle run_oracle(const HeadInputs& inputs) {
  Oracle oracle;
  oracle.forward = reference::attention_forward(inputs);
  oracle.backward = reference::attention_backward(inputs, oracle.forward);
  return oracle;
}

/// One number for each query: what smoothing took from a row of scores. Empty where nothing.
using RowShift = std::vector<double>;

RowShift row_shift(const Matrix<float>& rows, const std::vector<float>& shift, double scale) {
  if (shift.empty()) return {};
  RowShift result(static_cast<std::size_t>(rows.rows));
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    double sum = 0;
    for (std::int64_t d = 0; d < rows.cols; ++d) sum += double(rows(i, d)) * shift[std::size_t(d)];
    result[static_cast<std::size_t>(i)] = scale * sum;
  }
  return result;
}

double at(const RowShift& shift, std::int64_t row) {
  return shift.empty() ? 0.0 : shift[static_cast<std::size_t>(row)];
}

std::vector<float> column_mean(const Matrix<float>& matrix) {
  std::vector<double> sums(static_cast<std::size_t>(matrix.cols));
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    for (std::int64_t d = 0; d < matrix.cols; ++d) sums[std::size_t(d)] += matrix(i, d);
  }
  std::vector<float> mean;
  for (const double sum : sums) mean.push_back(static_cast<float>(sum / double(matrix.rows)));
  return mean;
}

/// Visible scores only: what a masked score holds reaches no result.
void compare_scores(const Matrix<double>& reference, const Matrix<float>& value,
                    const HeadInputs& inputs, const RowShift& shift, Energy& energy) {
  for (std::int64_t i = 0; i < reference.rows; ++i) {
    const attention::KeyRange keys =
        attention::visible_keys(inputs.mask, reference.rows, reference.cols, i);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      energy.add(reference(i, j), value(i, j) + at(shift, i));
    }
  }
}

void compare(const Matrix<double>& reference, const Matrix<float>& value, Energy& energy) {
  for (std::size_t i = 0; i < reference.data.size(); ++i) {
    energy.add(reference.data[i], value.data[i]);
  }
}

double lse_error(const std::vector<double>& reference, const std::vector<float>& value,
                 const RowShift& shift) {
  double worst = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    if (std::isinf(reference[i]) && double(value[i]) == reference[i]) continue;
    const double error = std::abs(value[i] + at(shift, std::int64_t(i)) - reference[i]);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

StepEnergies compare_step(const Oracle& oracle, const StepTensors& step, const HeadInputs& inputs,
                          const RowShift& shift_s, const RowShift& shift_dp) {
  StepEnergies energies;
  compare_scores(oracle.forward.s, step.s, inputs, shift_s, energies[StepTensor::kS]);
  compare_scores(oracle.backward.dp, step.dp, inputs, shift_dp, energies[StepTensor::kDp]);
  compare(oracle.forward.p, step.p, energies[StepTensor::kP]);
  compare(oracle.forward.o, step.o, energies[StepTensor::kO]);
  compare(oracle.backward.ds, step.ds, energies[StepTensor::kDs]);
  compare(oracle.backward.dv, step.dv, energies[StepTensor::kDv]);
  compare(oracle.backward.dq, step.dq, energies[StepTensor::kDq]);
  compare(oracle.backward.dk, step.dk, energies[StepTensor::kDk]);
  energies.lse_abs_error = lse_error(oracle.forward.lse, step.lse, shift_s);
  energies.dq_overflows = step.dq_overflows;
  return energies;
}

/// The oracle on the dequantized inputs; O gets V's shift back, as the step's has it.
StepEnergies compare_kern(const StepTensors& step) {
  Oracle oracle = run_oracle(step.kern);
  Matrix<double>& o = oracle.forward.o;
  if (!step.shift_v.empty()) {
    for (std::int64_t i = 0; i < o.rows; ++i) {
      if (std::isinf(oracle.forward.lse[static_cast<std::size_t>(i)])) continue;
      for (std::int64_t d = 0; d < o.cols; ++d) o(i, d) += step.shift_v[std::size_t(d)];
    }
  }
  return compare_step(oracle, step, step.kern, {}, {});
}

struct UnitResult {
  StepEnergies f64;
  StepEnergies kern;
};

UnitResult run_scheme(const HeadInputs& inputs, const Oracle& oracle, const Scheme& scheme,
                      bool with_kern) {
  RecipeConfig config = scheme.config;
  if (config.smooth_k) config.shift_k = column_mean(inputs.k);
  if (config.smooth_v) config.shift_v = column_mean(inputs.v);
  const StepTensors step = reference::recipe::run_step(inputs, config);
  const RowShift shift_s = row_shift(inputs.q, config.shift_k, inputs.softmax_scale);
  const RowShift shift_dp = row_shift(inputs.dout, config.shift_v, 1.0);
  UnitResult result;
  result.f64 = compare_step(oracle, step, inputs, shift_s, shift_dp);
  if (with_kern) result.kern = compare_kern(step);
  return result;
}

/// Units of one group are computed together, so that threads have work and memory stays bounded.
std::size_t group_size(const Sample& sample) {
  std::int64_t largest = 1;
  for (const Unit& unit : sample.units) largest = std::max(largest, unit.pairs());
  const std::int64_t fitting = std::max<std::int64_t>(1, kPairsInFlight / largest);
  return static_cast<std::size_t>(std::min<std::int64_t>(fitting, 4 * core::num_threads()));
}

}  // namespace

void Energy::add(double reference, double value) {
  signal += reference * reference;
  noise += (reference - value) * (reference - value);
  ++count;
}

void Energy::add(const Energy& other) {
  signal += other.signal;
  noise += other.noise;
  count += other.count;
}

double Energy::db() const {
  if (noise == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(signal / noise);
}

double Energy::rms_noise() const {
  return count > 0 ? std::sqrt(noise / static_cast<double>(count)) : 0;
}

void StepEnergies::add(const StepEnergies& other) {
  for (std::size_t t = 0; t < tensors.size(); ++t) tensors[t].add(other.tensors[t]);
  if (!(other.lse_abs_error <= lse_abs_error)) lse_abs_error = other.lse_abs_error;
  dq_overflows += other.dq_overflows;
}

Measurement measure(const Input& input, const Sample& sample, const std::vector<Scheme>& schemes,
                    bool with_kern, io::Progress& progress) {
  Measurement result;
  for (const Scheme& scheme : schemes) {
    SchemeResult& row = result.schemes.emplace_back();
    row.scheme = scheme;
    row.worst.fill({std::numeric_limits<double>::infinity(), 0});
  }
  DiagnosticsBuilder diagnostics;
  const std::size_t group = group_size(sample);
  for (std::size_t first = 0; first < sample.units.size(); first += group) {
    const std::size_t units = std::min(group, sample.units.size() - first);
    std::vector<HeadInputs> inputs(units);
    std::vector<Oracle> oracles(units);
    std::vector<DiagnosticsBuilder> parts(units);
    core::parallel_for(std::int64_t(units), [&](std::int64_t index) {
      const auto u = static_cast<std::size_t>(index);
      inputs[u] = gather_unit(input, sample.units[first + u]);
      oracles[u] = run_oracle(inputs[u]);
      parts[u].add(inputs[u], oracles[u].forward);
      progress.advance();
    });
    std::vector<UnitResult> results(units * schemes.size());
    core::parallel_for(std::int64_t(results.size()), [&](std::int64_t index) {
      const auto task = static_cast<std::size_t>(index);
      const std::size_t u = task / schemes.size();
      results[task] = run_scheme(inputs[u], oracles[u], schemes[task % schemes.size()], with_kern);
      progress.advance();
    });
    for (std::size_t task = 0; task < results.size(); ++task) {
      SchemeResult& row = result.schemes[task % schemes.size()];
      row.f64.add(results[task].f64);
      row.kern.add(results[task].kern);
      for (std::size_t t = 0; t < row.worst.size(); ++t) {
        const double db = results[task].f64.tensors[t].db();
        if (!(db >= row.worst[t].db)) row.worst[t] = {db, first + task / schemes.size()};
      }
    }
    for (const DiagnosticsBuilder& part : parts) diagnostics.merge(part);
  }
  result.diagnostics = diagnostics.result();
  return result;
}

}  // namespace mxfa::cli::sqnr
