#include "cpu/attention_tiles.h"

#include "core/simd_clones.h"

namespace mxfa::cpu {

MXFA_SIMD_CLONES void scale_row(const float* sums, const SumLayout& layout, float a, float b,
                                std::int64_t cols, float* out) {
  for (std::int64_t c = 0; c < cols; c += kTile, sums += layout.across) {
    for (std::int64_t i = 0; i < kTile; ++i) out[c + i] = sums[i] * a * b;
  }
}

}  // namespace mxfa::cpu
