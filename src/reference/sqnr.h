#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

/// Signal-to-quantization-noise ratio of values of any floating-point type.
namespace mxfa::reference {

/// 10 log10(sum ref^2 / sum (ref - x)^2) in dB of two tensors of one size; +infinity where they are
/// equal. What is infinite in both is left out.
template <class T>
double sqnr_db_of(std::span<const T> reference, std::span<const T> value) {
  double signal = 0;
  double noise = 0;
  bool equal = true;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double want = reference[i], got = value[i];
    if (want == got) {
      if (std::isfinite(want)) signal += want * want;
      continue;
    }
    equal = false;
    signal += want * want;
    noise += (want - got) * (want - got);
  }
  if (equal) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(signal / noise);
}

}  // namespace mxfa::reference
