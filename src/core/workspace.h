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

/// make(Arena&) lays something out, body() gets it on `memory`. Throws Error naming the memory
/// where it is too small or not aligned to 64 bytes.
template <class Make, class Body>
void with_memory(std::span<std::byte> memory, std::string_view name, Make make, Body body) {
  Arena counter;
  make(counter);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  expect(address % 64 == 0, name, "an address on 64 bytes",
         later("one {} bytes past that", address % 64));
  expect(static_cast<std::int64_t>(memory.size()) >= counter.used(), name,
         later("at least {} bytes", counter.used()), memory.size());
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
    own.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})));
    workspace = {own.get(), bytes};
  }
  with_memory(workspace, "workspace", make, body);
}

}  // namespace mxfa::core
