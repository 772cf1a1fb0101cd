#include "common/operands.h"

#include <algorithm>

#include "core/parallel.h"
#include "mx/bits.h"

namespace mxfa::bench {

Values<std::uint16_t> random_bf16(std::int64_t count, std::uint64_t seed) {
  constexpr std::int64_t kChunk = std::int64_t{1} << 16;
  Values<std::uint16_t> values(static_cast<std::size_t>(count));
  core::parallel_for((count + kChunk - 1) / kChunk, [&](std::int64_t chunk) {
    std::uint64_t state = (seed << 40) + static_cast<std::uint64_t>(chunk) * 0x9E3779B97F4A7C15u;
    const std::int64_t end = std::min(count, (chunk + 1) * kChunk);
    for (std::int64_t i = chunk * kChunk; i < end; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::uint64_t bits = state ^ (state >> 29);
      float sum = 0;
      for (int part = 0; part < 4; ++part, bits >>= 16) {
        sum += static_cast<float>(bits & 0xFFFFu) * 0x1p-16f - 0.5f;
      }
      values[static_cast<std::size_t>(i)] = mx::encode_bf16(sum * 1.7320508f);
    }
  });
  return values;
}

}  // namespace mxfa::bench
