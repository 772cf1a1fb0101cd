#pragma once

#include <cstdint>

#include "mxfa/types.h"

namespace mxfa::device {

/// Rows that an attention kernel writes in MXFP8: O or a gradient, scales by the round-up rule.
/// Strides in bytes. Alignment is the kernel's to ask for.
struct Mxfp8Rows {
  std::uint8_t* codes = nullptr;  ///< [rows, num_heads, columns]
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  /// 1x32: [rows, num_heads, ceil(columns / 32)]; 32x32: a row for each group of 32 rows, counted
  /// from its sequence's first one (offsets.groups(); O of broadcast q: ceil(seqlen / 32) each).
  std::uint8_t* scales = nullptr;
  std::int64_t scale_row_stride = 0;
  std::int64_t scale_head_stride = 0;
  BlockShape block_shape = BlockShape::k1x32;  ///< k1x32 or k32x32
};

}  // namespace mxfa::device
