#pragma once

#include <cstdint>

#include "device/quantize.h"
#include "mx/permutation.h"

/// From token-major codes to K-major copies, in registers.
namespace mxfa::device {

/// How four codes of one column become a word of a transposed copy: pairs of adjacent tokens are
/// made first, then a word of two of them. Permuted orders pair tokens t and t + 8.
struct TransposedOrder {
  bool permuted;
  unsigned merge;  ///< selector of __byte_perm(low pair, high pair)

  __device__ explicit TransposedOrder(TokenOrder order)
      : permuted(order != TokenOrder::kPlain),
        merge(order == TokenOrder::kSigma ? 0x5140u : 0x5410u) {}
};

/// The 32 codes of column `column` (0..3) in the order of a transposed copy. token[t] holds four
/// columns of token t.
__device__ inline void transposed_column(const unsigned (&token)[kScaleBlock], int column,
                                         const TransposedOrder& order, unsigned (&words)[8]) {
  static_assert(mx::pi_token(4) == 2 && mx::pi_token(6) == 10 && mx::sigma_token(5) == 10);
  const unsigned selector = static_cast<unsigned>(column | (column + 4) << 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned pairs[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      pairs[i] = __byte_perm(token[16 * half + 2 * i], token[16 * half + 2 * i + 1], selector);
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      words[4 * half + w] =
          __byte_perm(order.permuted ? pairs[w] : pairs[2 * w],
                      order.permuted ? pairs[w + 4] : pairs[2 * w + 1], order.merge);
    }
  }
}

}  // namespace mxfa::device
