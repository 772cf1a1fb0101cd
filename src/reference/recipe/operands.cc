#include <algorithm>
#include <cfloat>
#include <string>

#include "core/check.h"
#include "mx/bits.h"
#include "mx/block.h"
#include "mx/lower.h"
#include "reference/recipe/panels.h"

namespace mxfa::reference::recipe {
namespace {

/// Least scale of V in leak-free form, 2^-64: the row sum takes P' * 2^-v, which must not overflow.
constexpr std::uint8_t kLeakFreeMinScale = mx::kE8M0Bias - 64;

std::string shape_text(const Matrix<float>& matrix) {
  return fmt::format("[{}, {}]", matrix.rows, matrix.cols);
}

void check_shapes(const HeadInputs& inputs) {
  const std::int64_t dim = inputs.q.cols;
  core::expect(dim > 0, "q", "a positive head_dim", shape_text(inputs.q));
  core::expect(inputs.k.cols == dim, "k", fmt::format("head_dim {}", dim), shape_text(inputs.k));
  core::expect(inputs.v.cols == dim && inputs.v.rows == inputs.k.rows, "v",
               fmt::format("k's shape {}", shape_text(inputs.k)), shape_text(inputs.v));
  core::expect(
      inputs.dout.cols == 0 || (inputs.dout.cols == dim && inputs.dout.rows == inputs.q.rows),
      "dout", fmt::format("q's shape {} or nothing", shape_text(inputs.q)),
      shape_text(inputs.dout));
}

Matrix<float> rounded_bf16(Matrix<float> matrix) {
  for (float& value : matrix.data) value = mx::round_bf16(value);
  return matrix;
}

std::vector<float> column_means(const Matrix<float>& matrix) {
  std::vector<double> sums(static_cast<std::size_t>(matrix.cols));
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    for (std::int64_t c = 0; c < matrix.cols; ++c) sums[c] += matrix(i, c);
  }
  std::vector<float> means;
  for (const double sum : sums) {
    means.push_back(matrix.rows > 0 ? static_cast<float>(sum / double(matrix.rows)) : 0.0f);
  }
  return means;
}

/// Subtracts `given` or the mean; returns what was subtracted.
std::vector<float> smooth(Matrix<float>& matrix, const std::vector<float>& given,
                          const char* name) {
  core::expect(given.empty() || std::int64_t(given.size()) == matrix.cols, name,
               fmt::format("head_dim = {} values or none", matrix.cols),
               core::text(std::int64_t(given.size())));
  std::vector<float> shift = given.empty() ? column_means(matrix) : given;
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    for (std::int64_t c = 0; c < matrix.cols; ++c) matrix(i, c) -= shift[c];
  }
  return shift;
}

mx::QuantizedMatrix quantize_mx(const Matrix<float>& matrix, BlockShape shape, ScaleRule rule) {
  return mx::quantize(mx::row_major(matrix.data.data(), matrix.rows, matrix.cols),
                      {.block_shape = shape, .rule = rule});
}

/// One FP32 scale; an infinity or NaN poisons the tensor.
Operand quantize_per_tensor(const Matrix<float>& matrix) {
  Operand operand;
  const float amax = mx::block_amax(matrix.data);
  const bool bad = !mx::is_finite(amax);
  const float inverse = amax > 0 ? std::min(mx::E4M3::kMaxValue / amax, FLT_MAX) : 1.0f;
  operand.tensor_scale = amax > 0 && !bad ? amax / mx::E4M3::kMaxValue : 1.0f;
  mx::QuantizedMatrix& codes = operand.along_d;
  codes.rows = matrix.rows;
  codes.cols = matrix.cols;
  codes.block_shape = BlockShape::k32xD;
  codes.codes.reserve(matrix.data.size());
  for (const float value : matrix.data) {
    codes.codes.push_back(bad ? mx::E4M3::kNanCode : mx::encode_e4m3(value * inverse));
  }
  codes.scales.assign(static_cast<std::size_t>(codes.grid().size()), mx::kE8M0Bias);
  operand.along_tokens = codes;
  return operand;
}

/// Re-encodes rows whose scale is below the least one.
void raise_scales(const Matrix<float>& matrix, mx::QuantizedMatrix& quantized) {
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    std::uint8_t& scale = quantized.scales[quantized.grid().index(i, 0)];
    if (scale >= kLeakFreeMinScale) continue;
    scale = kLeakFreeMinScale;
    for (std::int64_t c = 0; c < matrix.cols; ++c) {
      quantized.codes[i * matrix.cols + c] = mx::encode_scaled<mx::E4M3>(matrix(i, c), scale);
    }
  }
}

Operand make_operand(const Matrix<float>& matrix, BlockShape shape, const RecipeConfig& config) {
  Operand operand;
  if (config.machine == Machine::kFp8PerTensor) {
    operand = quantize_per_tensor(matrix);
  } else if (!internal::bf16_operands(config)) {
    const bool two = shape == BlockShape::k1x32 || shape == BlockShape::k32x1;
    operand.along_d = quantize_mx(matrix, two ? BlockShape::k1x32 : shape, config.scale_rule);
    operand.along_tokens =
        two ? quantize_mx(matrix, BlockShape::k32x1, config.scale_rule) : operand.along_d;
  }
  operand.bf16 = rounded_bf16(matrix);
  return operand;
}

Matrix<float> kern_values(const mx::QuantizedMatrix& codes, const Operand& operand, bool bf16) {
  if (bf16) return operand.bf16;
  Matrix<float> values(codes.rows, codes.cols);
  values.data = mx::dequantize(codes);
  for (float& value : values.data) value *= operand.tensor_scale;
  return values;
}

}  // namespace

Operands quantize_operands(const HeadInputs& inputs, const RecipeConfig& config) {
  config.check();
  check_shapes(inputs);
  Operands operands;
  Matrix<float> k = rounded_bf16(inputs.k);
  Matrix<float> v = rounded_bf16(inputs.v);
  if (config.smooth_k) operands.shift_k = smooth(k, config.shift_k, "shift_k");
  if (config.smooth_v) operands.shift_v = smooth(v, config.shift_v, "shift_v");
  operands.q = make_operand(rounded_bf16(inputs.q), config.qk_shape, config);
  operands.k = make_operand(k, config.qk_shape, config);
  operands.v = make_operand(v, config.v_shape, config);
  if (config.leak_free) {
    raise_scales(v, operands.v.along_d);
    operands.v.along_tokens = operands.v.along_d;
  }
  if (inputs.dout.cols > 0) {
    operands.dout = make_operand(rounded_bf16(inputs.dout), config.dout_shape, config);
  }
  return operands;
}

HeadInputs kern_inputs(const Operands& operands, const HeadProblem& problem,
                       const RecipeConfig& config) {
  const bool bf16 = internal::bf16_operands(config);
  const bool qk_bf16 = bf16 || config.qk_bf16;
  HeadInputs inputs;
  inputs.mask = problem.mask;
  inputs.softmax_scale = problem.softmax_scale;
  inputs.q = kern_values(operands.q.along_d, operands.q, qk_bf16);
  inputs.k = kern_values(operands.k.along_d, operands.k, qk_bf16);
  inputs.v = kern_values(operands.v.along_tokens, operands.v, bf16);
  inputs.dout = kern_values(operands.dout.along_d, operands.dout, bf16);
  return inputs;
}

void requantize(const Matrix<float>& values, int binades, Operand& operand, bool coarse,
                float half_sums) {
  const mx::FloatView view = mx::row_major(values.data.data(), values.rows, values.cols);
  auto matrix = mx::lowered(std::move(operand.along_d), view, binades, coarse);
  if (half_sums > 0) matrix = mx::for_half_sums(std::move(matrix), view, half_sums, coarse);
  operand.along_d = operand.along_tokens = std::move(matrix);
}

}  // namespace mxfa::reference::recipe
