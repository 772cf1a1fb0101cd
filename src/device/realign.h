#pragma once

#include <cstdint>

#include "device/quantize.h"

/// Re-alignment of MX tensors to scales that are uniform along head_dim (mx/realign.h): parameters
/// that host and kernel share.
namespace mxfa::device {

/// As mx::RealignReport; the kernel adds to what is there, and takes the larger max_shift.
struct RealignCounters {
  unsigned long long blocks = 0;
  unsigned long long blocks_shifted = 0;
  unsigned long long blocks_far = 0;
  unsigned long long values_flushed = 0;
  unsigned long long groups_poisoned = 0;
  unsigned long long max_shift = 0;
};

/// Bit for bit mx::GroupRealigner on every group of 32 tokens of every head. Strides count bytes;
/// those of payload are multiples of 4, and so are payload addresses.
struct RealignParams {
  const std::uint8_t* codes = nullptr;  ///< [total, num_heads, head_dim]
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  const std::uint8_t* scales = nullptr;  ///< compact, of block_shape
  CompactStrides scale_strides = {};
  std::uint8_t* out = nullptr;  ///< may be `codes`; null: not written
  std::int64_t out_row_stride = 0;
  std::int64_t out_head_stride = 0;
  std::uint8_t* out_scales = nullptr;  ///< [groups, num_heads], 32xD
  CompactStrides out_scale_strides = {};
  std::uint8_t* transposed = nullptr;  ///< as in QuantizeParams, or null
  TokenOrder order = TokenOrder::kPlain;
  RealignCounters* counters = nullptr;  ///< or null
  JaggedOffsetsView offsets = {};
  std::int32_t num_heads = 1;
  std::int32_t head_dim = 0;             ///< a multiple of 4 up to 128
  std::int32_t transposed_head_dim = 0;  ///< rows of a head in `transposed`, >= head_dim
  BlockShape block_shape = BlockShape::k1x32;
};

}  // namespace mxfa::device
