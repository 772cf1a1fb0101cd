#pragma once

#include <cmath>
#include <cstdint>

/// The exponential and logarithm of the recipes. Kernels use approximations; a RecipeConfig can
/// take one in place of exp2_f32_row.
namespace mxfa::reference::recipe {

/// 2^x in double with an error of about 4e-16, rounded once to FP32: the nearest FP32 value in all
/// but about one of 10^8 arguments. Subnormal results are kept; NaN gives NaN.
inline float exp2_f32(float x) {
  // Outside this range the result is 0 or infinity whatever the fraction.
  double clamped = static_cast<double>(x);
  clamped = clamped > 200.0 ? 200.0 : clamped;
  clamped = clamped < -200.0 ? -200.0 : clamped;
  constexpr double kMagic = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  const double shifted = clamped + kMagic;
  const double whole = shifted - kMagic;
  const double t = (clamped - whole) * 0x1.62e42fefa39efp-1;  // ln 2; |t| <= 0.347
  // Taylor's polynomial of degree 13 ends 4e-18 below e^t.
  double sum = 1.0 / 6227020800.0;
  sum = sum * t + 1.0 / 479001600.0;
  sum = sum * t + 1.0 / 39916800.0;
  sum = sum * t + 1.0 / 3628800.0;
  sum = sum * t + 1.0 / 362880.0;
  sum = sum * t + 1.0 / 40320.0;
  sum = sum * t + 1.0 / 5040.0;
  sum = sum * t + 1.0 / 720.0;
  sum = sum * t + 1.0 / 120.0;
  sum = sum * t + 1.0 / 24.0;
  sum = sum * t + 1.0 / 6.0;
  sum = sum * t + 0.5;
  sum = sum * t + 1.0;
  sum = sum * t + 1.0;
  const std::uint64_t low = __builtin_bit_cast(std::uint64_t, shifted);
  const double power = __builtin_bit_cast(double, (low + 1023) << 52);
  return static_cast<float>(sum * power);
}

/// y[i] = exp2_f32(x[i]); x and y may be the same array.
void exp2_f32_row(const float* x, float* y, std::int64_t count);
using Exp2Row = void (*)(const float* x, float* y, std::int64_t count);

/// log2(x) rounded from double.
inline float log2_f32(float x) { return static_cast<float>(std::log2(static_cast<double>(x))); }

}  // namespace mxfa::reference::recipe
