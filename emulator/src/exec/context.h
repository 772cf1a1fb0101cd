#pragma once

#include <cstddef>
#include <cstdint>

#include "ir/inst.h"

/// What lane kernels see of a warp. Plain data; see ir/inst.h.
namespace mxfa::emu::exec {

/// Before a loop over lanes: rows are either the same memory or disjoint, so lanes are independent.
#if defined(__clang__)  // whose own pragma would warn wherever a loop does not vectorize
#define MXEMU_INDEPENDENT_LANES
#else
#define MXEMU_INDEPENDENT_LANES _Pragma("GCC ivdep")
#endif

inline constexpr int kLanes = 32;
inline constexpr std::uint32_t kFullMask = 0xFFFFFFFFu;

/// How many lanes a mask has. In plain code: without popcnt the built-in calls a library.
constexpr std::uint32_t count_lanes(std::uint32_t mask) {
  mask -= (mask >> 1) & 0x55555555u;
  mask = (mask & 0x33333333u) + ((mask >> 2) & 0x33333333u);
  return (((mask + (mask >> 4)) & 0x0F0F0F0Fu) * 0x01010101u) >> 24;
}

struct Context {
  std::byte* base[2] = {};  ///< registers; end of the constant pool
  std::uint32_t* preds = nullptr;
  std::uint32_t carry = 0;  ///< CC.CF of each lane

  template <class Slot>
  [[gnu::always_inline]] inline Slot* row(std::int32_t offset) const {
    return reinterpret_cast<Slot*>(base[offset < 0 ? 1 : 0] + offset);
  }
  /// The row of a result, which is never a constant.
  template <class Slot>
  [[gnu::always_inline]] inline Slot* result_row(std::int32_t offset) const {
    return reinterpret_cast<Slot*>(base[0] + offset);
  }
  [[gnu::always_inline]] inline std::uint32_t pred(std::int32_t operand) const {
    return preds[operand >> 1] ^ (0u - static_cast<std::uint32_t>(operand & 1));
  }
  [[gnu::always_inline]] inline void set_pred(std::int32_t operand, std::uint32_t bits,
                                              std::uint32_t mask) const {
    std::uint32_t& slot = preds[operand >> 1];
    slot = (slot & ~mask) | (bits & mask);
  }
};

}  // namespace mxfa::emu::exec
