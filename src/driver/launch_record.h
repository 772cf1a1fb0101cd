#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "driver/kernel.h"

/// Launches that are made again as they were.
namespace mxfa::driver {

/// Kernels with their arguments, in order. They live as long as their KernelCache.
class LaunchRecord {
 public:
  /// Launches them again. Safe from several threads at once. The device is current.
  void replay(const Device& device, CUstream stream) const;

 private:
  friend class LaunchRecorder;
  /// Arguments lie on what the strictest of them, a tensor map, asks for.
  struct alignas(64) Chunk {
    std::array<std::byte, 64> bytes;
  };
  struct Launch {
    CUfunction function;
    LaunchShape shape;
    std::size_t first, count;  ///< of arguments_
  };
  void add(CUfunction function, const LaunchShape& shape, void** arguments,
           std::span<const std::size_t> sizes);

  std::vector<Launch> launches_;
  std::vector<std::size_t> arguments_;  ///< chunks before each
  std::vector<Chunk> chunks_;
};

/// Records what its thread launches while it lives. One at a time in a thread.
class LaunchRecorder {
 public:
  LaunchRecorder();
  ~LaunchRecorder();
  LaunchRecorder(const LaunchRecorder&) = delete;
  LaunchRecorder& operator=(const LaunchRecorder&) = delete;

  /// None where the thread did other work too.
  std::optional<LaunchRecord> take() &&;

  /// For who launches, on any thread: null without a recorder.
  static LaunchRecorder* current();
  void launched(CUfunction function, const LaunchShape& shape, void** arguments,
                std::span<const std::size_t> sizes);
  /// Work went to a stream that is no kernel of a KernelCache.
  void did_other_work() { complete_ = false; }

 private:
  LaunchRecord record_;
  bool complete_ = true;
};

}  // namespace mxfa::driver
