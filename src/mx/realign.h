#pragma once

#include <cstdint>
#include <vector>

#include "mx/quantize.h"

/// Re-alignment of an MX tensor with any block shape to 32xD, whose scales are uniform along
/// head_dim: what a machine without a block-scaled MMA can consume. The group's scale is the
/// largest scale of its non-zero blocks; payload of the others is shifted down and rounded again.
/// E4M3 loses nothing up to a shift of 10 binades and everything from 20 on.
namespace mxfa::mx {

/// Shifts above this cost more than 1 dB of the block's SQNR.
inline constexpr int kTolerableShift = 12;

/// Counts over blocks of the source tensor that hold a non-zero value.
struct RealignReport {
  std::int64_t blocks = 0;           ///< all of them
  std::int64_t blocks_shifted = 0;   ///< with a smaller scale than their group's
  std::int64_t blocks_far = 0;       ///< shifted by more than kTolerableShift binades
  std::int64_t values_flushed = 0;   ///< non-zero values that became 0
  std::int64_t groups_poisoned = 0;  ///< groups that held a NaN, hence are all NaN now
  int max_shift = 0;                 ///< largest exponent spread within a group

  void add(const RealignReport& other);
};

/// Works on one group of up to 32 rows. Holds scratch, so one object for each thread.
class GroupRealigner {
 public:
  /// `source_shape` and `format` of the tensor to re-align, `cols` = head_dim.
  GroupRealigner(BlockShape source_shape, DType format, std::int64_t cols);

  /// Payload rows lie `stride` apart in both; `scales` are the group's compact scales
  /// [scale_rows, scale_cols]. Writes the payload and returns the group's scale. In place is
  /// allowed (`out` == `codes`).
  std::uint8_t run(const std::uint8_t* codes, std::int64_t stride, int rows,
                   const std::uint8_t* scales, std::uint8_t* out, std::int64_t out_stride);
  const RealignReport& report() const { return report_; }

 private:
  struct Block {
    bool zero = true;
    bool poisoned = false;
    std::uint8_t scale = 0;
  };
  Block inspect(const std::uint8_t* codes, std::int64_t stride, int rows, std::int64_t cols) const;
  void inspect_group(const std::uint8_t* codes, std::int64_t stride, int rows,
                     const std::uint8_t* scales);
  std::uint8_t group_scale();
  void shift_row(const std::uint8_t* codes, const Block* row_blocks, std::uint8_t scale,
                 std::uint8_t* out);

  BlockShape shape_;
  DType format_;
  std::int64_t cols_;
  std::int64_t block_width_;
  RealignReport report_;
  std::vector<Block> blocks_;  ///< of the current group, [block rows, scale_cols]
  std::vector<float> ones_;
  std::vector<float> factors_;
  std::vector<float> values_;
  std::vector<std::uint8_t> shifted_;
};

/// The whole matrix. A tensor whose scales are uniform already comes back bit for bit, but that a
/// group of zeros gets scale 0.
QuantizedMatrix realign(const QuantizedMatrix& matrix, RealignReport* report = nullptr);

}  // namespace mxfa::mx
