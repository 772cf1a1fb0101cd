#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

/// Tensor maps in global memory that a launch changes. Copies read maps through a proxy of their
/// own: after a change it needs a release, and an acquire in every block that uses the map.
namespace mxfa::emu::exec {

struct Cta;

/// Of a launch; host threads share it.
class TensorMapEdits {
 public:
  /// `released`: by the changing instruction itself.
  void change(std::uint64_t map, std::uint32_t line, bool released);
  /// fence.proxy.tensormap::generic.release: every change so far.
  void release();
  /// fence.proxy.tensormap::generic.acquire of one map by a thread of the block.
  void acquire(Cta& cta, std::uint64_t map);
  /// Error where the block uses a map whose last change it may not see.
  void check_use(const Cta& cta, std::uint64_t map);

 private:
  struct Change {
    std::uint64_t number = 0;  ///< of the map's changes
    std::uint32_t line = 0;
    bool released = false;
  };
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::map<std::uint64_t, Change> changes_;
};

}  // namespace mxfa::emu::exec
