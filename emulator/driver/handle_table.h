#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "call.h"

namespace mxfa::emu::driver {

/// Objects behind opaque handles. A handle is a number that is never used again, so that a stale
/// one is an error and not another object.
template <class T, class Handle>
class HandleTable {
 public:
  Handle add(std::shared_ptr<T> object) {
    static std::uintptr_t next = kFirst;
    next += kStep;
    objects_.emplace(next, std::move(object));
    return reinterpret_cast<Handle>(next);
  }
  /// Throws CUDA_ERROR_INVALID_HANDLE, or `code`.
  const std::shared_ptr<T>& get(Handle handle, CUresult code = CUDA_ERROR_INVALID_HANDLE) const {
    const auto it = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
    if (it == objects_.end()) fail(code, "the handle of an object that does not exist");
    return it->second;
  }
  std::shared_ptr<T> remove(Handle handle) {
    std::shared_ptr<T> object = get(handle);
    objects_.erase(reinterpret_cast<std::uintptr_t>(handle));
    return object;
  }
  template <class Predicate>
  void remove_if(const Predicate& predicate) {
    std::erase_if(objects_, [&](const auto& item) { return predicate(*item.second); });
  }
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [number, object] : objects_) visit(object);
  }

 private:
  static constexpr std::uintptr_t kFirst = 0x10000;  // above the streams that are small numbers
  static constexpr std::uintptr_t kStep = 0x10;

  std::map<std::uintptr_t, std::shared_ptr<T>> objects_;
};

}  // namespace mxfa::emu::driver
