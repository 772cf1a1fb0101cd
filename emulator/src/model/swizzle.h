#pragma once

#include <cstdint>

/// Swizzles of shared memory: they exchange chunks inside aligned 128-byte lines, by bits of the
/// absolute shared address. Source: PTX ISA 9.0, sections 5.5.7 (tables of the patterns) and
/// 9.7.16.3.3 (canonical layouts, Swizzle<b,4,3>).
namespace mxfa::emu::model {

enum class Swizzle : std::uint8_t {
  kNone,
  k32B,         ///< 16-byte chunks, exchanged within 32 bytes; the pattern repeats after 256 bytes
  k64B,         ///< within 64 bytes, repeats after 512
  k128B,        ///< within 128 bytes, repeats after 1024
  k128BAtom32,  ///< 32-byte chunks within 128 bytes, repeats after 512
  k128BAtom64,  ///< 64-byte chunks within 128 bytes, repeats after 256
};

/// Bytes of the row in which chunks are exchanged (the widest inner box, the row of a tile).
constexpr std::uint32_t swizzle_width(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return 16;
    case Swizzle::k32B:
      return 32;
    case Swizzle::k64B:
      return 64;
    default:
      return 128;
  }
}

/// Bytes after which the pattern repeats.
constexpr std::uint32_t swizzle_period(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return 16;
    case Swizzle::k32B:
      return 256;
    case Swizzle::k64B:
      return 512;
    case Swizzle::k128B:
      return 1024;
    case Swizzle::k128BAtom32:
      return 512;
    case Swizzle::k128BAtom64:
      return 256;
  }
  return 16;
}

/// Where the byte with linear address `address` really lies. `line_shift` is subtracted from the
/// 128-byte line number first: the matrix base offset of a descriptor, else 0.
constexpr std::uint32_t swizzled(Swizzle swizzle, std::uint32_t address,
                                 std::uint32_t line_shift = 0) {
  const std::uint32_t line = (address >> 7) - line_shift;
  switch (swizzle) {
    case Swizzle::kNone:
      return address;
    case Swizzle::k32B:
      return address ^ ((line & 1u) << 4);
    case Swizzle::k64B:
      return address ^ ((line & 3u) << 4);
    case Swizzle::k128B:
      return address ^ ((line & 7u) << 4);
    case Swizzle::k128BAtom32:
      return address ^ ((line & 3u) << 5);
    case Swizzle::k128BAtom64:
      return address ^ ((line & 1u) << 6);
  }
  return address;
}

}  // namespace mxfa::emu::model
