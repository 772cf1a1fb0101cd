#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mem/init_map.h"

namespace mxfa::emu::mem {

/// Addresses of shared memory are 32 bits: the CTA's rank in its cluster above the offset, so that
/// the same number means the same byte in every CTA of the cluster.
inline constexpr int kRankShift = 24;
inline constexpr std::uint32_t kOffsetMask = (1u << kRankShift) - 1;

/// Generic addresses: the top byte tells the window; global memory has none.
enum class Window : std::uint8_t { kGlobal = 0, kShared = 1, kLocal = 2 };
constexpr std::uint64_t window_base(Window window) {
  return static_cast<std::uint64_t>(window) << 56;
}
constexpr std::uint8_t window_tag(std::uint64_t address) {
  return static_cast<std::uint8_t>(address >> 56);
}

/// The shared memory of one CTA.
class SharedMemory {
 public:
  explicit SharedMemory(std::uint32_t bytes) : bytes_(bytes, std::byte{0xFF}), init_(bytes) {}

  std::uint32_t size() const { return static_cast<std::uint32_t>(bytes_.size()); }
  std::byte* data() { return bytes_.data(); }
  InitMap& init() { return init_; }
  bool contains(std::uint64_t offset, std::uint64_t bytes) const {
    return bytes <= bytes_.size() && offset <= bytes_.size() - bytes;
  }

 private:
  std::vector<std::byte> bytes_;
  InitMap init_;
};

}  // namespace mxfa::emu::mem
