#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cpu/gemm.h"
#include "mx/jagged_scale.h"

/// Regions of a MatrixOperand as BF16, whatever its dtype, strides and scales.
namespace mxfa::cpu {

class MatrixReader {
 public:
  /// Throws Error naming `name` where dtype, rank or scales do not fit.
  MatrixReader(const MatrixOperand& operand, std::string_view name);

  std::int64_t rows() const { return rows_; }  ///< of the matrix itself, not transposed
  std::int64_t cols() const { return cols_; }
  bool transposed() const { return transposed_; }
  /// Values read are relative to 2^anchor.
  int anchor() const { return anchor_; }

  struct Region {
    std::int64_t row = 0;
    std::int64_t rows = 0;  ///< may reach past the matrix
    std::int64_t col = 0;
    std::int64_t cols = 0;  ///< likewise
  };
  /// out[rows, ld]; what lies past the matrix, or behind its last sequence, is 0.
  void read(const Region& region, std::uint16_t* out, std::int64_t ld) const;

 private:
  std::int64_t scale_row(std::int64_t row) const;
  void check_scales(const MatrixOperand& operand, std::string_view name);
  void read_row(std::int64_t row, const Region& region, const float* factors,
                std::uint16_t* out) const;

  DType dtype_;
  const void* data_;
  std::int64_t rows_;
  std::int64_t cols_;
  std::int64_t head_dim_;
  std::int64_t row_stride_;
  std::int64_t head_stride_;
  std::int64_t col_stride_;
  bool transposed_;
  mx::JaggedOffsets offsets_;
  mx::CompactScales<const std::uint8_t> scales_;
  int anchor_ = 0;
};

}  // namespace mxfa::cpu
