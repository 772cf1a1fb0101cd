#include "model/approx.h"

#include <bit>
#include <cmath>
#include <string>

#include "core/simd_clones.h"
#include "model/convert.h"
#include "model/fault.h"
#include "mx/bits.h"

namespace mxfa::emu::model {
namespace {

constexpr double kTwoPi = 6.283185307179586;

float canonical_nan() { return mx::bits_float(0x7FFFFFFFu); }

float flush(float x, bool ftz) {
  const std::uint32_t bits = mx::float_bits(x);
  return ftz && (bits & 0x7F800000u) == 0 ? mx::bits_float(bits & 0x80000000u) : x;
}

/// 2^x for |x| <= 1100 to double precision, from additions and multiplications only, so that every
/// machine and vector width gives the same bits. Taylor's terms of 2^f, |f| <= 1/2, beyond the 13th
/// are below 2^-52.
inline double exp2_double(double x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double shifted = x + kRound;
  const double n = shifted - kRound;
  const double y = (x - n) * 0.693147180559945309417;
  double sum = 1.0 / 6227020800.0;
  sum = sum * y + 1.0 / 479001600.0;
  sum = sum * y + 1.0 / 39916800.0;
  sum = sum * y + 1.0 / 3628800.0;
  sum = sum * y + 1.0 / 362880.0;
  sum = sum * y + 1.0 / 40320.0;
  sum = sum * y + 1.0 / 5040.0;
  sum = sum * y + 1.0 / 720.0;
  sum = sum * y + 1.0 / 120.0;
  sum = sum * y + 1.0 / 24.0;
  sum = sum * y + 1.0 / 6.0;
  sum = sum * y + 0.5;
  sum = sum * y + 1.0;
  sum = sum * y + 1.0;
  // The low bits of `shifted` hold n.
  const std::uint64_t integer = std::bit_cast<std::uint64_t>(shifted) << 52;
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(sum) + integer);
}

inline float exp2_float(float x) {
  // Beyond these bounds FP32 results are 0 or infinity whatever x is.
  double wide = static_cast<double>(x);
  wide = wide < -200.0 ? -200.0 : wide;
  wide = wide > 200.0 ? 200.0 : wide;
  return static_cast<float>(exp2_double(wide));
}

double exact_value(Approx function, float x) {
  const double wide = static_cast<double>(x);
  switch (function) {
    case Approx::kEx2:
      return exp2_double(wide < -200.0 ? -200.0 : wide > 200.0 ? 200.0 : wide);
    case Approx::kLg2:
      return std::log2(wide);
    case Approx::kRcp:
      return 1.0 / wide;
    case Approx::kRsqrt:
      return 1.0 / std::sqrt(wide);
    case Approx::kSqrt:
      return std::sqrt(wide);
    case Approx::kTanh:
      return std::tanh(wide);
    case Approx::kSin:
      return std::sin(wide);
    case Approx::kCos:
      return std::cos(wide);
  }
  return 0.0;
}

/// What ex2 of a short format cuts off: 2^x without what x has below 2^-23.
float cut_exp2(float x) {
  return static_cast<float>(exact_value(Approx::kEx2, mx::magnitude(x) < 0x1p-23f ? 0.0f : x));
}

/// Largest error of a result, absolute.
double error_bound(Approx function, float x, double exact) {
  const double magnitude = std::fabs(exact);
  const float rounded = static_cast<float>(magnitude);
  const double ulp = static_cast<double>(std::nextafter(rounded, HUGE_VALF)) - rounded;
  switch (function) {
    case Approx::kEx2:
      return 2.0 * ulp;
    case Approx::kRcp:
      return ulp;
    case Approx::kLg2:
      return x > 0.5f && x < 2.0f ? 0x1p-22 : 0x1p-22 * magnitude;
    case Approx::kRsqrt:
      return std::exp2(-22.9) * magnitude;
    case Approx::kSqrt:
      return 0x1p-23 * magnitude;
    case Approx::kTanh:
      return 0x1p-11 * magnitude;
    case Approx::kSin:
    case Approx::kCos: {
      const double angle = std::fabs(static_cast<double>(x));
      if (angle <= kTwoPi) return std::exp2(-20.5);
      return angle <= 50.0 * kTwoPi ? std::exp2(-14.7) : 0.0;
    }
  }
  return 0.0;
}

/// A number in [-1, 1) from the arguments (SplitMix64).
double noise(std::uint64_t seed, std::uint64_t function, std::uint64_t x) {
  std::uint64_t z = seed + 0x9E3779B97F4A7C15u * (x + (function << 32) + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<double>(static_cast<std::int64_t>(z)) * 0x1p-63;
}

/// Moves `exact` within `bound` of the truth after rounding: half an ulp is left to the rounding,
/// and where the bound is smaller than that, the correctly rounded value stands.
float perturbed(double exact, double bound, double amount) {
  const float nearest = static_cast<float>(exact);
  const float moved = static_cast<float>(exact + bound * amount);
  return std::fabs(static_cast<double>(moved) - exact) <= bound ? moved : nearest;
}

bool is_special(Approx function, float x, float result) {
  if (!mx::is_finite(x) || !mx::is_finite(result) || result == 0.0f) return true;
  if (x == 0.0f) return true;
  // Subnormal arguments of tanh pass through.
  return function == Approx::kTanh && mx::magnitude(x) < 0x1p-126f;
}

}  // namespace

std::string_view approx_name(Approx function) {
  constexpr std::string_view kNames[] = {"ex2",  "lg2",  "rcp", "rsqrt",
                                         "sqrt", "tanh", "sin", "cos"};
  return kNames[static_cast<int>(function)];
}

float approx_f32(Approx function, float x, bool ftz, const Perturbation& perturbation) {
  const float argument = flush(x, ftz);
  float result = 0.0f;
  if (mx::is_nan(argument)) return canonical_nan();
  const double exact = exact_value(function, argument);
  result = static_cast<float>(exact);
  if (mx::is_nan(result)) return canonical_nan();
  if (perturbation.on && !is_special(function, argument, result)) {
    result = perturbed(
        exact, error_bound(function, argument, exact),
        noise(perturbation.seed, static_cast<std::uint64_t>(function), mx::float_bits(argument)));
  }
  return flush(result, ftz);
}

float approx_div(float a, float b, bool ftz, bool full, const Perturbation& perturbation) {
  const float x = flush(a, ftz);
  const float y = flush(b, ftz);
  // a * (1/b) with a reciprocal that is flushed to zero.
  if (!full && mx::is_finite(y) && mx::magnitude(y) > 0x1p126f && !mx::is_nan(x)) {
    if (!mx::is_finite(x)) return canonical_nan();
    return std::signbit(x) != std::signbit(y) ? -0.0f : 0.0f;
  }
  const double exact = static_cast<double>(x) / static_cast<double>(y);
  float result = static_cast<float>(exact);
  if (mx::is_nan(result)) return canonical_nan();
  if (perturbation.on && mx::is_finite(x) && mx::is_finite(y) && mx::is_finite(result) &&
      result != 0.0f) {
    const double bound = error_bound(Approx::kEx2, 0.0f, exact);  // 2 ulp
    const std::uint64_t both = mx::float_bits(x) ^ (std::uint64_t{mx::float_bits(y)} << 20);
    result = perturbed(exact, bound, noise(perturbation.seed, 99, both));
  }
  return flush(result, ftz);
}

std::uint16_t approx_f16(Approx function, std::uint16_t x) {
  if (function != Approx::kEx2 && function != Approx::kTanh) {
    fault("approx .f16", "ex2 or tanh", std::string(approx_name(function)));
  }
  const float value = mx::decode_f16(x);
  if (mx::is_nan(value)) return 0x7FFF;
  if (function == Approx::kTanh) {
    return mx::encode_f16(static_cast<float>(exact_value(function, value)));
  }
  const float exact = cut_exp2(value);
  // Beyond the range: infinity, not the largest value.
  if (exact >= 0x1p16f) return 0x7C00;
  return static_cast<std::uint16_t>(encode_small(SmallFloat::kF16, exact, {Rounding::kZero}));
}

std::uint16_t approx_bf16(Approx function, std::uint16_t x) {
  if (function != Approx::kEx2 && function != Approx::kTanh) {
    fault("approx .bf16", "ex2 or tanh", std::string(approx_name(function)));
  }
  const float value = mx::decode_bf16(x);
  if (mx::is_nan(value)) return 0x7FFF;
  if (function == Approx::kTanh) {
    return mx::encode_bf16(static_cast<float>(exact_value(function, value)));
  }
  return static_cast<std::uint16_t>(mx::float_bits(flush(cut_exp2(value), true)) >> 16);
}

MXFA_SIMD_CLONES
void ex2_lanes(const float* x, float* out, bool ftz) {
  for (int lane = 0; lane < 32; ++lane) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[lane]);
    const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    const float result = exp2_float(nan ? 0.0f : x[lane]);
    const bool tiny = std::bit_cast<std::uint32_t>(result) < 0x00800000u;
    const float flushed = ftz && tiny ? 0.0f : result;
    out[lane] = nan ? std::bit_cast<float>(0x7FFFFFFFu) : flushed;
  }
}

}  // namespace mxfa::emu::model
