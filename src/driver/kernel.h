#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "driver/device.h"

/// Kernels compiled ahead of time and their launch.
namespace mxfa::driver {

/// One .cu file compiled for one architecture, embedded by the build rule mxfa_embed_kernels: the
/// cubin for a GPU, the PTX text for the emulator. Nothing of the library is compiled at run time.
struct KernelImage {
  std::string_view module;           ///< the .cu file's name without its extension
  std::string_view arch;             ///< "sm_90a"
  std::span<const std::byte> cubin;  ///< empty: a GPU's driver compiles the PTX
  std::string_view ptx;              ///< zero-terminated
};

struct LaunchShape {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned cluster[3] = {1, 1, 1};
  unsigned dynamic_smem_bytes = 0;
  bool programmatic_launch = false;  ///< may start while the kernel before it in the stream ends
};

/// What an entry point asks for beyond the defaults.
struct KernelNeeds {
  unsigned dynamic_smem_bytes = 0;
  bool nonportable_cluster = false;  ///< more than 8 CTAs in a cluster
};

/// An entry point, ready to launch. Copies are cheap; it lives as long as its KernelCache.
class Kernel {
 public:
  Kernel(const Device& device, CUfunction function) : device_(&device), function_(function) {}

  /// Launches with the arguments in order. Their types must match the kernel's parameters.
  template <class... Args>
  void launch(CUstream stream, const LaunchShape& shape, const Args&... args) const {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))..., nullptr};
    constexpr std::size_t kSizes[] = {sizeof(Args)...};
    launch_raw(stream, shape, pointers, kSizes);
  }
  int attribute(CUfunction_attribute attribute) const;

 private:
  void launch_raw(CUstream stream, const LaunchShape& shape, void** arguments,
                  std::span<const std::size_t> sizes) const;

  const Device* device_;
  CUfunction function_;
};

/// Fills device memory in a stream.
void fill_async(const Device& device, void* memory, std::uint8_t byte, std::size_t size_bytes,
                CUstream stream);

/// Loads modules on first use and keeps them until it dies. Safe to use from several threads.
class KernelCache {
 public:
  /// `images` as embedded by mxfa_embed_kernels; they and the device outlive the cache.
  KernelCache(const Device& device, std::span<const KernelImage> images)
      : device_(device), images_(images) {}
  ~KernelCache();
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  /// The entry `name` of `module` for the device's architecture, granted what it needs.
  /// Throws Error(kDevice) where no image was built for it.
  Kernel get(std::string_view module, std::string_view name, const KernelNeeds& needs = {});
  /// Clusters of `shape` with the kernel of get() that the device holds at once, whatever its grid.
  /// Fewer than its multiprocessors would allow where they come in groups of other sizes. Asked of
  /// the driver once.
  int resident_clusters(std::string_view module, std::string_view name, const KernelNeeds& needs,
                        const LaunchShape& shape);

 private:
  /// A few things by name, each search a comparison or two: names of one length are few.
  template <class Value>
  using Named = std::vector<std::pair<std::string, Value>>;
  /// What of a shape, beside its grid, decides how many clusters are resident.
  using ClusterShape = std::array<unsigned, 7>;
  struct Entry {
    CUfunction function = nullptr;
    KernelNeeds granted = {};
    std::map<ClusterShape, int> resident = {};
  };
  struct Module {
    CUmodule handle = nullptr;
    Named<Entry> entries = {};
  };

  /// Loaded and granted what it needs. The lock is the caller's.
  Entry& entry_of(std::string_view module, std::string_view name, const KernelNeeds& needs);
  void load(Module& module, std::string_view name) const;
  void find_function(Entry& entry, const Module& module, std::string_view name) const;
  void grant(Entry& entry, const KernelNeeds& needs) const;
  const KernelImage& find_image(std::string_view module) const;

  const Device& device_;
  std::span<const KernelImage> images_;
  std::mutex mutex_;
  Named<Module> modules_;
};

}  // namespace mxfa::driver
