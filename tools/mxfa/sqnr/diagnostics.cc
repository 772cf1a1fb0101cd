#include "sqnr/diagnostics.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "attention/mask.h"
#include "mx/block.h"

namespace mxfa::cli::sqnr {
namespace {

using reference::Matrix;

std::vector<OutlierChannel> find_outliers(const std::vector<double>& channel_energy) {
  std::vector<double> rms;
  for (const double energy : channel_energy) rms.push_back(std::sqrt(energy));
  std::vector<double> sorted = rms;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted.empty() ? 0 : sorted[sorted.size() / 2];
  std::vector<OutlierChannel> outliers;
  for (std::size_t c = 0; c < rms.size() && median > 0; ++c) {
    if (rms[c] > kOutlierRatio * median) {
      outliers.push_back({static_cast<std::int64_t>(c), rms[c] / median});
    }
  }
  std::sort(outliers.begin(), outliers.end(),
            [](const OutlierChannel& a, const OutlierChannel& b) { return a.ratio > b.ratio; });
  return outliers;
}

/// Of the 1x32 block maxima in 32 rows, the exponents' range; 0 where all are zero.
int group_spread(const Matrix<float>& matrix, std::int64_t first_row) {
  int low = INT32_MAX;
  int high = INT32_MIN;
  const std::int64_t end = std::min(matrix.rows, first_row + kScaleBlock);
  for (std::int64_t i = first_row; i < end; ++i) {
    for (std::int64_t d = 0; d < matrix.cols; d += kScaleBlock) {
      const auto count = static_cast<std::size_t>(std::min<std::int64_t>(32, matrix.cols - d));
      const float amax = mx::block_amax(matrix.row(i).subspan(std::size_t(d), count));
      if (amax == 0 || !mx::is_finite(amax)) continue;
      const int exponent = std::ilogb(amax);
      low = std::min(low, exponent);
      high = std::max(high, exponent);
    }
  }
  return high >= low ? high - low : 0;
}

}  // namespace

void DiagnosticsBuilder::Operand::add(const Matrix<float>& matrix) {
  std::vector<double> sums(static_cast<std::size_t>(matrix.cols));
  std::vector<double> squares(static_cast<std::size_t>(matrix.cols));
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    for (std::size_t d = 0; d < sums.size(); ++d) {
      const double value = matrix(i, static_cast<std::int64_t>(d));
      sums[d] += value;
      squares[d] += value * value;
    }
  }
  for (std::size_t d = 0; d < sums.size(); ++d) {
    energy += squares[d];
    if (matrix.rows > 0) mean_energy += sums[d] * sums[d] / static_cast<double>(matrix.rows);
  }
  merge({.energy = 0, .mean_energy = 0, .outliers = find_outliers(squares), .exponent_spread = 0});
  for (std::int64_t i = 0; i < matrix.rows; i += kScaleBlock) {
    exponent_spread = std::max(exponent_spread, group_spread(matrix, i));
  }
}

void DiagnosticsBuilder::Operand::merge(const Operand& other) {
  energy += other.energy;
  mean_energy += other.mean_energy;
  exponent_spread = std::max(exponent_spread, other.exponent_spread);
  if (other.outliers.empty()) return;
  if (outliers.empty() || other.outliers.front().ratio > outliers.front().ratio) {
    outliers = other.outliers;
  }
}

OperandDiagnostics DiagnosticsBuilder::Operand::result() const {
  return {.mean_share = energy > 0 ? mean_energy / energy : 0,
          .outliers = outliers,
          .exponent_spread = exponent_spread};
}

void DiagnosticsBuilder::add(const reference::HeadInputs& inputs,
                             const reference::ForwardResult& forward) {
  operands_[0].add(inputs.q);
  operands_[1].add(inputs.k);
  operands_[2].add(inputs.v);
  operands_[3].add(inputs.dout);
  for (std::int64_t i = 0; i < forward.s.rows; ++i) {
    const attention::KeyRange keys =
        attention::visible_keys(inputs.mask, forward.s.rows, forward.s.cols, i);
    if (keys.empty()) continue;
    double sum = 0;
    double squares = 0;
    double p_max = 0;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      sum += forward.s(i, j);
      squares += forward.s(i, j) * forward.s(i, j);
      p_max = std::max(p_max, forward.p(i, j));
    }
    const std::int64_t count = keys.end - keys.begin;
    logit_energy_ += squares;
    logit_variance_ += std::max(0.0, squares - sum * sum / static_cast<double>(count));
    logits_ += count;
    p_max_ += p_max;
    if (p_max > 0.5) ++one_key_rows_;
    ++rows_;
  }
}

void DiagnosticsBuilder::merge(const DiagnosticsBuilder& other) {
  for (std::size_t i = 0; i < operands_.size(); ++i) operands_[i].merge(other.operands_[i]);
  logit_variance_ += other.logit_variance_;
  logit_energy_ += other.logit_energy_;
  logits_ += other.logits_;
  p_max_ += other.p_max_;
  one_key_rows_ += other.one_key_rows_;
  rows_ += other.rows_;
}

Diagnostics DiagnosticsBuilder::result() const {
  const double logits = static_cast<double>(std::max<std::int64_t>(1, logits_));
  const double rows = static_cast<double>(std::max<std::int64_t>(1, rows_));
  return {.logit_std = std::sqrt(logit_variance_ / logits),
          .logit_rms = std::sqrt(logit_energy_ / logits),
          .p_max_mean = p_max_ / rows,
          .one_key_row_share = static_cast<double>(one_key_rows_) / rows,
          .q = operands_[0].result(),
          .k = operands_[1].result(),
          .v = operands_[2].result(),
          .dout = operands_[3].result()};
}

}  // namespace mxfa::cli::sqnr
