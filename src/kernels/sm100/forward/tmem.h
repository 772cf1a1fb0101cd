#pragma once

#include <cstdint>

#include "core/host_device.h"

/// Tensor memory of the Blackwell forward: every region, the GEMMs that it lives for, and why
/// regions that share columns never live at the same time. For host and device.
///
/// Stream i (0, 1) is one of the CTA's two tiles of 128 queries. The accumulators fill all columns,
/// so scales lie in score columns that hold nothing else at the time:
///
///   S(i)     columns 128 i .. 128 i + 127
///     + 0    SFQ, + 4 SFK of S(1 - i)
///     + 8    SFP, + 12 SFV of O(i)
///     + 32   P(i), 4 codes a column
///   O(i)     columns 256 + 128 i ..; the scales of a CTA's first S(i), before O(i) has begun
namespace mxfa::sm100::forward {

inline constexpr int kTmemColumns = 512;

struct TmemRegion {
  int column = 0;
  int width = 0;
  MXFA_HOST_DEVICE constexpr bool overlaps(const TmemRegion& other) const {
    return column < other.column + other.width && other.column < column + width;
  }
};

/// Columns of one operand's scales of a 128 x 128 tile.
inline constexpr int kScaleColumns = 4;

template <int kHeadDim>
struct TmemPlan {
  MXFA_HOST_DEVICE static constexpr TmemRegion s(int stream) { return {128 * stream, 128}; }
  MXFA_HOST_DEVICE static constexpr TmemRegion o(int stream) {
    return {256 + 128 * stream, kHeadDim};
  }
  MXFA_HOST_DEVICE static constexpr TmemRegion p(int stream) { return {s(stream).column + 32, 32}; }
  /// Scales of Q and K for S(stream).
  MXFA_HOST_DEVICE static constexpr TmemRegion sf_qk(int stream) {
    return {s(1 - stream).column, 2 * kScaleColumns};
  }
  /// The same for the first S(stream) of a CTA.
  MXFA_HOST_DEVICE static constexpr TmemRegion first_sf_qk(int stream) {
    return {o(stream).column, 2 * kScaleColumns};
  }
  /// Scales of P and V for O(stream).
  MXFA_HOST_DEVICE static constexpr TmemRegion sf_pv(int stream) {
    return {s(stream).column + 2 * kScaleColumns, 2 * kScaleColumns};
  }

  /// An MMA reads scales and A while it writes D, so none of them may share columns.
  static constexpr bool operands_are_apart() {
    for (int i = 0; i < 2; ++i) {
      if (s(i).overlaps(sf_qk(i)) || s(i).overlaps(first_sf_qk(i))) return false;
      if (o(i).overlaps(sf_pv(i)) || o(i).overlaps(p(i)) || p(i).overlaps(sf_pv(i))) return false;
    }
    return true;
  }
  /// What lies in the columns of S(i) between its being read and the next S(i): all of it lives
  /// then, so that no copy of scales hits what a running MMA reads.
  static constexpr bool guests_are_apart() {
    for (int i = 0; i < 2; ++i) {
      const TmemRegion guests[] = {sf_qk(1 - i), sf_pv(i), p(i)};
      for (int a = 0; a < 3; ++a) {
        for (int b = a + 1; b < 3; ++b) {
          if (guests[a].overlaps(guests[b])) return false;
        }
        if (guests[a].column < s(i).column ||
            guests[a].column + guests[a].width > s(i).column + s(i).width) {
          return false;
        }
      }
    }
    return true;
  }
  static constexpr bool accumulators_are_apart() {
    const TmemRegion all[] = {s(0), s(1), o(0), o(1)};
    for (int a = 0; a < 4; ++a) {
      if (all[a].column + all[a].width > kTmemColumns) return false;
      for (int b = a + 1; b < 4; ++b) {
        if (all[a].overlaps(all[b])) return false;
      }
    }
    return true;
  }
  static_assert(operands_are_apart() && guests_are_apart() && accumulators_are_apart());
};

}  // namespace mxfa::sm100::forward
