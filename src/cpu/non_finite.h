#pragma once

#include <cstdint>
#include <vector>

#include "attention/mask.h"
#include "cpu/kernels.h"

/// NaN and infinity in the operand of a masked product.
namespace mxfa::cpu {

/// What a product over tokens reads of those that only some of its rows see. A masked weight is 0,
/// and 0 times NaN or infinity is NaN: so such values are taken out of the operand, where 0 stays
/// in their place, and added to the rows that see them.
class NonFinite {
 public:
  void clear() { values_.clear(); }

  /// Takes them out of BF16 [tokens, ld], of which `cols` columns are used.
  void take(std::uint16_t* rows, std::int64_t tokens, std::int64_t cols, std::int64_t ld);

  /// c[row, column] += weight(row, token) * value for each value taken and each of `rows` rows that
  /// sees(row, token).
  template <class Sees, class Weight>
  void add(float* c, const SumLayout& layout, std::int64_t rows, Sees sees, Weight weight) const {
    for (const Value& value : values_) {
      for (std::int64_t row = 0; row < rows; ++row) {
        if (!sees(row, value.token)) continue;
        c[layout.at(row, value.column)] += weight(row, value.token) * value.value;
      }
    }
  }

 private:
  struct Value {
    std::int64_t token;
    std::int64_t column;
    float value;
  };
  std::vector<Value> values_;
};

/// Whether a mask can hide a key of a sequence from some of its queries.
constexpr bool hides_keys(const attention::Mask& mask) {
  return mask.causal || mask.window_left >= 0 || mask.window_right >= 0;
}

}  // namespace mxfa::cpu
