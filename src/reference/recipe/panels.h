#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "mx/quantize.h"
#include "mx/scale_exponent.h"
#include "mx/tensor_core_gemm.h"
#include "reference/recipe/recipe.h"

/// Operands as GEMM panels, and the exponents that a machine folds into the arithmetic around a
/// GEMM because its MMA cannot apply them.
namespace mxfa::reference::recipe::internal {

/// log2(e) and ln(2) in FP32, as kernels hold them.
inline constexpr float kLog2e = 1.44269504f;
inline constexpr float kLn2 = 0.693147182f;
/// Backward: the largest P' of a constant scale is 2^8.
inline constexpr int kBackwardOffset = 8;
/// Below it a folded payload is 0 either way (2^8 * 2^-32 rounds to 0), and P' must not underflow.
inline constexpr int kLeastFold = -32;
/// A block without a scale: lower than every exponent, so that maxima pass over it.
inline constexpr int kNoExponent = -1000;

/// 2^exponent as FP32, clamped to normal numbers.
inline float power_of_two(int exponent) {
  const int clamped = std::clamp(exponent, -126, 127);
  return mx::bits_float(static_cast<std::uint32_t>(clamped + 127) << 23);
}
/// value * 2^exponent with the exponent clamped to +-126; finite where value is.
inline float folded(float value, int exponent) {
  const float result = value * power_of_two(std::clamp(exponent, -126, 126));
  return std::isinf(result) && std::isfinite(value) ? std::copysign(FLT_MAX, value) : result;
}
using mx::scale_exponent;

/// Exponents of each token, to be folded; empty where the GEMM applies the scales itself.
using TokenExponents = std::vector<int>;
/// Of a matrix whose scales are uniform along head_dim.
TokenExponents token_exponents(const mx::QuantizedMatrix& matrix);

/// The role of a [tokens, head_dim] matrix in a GEMM.
enum class Role : std::uint8_t {
  kRows,        ///< A = [tokens, head_dim], K = head_dim
  kTransposed,  ///< B = [head_dim, tokens], K = head_dim
  kTokens,      ///< B = [tokens, head_dim], K = tokens
};
/// `scaled`: with block exponents for the MMA.
mx::MmaPanel make_panel(const mx::QuantizedMatrix& matrix, Role role, bool scaled,
                        mx::AccumulatorRule rule);
mx::MmaPanel make_panel(const Matrix<float>& matrix, Role role);

/// values[i] = decode_e4m3(codes[i])
void decode_codes(std::span<const std::uint8_t> codes, float* values);

mx::AccumulatorRule fp8_rule(const RecipeConfig& config);
bool is_mx(const RecipeConfig& config);
/// All GEMMs run on BF16 operands.
bool bf16_operands(const RecipeConfig& config);
/// P and dS of the recipes without FP8.
inline float round_unscaled(float value, const RecipeConfig& config) {
  return config.machine == Machine::kF32 ? value : mx::round_bf16(value);
}
/// Throws Error where an operand lacks what the recipe reads.
void check_operands(const Operands& operands, const RecipeConfig& config, bool backward);

/// One of the two GEMMs along head_dim: A B^T of [rows, D] and [cols, D].
class HeadDimGemm {
 public:
  /// BF16 values where `bf16`, else FP8 codes. `scale` multiplies every result.
  HeadDimGemm(const Operand& a, const Operand& b, bool bf16, double scale,
              const RecipeConfig& config);

  /// acc[rows, ldacc] = the raw accumulator of rows x cols from (row, col).
  void run(std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols, float* acc,
           std::int64_t ldacc) const;
  /// The factors of one row's accumulators: scale * 2^(folded exponents).
  void multipliers(std::int64_t row, std::int64_t col, std::int64_t cols, float* out) const;

 private:
  mx::MmaPanel a_;
  mx::MmaPanel b_;
  mx::AccumulatorRule rule_;
  TokenExponents a_fold_;
  TokenExponents b_fold_;
  float scale_;
};

/// S = Q K^T; its results times multipliers() are in log2 units.
HeadDimGemm score_gemm(const Operands& operands, const HeadProblem& problem,
                       const RecipeConfig& config);

/// out[i] = a[i] * b[i]
void multiply_row(const float* a, const float* b, float* out, std::int64_t count);
/// out[i] = fma(a[i], b[i], c[i])
void fma_row(const float* a, const float* b, const float* c, float* out, std::int64_t count);
/// out[i] = values[i] * 2^exponent
void scale_row(const float* values, int exponent, float* out, std::int64_t count);
/// To half.
inline void round_f16_row(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = mx::round_f16(values[i]);
}

}  // namespace mxfa::reference::recipe::internal
