#pragma once

#include <cstdint>

#include "core/host_device.h"

/// The 128x4 scale atom: 512 bytes that hold the scales of 128 rows x 4 blocks of 32 along K, in
/// the order in which block-scaled tensor cores read them (the "1D block scaling" layout of the
/// cuBLAS documentation). One bijection, used by every packer and by the tests.
namespace mxfa::mx {

inline constexpr int kAtomRows = 128;
inline constexpr int kAtomCols = 4;
inline constexpr int kAtomBytes = kAtomRows * kAtomCols;

/// Byte of row 0..127 and K block 0..3 within an atom.
MXFA_HOST_DEVICE constexpr int byte_in_atom(int row, int k_block) {
  return (row % 32) * 16 + (row / 32) * 4 + k_block;
}

struct ScaleCoord {
  std::int64_t row = 0;      ///< row of the matrix (M or N of the GEMM)
  std::int64_t k_block = 0;  ///< block of 32 along K
  friend constexpr bool operator==(const ScaleCoord&, const ScaleCoord&) = default;
};

/// A matrix of scales, padded to whole atoms: K atoms vary fastest, then row atoms.
struct TiledScaleLayout {
  std::int64_t rows = 0;
  std::int64_t k_blocks = 0;

  MXFA_HOST_DEVICE constexpr std::int64_t row_atoms() const {
    return (rows + kAtomRows - 1) / kAtomRows;
  }
  MXFA_HOST_DEVICE constexpr std::int64_t k_atoms() const {
    return (k_blocks + kAtomCols - 1) / kAtomCols;
  }
  MXFA_HOST_DEVICE constexpr std::int64_t size_bytes() const {
    return row_atoms() * k_atoms() * kAtomBytes;
  }
  MXFA_HOST_DEVICE constexpr std::int64_t offset(std::int64_t row, std::int64_t k_block) const {
    const std::int64_t atom = (row / kAtomRows) * k_atoms() + k_block / kAtomCols;
    return atom * kAtomBytes +
           byte_in_atom(static_cast<int>(row % kAtomRows), static_cast<int>(k_block % kAtomCols));
  }
  /// Inverse of offset() for 0 <= offset < size_bytes(); padding coordinates lie at or beyond rows
  /// or k_blocks.
  MXFA_HOST_DEVICE constexpr ScaleCoord coord(std::int64_t offset) const {
    const std::int64_t atom = offset / kAtomBytes;
    const std::int64_t byte = offset % kAtomBytes;
    const std::int64_t r = byte / 16 + (byte / 4 % 4) * 32;
    return {atom / k_atoms() * kAtomRows + r, atom % k_atoms() * kAtomCols + byte % 4};
  }
};

}  // namespace mxfa::mx
