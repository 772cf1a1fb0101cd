#include "model/mma_unit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "model/fault.h"
#include "model/mma_kernels.h"
#include "mx/e8m0.h"

namespace mxfa::emu::model {
namespace {

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

struct F32Result {
  static constexpr bool kIsF32 = true;
  static constexpr int kLeastExponent = -126;
  static constexpr float kNan = std::bit_cast<float>(0x7FFFFFFFu);
  using Value = float;
  static float decode(float bits) { return bits; }
  static float element(const mx::MmaElement& mma, std::span<const float> a,
                       std::span<const float> b, float c) {
    return mma.f32(a, b, c);
  }
  static float round(double odd) { return static_cast<float>(odd); }
  static float truncate(mx::FixedPoint sum, int bits) { return mx::truncate_to_f32(sum, bits); }
};

struct F16Result {
  static constexpr bool kIsF32 = false;
  static constexpr int kLeastExponent = -14;
  static constexpr std::uint16_t kNan = 0x7FFF;
  using Value = std::uint16_t;
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

/// Exponents of the largest value and of the least bit of a small type.
struct TypeRange {
  int high;
  int low;
};
constexpr TypeRange kTypeRanges[] = {{8, -9}, {15, -16}, {2, -3}, {4, -4}, {2, -1}};
static_assert(static_cast<int>(mx::MmaType::kE2M1) == 4);

/// True where sums of products are exact in double whatever their order.
bool sums_fit_double(const Multiplicand& a, const Multiplicand& b) {
  // Products are multiples of 2^low below 2^(high + 2), their sums below 2^(high + 2 + log2 K).
  const auto fits = [&](int high, int low) {
    return high + 2 + std::bit_width(a.k - 1) - low <= 53;
  };
  const bool small = mma_type_bytes(a.type) == 1 && mma_type_bytes(b.type) == 1;
  if (small) {
    const TypeRange& x = kTypeRanges[static_cast<int>(a.type)];
    const TypeRange& y = kTypeRanges[static_cast<int>(b.type)];
    if (fits(x.high + y.high, x.low + y.low)) return true;
  }
  BitRange range_a, range_b;
  for (const float value : a.values) range_a.add(value);
  for (const float value : b.values) range_b.add(value);
  return fits(range_a.high + range_b.high, range_a.low + range_b.low);
}

template <class Value, class Word>
Value value_of(Word word) {
  if constexpr (sizeof(Value) == sizeof(Word)) {
    return std::bit_cast<Value>(word);
  } else {
    return static_cast<Value>(word);  // the low half
  }
}
template <class Word, class Value>
Word word_of(Value value) {
  if constexpr (sizeof(Value) == sizeof(Word)) {
    return std::bit_cast<Word>(value);
  } else {
    return value;
  }
}

/// One instruction: rows of A times blocks of 16 columns. `Word` is what holds an element.
template <class Result, class Word>
class TileRun {
 public:
  using Value = typename Result::Value;

  TileRun(const Multiplicand& a, const Multiplicand& b, mx::AccumulatorRule rule,
          PackedOperands& packed)
      : a_(a), b_(b), rule_(rule), packed_(packed) {
    exact_ = rule.fraction_bits == 0;
    plain_ = exact_ && sums_fit_double(a, b);
  }

  void run(const AccumulatorView<Word>& d, bool accumulate) {
    accumulate_ = accumulate;
    const auto is_set = [](std::uint8_t flag) { return flag != 0; };
    special_b_ = std::ranges::any_of(packed_.b_special, is_set);
    const bool special = special_b_ || std::ranges::any_of(packed_.a_special, is_set);
    if (!special && whole_tile(d)) return;
    for (std::uint32_t i = 0; i < a_.rows; i += kMmaRows) {
      rows(d, i, std::min(i + kMmaRows, a_.rows));
    }
  }

 private:
  /// The usual case in one go. False where something is special about the tile.
  bool whole_tile(const AccumulatorView<Word>& d) {
    if constexpr (!Result::kIsF32) {
      return false;
    } else {
      if (!plain_ || a_.rows % kMmaRows != 0 || b_.rows != packed_.cols) return false;
      for (std::uint32_t i = 0; i < a_.rows && accumulate_; ++i) {
        for (std::uint32_t j = 0; j < b_.rows; j += kMmaCols) {
          const Word* from = d.data + i * d.row_stride + j / kMmaCols * d.block_stride;
          if (!all_finite(reinterpret_cast<const float*>(from), kMmaCols)) return false;
        }
      }
      packed_.widen(a_.k);
      exact_tile_f32({packed_.a64.data(), packed_.b64.data(), a_.rows, b_.rows / kMmaCols, a_.k,
                      packed_.a_power.data(), packed_.b_power.data(),
                      reinterpret_cast<std::byte*>(d.data), d.row_stride * sizeof(Word),
                      d.block_stride * sizeof(Word), accumulate_});
      return true;
    }
  }

  void rows(const AccumulatorView<Word>& d, std::uint32_t first, std::uint32_t end) {
    for (std::uint32_t j = 0; j < b_.rows; j += kMmaCols) {
      width_ = std::min(kMmaCols, b_.rows - j);
      if (plain_) exact_block(row_a(first), packed_.b.data() + j, packed_.cols, a_.k, sum_[0]);
      for (std::uint32_t i = first; i < end; ++i) {
        Word* out = d.data + i * d.row_stride + j / kMmaCols * d.block_stride;
        const bool finite = load(out, i, j);
        products(i, j);
        store(out, i, j, !finite || special_b_ || packed_.a_special[i] != 0);
      }
    }
  }

  const float* row_a(std::uint32_t i) const { return packed_.a.data() + std::size_t{i} * a_.k; }

  /// Old accumulators, non-finite ones as 0, and scales of the block. False where one is not
  /// finite.
  bool load(const Word* from, std::uint32_t i, std::uint32_t j) {
    std::ranges::fill(old_, Value{});
    for (std::uint32_t q = 0; q < width_ && accumulate_; ++q) old_[q] = value_of<Value>(from[q]);
    std::uint32_t infinite = 0;
    for (std::uint32_t q = 0; q < kMmaCols; ++q) {
      const float value = Result::decode(old_[q]);
      const bool finite = mx::is_finite(value);
      infinite |= finite ? 0u : 1u;
      c_[q] = finite ? value : 0.0f;
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
        if (lost_[q] != 0.0) result_[q] = element(i, j + q, old_[q]);
      }
    } else {
      aligned(i, j);
    }
  }

  void exact(const double* sum) {
    if constexpr (Result::kIsF32) {
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
    if constexpr (Result::kIsF32) {
      if (finish_aligned_f32(sum_[0], place_, rule_.result_bits, result_)) return;
    }
    for (std::uint32_t q = 0; q < width_; ++q) {
      const mx::FixedPoint fixed{static_cast<std::int64_t>(sum_[0][q]), place_[q]};
      result_[q] = Result::truncate(fixed, rule_.result_bits);
    }
  }

  /// The scalar definition, from the old accumulator.
  Value element(std::uint32_t m, std::uint32_t n, Value old) {
    const mx::MmaElement mma{a_.type, b_.type, rule_, packed_.a_scale[m] + packed_.b_scale[n]};
    return Result::element(mma, std::span(a_.values).subspan(std::size_t{m} * a_.k, a_.k),
                           std::span(b_.values).subspan(std::size_t{n} * b_.k, b_.k), old);
  }

  void store(Word* to, std::uint32_t i, std::uint32_t j, bool special) {
    for (std::uint32_t q = 0; q < width_ && special; ++q) {
      const auto flags = static_cast<std::uint8_t>(packed_.a_special[i] | packed_.b_special[j + q]);
      const float old = Result::decode(old_[q]);
      if ((flags & PackedOperands::kNan) != 0 || std::isnan(old)) {
        result_[q] = Result::kNan;
      } else if (flags != 0) {
        result_[q] = element(i, j + q, old_[q]);
      } else if (std::isinf(old)) {
        result_[q] = old_[q];
      }
    }
    for (std::uint32_t q = 0; q < width_; ++q) to[q] = word_of<Word>(result_[q]);
  }

  const Multiplicand& a_;
  const Multiplicand& b_;
  mx::AccumulatorRule rule_;
  PackedOperands& packed_;
  bool exact_ = false;
  bool plain_ = false;
  bool accumulate_ = true;
  bool special_b_ = false;  ///< some row of B
  std::uint32_t width_ = 0;
  alignas(64) double sum_[kMmaRows][kMmaCols] = {};
  alignas(64) double low_[kMmaCols] = {};
  alignas(64) double lost_[kMmaCols] = {};
  alignas(64) std::int32_t scale_[kMmaCols] = {};
  alignas(64) std::int32_t place_[kMmaCols] = {};
  alignas(64) float c_[kMmaCols] = {};
  alignas(64) Value old_[kMmaCols] = {};
  alignas(64) Value result_[kMmaCols] = {};
};

template <class Result, class Word>
void run_tile(ArithmeticMode mode, PackedOperands& packed, const Multiplicand& a,
              const Multiplicand& b, bool accumulate, const AccumulatorView<Word>& d,
              const BlockScales& scales) {
  const mx::AccumulatorRule rule = accumulator_rule(mode, a.type);
  packed.pack(a, b, scales, rule.fraction_bits != 0);
  TileRun<Result, Word>(a, b, rule, packed).run(d, accumulate);
}

template <class Word>
AccumulatorView<Word> row_major(std::span<Word> d, std::uint32_t cols) {
  return {d.data(), cols, kMmaCols};
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

void MmaUnit::f32(const Multiplicand& a, const Multiplicand& b, bool accumulate, std::span<float> d,
                  const BlockScales& scales) {
  packed_.check(a, b, d.size(), scales);
  run_tile<F32Result>(mode_, packed_, a, b, accumulate, row_major(d, b.rows), scales);
}

void MmaUnit::f16(const Multiplicand& a, const Multiplicand& b, bool accumulate,
                  std::span<std::uint16_t> d) {
  packed_.check(a, b, d.size(), {});
  run_tile<F16Result>(mode_, packed_, a, b, accumulate, row_major(d, b.rows), {});
}

void MmaUnit::words(const Multiplicand& a, const Multiplicand& b, bool accumulate,
                    AccumulatorType type, const AccumulatorView<std::uint32_t>& d,
                    const BlockScales& scales) {
  packed_.check(a, b, std::size_t{a.rows} * b.rows, scales);
  if (type == AccumulatorType::kF16) {
    run_tile<F16Result>(mode_, packed_, a, b, accumulate, d, scales);
  } else {
    run_tile<F32Result>(mode_, packed_, a, b, accumulate, d, scales);
  }
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
