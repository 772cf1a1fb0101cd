#include "cpu/attention_tiles.h"

#include "core/simd_clones.h"

namespace mxfa::cpu {

MXFA_SIMD_CLONES void scale_row(const float* sums, const SumLayout& layout, float a, float b,
                                std::int64_t cols, float* out) {
  for (std::int64_t c = 0; c < cols; c += kTile, sums += layout.across) {
    for (std::int64_t i = 0; i < kTile; ++i) out[c + i] = sums[i] * a * b;
  }
}

void prefetch_to_write(const void* memory, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  const char* const lines = static_cast<const char*>(memory);
  for (std::int64_t i = 0; i < bytes; i += kLine) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(lines[i]));  // of the builtin only where it is targeted
#else
    __builtin_prefetch(lines + i, 1);
#endif
  }
}

}  // namespace mxfa::cpu
