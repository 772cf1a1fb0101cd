#pragma once

#include <cstdint>
#include <span>

/// redux.sync over the lanes of a mask. Source: PTX ISA 9.0, section 9.7.13.12.
namespace mxfa::emu::model {

enum class ReduxOp : std::uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor };

/// The u32 and b32 forms, or s32 (`is_signed`); add wraps around.
constexpr std::uint32_t redux_int(ReduxOp op, bool is_signed,
                                  std::span<const std::uint32_t, 32> source, std::uint32_t mask) {
  // With the sign bit turned, signed numbers order like unsigned ones.
  const std::uint32_t bias =
      is_signed && (op == ReduxOp::kMin || op == ReduxOp::kMax) ? 0x80000000u : 0u;
  std::uint32_t result = op == ReduxOp::kMin || op == ReduxOp::kAnd ? 0xFFFFFFFFu : 0u;
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    if (((mask >> lane) & 1u) == 0) continue;
    const std::uint32_t value = source[lane] ^ bias;
    switch (op) {
      case ReduxOp::kAdd:
        result += value;
        break;
      case ReduxOp::kMin:
        result = value < result ? value : result;
        break;
      case ReduxOp::kMax:
        result = value > result ? value : result;
        break;
      case ReduxOp::kAnd:
        result &= value;
        break;
      case ReduxOp::kOr:
        result |= value;
        break;
      case ReduxOp::kXor:
        result ^= value;
        break;
    }
  }
  return result ^ bias;
}

/// redux.sync.{min,max}{.abs}{.NaN}.f32: +0 > -0; NaNs are skipped unless `propagate_nan`, and give
/// the canonical NaN where there is nothing else.
constexpr std::uint32_t redux_f32(bool is_max, bool abs, bool propagate_nan,
                                  std::span<const std::uint32_t, 32> source, std::uint32_t mask) {
  std::uint32_t best = 0;
  bool any = false;
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    if (((mask >> lane) & 1u) == 0) continue;
    const std::uint32_t bits = abs ? source[lane] & 0x7FFFFFFFu : source[lane];
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
      if (propagate_nan) return 0x7FFFFFFFu;
      continue;
    }
    // Sign and magnitude as one ordered number.
    const std::uint32_t key = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    if (!any || (is_max ? key > best : key < best)) best = key;
    any = true;
  }
  if (!any) return 0x7FFFFFFFu;
  return (best >> 31) != 0 ? best & 0x7FFFFFFFu : ~best;
}

}  // namespace mxfa::emu::model
