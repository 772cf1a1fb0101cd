#include "cpu/rmsnorm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/check.h"
#include "cpu/kernels.h"
#include "cpu/norm_rows.h"
#include "cpu/units.h"
#include "mx/row_sum.h"

namespace mxfa::cpu {
namespace {

/// Rows [row, row + 32) of one sequence.
struct RowGroup {
  std::int64_t sequence;
  std::int64_t row;
};

std::vector<RowGroup> row_groups(const mx::JaggedOffsets& offsets) {
  std::vector<RowGroup> groups;
  groups.reserve(static_cast<std::size_t>(offsets.groups.back()));
  for (std::int64_t s = 0; s < offsets.batch(); ++s) {
    for (std::int64_t row = 0; row < offsets.seqlen(s); row += kScaleBlock) {
      groups.push_back({s, row});
    }
  }
  return groups;
}

struct Scratch {
  std::vector<float> row, y;
};

class Norm {
 public:
  explicit Norm(const RmsNormForward& call)
      : call_(call), dim_(call.x.rank == 2 ? call.x.shape[1] : 0) {
    check_norm_rows(call.x, "x", NormRole::kInput, call.y.offsets->tokens.back(), dim_);
    check_norm_vector(call.weight, "weight", NormRole::kInput, dim_);
    core::expect(dim_ > 0 && dim_ <= mx::row_sum::kMaxColumns, "x",
                 core::later("1 to {} columns", mx::row_sum::kMaxColumns), call.x);
    weight_ = read_norm_row(call.weight, 0, weight_buffer_);
    const Target& y = call.y;
    const bool squares = y.dtype == DType::kE4M3 && y.scales.shape == BlockShape::k32x32 &&
                         y.rule == ScaleRule::kRoundUp && dim_ % kScaleBlock == 0;
    // What the kernel reads and writes in place.
    in_squares_ = squares && call.x.dtype == DType::kBF16 && call.x.strides[1] == 1 &&
                  y.dim_stride == 1 && call.x.strides[0] == y.token_stride;
  }

  void run(const RowGroup& group, Scratch& scratch) const {
    if (in_squares_) {
      write_squares(group);
    } else {
      write_values(group, scratch);
    }
  }

 private:
  std::int64_t first_row(const RowGroup& group) const {
    return call_.y.offsets->tokens[group.sequence] + group.row;
  }
  std::int64_t row_count(const RowGroup& group) const {
    return std::min<std::int64_t>(kScaleBlock, call_.y.offsets->seqlen(group.sequence) - group.row);
  }
  float store_rstd(std::int64_t row, float sum) const {
    const float rstd = 1.0f / std::sqrt(sum / static_cast<float>(dim_) + call_.eps);
    static_cast<float*>(call_.rstd.data)[row * call_.rstd.strides[0]] = rstd;
    return rstd;
  }

  void write_squares(const RowGroup& group) const {
    constexpr std::int64_t kTwoSquares = 2 * kScaleBlock;
    const std::int64_t first = first_row(group), rows = row_count(group), ld = call_.x.strides[0];
    const auto* const x = static_cast<const std::uint16_t*>(call_.x.data) + first * ld;
    std::array<float, kScaleBlock> rstd{};
    for (std::int64_t r = 0; r < rows; ++r) {
      rstd[r] = store_rstd(first + r, kernels().sum_squares_bf16(x + r * ld, dim_));
    }
    const bool more = group.row + 2 * kScaleBlock <= call_.y.offsets->seqlen(group.sequence);
    const mx::CompactScales<std::uint8_t>& scales = call_.y.scales;
    const std::int64_t scale_row =
        call_.y.offsets->scale_row(scales.shape, group.sequence, group.row);
    for (std::int64_t col = 0; col < dim_; col += kTwoSquares) {
      std::uint8_t bytes[2];
      const int squares = col + kTwoSquares <= dim_ ? 2 : 1;
      kernels().norm_squares({.rows = rows,
                              .squares = squares,
                              .x = x + col,
                              .ld = ld,
                              .rstd = rstd.data(),
                              .weight = weight_ + col,
                              .codes = static_cast<std::uint8_t*>(call_.y.data) + first * ld + col,
                              .scales = bytes,
                              .ahead = more ? x + kScaleBlock * ld + col : nullptr});
      for (int i = 0; i < squares; ++i) scales.at(scale_row, 0, col + i * kScaleBlock) = bytes[i];
    }
  }

  void write_values(const RowGroup& group, Scratch& scratch) const {
    const std::int64_t first = first_row(group), rows = row_count(group);
    scratch.y.resize(static_cast<std::size_t>(kScaleBlock * dim_));
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* const x = read_norm_row(call_.x, first + r, scratch.row);
      const float rstd = store_rstd(first + r, kernels().sum_squares(x, dim_));
      kernels().normalize(x, rstd, weight_, scratch.y.data() + r * dim_, dim_);
    }
    write_rows(call_.y, {group.sequence, 0}, group.row, rows, scratch.y.data(), dim_);
  }

  const RmsNormForward& call_;
  std::int64_t dim_;
  std::vector<float> weight_buffer_;
  const float* weight_ = nullptr;
  bool in_squares_ = false;
};

}  // namespace

void rmsnorm_forward(const RmsNormForward& call) {
  const Norm norm(call);
  const std::vector<RowGroup> groups = row_groups(*call.y.offsets);
  constexpr std::int64_t kGroups = 8;  // of a unit
  for_each_unit<Scratch>(
      mx::ceil_div(std::ssize(groups), kGroups), [&](Scratch& scratch, std::int64_t unit) {
        const std::int64_t end = std::min(std::ssize(groups), (unit + 1) * kGroups);
        for (std::int64_t i = unit * kGroups; i < end; ++i) {
          norm.run(groups[static_cast<std::size_t>(i)], scratch);
        }
      });
}

}  // namespace mxfa::cpu
