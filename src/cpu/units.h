#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "core/parallel.h"

/// Work that is spread over threads in units, each thread with scratch of its own.
namespace mxfa::cpu {

/// Scratch on 64-byte lines, so that no vector load crosses one. Contents are undefined.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t count) { resize(count); }

  /// Contents are lost where it grows.
  void resize(std::int64_t count) {
    if (count <= size_) return;
    data_.reset(static_cast<T*>(
        ::operator new (static_cast<std::size_t>(count) * sizeof(T), std::align_val_t{64})));
    size_ = count;
  }
  T* data() { return data_.get(); }
  T* reserve(std::int64_t count) {
    resize(count);
    return data();
  }
  T& operator[](std::int64_t index) { return data_.get()[index]; }

 private:
  struct Delete {
    void operator()(T* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  std::unique_ptr<T, Delete> data_;
  std::int64_t size_ = 0;
};

/// Calls body(scratch, i) for each i in [0, count), with one Scratch for each thread, which keeps
/// it for its next call: what came from the system once need not come from it again. body must not
/// call for_each_unit<Scratch>.
template <class Scratch, class Body>
void for_each_unit(std::int64_t count, Body body) {
  std::atomic<std::int64_t> next{0};
  const std::int64_t workers = std::min<std::int64_t>(core::num_threads(), count);
  core::parallel_for(workers, [&](std::int64_t) {
    thread_local Scratch scratch;
    for (std::int64_t i = next++; i < count; i = next++) body(scratch, i);
  });
}

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace mxfa::cpu
