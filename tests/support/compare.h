#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

/// Comparisons of whole arrays whose failure text says the case, the metric, its limit, the worst
/// index and both values there. Use as EXPECT_TRUE(bitwise_equal(got, want, {...})).
namespace mxfa::testing {

struct CompareOptions {
  std::string label = {};  ///< names the case in the failure text
  std::int64_t cols = 0;   ///< > 0: the arrays are [n / cols, cols], report (row, col) too
};

enum class Metric {
  kMaxAbs,  ///< max |got - want| <= limit
  kMaxRel,  ///< max |got - want| / max(|want|, floor) <= limit
  kRmsRel,  ///< sqrt(sum (got - want)^2 / sum want^2) <= limit
  kSqnrDb,  ///< 10 log10(sum want^2 / sum (got - want)^2) >= limit
};

struct Tolerance {
  Metric metric = Metric::kMaxAbs;
  double limit = 0;
  double floor = std::numeric_limits<double>::min();  ///< kMaxRel only
};

inline std::string position_text(std::size_t index, const CompareOptions& options) {
  if (options.cols <= 0) return fmt::format("index {}", index);
  const auto cols = static_cast<std::size_t>(options.cols);
  return fmt::format("index {} (row {}, col {})", index, index / cols, index % cols);
}

/// The value and its bits: "1.5 (0x3fc00000)".
template <class T>
std::string value_text(const T& value) {
  std::string hex;
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  for (std::size_t i = sizeof(T); i-- > 0;) hex += fmt::format("{:02x}", bytes[i]);
  if constexpr (std::is_arithmetic_v<T>) return fmt::format("{} (0x{})", +value, hex);
  return "0x" + hex;
}

/// Equal size and equal bits: NaNs by payload, +0 and -0 differ.
template <class A, class B>
::testing::AssertionResult bitwise_equal(const A& got_range, const B& want_range,
                                         const CompareOptions& options = {}) {
  const std::span got(std::data(got_range), std::size(got_range));
  const std::span want(std::data(want_range), std::size(want_range));
  using T = typename decltype(got)::value_type;
  static_assert(std::is_same_v<T, typename decltype(want)::value_type>);
  static_assert(std::is_trivially_copyable_v<T>);
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure()
           << fmt::format("{}: size {}, want {}", options.label, got.size(), want.size());
  }
  if (got.empty() || std::memcmp(got.data(), want.data(), got.size_bytes()) == 0) {
    return ::testing::AssertionSuccess();
  }
  std::size_t first = got.size();
  std::size_t differing = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(T)) == 0) continue;
    first = std::min(first, i);
    ++differing;
  }
  return ::testing::AssertionFailure()
         << fmt::format("{}: {} of {} elements differ in bits, first at {}: got {}, want {}",
                        options.label, differing, got.size(), position_text(first, options),
                        value_text(got[first]), value_text(want[first]));
}

/// 10 log10(sum want^2 / sum (want - got)^2); +infinity where they are equal.
template <class A, class B>
double sqnr_db_of(const A& got, const B& want) {
  double signal = 0;
  double noise = 0;
  for (std::size_t i = 0; i < std::size(want); ++i) {
    const double w = static_cast<double>(want[i]);
    const double error = w - static_cast<double>(got[i]);
    signal += w * w;
    noise += error * error;
  }
  if (noise == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(signal / noise);
}

namespace internal {

struct Comparison {
  double signal = 0;
  double noise = 0;
  double worst = -1;         ///< largest element error in the metric's unit
  std::size_t index = 0;     ///< where
  std::size_t mismatch = 0;  ///< first element that is NaN or infinite on one side only
  bool sets_match = true;
};

inline void compare_element(double got, double want, std::size_t index, const Tolerance& tolerance,
                            Comparison& result) {
  if (!std::isfinite(got) || !std::isfinite(want)) {
    const bool same = (std::isnan(got) && std::isnan(want)) || got == want;
    if (!same && result.sets_match) {
      result.sets_match = false;
      result.mismatch = index;
    }
    return;
  }
  const double error = std::abs(got - want);
  result.signal += want * want;
  result.noise += error * error;
  const double unit =
      tolerance.metric == Metric::kMaxRel ? std::max(std::abs(want), tolerance.floor) : 1.0;
  if (error / unit > result.worst) {
    result.worst = error / unit;
    result.index = index;
  }
}

struct Verdict {
  double value = 0;
  bool ok = false;
  std::string_view name;
};

inline Verdict judge(const Comparison& result, const Tolerance& tolerance) {
  const double largest = std::max(result.worst, 0.0);
  const bool exact = result.noise == 0;
  const double ratio = exact ? 0 : result.noise / result.signal;
  switch (tolerance.metric) {
    case Metric::kMaxAbs:
      return {largest, largest <= tolerance.limit, "max abs error"};
    case Metric::kMaxRel:
      return {largest, largest <= tolerance.limit, "max relative error"};
    case Metric::kRmsRel:
      return {std::sqrt(ratio), std::sqrt(ratio) <= tolerance.limit, "relative RMS error"};
    case Metric::kSqnrDb: {
      const double db = exact ? std::numeric_limits<double>::infinity() : -10 * std::log10(ratio);
      return {db, db >= tolerance.limit, "SQNR dB"};
    }
  }
  return {};
}

}  // namespace internal

/// Within `tolerance`, by the metric over all finite elements; NaN must meet NaN and an infinity
/// the same infinity.
template <class A, class B>
::testing::AssertionResult expect_close(const A& got, const B& want, const Tolerance& tolerance,
                                        const CompareOptions& options = {}) {
  if (std::size(got) != std::size(want)) {
    return ::testing::AssertionFailure()
           << fmt::format("{}: size {}, want {}", options.label, std::size(got), std::size(want));
  }
  internal::Comparison result;
  for (std::size_t i = 0; i < std::size(want); ++i) {
    internal::compare_element(static_cast<double>(got[i]), static_cast<double>(want[i]), i,
                              tolerance, result);
  }
  if (!result.sets_match) {
    const std::size_t i = result.mismatch;
    return ::testing::AssertionFailure() << fmt::format(
               "{}: non-finite values do not match at {}: got {}, want {}", options.label,
               position_text(i, options), value_text(got[i]), value_text(want[i]));
  }
  const internal::Verdict verdict = internal::judge(result, tolerance);
  if (verdict.ok) return ::testing::AssertionSuccess();
  const std::size_t i = result.index;
  return ::testing::AssertionFailure()
         << fmt::format("{}: {} {} (limit {}), worst at {}: got {}, want {}", options.label,
                        verdict.name, verdict.value, tolerance.limit, position_text(i, options),
                        value_text(got[i]), value_text(want[i]));
}

}  // namespace mxfa::testing
