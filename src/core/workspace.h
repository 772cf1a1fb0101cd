#pragma once

#include <memory>
#include <new>

#include "core/arena.h"

namespace mxfa::core {

namespace internal {

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{64}); }
};

}  // namespace internal

/// Throws Error naming the memory where it has no address, is not on `align` bytes or has fewer
/// than `bytes`.
inline void expect_memory(std::span<std::byte> memory, std::string_view name, std::int64_t bytes,
                          std::int64_t align) {
  expect(memory.data() != nullptr || memory.empty(), name, "data",
         later("a null pointer for {} bytes", memory.size()));
  const auto past = reinterpret_cast<std::uintptr_t>(memory.data()) % std::uintptr_t(align);
  expect(past == 0, name, later("an address on {} bytes", align),
         later("one {} bytes past that", past));
  expect(static_cast<std::int64_t>(memory.size()) >= bytes, name, later("at least {} bytes", bytes),
         memory.size());
}

/// make(Arena&) lays something out, body() gets it on `memory`, which expect_memory() checks.
template <class Make, class Body>
void with_memory(std::span<std::byte> memory, std::string_view name, Make make, Body body) {
  Arena counter;
  make(counter);
  expect_memory(memory, name, counter.used(), 64);
  Arena arena(memory);
  body(make(arena));
}

/// The same on a call's workspace, or on memory of its own where that is empty.
template <class Make, class Body>
void with_workspace(std::span<std::byte> workspace, Make make, Body body) {
  std::unique_ptr<std::byte, internal::AlignedDelete> own;
  if (workspace.empty() && workspace.data() == nullptr) {
    Arena counter;
    make(counter);
    const std::size_t bytes = static_cast<std::size_t>(counter.used()) + 64;
    own.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64}, std::nothrow)));
    if (own == nullptr) {
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("workspace: {} bytes could not be allocated", bytes));
    }
    workspace = {own.get(), bytes};
  }
  with_memory(workspace, "workspace", make, body);
}

}  // namespace mxfa::core
