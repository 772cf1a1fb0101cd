#pragma once

#include <string_view>

#include "core/check.h"
#include "device/ops.h"

/// What the host side of several kernels needs. Internal to this folder.
namespace mxfa::device::internal {

/// `address` is a multiple of `bytes` (null is).
inline void expect_aligned(const void* address, std::string_view name, int bytes) {
  core::expect(reinterpret_cast<std::uintptr_t>(address) % static_cast<unsigned>(bytes) == 0, name,
               core::later("an address that is a multiple of {}", bytes),
               core::later("{}", fmt::ptr(address)));
}
inline void expect_multiple(std::int64_t value, std::string_view name, std::int64_t divisor) {
  core::expect(value % divisor == 0, name, core::later("a multiple of {}", divisor), value);
}
inline void expect_heads(std::int32_t num_heads) {
  core::expect(num_heads > 0, "num_heads", "at least 1", num_heads);
}

/// Blocks of `threads` that fill the device for `works` pieces of which a block takes
/// `works_a_block` at a time, `resident` blocks a multiprocessor.
unsigned grid_for(const Queue& queue, std::int64_t works, int works_a_block, int resident);

}  // namespace mxfa::device::internal
