#include "model/mma_unit.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "model/fault.h"
#include "model/mma_kernels.h"
#include "mx/e8m0.h"
#include "mx/fp8.h"

namespace mxfa::emu::model {
namespace {

constexpr std::uint32_t round_up(std::uint32_t value, std::uint32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <class Format>
constexpr std::array<float, 256> fp8_table() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) {
    table[static_cast<std::size_t>(code)] = mx::decode_fp8<Format>(static_cast<std::uint8_t>(code));
  }
  return table;
}
constexpr std::array<float, 256> kE4M3 = fp8_table<mx::E4M3>();
constexpr std::array<float, 256> kE5M2 = fp8_table<mx::E5M2>();

template <class T, class Decode>
void decode_all(std::span<const std::byte> raw, std::vector<float>& out, Decode decode) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T code;
    std::memcpy(&code, raw.data() + i * sizeof(T), sizeof(T));
    out[i] = decode(code);
  }
}

/// Largest exponent of any value and least exponent of any last bit, over finite nonzero values.
struct BitRange {
  int high = std::numeric_limits<int>::min() / 4;
  int low = std::numeric_limits<int>::max() / 4;
  void add(float value) {
    const std::uint32_t bits = mx::float_bits(value) & 0x7FFFFFFFu;
    if (bits == 0 || bits >= 0x7F800000u) return;
    const int field = static_cast<int>(bits >> 23);
    const std::uint32_t significand = (bits & 0x7FFFFFu) | (field != 0 ? 0x800000u : 0u);
    const int unit = std::max(field, 1) - 127 - 23;
    high = std::max(high, unit + 31 - std::countl_zero(significand));
    low = std::min(low, unit + std::countr_zero(significand));
  }
};

/// Value in 1 <= |s| < 2, or below 1 where subnormal in its format, and its exponent.
void split(float value, int least, float& significand, std::int32_t& exponent) {
  const mx::FloatParts parts = mx::float_parts(value, least);
  significand = static_cast<float>(parts.significand) * 0x1p-23f;
  exponent = parts.significand == 0 ? kZeroExponent : parts.exponent;
}

struct F32Result {
  using Bits = float;
  static constexpr int kLeastExponent = -126;
  static constexpr float kNan = std::bit_cast<float>(0x7FFFFFFFu);
  static float decode(float bits) { return bits; }
  static float element(const mx::MmaElement& mma, std::span<const float> a,
                       std::span<const float> b, float c) {
    return mma.f32(a, b, c);
  }
  static float round(double odd) { return static_cast<float>(odd); }
  static float truncate(mx::FixedPoint sum, int bits) { return mx::truncate_to_f32(sum, bits); }
};

struct F16Result {
  using Bits = std::uint16_t;
  static constexpr int kLeastExponent = -14;
  static constexpr std::uint16_t kNan = 0x7FFF;
  static float decode(std::uint16_t bits) { return mx::decode_f16(bits); }
  static std::uint16_t element(const mx::MmaElement& mma, std::span<const float> a,
                               std::span<const float> b, std::uint16_t c) {
    return mma.f16(a, b, c);
  }
  static std::uint16_t round(double odd) {
    return mx::encode_f16(mx::detail::round_to_odd_float(odd));
  }
  static std::uint16_t truncate(mx::FixedPoint sum, int) { return mx::round_to_f16(sum); }
};

/// (high + low) * 2^scale + c for an exact high + low, rounded to odd in double.
double add_exact(double high, double low, int scale, double c) {
  high = std::ldexp(high, scale);
  low = std::ldexp(low, scale);
  const auto two_sum = [](double x, double y, double& rest) {
    const double sum = x + y;
    const double part = sum - x;
    rest = (x - (sum - part)) + (y - part);
    return sum;
  };
  double r1, r2, r3;
  const double with_c = two_sum(high, c, r1);
  const double small = two_sum(r1, low, r2);
  const double total = two_sum(with_c, small, r3);
  if (total == 0.0) return 0.0;
  return mx::detail::round_to_odd(total, r3 != 0.0 ? r3 : r2);
}

void check_multiplicands(const Multiplicand& a, const Multiplicand& b, std::size_t d,
                         const BlockScales& scales) {
  if (a.k != b.k || a.k % 8 != 0 || a.k == 0 || a.k > 256) {
    fault("mma K", "equal multiples of 8, at most 256", fmt::format("{} and {}", a.k, b.k));
  }
  if (a.values.size() != std::size_t{a.rows} * a.k ||
      b.values.size() != std::size_t{b.rows} * b.k) {
    fault("mma operand", "rows x k values",
          fmt::format("{} and {}", a.values.size(), b.values.size()));
  }
  if (d != std::size_t{a.rows} * b.rows) {
    fault("mma accumulator", fmt::format("{} x {} values", a.rows, b.rows),
          static_cast<std::int64_t>(d));
  }
  const auto fits = [](std::span<const std::uint8_t> s, std::uint32_t rows) {
    return s.empty() || s.size() == rows;
  };
  if (!fits(scales.a, a.rows) || !fits(scales.b, b.rows)) {
    fault("mma scales", "one for each row",
          fmt::format("{} and {}", scales.a.size(), scales.b.size()));
  }
}

/// Scale bytes as exponents; rows whose scale is NaN are special.
void unpack_scales(std::span<const std::uint8_t> scales, std::vector<std::int32_t>& exponents,
                   std::vector<std::uint8_t>& special) {
  for (std::size_t i = 0; i < scales.size(); ++i) {
    exponents[i] = int{scales[i]} - mx::kE8M0Bias;
    if (scales[i] == mx::kE8M0Nan) special[i] = 1;
  }
}

/// Where one value goes: element `at` of the packed array, non-finite ones as 0.
struct Slot {
  std::vector<float>& values;
  std::vector<std::int32_t>& exponents;
  int least;
  bool aligned;
  void put(float value, std::size_t at, std::uint8_t& special) const {
    if (!mx::is_finite(value)) {
      special = 1;
    } else if (aligned) {
      split(value, least, values[at], exponents[at]);
    } else {
      values[at] = value;
    }
  }
};

void pack(const Multiplicand& a, const Multiplicand& b, const BlockScales& scales, bool aligned,
          PackedOperands& out) {
  const std::uint32_t k = a.k;
  out.cols = round_up(b.rows, kMmaCols);
  out.a.assign(std::size_t{round_up(a.rows, kMmaRows)} * k, 0.0f);
  out.b.assign(std::size_t{k} * out.cols, 0.0f);
  if (aligned) {
    out.a_exponent.assign(out.a.size(), kZeroExponent);
    out.b_exponent.assign(out.b.size(), kZeroExponent);
  }
  out.a_special.assign(a.rows, 0);
  out.b_special.assign(out.cols, 0);
  out.a_scale.assign(a.rows, 0);
  out.b_scale.assign(out.cols, 0);
  const Slot slot_a{out.a, out.a_exponent, mx::min_exponent(a.type), aligned};
  for (std::uint32_t i = 0; i < a.rows; ++i) {
    for (std::uint32_t j = 0; j < k; ++j) {
      const std::size_t at = std::size_t{i} * k + j;
      slot_a.put(a.values[at], at, out.a_special[i]);
    }
  }
  const Slot slot_b{out.b, out.b_exponent, mx::min_exponent(b.type), aligned};
  for (std::uint32_t j = 0; j < k; ++j) {
    for (std::uint32_t i = 0; i < b.rows; ++i) {
      slot_b.put(b.values[std::size_t{i} * k + j], std::size_t{j} * out.cols + i, out.b_special[i]);
    }
  }
  unpack_scales(scales.a, out.a_scale, out.a_special);
  unpack_scales(scales.b, out.b_scale, out.b_special);
}

/// True where sums of products are exact in double whatever their order.
bool sums_fit_double(const Multiplicand& a, const Multiplicand& b) {
  if (a.type == mx::MmaType::kE4M3 && b.type == mx::MmaType::kE4M3) return true;  // 2^-18 .. 2^23
  BitRange range_a, range_b;
  for (const float value : a.values) range_a.add(value);
  for (const float value : b.values) range_b.add(value);
  // Products are multiples of 2^low below 2^(high + 2), their sums below 2^(high + 2 + log2 K).
  const int high = range_a.high + range_b.high + 2 + std::bit_width(a.k - 1);
  return high - (range_a.low + range_b.low) <= 53;
}

/// One instruction: rows of A times blocks of 16 columns.
template <class Result>
class TileRun {
 public:
  using Bits = typename Result::Bits;
  static constexpr bool kIsF32 = std::is_same_v<Bits, float>;

  TileRun(const Multiplicand& a, const Multiplicand& b, mx::AccumulatorRule rule,
          const PackedOperands& packed, std::span<Bits> d)
      : a_(a), b_(b), rule_(rule), packed_(packed), d_(d) {
    exact_ = rule.fraction_bits == 0;
    plain_ = exact_ && sums_fit_double(a, b);
  }

  void run() {
    for (std::uint32_t j = 0; j < b_.rows; j += kMmaCols) {
      width_ = std::min(kMmaCols, b_.rows - j);
      std::uint8_t special = 0;
      for (std::uint32_t q = 0; q < kMmaCols; ++q) special |= packed_.b_special[j + q];
      for (std::uint32_t i = 0; i < a_.rows; ++i) {
        if (plain_ && i % kMmaRows == 0) {
          exact_block(row_a(i), packed_.b.data() + j, packed_.cols, a_.k, sum_[0]);
        }
        const bool finite = load(i, j);
        products(i, j);
        store(i, j, !finite || special != 0 || packed_.a_special[i] != 0);
      }
    }
  }

 private:
  const float* row_a(std::uint32_t i) const { return packed_.a.data() + std::size_t{i} * a_.k; }
  Bits* out(std::uint32_t i, std::uint32_t j) { return d_.data() + std::size_t{i} * b_.rows + j; }

  /// Accumulators, non-finite ones as 0, and scales of the block. False where one is not finite.
  bool load(std::uint32_t i, std::uint32_t j) {
    const Bits* from = out(i, j);
    for (std::uint32_t q = width_; q < kMmaCols; ++q) c_[q] = 0.0f;
    for (std::uint32_t q = 0; q < width_; ++q) c_[q] = Result::decode(from[q]);
    std::uint32_t infinite = 0;
    for (std::uint32_t q = 0; q < kMmaCols; ++q) {
      const bool finite = mx::is_finite(c_[q]);
      infinite |= finite ? 0u : 1u;
      c_[q] = finite ? c_[q] : 0.0f;
      scale_[q] = packed_.a_scale[i] + packed_.b_scale[j + q];
    }
    return infinite == 0;
  }

  void products(std::uint32_t i, std::uint32_t j) {
    if (plain_) {
      exact(sum_[i % kMmaRows]);
    } else if (exact_) {
      exact_wide_row(row_a(i), packed_.b.data() + j, packed_.cols, a_.k, sum_[0], low_, lost_);
      for (std::uint32_t q = 0; q < width_; ++q) {
        result_[q] = Result::round(add_exact(sum_[0][q], low_[q], scale_[q], c_[q]));
        if (lost_[q] != 0.0) result_[q] = element(i, j + q);
      }
    } else {
      aligned(i, j);
    }
  }

  void exact(const double* sum) {
    if constexpr (kIsF32) {
      std::copy_n(c_, kMmaCols, result_);
      finish_exact_f32(sum, scale_, result_);
    } else {
      for (std::uint32_t q = 0; q < width_; ++q) {
        result_[q] = Result::round(add_exact(sum[q], 0.0, scale_[q], c_[q]));
      }
    }
  }

  void aligned(std::uint32_t i, std::uint32_t j) {
    const AlignedRow row{row_a(i),
                         packed_.a_exponent.data() + std::size_t{i} * a_.k,
                         packed_.b.data() + j,
                         packed_.b_exponent.data() + j,
                         packed_.cols,
                         a_.k,
                         rule_.fraction_bits,
                         Result::kLeastExponent};
    aligned_row(row, scale_, c_, sum_[0], place_);
    if constexpr (kIsF32) {
      if (finish_aligned_f32(sum_[0], place_, rule_.result_bits, result_)) return;
    }
    for (std::uint32_t q = 0; q < width_; ++q) {
      const mx::FixedPoint fixed{static_cast<std::int64_t>(sum_[0][q]), place_[q]};
      result_[q] = Result::truncate(fixed, rule_.result_bits);
    }
  }

  /// The scalar definition, from the old accumulator.
  Bits element(std::uint32_t m, std::uint32_t n) {
    const mx::MmaElement mma{a_.type, b_.type, rule_, packed_.a_scale[m] + packed_.b_scale[n]};
    return Result::element(mma, std::span(a_.values).subspan(std::size_t{m} * a_.k, a_.k),
                           std::span(b_.values).subspan(std::size_t{n} * b_.k, b_.k), *out(m, n));
  }

  void store(std::uint32_t i, std::uint32_t j, bool special) {
    Bits* to = out(i, j);
    if (!special) {
      std::copy_n(result_, width_, to);
      return;
    }
    for (std::uint32_t q = 0; q < width_; ++q) {
      const bool scale_nan =
          scale_is_nan(packed_.a_scale[i]) || scale_is_nan(packed_.b_scale[j + q]);
      const bool slow = packed_.a_special[i] != 0 || packed_.b_special[j + q] != 0 ||
                        !mx::is_finite(Result::decode(to[q]));
      to[q] = scale_nan ? Result::kNan : slow ? element(i, j + q) : result_[q];
    }
  }
  static bool scale_is_nan(std::int32_t exponent) {
    return exponent == int{mx::kE8M0Nan} - mx::kE8M0Bias;
  }

  const Multiplicand& a_;
  const Multiplicand& b_;
  mx::AccumulatorRule rule_;
  const PackedOperands& packed_;
  std::span<Bits> d_;
  bool exact_ = false;
  bool plain_ = false;
  std::uint32_t width_ = 0;
  alignas(64) double sum_[kMmaRows][kMmaCols] = {};
  alignas(64) double low_[kMmaCols] = {};
  alignas(64) double lost_[kMmaCols] = {};
  alignas(64) std::int32_t scale_[kMmaCols] = {};
  alignas(64) std::int32_t place_[kMmaCols] = {};
  alignas(64) float c_[kMmaCols] = {};
  alignas(64) Bits result_[kMmaCols] = {};
};

template <class Result>
void run_tile(ArithmeticMode mode, PackedOperands& packed, const Multiplicand& a,
              const Multiplicand& b, bool accumulate, std::span<typename Result::Bits> d,
              const BlockScales& scales) {
  check_multiplicands(a, b, d.size(), scales);
  const mx::AccumulatorRule rule = accumulator_rule(mode, a.type);
  pack(a, b, scales, rule.fraction_bits != 0, packed);
  if (!accumulate) std::ranges::fill(d, typename Result::Bits{});
  TileRun<Result>(a, b, rule, packed, d).run();
}

}  // namespace

std::string_view arithmetic_mode_name(ArithmeticMode mode) {
  constexpr std::string_view kNames[] = {"exact", "hopper", "blackwell"};
  return kNames[static_cast<int>(mode)];
}

mx::AccumulatorRule accumulator_rule(ArithmeticMode mode, mx::MmaType a) {
  if (mode == ArithmeticMode::kExact) return mx::kExactAccumulator;
  if (mode == ArithmeticMode::kBlackwell) return mx::kBlackwellAccumulator;
  const bool wide = a == mx::MmaType::kF16 || a == mx::MmaType::kBF16 || a == mx::MmaType::kTF32;
  return wide ? mx::kHopperF16Accumulator : mx::kHopperFp8Accumulator;
}

std::uint32_t mma_type_bytes(mx::MmaType type) {
  switch (type) {
    case mx::MmaType::kE4M3:
    case mx::MmaType::kE5M2:
      return 1;
    case mx::MmaType::kF16:
    case mx::MmaType::kBF16:
      return 2;
    case mx::MmaType::kTF32:
      return 4;
    default:
      unsupported("matrix operand type", std::string(mma_type_name(type)));
  }
}

std::string_view mma_type_name(mx::MmaType type) {
  constexpr std::string_view kNames[] = {"e4m3", "e5m2", "e2m3", "e3m2",
                                         "e2m1", "f16",  "bf16", "tf32"};
  return kNames[static_cast<int>(type)];
}

void decode_multiplicand(std::span<const std::byte> raw, bool negate, Multiplicand& out) {
  const std::size_t count = std::size_t{out.rows} * out.k;
  if (raw.size() != count * mma_type_bytes(out.type)) {
    fault("mma operand", fmt::format("{} {} elements", count, mma_type_name(out.type)),
          fmt::format("{} bytes", raw.size()));
  }
  out.values.resize(count);
  switch (out.type) {
    case mx::MmaType::kE4M3:
      decode_all<std::uint8_t>(raw, out.values, [](std::uint8_t code) { return kE4M3[code]; });
      break;
    case mx::MmaType::kE5M2:
      decode_all<std::uint8_t>(raw, out.values, [](std::uint8_t code) { return kE5M2[code]; });
      break;
    case mx::MmaType::kF16:
      decode_all<std::uint16_t>(raw, out.values, mx::decode_f16);
      break;
    case mx::MmaType::kBF16:
      decode_all<std::uint16_t>(raw, out.values, mx::decode_bf16);
      break;
    default:
      decode_all<std::uint32_t>(
          raw, out.values, [](std::uint32_t bits) { return mx::bits_float(bits & 0xFFFFE000u); });
  }
  if (negate) {
    for (float& value : out.values) value = -value;
  }
}

void MmaUnit::f32(const Multiplicand& a, const Multiplicand& b, bool accumulate, std::span<float> d,
                  const BlockScales& scales) {
  run_tile<F32Result>(mode_, packed_, a, b, accumulate, d, scales);
}

void MmaUnit::f16(const Multiplicand& a, const Multiplicand& b, bool accumulate,
                  std::span<std::uint16_t> d) {
  run_tile<F16Result>(mode_, packed_, a, b, accumulate, d, {});
}

void mma_s32(const IntMultiplicand& a, const IntMultiplicand& b, bool accumulate, bool saturate,
             std::span<std::int32_t> d) {
  const auto at = [](const IntMultiplicand& x, std::size_t index) {
    const auto byte = static_cast<std::uint8_t>(x.bytes[index]);
    return x.is_signed ? std::int32_t{static_cast<std::int8_t>(byte)} : std::int32_t{byte};
  };
  const std::size_t k = a.k;
  if (a.k != b.k || a.bytes.size() != a.rows * k || b.bytes.size() != b.rows * k ||
      d.size() != std::size_t{a.rows} * b.rows) {
    fault("integer mma", "operands of rows x k bytes and an accumulator of M x N",
          fmt::format("{}, {} and {}", a.bytes.size(), b.bytes.size(), d.size()));
  }
  for (std::size_t m = 0; m < a.rows; ++m) {
    for (std::size_t n = 0; n < b.rows; ++n) {
      std::int64_t sum = accumulate ? d[m * b.rows + n] : 0;
      for (std::size_t i = 0; i < k; ++i) sum += at(a, m * k + i) * at(b, n * k + i);
      if (saturate) sum = std::clamp<std::int64_t>(sum, INT32_MIN, INT32_MAX);
      d[m * b.rows + n] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum));
    }
  }
}

}  // namespace mxfa::emu::model
