#include "driver/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace mxfa::driver {
namespace {

#define MXFA_DRIVER_TEXT(name) #name
// Two levels, so that a versioned name is expanded before it is turned into text.
#define MXFA_DRIVER_SYMBOL(name) MXFA_DRIVER_TEXT(name)

const char* default_library(DriverKind kind) {
  return kind == DriverKind::kCuda ? "libcuda.so.1" : "libmxemu.so";
}

}  // namespace

void Driver::LibraryCloser::operator()(void* handle) const {
  // A real driver owns threads that outlive any unload, so it stays mapped (RTLD_NODELETE below).
  dlclose(handle);
}

Driver::Driver(const DriverOptions& options) : options_(options) {
  const std::string name =
      options.library.empty() ? default_library(options.kind) : options.library;
  library_.reset(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));
  if (!library_) {
    throw Error(ErrorKind::kDevice, fmt::format("driver: cannot open {}: {}", name, dlerror()));
  }
  if (options.kind == DriverKind::kEmulator) {
    using SetArch = CUresult (*)(const char*);
    const auto set_arch = reinterpret_cast<SetArch>(dlsym(library_.get(), "mxemuSetArch"));
    if (set_arch == nullptr || set_arch(options.arch.c_str()) != CUDA_SUCCESS) {
      throw Error(ErrorKind::kDevice,
                  fmt::format("driver: {} does not emulate arch '{}'", name, options.arch));
    }
  }
#define MXFA_DRIVER_RESOLVE(call)                                                               \
  table_.call =                                                                                 \
      reinterpret_cast<decltype(table_.call)>(dlsym(library_.get(), MXFA_DRIVER_SYMBOL(call))); \
  if (table_.call == nullptr) {                                                                 \
    throw Error(ErrorKind::kDevice,                                                             \
                fmt::format("driver: {} has no {}", name, MXFA_DRIVER_SYMBOL(call)));           \
  }
  MXFA_DRIVER_FUNCTIONS(MXFA_DRIVER_RESOLVE)
#undef MXFA_DRIVER_RESOLVE
  check(table_.cuInit(0), "cuInit");
}

Driver::~Driver() = default;

int Driver::device_count() const {
  int count = 0;
  check(table_.cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

int Driver::version() const {
  int version = 0;
  check(table_.cuDriverGetVersion(&version), "cuDriverGetVersion");
  return version;
}

void Driver::check(CUresult result, std::string_view call, SourceLocation where) const {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  const char* text = nullptr;
  table_.cuGetErrorName(result, &name);
  table_.cuGetErrorString(result, &text);
  throw Error(ErrorKind::kDevice,
              fmt::format("{}: {} ({})", call, name ? name : fmt::format("error {}", int(result)),
                          text ? text : "unknown to the driver"),
              where);
}

}  // namespace mxfa::driver
