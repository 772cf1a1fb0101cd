#include <cstdint>

/// Collatz-like nested loops with break, continue, early return and a switch, all of which depend
/// on the data; out[i] is a checksum of the path taken.
extern "C" __global__ void divergence(const uint32_t* in, uint32_t* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  uint32_t x = in[i];
  uint32_t hash = 2166136261u;
  if (x % 17 == 3) {
    out[i] = x ^ 0xabcdu;
    return;
  }
  for (uint32_t outer = 0; outer < x % 7 + 1; ++outer) {
    uint32_t y = x + outer * 2654435761u;
    for (int inner = 0; inner < 40; ++inner) {
      if ((y & 7u) == 5u) break;
      y = (y & 1u) ? y * 3u + 1u : y >> 1;
      if ((y & 15u) == 6u) continue;
      hash = (hash ^ y) * 16777619u;
      switch (y % 5u) {
        case 0:
          hash += 11u;
          break;
        case 1:
          hash ^= hash << 3;
          break;
        case 2:
          hash = (hash >> 5) | (hash << 27);
          [[fallthrough]];
        case 3:
          hash -= y;
          break;
        default:
          break;
      }
    }
    while (y > 1000u) {
      y /= 3u;
      hash += y;
    }
    x = hash ^ y;
  }
  out[i] = hash;
}
