#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "driver/device.h"

/// Tensor maps of packed rows whose tiles end where their sequence ends: rows behind it read as
/// zero and are not stored, so that a tile of one sequence never holds or overwrites its
/// neighbour's rows. One map serves all sequences.
///
/// A map clips a coordinate at the end of its dimension only, so the row is given by three of them:
/// x counts rows up to the sequence's end, which is the end of the dimension; y moves that end to
/// where the sequence ends in memory; z takes back what x began too far, by a stride whose multiple
/// is 2^64 less that distance. Addresses are 64 bits and wrap around. (Compilers in use rely on the
/// same: "ragged" descriptors of Triton.)
namespace mxfa::device {

inline constexpr std::int64_t kRaggedRows = 1ll << 30;
/// Strides from row to row, in bytes, end before it.
inline constexpr std::int64_t kRaggedStrideEnd = 1ll << 34;

/// [rows, heads, columns], columns contiguous.
struct RaggedRows {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  std::uint64_t address = 0;  ///< 16-byte aligned
  std::uint64_t columns = 0;
  std::uint64_t heads = 1;
  std::uint64_t head_stride_bytes = 0;  ///< as tensor maps take it
  std::uint64_t row_stride_bytes = 0;   ///< likewise, below kRaggedStrideEnd
  std::uint32_t box_columns = 0;        ///< a tile: so many columns of box_rows rows of one head
  std::uint32_t box_rows = 0;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
};

/// Throws Error where the driver refuses the descriptor.
CUtensorMap make_ragged_map(const driver::Device& device, const RaggedRows& rows);

struct RaggedCoords {
  std::int32_t at[5];
};
/// The tile whose first row is `row` of a sequence of `length` rows from packed row `begin` on.
/// 0 <= row < length < 2^30, begin + length < 2^31.
MXFA_HOST_DEVICE constexpr RaggedCoords ragged_coords(std::int32_t column, std::int32_t head,
                                                      std::int64_t begin, std::int64_t length,
                                                      std::int64_t row) {
  return {{column, head, static_cast<std::int32_t>(kRaggedRows - length + row),
           static_cast<std::int32_t>(begin + length), static_cast<std::int32_t>(kRaggedRows)}};
}

}  // namespace mxfa::device
