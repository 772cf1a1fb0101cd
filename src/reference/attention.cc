#include "reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "reference/gemm.h"
#include "reference/sqnr.h"

namespace mxfa::reference {
namespace {

template <class T>
void expect_shape(const Matrix<T>& matrix, const char* name, std::int64_t rows, std::int64_t cols) {
  core::expect(matrix.rows == rows && matrix.cols == cols, name,
               fmt::format("[{}, {}]", rows, cols),
               fmt::format("[{}, {}]", matrix.rows, matrix.cols));
}

HeadInputsF64 widened(const HeadInputs& inputs) {
  return {.q = to_double(inputs.q),
          .k = to_double(inputs.k),
          .v = to_double(inputs.v),
          .dout = to_double(inputs.dout),
          .mask = inputs.mask,
          .softmax_scale = inputs.softmax_scale};
}

std::vector<attention::KeyRange> visible_ranges(const HeadInputsF64& inputs) {
  std::vector<attention::KeyRange> ranges;
  ranges.reserve(inputs.q.rows);
  for (std::int64_t i = 0; i < inputs.q.rows; ++i) {
    ranges.push_back(attention::visible_keys(inputs.mask, inputs.q.rows, inputs.k.rows, i));
  }
  return ranges;
}

/// Writes softmax(logits) to `probabilities` and returns ln sum exp(logits). A row with a NaN, an
/// infinite maximum or nothing but -infinity is NaN throughout.
double softmax_row(std::span<const double> logits, std::span<double> probabilities) {
  const double row_max = *std::max_element(logits.begin(), logits.end());
  double row_sum = 0;
  for (std::size_t j = 0; j < logits.size(); ++j) {
    probabilities[j] = std::exp(logits[j] - row_max);
    row_sum += probabilities[j];
  }
  for (double& p : probabilities) p /= row_sum;
  return row_max + std::log(row_sum);
}

}  // namespace

ForwardResult attention_forward(const HeadInputs& inputs) {
  return attention_forward(widened(inputs));
}

BackwardResult attention_backward(const HeadInputs& inputs, const ForwardResult& forward) {
  return attention_backward(widened(inputs), forward);
}

ForwardResult attention_forward(const HeadInputsF64& inputs) {
  expect_shape(inputs.k, "k", inputs.k.rows, inputs.q.cols);
  expect_shape(inputs.v, "v", inputs.k.rows, inputs.q.cols);
  const std::int64_t seqlen_q = inputs.q.rows;
  const std::int64_t seqlen_k = inputs.k.rows;
  ForwardResult result;
  result.s = multiply_nt(inputs.q, inputs.k);
  for (double& s : result.s.data) s *= inputs.softmax_scale;
  result.p = Matrix<double>(seqlen_q, seqlen_k);
  result.lse.assign(seqlen_q, -std::numeric_limits<double>::infinity());
  const auto ranges = visible_ranges(inputs);
  for (std::int64_t i = 0; i < seqlen_q; ++i) {
    if (ranges[i].empty()) continue;
    const auto begin = std::size_t(ranges[i].begin);
    const auto count = std::size_t(ranges[i].end) - begin;
    result.lse[i] = softmax_row(std::span<const double>(result.s.row(i)).subspan(begin, count),
                                result.p.row(i).subspan(begin, count));
  }
  result.o = multiply_nn(result.p, inputs.v, ranges);
  return result;
}

BackwardResult attention_backward(const HeadInputsF64& inputs, const ForwardResult& forward) {
  const std::int64_t seqlen_q = inputs.q.rows;
  const std::int64_t seqlen_k = inputs.k.rows;
  expect_shape(inputs.dout, "dout", seqlen_q, inputs.q.cols);
  expect_shape(forward.p, "forward.p", seqlen_q, seqlen_k);
  expect_shape(forward.o, "forward.o", seqlen_q, inputs.q.cols);
  const Matrix<double>& dout = inputs.dout;
  const auto ranges = visible_ranges(inputs);
  BackwardResult result;
  result.dv = multiply_tn(forward.p, dout, ranges);
  result.dp = multiply_nt(dout, inputs.v);
  result.ds = Matrix<double>(seqlen_q, seqlen_k);
  result.delta.assign(seqlen_q, 0.0);
  for (std::int64_t i = 0; i < seqlen_q; ++i) {
    if (ranges[i].empty()) continue;
    double& delta = result.delta[i];
    for (std::int64_t d = 0; d < dout.cols; ++d) delta += dout(i, d) * forward.o(i, d);
    for (std::int64_t j = ranges[i].begin; j < ranges[i].end; ++j) {
      result.ds(i, j) = forward.p(i, j) * (result.dp(i, j) - delta);
    }
  }
  result.dq = multiply_nn(result.ds, inputs.k, ranges);
  result.dk = multiply_tn(result.ds, inputs.q, ranges);
  for (double& dq : result.dq.data) dq *= inputs.softmax_scale;
  for (double& dk : result.dk.data) dk *= inputs.softmax_scale;
  return result;
}

double sqnr_db(const std::vector<double>& reference, const std::vector<double>& value) {
  core::expect(reference.size() == value.size(), "value",
               fmt::format("{} elements", reference.size()), core::text(value.size()));
  return sqnr_db_of<double>(reference, value);
}

}  // namespace mxfa::reference
