#pragma once

#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "mxfa/attention.h"
#include "mxfa/types.h"

/// Options that callers may have set to what is no member of their enum.
namespace mxfa::dispatch {

/// Throws Error naming the option where `value` lies behind `last`.
template <class Enum>
void check_member(Enum value, Enum last, std::string_view name, std::string_view members) {
  core::expect(value <= last, name, members, static_cast<std::int64_t>(value));
}

inline void check_member(Backend value, std::string_view name) {
  check_member(value, Backend::kBlackwell, name, "a member of Backend");
}
inline void check_member(DType value, std::string_view name) {
  check_member(value, DType::kU8, name, "a member of DType");
}
inline void check_member(BlockShape value, std::string_view name) {
  check_member(value, BlockShape::k1xD, name, "a member of BlockShape");
}
inline void check_member(ScaleRule value, std::string_view name) {
  check_member(value, ScaleRule::kFloor, name, "round-up or floor");
}
inline void check_member(ScaleLayout value, std::string_view name) {
  check_member(value, ScaleLayout::kTiled128x4, name, "row-major or tiled 128x4");
}
inline void check_member(ScaleAxis value, std::string_view name) {
  check_member(value, ScaleAxis::kTokens, name, "head_dim or tokens");
}
inline void check_member(CausalAlignment value, std::string_view name) {
  check_member(value, CausalAlignment::kTopLeft, name, "bottom-right or top-left");
}
inline void check_member(attention::Precision value, std::string_view name) {
  check_member(value, attention::Precision::kBf16, name, "mxfp8 or bf16");
}
inline void check_member(attention::Recipe value, std::string_view name) {
  check_member(value, attention::Recipe::kHopper, name, "blackwell or hopper");
}
inline void check_member(attention::PScale value, std::string_view name) {
  check_member(value, attention::PScale::kBlockRowMax, name, "a member of PScale");
}

}  // namespace mxfa::dispatch
