#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/check.h"

namespace mxfa::core {

/// Memory of one call in one piece, cut into parts on `align` bytes. Without memory it only counts.
class Arena {
 public:
  explicit Arena(std::span<std::byte> memory = {}, std::int64_t align = 64)
      : memory_(memory), align_(align) {}

  bool counting() const { return memory_.data() == nullptr; }
  std::int64_t used() const { return used_; }

  /// While counting: an address that nobody may use, but which passes for one in checks. Throws
  /// Error(kInvalidArgument) where the memory is too small.
  template <class T>
  T* take(std::int64_t count) {
    expect(count < kMostBytes / static_cast<std::int64_t>(sizeof(T)), "workspace",
           later("fewer than {} bytes", kMostBytes),
           later("{} elements of {} bytes", count, sizeof(T)));
    return reinterpret_cast<T*>(take_bytes(count * static_cast<std::int64_t>(sizeof(T))));
  }
  std::span<std::byte> take_span(std::int64_t bytes) {
    std::byte* const data = take<std::byte>(bytes);
    return {data, static_cast<std::size_t>(bytes)};
  }

 private:
  /// Of one part: sums of many fit 63 bits.
  static constexpr std::int64_t kMostBytes = std::int64_t{1} << 58;

  std::byte* take_bytes(std::int64_t bytes) {
    const std::int64_t begin = used_;
    used_ += (bytes + align_ - 1) / align_ * align_;
    if (counting()) return reinterpret_cast<std::byte*>(align_ + begin);
    expect(used_ <= static_cast<std::int64_t>(memory_.size()), "workspace",
           later("at least {} bytes", used_), memory_.size());
    return memory_.data() + begin;
  }

  std::span<std::byte> memory_;
  std::int64_t align_;
  std::int64_t used_ = 0;
};

}  // namespace mxfa::core
