#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/recipe/backward.h"

namespace mxfa::reference::recipe::internal {
namespace {

Matrix<float> dp_operand(const Operands& operands, const RecipeConfig& config) {
  if (bf16_operands(config) || config.dp_bf16 || config.delta_source == DeltaSource::kBf16) {
    return operands.dout.bf16;
  }
  const mx::QuantizedMatrix& codes = operands.dout.along_d;
  Matrix<float> values(codes.rows, codes.cols);
  values.data = mx::dequantize(codes);
  for (float& value : values.data) value *= operands.dout.tensor_scale;
  return values;
}

std::vector<float> row_delta(const Operands& operands, const SavedForward& forward,
                             const RecipeConfig& config) {
  const Matrix<float> dout = dp_operand(operands, config);
  std::vector<float> delta(static_cast<std::size_t>(dout.rows));
  for (std::int64_t i = 0; i < dout.rows; ++i) {
    double sum = 0;
    for (std::int64_t c = 0; c < dout.cols; ++c) {
      // dP is of the shifted V, so delta is of the O that V gives.
      const double shift = operands.shift_v.empty() ? 0.0 : operands.shift_v[c];
      sum += static_cast<double>(dout(i, c)) * (forward.o(i, c) - shift);
    }
    delta[static_cast<std::size_t>(i)] = static_cast<float>(sum);
  }
  return delta;
}

/// ceil(log2 Pmax) of a row, at most 0.
int ceil_log2_pmax(float row_max, float lse_log2) {
  const float log2_pmax = row_max - lse_log2;
  if (!std::isfinite(log2_pmax)) return 0;
  return static_cast<int>(std::clamp(std::ceil(log2_pmax), -126.0f, 0.0f));
}

double largest_row_norm(const Matrix<float>& matrix) {
  double largest = 0;
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    double sum = 0;
    for (const float value : matrix.row(i)) sum += double{value} * value;
    largest = std::max(largest, std::sqrt(sum));
  }
  return largest;
}

}  // namespace

RowConstants prepass(const Operands& operands, const HeadProblem& problem,
                     const SavedForward& forward, const RecipeConfig& config) {
  const std::int64_t seqlen_q = operands.q.rows();
  const std::int64_t seqlen_k = operands.k.rows();
  RowConstants rows;
  rows.delta = row_delta(operands, forward, config);
  rows.bias.assign(static_cast<std::size_t>(seqlen_q), 0.0f);
  rows.fold.assign(static_cast<std::size_t>(seqlen_q), 0);
  const bool folds_dout =
      config.machine == Machine::kHopper ||
      (is_mx(config) && operands.dout.along_tokens.block_shape == BlockShape::k1xD);
  const TokenExponents dout =
      folds_dout ? token_exponents(operands.dout.along_tokens) : TokenExponents{};
  const bool constant = is_mx(config) && config.p_scale_backward == PScale::kConstant;
  const auto largest = [&](std::int64_t i) {
    const int exponent = folds_dout ? dout[i] : 0;
    if (!constant || !config.fold_row_max) return exponent;
    return exponent + ceil_log2_pmax(forward.row_max[i], forward.lse[i] * kLog2e);
  };
  const auto has_keys = [&](std::int64_t i) {
    return !attention::visible_keys(problem.mask, seqlen_q, seqlen_k, i).empty() &&
           forward.lse[i] != -std::numeric_limits<float>::infinity();
  };
  int anchor = kNoExponent;
  for (std::int64_t i = 0; i < seqlen_q; ++i) {
    if (has_keys(i)) anchor = std::max(anchor, largest(i));
  }
  if (anchor == kNoExponent) anchor = 0;
  // A block's own scale could lift what a constant one flushes.
  const int least = constant ? kLeastFold : -100;
  const int offset = constant ? kBackwardOffset : 0;
  rows.anchor = constant || folds_dout ? anchor - offset : 0;
  for (std::int64_t i = 0; i < seqlen_q; ++i) {
    if (!has_keys(i)) continue;
    if (constant || folds_dout) {
      rows.fold[i] = std::max((folds_dout ? dout[i] : 0) - rows.anchor, least);
    }
    rows.bias[i] = static_cast<float>(rows.fold[i]) - forward.lse[i] * kLog2e;
  }
  return rows;
}

/// |dQ_i| <= softmax_scale * sum_j P_ij (|dP_ij| + |delta_i|) max |K|, and by Cauchy and Schwarz
/// |dP_ij| and |delta_i| are at most |dO_i| max_j |V_j|.
int dynamic_dq_exponent(const Operands& operands, const HeadProblem& problem,
                        const RecipeConfig& config) {
  const HeadInputs inputs = kern_inputs(operands, problem, config);
  double largest_k = 0;
  for (const float value : inputs.k.data) largest_k = std::max(largest_k, std::fabs(double{value}));
  const double bound = 2 * std::fabs(problem.softmax_scale) * largest_row_norm(inputs.dout) *
                       largest_row_norm(inputs.v) * largest_k;
  if (!std::isfinite(bound) || bound <= 0) return 0;
  return std::clamp(13 - static_cast<int>(std::ceil(std::log2(bound))), -100, 100);
}

}  // namespace mxfa::reference::recipe::internal
