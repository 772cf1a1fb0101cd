#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

/// Tensors that benchmarks run on.
namespace mxfa::bench {

/// On 64-byte lines, as tensors of real programs are.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  explicit LineAllocator(const LineAllocator<U>&) {}

  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{64}));
  }
  void deallocate(T* memory, std::size_t) { ::operator delete (memory, std::align_val_t{64}); }
  friend bool operator==(const LineAllocator&, const LineAllocator&) { return true; }
};
template <class T>
using Values = std::vector<T, LineAllocator<T>>;

/// BF16 with about zero mean and unit variance (a sum of four uniform numbers); all cores draw.
Values<std::uint16_t> random_bf16(std::int64_t count, std::uint64_t seed);

}  // namespace mxfa::bench
