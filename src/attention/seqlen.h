#pragma once

#include <cstdint>

#include "core/host_device.h"

/// Where the sequences of a jagged batch lie; 64-bit, so that row * heads * head_dim cannot wrap.
namespace mxfa::attention {

/// One sequence: rows of q [total_q, ...], of k and v [total_k, ...], and of o, dout and lse
/// [rows_o, ...]. Only a broadcast q has q_begin != o_begin.
struct Sequence {
  std::int64_t q_begin = 0;
  std::int64_t o_begin = 0;
  std::int64_t k_begin = 0;
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
};

/// The lengths of a batch as host and device code read them: offsets int32 [batch + 1].
struct Seqlens {
  const std::int32_t* cu_seqlens_q = nullptr;  ///< null: every sequence reads the same q
  const std::int32_t* cu_seqlens_k = nullptr;
  std::int64_t broadcast_seqlen_q = 0;  ///< rows of that q where cu_seqlens_q is null

  MXFA_HOST_DEVICE constexpr Sequence at(std::int64_t sequence) const {
    Sequence result;
    if (cu_seqlens_q == nullptr) {
      result.seqlen_q = broadcast_seqlen_q;
      result.o_begin = sequence * broadcast_seqlen_q;
    } else {
      result.q_begin = result.o_begin = cu_seqlens_q[sequence];
      result.seqlen_q = std::int64_t{cu_seqlens_q[sequence + 1]} - result.q_begin;
    }
    result.k_begin = cu_seqlens_k[sequence];
    result.seqlen_k = std::int64_t{cu_seqlens_k[sequence + 1]} - result.k_begin;
    return result;
  }
};

}  // namespace mxfa::attention
