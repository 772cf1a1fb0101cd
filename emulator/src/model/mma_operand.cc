#include "model/mma_operand.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "model/fault.h"
#include "model/mma_kernels.h"
#include "mx/bits.h"

namespace mxfa::emu::model {
namespace {

constexpr std::size_t kChunk = 16;  // elements, and bytes

/// Sign, exponent and mantissa in the low bits of a byte.
SmallFloat small_float(mx::MmaType type) {
  switch (type) {
    case mx::MmaType::kE4M3:
      return {3, 4, 7, 0x7F, 0x7FC00000u};
    case mx::MmaType::kE5M2:
      return {2, 5, 15, 0x7C, 0x7F800000u};
    case mx::MmaType::kE2M3:
      return {3, 2, 1, 0x100, 0};
    case mx::MmaType::kE3M2:
      return {2, 3, 3, 0x100, 0};
    default:
      return {1, 2, 1, 0x100, 0};  // E2M1
  }
}

template <class T, class Decode>
void decode_all(std::span<const std::byte> raw, std::vector<float>& out, Decode decode) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T code;
    std::memcpy(&code, raw.data() + i * sizeof(T), sizeof(T));
    out[i] = decode(code);
  }
}

}  // namespace

std::uint32_t mma_type_bytes(mx::MmaType type) {
  switch (type) {
    case mx::MmaType::kF16:
    case mx::MmaType::kBF16:
      return 2;
    case mx::MmaType::kTF32:
      return 4;
    default:
      return 1;
  }
}

std::string_view mma_type_name(mx::MmaType type) {
  constexpr std::string_view kNames[] = {"e4m3", "e5m2", "e2m3", "e3m2",
                                         "e2m1", "f16",  "bf16", "tf32"};
  return kNames[static_cast<int>(type)];
}

void decode_multiplicand(std::span<const std::byte> raw, bool negate, Multiplicand& out) {
  const std::size_t count = std::size_t{out.rows} * out.k;
  if (raw.size() != count * mma_type_bytes(out.type)) {
    fault("mma operand", fmt::format("{} {} elements", count, mma_type_name(out.type)),
          fmt::format("{} bytes", raw.size()));
  }
  out.values.resize(count);
  switch (out.type) {
    case mx::MmaType::kF16:
      decode_all<std::uint16_t>(raw, out.values, mx::decode_f16);
      break;
    case mx::MmaType::kBF16:
      decode_all<std::uint16_t>(raw, out.values, mx::decode_bf16);
      break;
    case mx::MmaType::kTF32:
      decode_all<std::uint32_t>(
          raw, out.values, [](std::uint32_t bits) { return mx::bits_float(bits & 0xFFFFE000u); });
      break;
    default:
      decode_small_floats(small_float(out.type), reinterpret_cast<const std::uint8_t*>(raw.data()),
                          count, out.values.data());
  }
  if (negate) {
    for (float& value : out.values) value = -value;
  }
}

void unpack_chunks(mx::MmaType type, std::span<std::byte> raw) {
  const std::uint32_t bits = type == mx::MmaType::kE2M1 ? 4 : 6;
  for (std::size_t at = 0; at < raw.size(); at += kChunk) {
    std::array<std::uint64_t, 2> packed;
    std::memcpy(packed.data(), raw.data() + at, kChunk);
    for (std::uint32_t i = 0; i < kChunk; ++i) {
      const std::uint32_t low = i * bits;
      std::uint64_t code = packed[low / 64] >> (low % 64);
      if (low % 64 + bits > 64) code |= packed[1] << (64 - low % 64);
      raw[at + i] = static_cast<std::byte>(code & ((1u << bits) - 1u));
    }
  }
}

void unpack_containers(mx::MmaType type, std::span<std::byte> raw) {
  const std::uint32_t shift = type == mx::MmaType::kE2M1 ? 2 : 1;
  const std::uint32_t mask = type == mx::MmaType::kE2M1 ? 0x3Cu : 0x7Eu;
  for (std::byte& byte : raw) {
    const auto bits = static_cast<std::uint32_t>(byte);
    if ((bits & ~mask) != 0) {
      fault(fmt::format("{} in tensor memory", mma_type_name(type)),
            fmt::format("bytes with no bits outside of {:#04x}", mask), bits);
    }
    byte = static_cast<std::byte>(bits >> shift);
  }
}

}  // namespace mxfa::emu::model
