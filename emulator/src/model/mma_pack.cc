#include "model/mma_pack.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "model/fault.h"
#include "model/mma_kernels.h"
#include "mx/bits.h"
#include "mx/e8m0.h"

namespace mxfa::emu::model {
namespace {

constexpr std::uint32_t round_up(std::uint32_t value, std::uint32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <class T>
void transpose(const T* from, std::uint32_t rows, std::uint32_t k, std::uint32_t ld, T* to) {
  constexpr std::uint32_t kBlock = 16;  // a line of the destination
  for (std::uint32_t first = 0; first < rows; first += kBlock) {
    const std::uint32_t end = std::min(first + kBlock, rows);
    for (std::uint32_t j = 0; j < k; ++j) {
      for (std::uint32_t i = first; i < end; ++i) to[j * ld + i] = from[i * k + j];
    }
  }
}

/// Marks rows with values that are not finite, which become 0.
void take_specials(std::uint32_t k, std::span<float> values, std::vector<std::uint8_t>& special) {
  if (all_finite(values.data(), values.size())) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (mx::is_finite(values[i])) continue;
    special[i / k] |= std::isnan(values[i]) ? PackedOperands::kNan : PackedOperands::kInfinite;
    values[i] = 0.0f;
  }
}

/// Scale bytes as exponents; rows whose scale is NaN are special.
void unpack_scales(std::span<const std::uint8_t> scales, std::vector<std::int32_t>& exponents,
                   std::vector<std::uint8_t>& special) {
  for (std::size_t i = 0; i < scales.size(); ++i) {
    exponents[i] = int{scales[i]} - mx::kE8M0Bias;
    if (scales[i] == mx::kE8M0Nan) special[i] |= PackedOperands::kNan;
  }
}

}  // namespace

void PackedOperands::check(const Multiplicand& x, const Multiplicand& y, std::size_t d,
                           const BlockScales& scales) const {
  if (x.k != y.k || x.k % 8 != 0 || x.k == 0 || x.k > 256) {
    fault("mma K", "equal multiples of 8, at most 256", fmt::format("{} and {}", x.k, y.k));
  }
  if (x.values.size() != std::size_t{x.rows} * x.k ||
      y.values.size() != std::size_t{y.rows} * y.k) {
    fault("mma operand", "rows x k values",
          fmt::format("{} and {}", x.values.size(), y.values.size()));
  }
  if (d != std::size_t{x.rows} * y.rows) {
    fault("mma accumulator", fmt::format("{} x {} values", x.rows, y.rows),
          static_cast<std::int64_t>(d));
  }
  const auto fits = [](std::span<const std::uint8_t> s, std::uint32_t rows) {
    return s.empty() || s.size() == rows;
  };
  if (!fits(scales.a, x.rows) || !fits(scales.b, y.rows)) {
    fault("mma scales", "one for each row",
          fmt::format("{} and {}", scales.a.size(), scales.b.size()));
  }
}

void PackedOperands::pack(const Multiplicand& x, const Multiplicand& y, const BlockScales& scales,
                          bool aligned) {
  const std::uint32_t k = x.k;
  cols = round_up(y.rows, kMmaCols);
  a_special.assign(x.rows, 0);
  b_special.assign(cols, 0);
  a_scale.assign(x.rows, 0);
  b_scale.assign(cols, 0);
  a.assign(x.values.begin(), x.values.end());
  take_specials(k, a, a_special);
  a.resize(std::size_t{round_up(x.rows, kMmaRows)} * k, 0.0f);
  values_.assign(y.values.begin(), y.values.end());
  take_specials(k, values_, b_special);
  if (aligned) {
    a_exponent.resize(a.size());
    exponents_.resize(values_.size());
    split_floats(mx::min_exponent(x.type), a.size(), a.data(), a_exponent.data());
    split_floats(mx::min_exponent(y.type), values_.size(), values_.data(), exponents_.data());
    b_exponent.assign(std::size_t{k} * cols, kZeroExponent);
    transpose(exponents_.data(), y.rows, k, cols, b_exponent.data());
  }
  b.resize(std::size_t{k} * cols);
  if (cols != y.rows) std::ranges::fill(b, 0.0f);
  transpose(values_.data(), y.rows, k, cols, b.data());
  unpack_scales(scales.a, a_scale, a_special);
  unpack_scales(scales.b, b_scale, b_special);
}

void PackedOperands::widen(std::uint32_t k) {
  const auto powers = [](const std::vector<std::int32_t>& exponents, std::vector<double>& out) {
    out.resize(exponents.size());
    std::ranges::transform(exponents, out.begin(), [](std::int32_t e) {
      return std::bit_cast<double>(static_cast<std::int64_t>(1023 + e) << 52);
    });
  };
  powers(a_scale, a_power);
  powers(b_scale, b_power);
  a64.assign(a.begin(), a.end());
  b64.resize(b.size());
  double* to = b64.data();
  for (std::uint32_t block = 0; block < cols; block += kMmaCols) {
    for (std::uint32_t j = 0; j < k; ++j, to += kMmaCols) {
      std::copy_n(b.data() + std::size_t{j} * cols + block, kMmaCols, to);
    }
  }
}

}  // namespace mxfa::emu::model
