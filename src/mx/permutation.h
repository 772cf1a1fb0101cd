#pragma once

#include "core/host_device.h"

/// Token orders inside a group of 16 for K-major copies on Hopper. `x_token(position)` says which
/// token of the group lies at a position; `x_position(token)` is its inverse.
namespace mxfa::mx {

inline constexpr int kPermutationGroup = 16;

/// pi: an FP8 wgmma accumulator gives a thread the columns 2t, 2t+1 (and +8), while the A fragment
/// wants four adjacent k; storing V^T, dO^T and Q^T in this order makes the two fragments equal.
/// Positions 0..15 hold tokens 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15.
MXFA_HOST_DEVICE constexpr int pi_token(int position) {
  return (position & 1) | (((position >> 1) & 1) << 3) | (((position >> 2) & 3) << 1);
}
MXFA_HOST_DEVICE constexpr int pi_position(int token) {
  return (token & 1) | (((token >> 3) & 1) << 1) | (((token >> 1) & 3) << 2);
}

/// sigma: for K^T, whose partner dS is stored to SMEM by stmatrix.trans on byte pairs.
/// Positions 0..15 hold tokens 0 8 1 9 2 10 3 11 4 12 5 13 6 14 7 15.
MXFA_HOST_DEVICE constexpr int sigma_token(int position) {
  return (position >> 1) | ((position & 1) << 3);
}
MXFA_HOST_DEVICE constexpr int sigma_position(int token) {
  return ((token & 7) << 1) | ((token >> 3) & 1);
}

}  // namespace mxfa::mx
