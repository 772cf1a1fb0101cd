#include "ptx/type.h"

#include <algorithm>
#include <array>

namespace mxfa::emu::ptx {
namespace {

using enum TypeKind;
constexpr std::array kTypes = std::to_array<Type>({
    {"b1", kBits, 1},        {"b128", kBits, 128},     {"b16", kBits, 16},
    {"b32", kBits, 32},      {"b64", kBits, 64},       {"b8", kBits, 8},
    {"bf16", kFloat, 16},    {"bf16x2", kPacked, 32},  {"e2m1x2", kPacked, 8},
    {"e2m1x4", kPacked, 16}, {"e2m3x2", kPacked, 16},  {"e2m3x4", kPacked, 32},
    {"e3m2x2", kPacked, 16}, {"e3m2x4", kPacked, 32},  {"e4m3", kPacked, 8},
    {"e4m3x2", kPacked, 16}, {"e4m3x4", kPacked, 32},  {"e5m2", kPacked, 8},
    {"e5m2x2", kPacked, 16}, {"e5m2x4", kPacked, 32},  {"f16", kFloat, 16},
    {"f16x2", kPacked, 32},  {"f32", kFloat, 32},      {"f32x2", kPacked, 64},
    {"f64", kFloat, 64},     {"pred", kPred, 1},       {"s16", kSigned, 16},
    {"s16x2", kPacked, 32},  {"s32", kSigned, 32},     {"s64", kSigned, 64},
    {"s8", kSigned, 8},      {"tf32", kFloat, 32},     {"u16", kUnsigned, 16},
    {"u16x2", kPacked, 32},  {"u32", kUnsigned, 32},   {"u64", kUnsigned, 64},
    {"u8", kUnsigned, 8},    {"ue8m0x2", kPacked, 16},
});
static_assert(std::ranges::is_sorted(kTypes, {}, &Type::name));

}  // namespace

const Type* find_type(std::string_view name) {
  const auto* it = std::ranges::lower_bound(kTypes, name, {}, &Type::name);
  return it != kTypes.end() && it->name == name ? it : nullptr;
}

}  // namespace mxfa::emu::ptx
