#include "driver/launch_record.h"

#include <algorithm>
#include <utility>

#include "driver/launch_config.h"

namespace mxfa::driver {
namespace {

thread_local LaunchRecorder* recorder = nullptr;

/// Arguments of a kernel of the library, at most.
constexpr std::size_t kMostArguments = 8;

}  // namespace

void LaunchRecord::add(CUfunction function, const LaunchShape& shape, void** arguments,
                       std::span<const std::size_t> sizes) {
  launches_.push_back({function, shape, arguments_.size(), sizes.size()});
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    arguments_.push_back(chunks_.size());
    chunks_.resize(chunks_.size() + (sizes[i] + sizeof(Chunk) - 1) / sizeof(Chunk));
    std::copy_n(static_cast<const std::byte*>(arguments[i]), sizes[i],
                chunks_[arguments_.back()].bytes.data());
  }
}

void LaunchRecord::replay(const Device& device, CUstream stream) const {
  for (const Launch& launch : launches_) {
    void* pointers[kMostArguments + 1] = {};
    for (std::size_t i = 0; i < launch.count; ++i) {
      // The driver reads them only.
      pointers[i] = const_cast<Chunk*>(&chunks_[arguments_[launch.first + i]]);
    }
    const LaunchConfig config(stream, launch.shape);
    device.driver().check(
        device.calls().cuLaunchKernelEx(&config.config, launch.function, pointers, nullptr),
        "cuLaunchKernelEx");
  }
}

LaunchRecorder::LaunchRecorder() { recorder = this; }
LaunchRecorder::~LaunchRecorder() { recorder = nullptr; }
LaunchRecorder* LaunchRecorder::current() { return recorder; }

void LaunchRecorder::launched(CUfunction function, const LaunchShape& shape, void** arguments,
                              std::span<const std::size_t> sizes) {
  if (sizes.size() > kMostArguments) {
    complete_ = false;
  } else {
    record_.add(function, shape, arguments, sizes);
  }
}

std::optional<LaunchRecord> LaunchRecorder::take() && {
  if (!complete_) return std::nullopt;
  return std::move(record_);
}

}  // namespace mxfa::driver
