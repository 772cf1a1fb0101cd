#pragma once

#include <array>
#include <bit>
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

/// The last call of each of so many places that came twice. Safe from several threads.
template <class Args>
class KnownCalls {
 public:
  struct Call {
    Args args;
    attention::Options options;
    std::span<std::byte> workspace;
    driver::LaunchRecord launches;
  };

  /// Calls of one place drop each other.
  static std::size_t place_of(const CallKey<Args>& key) { return place_of(hash_of(key)); }
  /// Null: none that is the same in every member.
  std::shared_ptr<const Call> find(const CallKey<Args>& key) const {
    const std::shared_ptr<const Call> call = call_at(place_of(key));
    const bool same = call != nullptr && call->workspace.data() == key.workspace.data() &&
                      call->workspace.size() == key.workspace.size() && call->args == key.args &&
                      call->options == key.options;
    return same ? call : nullptr;
  }
  /// Whether the last call of its place that was not found was this one, too: calls that come once,
  /// as of batches of any length, are not worth a record.
  bool comes_again(const CallKey<Args>& key) {
    const std::uint64_t hash = hash_of(key);
    const std::lock_guard lock(mutex_);
    return std::exchange(places_[place_of(hash)].missed, hash) == hash;
  }
  void keep(const CallKey<Args>& key, driver::LaunchRecord launches) {
    auto call = std::make_shared<const Call>(
        Call{key.args, key.options, key.workspace, std::move(launches)});
    const std::lock_guard lock(mutex_);
    places_[place_of(key)].call.swap(call);
  }

 private:
  static constexpr int kPlacesLog2 = 7;  // a pass of layers that keep their tensors

  struct Place {
    std::shared_ptr<const Call> call;
    std::uint64_t missed = 0;  ///< hash
  };

  /// Of what tells most calls apart.
  static std::uint64_t hash_of(const CallKey<Args>& key) {
    const Args& args = key.args;
    const auto address = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data); };
    const std::uint64_t words[] = {
        address(args.q.values.data),
        address(args.k.values.data),
        address(args.o.values.data),
        address(args.lse.data),
        address(key.workspace.data()),
        address(key.options.stream),
        static_cast<std::uint64_t>(args.q.values.shape[0]),
        static_cast<std::uint64_t>(args.k.values.shape[0]),
        std::bit_cast<std::uint64_t>(key.options.softmax_scale.value_or(0))};
    std::uint64_t hash = 0;
    for (const std::uint64_t word : words) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
  static std::size_t place_of(std::uint64_t hash) { return hash % (std::size_t{1} << kPlacesLog2); }
  std::shared_ptr<const Call> call_at(std::size_t place) const {
    const std::lock_guard lock(mutex_);
    return places_[place].call;
  }

  mutable std::mutex mutex_;
  std::array<Place, std::size_t{1} << kPlacesLog2> places_;
};

}  // namespace mxfa::dispatch
