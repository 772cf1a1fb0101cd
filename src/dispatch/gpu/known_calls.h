#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "driver/launch_record.h"
#include "mxfa/attention.h"

/// Calls on prepared operands that a device has had: what they launched follows from their
/// arguments alone, so that a call with the same ones launches it again, without checks and tensor
/// maps. What does not follow from arguments, whose memory an address is, is asked in every call.
namespace mxfa::dispatch {

/// A call by everything that decides what it does. Args: ForwardArgs or BackwardArgs.
template <class Args>
struct CallKey {
  const Args& args;
  const attention::Options& options;
  std::span<std::byte> workspace;
};

/// The last call of each of so many places, to which addresses distribute them. Safe from several
/// threads.
template <class Args>
class KnownCalls {
 public:
  struct Call {
    Args args;
    attention::Options options;
    std::span<std::byte> workspace;
    driver::LaunchRecord launches;
  };

  /// Null: none that is the same in every member.
  std::shared_ptr<const Call> find(const CallKey<Args>& key) const {
    const std::shared_ptr<const Call> call = at(place_of(key));
    const bool same = call != nullptr && call->workspace.data() == key.workspace.data() &&
                      call->workspace.size() == key.workspace.size() && call->args == key.args &&
                      call->options == key.options;
    return same ? call : nullptr;
  }
  void keep(const CallKey<Args>& key, driver::LaunchRecord launches) {
    auto call = std::make_shared<const Call>(
        Call{key.args, key.options, key.workspace, std::move(launches)});
    const std::lock_guard lock(mutex_);
    places_[place_of(key)].swap(call);
  }

 private:
  static constexpr int kPlacesLog2 = 7;  // a pass of layers that keep their tensors

  static std::size_t place_of(const CallKey<Args>& key) {
    const Args& args = key.args;
    const void* const addresses[] = {args.q.values.data, args.k.values.data,   args.o.values.data,
                                     args.lse.data,      key.workspace.data(), key.options.stream};
    std::uint64_t hash = 0;
    for (const void* const address : addresses) {
      hash = (hash ^ reinterpret_cast<std::uintptr_t>(address)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return hash >> (64 - kPlacesLog2);
  }
  std::shared_ptr<const Call> at(std::size_t place) const {
    const std::lock_guard lock(mutex_);
    return places_[place];
  }

  mutable std::mutex mutex_;
  std::array<std::shared_ptr<const Call>, std::size_t{1} << kPlacesLog2> places_;
};

}  // namespace mxfa::dispatch
