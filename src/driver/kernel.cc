#include "driver/kernel.h"

#include <fmt/format.h>

#include "driver/launch_config.h"
#include "driver/launch_record.h"

namespace mxfa::driver {
namespace {

// What a kernel may use without asking (CUDA C++ Programming Guide, compute capabilities).
constexpr unsigned kDefaultSmemBytes = 48 * 1024;

/// What is under `key`, made where it is not there.
template <class Value>
Value& find_or_make(std::vector<std::pair<std::string, Value>>& named, std::string_view key) {
  for (auto& [name, value] : named) {
    if (name == key) return value;
  }
  return named.emplace_back(std::string(key), Value()).second;
}

}  // namespace

int Kernel::attribute(CUfunction_attribute attribute) const {
  const CurrentDevice current(*device_);
  int value = 0;
  device_->driver().check(device_->calls().cuFuncGetAttribute(&value, attribute, function_),
                          "cuFuncGetAttribute");
  return value;
}

void Kernel::launch_raw(CUstream stream, const LaunchShape& shape, void** arguments,
                        std::span<const std::size_t> sizes) const {
  const LaunchConfig config(stream, shape);
  const CurrentDevice current(*device_);
  device_->driver().check(
      device_->calls().cuLaunchKernelEx(&config.config, function_, arguments, nullptr),
      "cuLaunchKernelEx");
  if (LaunchRecorder* const recorder = LaunchRecorder::current()) {
    recorder->launched(function_, shape, arguments, sizes);
  }
}

void fill_async(const Device& device, void* memory, std::uint8_t byte, std::size_t size_bytes,
                CUstream stream) {
  const CurrentDevice current(device);
  device.driver().check(device.calls().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory), byte,
                                                       size_bytes, stream),
                        "cuMemsetD8Async");
  if (LaunchRecorder* const recorder = LaunchRecorder::current()) recorder->did_other_work();
}

KernelCache::~KernelCache() {
  const CurrentDevice current(device_);
  for (const auto& [name, module] : modules_) {
    if (module.handle != nullptr) device_.calls().cuModuleUnload(module.handle);
  }
}

const KernelImage& KernelCache::find_image(std::string_view module) const {
  const std::string arch = device_.arch();
  std::string built;
  for (const KernelImage& image : images_) {
    if (image.module != module) continue;
    if (image.arch == arch) return image;
    built += fmt::format(" {}", image.arch);
  }
  throw Error(ErrorKind::kDevice, fmt::format("kernel {}: not built for {}, only for{}", module,
                                              arch, built.empty() ? " nothing" : built));
}

void KernelCache::load(Module& module, std::string_view name) const {
  const KernelImage& image = find_image(name);
  const bool assembled = device_.driver().kind() == DriverKind::kCuda && !image.cubin.empty();
  const void* data = assembled ? static_cast<const void*>(image.cubin.data())
                               : static_cast<const void*>(image.ptx.data());
  device_.driver().check(device_.calls().cuModuleLoadData(&module.handle, data),
                         "cuModuleLoadData");
}

void KernelCache::find_function(Entry& entry, const Module& module, std::string_view name) const {
  const std::string zero_terminated(name);
  device_.driver().check(
      device_.calls().cuModuleGetFunction(&entry.function, module.handle, zero_terminated.c_str()),
      fmt::format("cuModuleGetFunction({})", name));
  entry.granted.dynamic_smem_bytes = kDefaultSmemBytes;
}

void KernelCache::grant(Entry& entry, const KernelNeeds& needs) const {
  const auto set = [&](CUfunction_attribute attribute, int value) {
    device_.driver().check(device_.calls().cuFuncSetAttribute(entry.function, attribute, value),
                           "cuFuncSetAttribute");
  };
  if (needs.dynamic_smem_bytes > entry.granted.dynamic_smem_bytes) {
    set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        static_cast<int>(needs.dynamic_smem_bytes));
    entry.granted.dynamic_smem_bytes = needs.dynamic_smem_bytes;
  }
  if (needs.nonportable_cluster && !entry.granted.nonportable_cluster) {
    set(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    entry.granted.nonportable_cluster = true;
  }
}

KernelCache::Entry& KernelCache::entry_of(std::string_view module, std::string_view name,
                                          const KernelNeeds& needs) {
  Module& own = find_or_make(modules_, module);
  Entry& entry = find_or_make(own.entries, name);
  const KernelNeeds& granted = entry.granted;
  if (entry.function != nullptr && needs.dynamic_smem_bytes <= granted.dynamic_smem_bytes &&
      needs.nonportable_cluster <= granted.nonportable_cluster) {
    return entry;
  }
  const CurrentDevice current(device_);
  if (own.handle == nullptr) load(own, module);
  if (entry.function == nullptr) find_function(entry, own, name);
  grant(entry, needs);
  return entry;
}

Kernel KernelCache::get(std::string_view module, std::string_view name, const KernelNeeds& needs) {
  const std::lock_guard lock(mutex_);
  return {device_, entry_of(module, name, needs).function};
}

int KernelCache::resident_clusters(std::string_view module, std::string_view name,
                                   const KernelNeeds& needs, const LaunchShape& shape) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entry_of(module, name, needs);
  const ClusterShape key{shape.cluster[0],        shape.cluster[1], shape.cluster[2],
                         shape.block[0],          shape.block[1],   shape.block[2],
                         shape.dynamic_smem_bytes};
  const auto known = entry.resident.find(key);
  if (known != entry.resident.end()) return known->second;
  const LaunchConfig config(nullptr, shape);
  const CurrentDevice current(device_);
  int count = 0;
  device_.driver().check(
      device_.calls().cuOccupancyMaxActiveClusters(&count, entry.function, &config.config),
      "cuOccupancyMaxActiveClusters");
  return entry.resident[key] = count;
}

}  // namespace mxfa::driver
