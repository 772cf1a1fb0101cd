#include "driver/driver.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <tuple>

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

template <class Call>
Call Driver::find(const char* name) const {
  return reinterpret_cast<Call>(dlsym(library_.get(), name));
}

// The emulator's own calls, emulator/include/mxemu/driver.h.
void Driver::configure_emulator(const std::string& library) const {
  const auto set = [&](const char* name, auto... values) {
    const auto call = find<CUresult (*)(decltype(values)...)>(name);
    if (call == nullptr) {
      throw Error(ErrorKind::kDevice, fmt::format("driver: {} has no {}", library, name));
    }
    const CUresult result = call(values...);
    if (result == CUDA_SUCCESS) return;
    const char* report = "";
    if (get_report_ != nullptr) get_report_(&report);
    throw Error(ErrorKind::kDevice, fmt::format("driver: {}({}): {}", name,
                                                fmt::join(std::tuple(values...), ", "), report));
  };
  const EmulatorOptions& emulator = options_.emulator;
  set("mxemuSetArch", options_.arch.c_str());
  set("mxemuSetDeviceCount", emulator.device_count);
  set("mxemuSetMultiprocessorCount", emulator.multiprocessors);
  set("mxemuSetSchedule", emulator.policy.c_str(), emulator.seed);
  set("mxemuSetThreads", emulator.threads);
  set("mxemuSetArithmetic", emulator.arithmetic.c_str());
  set("mxemuSetStrict", int{emulator.strict});
  set("mxemuSetChecker", int{emulator.check_hazards});
  set("mxemuSetTrace", emulator.trace_folder.c_str());
  set("mxemuSetMemory", int{emulator.poison_memory}, int{emulator.check_uninitialised});
}

Driver::Driver(const DriverOptions& options) : options_(options) {
  const std::string name =
      options.library.empty() ? default_library(options.kind) : options.library;
  library_.reset(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));
  if (!library_) {
    const std::string_view how =
        options.kind == DriverKind::kEmulator
            ? " (the emulator: `cmake --build build/release --target mxemu_driver` makes it, "
              "`cmake --install` puts it beside the library)"
            : "";
    throw Error(ErrorKind::kDevice,
                fmt::format("driver: cannot open {}: {}{}", name, dlerror(), how));
  }
  if (options.kind == DriverKind::kEmulator) {
    get_report_ = find<CUresult (*)(const char**)>("mxemuGetReport");
    configure_emulator(name);
  }
#define MXFA_DRIVER_RESOLVE(call)                                                     \
  table_.call = find<decltype(table_.call)>(MXFA_DRIVER_SYMBOL(call));                \
  if (table_.call == nullptr) {                                                       \
    throw Error(ErrorKind::kDevice,                                                   \
                fmt::format("driver: {} has no {}", name, MXFA_DRIVER_SYMBOL(call))); \
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
  const char* report = "";
  if (get_report_ != nullptr) get_report_(&report);
  throw Error(
      ErrorKind::kDevice,
      fmt::format("{}: {} ({}){}{}", call, name ? name : fmt::format("error {}", int(result)),
                  text ? text : "unknown to the driver", *report != 0 ? ": " : "", report),
      where);
}

}  // namespace mxfa::driver
