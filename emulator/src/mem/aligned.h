#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace mxfa::emu::mem {

/// Rows of lanes are loaded and stored as whole vectors of this many bytes.
inline constexpr std::size_t kRowAlignment = 64;

template <class T>
struct RowAllocator {
  using value_type = T;
  RowAllocator() = default;
  template <class Other>
  RowAllocator(const RowAllocator<Other>&) {}
  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{kRowAlignment}));
  }
  void deallocate(T* address, std::size_t) noexcept {
    ::operator delete (address, std::align_val_t{kRowAlignment});
  }
  bool operator==(const RowAllocator&) const = default;
};

using RowBytes = std::vector<std::byte, RowAllocator<std::byte>>;

}  // namespace mxfa::emu::mem
