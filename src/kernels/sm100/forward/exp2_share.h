#pragma once

#include "core/host_device.h"

/// Which powers of two are polynomials. The special function unit is what limits the softmax: 16 a
/// clock and multiprocessor on sm_100a, 32 on sm_103a, while tensor cores take 1024 clocks for a
/// step of 2 x 128 x 128 scores. The share balances that unit with the issue slots that polynomials
/// cost: on sm_103a it takes 1032 clocks for all of them, less than shared memory does
/// (docs/kernels/sm100-forward.md). For host and device.
namespace mxfa::sm100::forward {

/// Of 16 pairs of neighbouring keys, by __CUDA_ARCH__.
MXFA_HOST_DEVICE constexpr int polynomial_pairs(int arch) { return arch == 1030 ? 0 : 5; }

/// Evenly spread, the first pair never.
MXFA_HOST_DEVICE constexpr bool is_polynomial(int pair, int pairs) {
  return (pair + 1) * pairs % 16 < pairs;
}

/// 2^x = 2^n (1 + f (c1 + f (c2 + f (c3 + f c4)))), n the nearest integer: relative error below
/// 2.9e-6 (2^-18), the minimax of degree 4 that is exact at whole numbers.
inline constexpr float kExp2Factor1 = 0x1.62e12cp-1f;
inline constexpr float kExp2Factor2 = 0x1.ec0378p-3f;
inline constexpr float kExp2Factor3 = 0x1.c9fc46p-5f;
inline constexpr float kExp2Factor4 = 0x1.3a02ccp-7f;
/// x + kExp2Shift holds n + 127 in its lowest bits.
inline constexpr float kExp2Shift = 0x1.8p23f + 127.0f;
inline constexpr float kExp2Least = -127.0f;

}  // namespace mxfa::sm100::forward
