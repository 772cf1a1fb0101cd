#pragma once

#include <cstdint>
#include <string_view>

namespace mxfa::emu::ptx {

enum class TypeKind : std::uint8_t { kPred, kBits, kUnsigned, kSigned, kFloat, kPacked };

/// A PTX type. `bits` is the width of a register that holds it (packed types: of the pack).
struct Type {
  std::string_view name;
  TypeKind kind = TypeKind::kBits;
  std::uint16_t bits = 0;

  std::uint32_t bytes() const { return bits / 8u; }
  bool is_signed() const { return kind == TypeKind::kSigned; }
  bool is_float() const { return kind == TypeKind::kFloat; }
};

/// The type called `name` (without dot); null where there is none. Pointers stay valid for ever
/// and are equal exactly for equal types.
const Type* find_type(std::string_view name);

}  // namespace mxfa::emu::ptx
