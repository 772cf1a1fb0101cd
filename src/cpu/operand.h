#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels.h"
#include "mx/jagged_scale.h"
#include "mx/scale_exponent.h"
#include "mxfa/types.h"

/// Packed tensors as the CPU's kernels read and write them, one (sequence, head) at a time.
namespace mxfa::cpu {

/// [tokens, heads, head_dim] with contiguous head_dim.
struct Operand {
  DType dtype = DType::kBF16;  ///< kE4M3, kBF16 or kF32 (rounded to BF16 when read)
  const void* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  mx::CompactScales<const std::uint8_t> scales = {};  ///< kE4M3 only
  const mx::JaggedOffsets* offsets = nullptr;         ///< its sequences
  std::int64_t head_dim = 0;
  /// Its one sequence is read by every sequence of the batch.
  bool shared = false;

  bool quantized() const { return dtype == DType::kE4M3; }
  std::int64_t sequence_of(std::int64_t sequence) const { return shared ? 0 : sequence; }
};

using mx::scale_exponent;
/// 2^exponent, clamped to normal numbers.
float power_of_two(int exponent);

/// Least exponent of V in leak-free form: the row sum takes P' * 2^-v, which must not overflow.
inline constexpr int kLeakFreeMinExponent = -64;

/// Rows of one (sequence, head) of an operand.
class HeadRows {
 public:
  HeadRows(const Operand& operand, std::int64_t sequence, std::int64_t head);

  std::int64_t size() const { return seqlen_; }
  /// The largest exponent of the head's blocks: what values are relative to. 0 for BF16.
  int anchor() const { return anchor_; }
  /// For heads whose products are summed: a common anchor, at least as large.
  void raise_anchor(int anchor) { anchor_ = anchor > anchor_ ? anchor : anchor_; }
  /// Exponent of a token's scale, uniform along head_dim; 0 for BF16.
  int exponent(std::int64_t row) const;

  /// BF16 values of rows [row, row + rows), times 2^-anchor, `ld` elements apart; columns up to
  /// `cols` and rows past the sequence are 0.
  void read(std::int64_t row, std::int64_t rows, std::int64_t cols, std::uint16_t* out,
            std::int64_t ld);
  /// The same of head_dim columns, padded to kTileDepth, as tiles in pieces.
  void read_pieces(std::int64_t row, std::int64_t rows, std::uint16_t* out);
  /// Payload alone, of scales uniform along head_dim that are at least 2^min_exponent: smaller ones
  /// are raised and their payload is rounded again.
  void read_payload(std::int64_t row, std::int64_t rows, std::int64_t cols, int min_exponent,
                    std::uint16_t* out, std::int64_t ld);
  /// FP32 values of one row, scales applied; kF32 as it is, or (`as_operand`) rounded as read()
  /// rounds it.
  void read_float(std::int64_t row, bool as_operand, float* out);

 private:
  std::int64_t element(std::int64_t row) const;
  void read_row(std::int64_t token, std::int64_t cols, std::uint16_t* out);
  void prefetch(std::int64_t row) const;
  std::uint8_t scale(std::int64_t row, std::int64_t col) const;
  /// Factors of a row's columns; kept while the scale row stays the same.
  const float* factors(std::int64_t row, int anchor);

  const Operand& operand_;
  std::int64_t sequence_;
  std::int64_t head_;
  std::int64_t first_token_;
  std::int64_t seqlen_;
  int anchor_ = 0;
  std::vector<float> factors_;
  std::int64_t factors_row_ = -1;
  int factors_anchor_ = 0;
};

/// Panels (kernels.h) from BF16 rows [rows, ld], of which `cols` are used. rows and cols are
/// multiples of 2; the panel dimension is padded with what the rows hold, so give it whole panels.
/// k = columns, n = rows (a multiple of kPanel).
void pack_columns(const Kernels& kernels, const std::uint16_t* rows_data, std::int64_t ld,
                  std::int64_t rows, std::int64_t cols, std::uint16_t* panels);
/// k = rows (a multiple of 2), n = columns (a multiple of kPanel); panels lie panel_stride apart,
/// which leaves room for more of k.
void pack_rows(const Kernels& kernels, const std::uint16_t* rows_data, std::int64_t ld,
               std::int64_t rows, std::int64_t cols, std::uint16_t* panels,
               std::int64_t panel_stride);

/// Where results of one (sequence, head) go: [tokens, heads, head_dim].
struct Target {
  DType dtype = DType::kF32;  ///< kF32, kBF16 or kE4M3
  void* data = nullptr;       ///< null: not wanted
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t dim_stride = 1;
  mx::CompactScales<std::uint8_t> scales = {};  ///< kE4M3 only
  const mx::JaggedOffsets* offsets = nullptr;
  std::int64_t head_dim = 0;
  ScaleRule rule = ScaleRule::kRoundUp;
};

/// Writes rows [row, row + rows) of (sequence, head) from FP32 [rows, ld]. `row` is a multiple
/// of 32.
void write_rows(const Target& target, mx::SequenceHead which, std::int64_t row, std::int64_t rows,
                const float* values, std::int64_t ld);

}  // namespace mxfa::cpu
