#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mx/tensor_core.h"

/// Multiplicands of the matrix units: from bytes to values.
namespace mxfa::emu::model {

/// Bytes that an element takes in shared memory, tensor memory and registers. Types of 4 and 6 bits
/// have a byte each, in packed form in shared memory: see unpack_chunks().
std::uint32_t mma_type_bytes(mx::MmaType type);
std::string_view mma_type_name(mx::MmaType type);
/// Types of 4 or 6 bits.
constexpr bool is_packed_type(mx::MmaType type) {
  return type == mx::MmaType::kE2M3 || type == mx::MmaType::kE3M2 || type == mx::MmaType::kE2M1;
}

/// One multiplicand, decoded: `values` is [rows][k], rows counting M or N.
struct Multiplicand {
  mx::MmaType type = mx::MmaType::kE4M3;
  std::uint32_t rows = 0;
  std::uint32_t k = 0;
  std::vector<float> values;
};
/// Decodes [rows][k] elements into out.values; type, rows and k are set. TF32 drops its low 13
/// bits; types of 4 and 6 bits lie in the low bits of their bytes. `negate` turns every sign.
void decode_multiplicand(std::span<const std::byte> raw, bool negate, Multiplicand& out);

/// Shared memory to codes, in place: each 16 bytes hold 16 elements, lowest bits first, and padding
/// (8 bytes for 4-bit, 4 for 6-bit types).
void unpack_chunks(mx::MmaType type, std::span<std::byte> raw);
/// Tensor memory to codes, in place: each byte holds an element in bits 5:2 (4-bit types) or 6:1.
/// Errors: other bits that are set.
void unpack_containers(mx::MmaType type, std::span<std::byte> raw);
/// The byte of tensor memory that holds a code.
constexpr std::uint8_t container_of(mx::MmaType type, std::uint8_t code) {
  return static_cast<std::uint8_t>(type == mx::MmaType::kE2M1 ? code << 2 : code << 1);
}

}  // namespace mxfa::emu::model
