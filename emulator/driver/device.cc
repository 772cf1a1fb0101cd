#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "mxemu/driver.h"
#include "state.h"

/// Devices, primary contexts, the context stack, and the settings of the emulated machine.
namespace mxfa::emu::driver {
namespace {

PrimaryContext& device_of(State& s, CUdevice device) {
  require(device >= 0 && device < s.settings.device_count, "no device has this ordinal",
          CUDA_ERROR_INVALID_DEVICE);
  s.devices.resize(static_cast<std::size_t>(s.settings.device_count));
  return s.devices[static_cast<std::size_t>(device)];
}

int attribute_of(const State& s, CUdevice_attribute attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return s.settings.arch->major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return s.settings.arch->minor;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return s.multiprocessors();
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return kMaxThreadsPerBlock;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return 0x7FFFFFFF;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return kMaxThreadsPerMultiprocessor;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return kMaxBlocksPerMultiprocessor;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return kDefaultSharedBytes;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return kMaxSharedBytes;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return kSharedBytesPerMultiprocessor;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      return kReservedSharedBytes;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
      return 65536;
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
      return 1;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
      return 0;
    default:
      break;
  }
  require(attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX, "no such attribute");
  fail(CUDA_ERROR_NOT_SUPPORTED, fmt::format("device attribute {} has no meaning on an emulator",
                                             static_cast<int>(attribute)));
}

// Objects of a context die with it. Its work is not run any more.
void destroy(State& s, PrimaryContext& device) {
  const ContextPtr context = s.contexts.remove(device.handle);
  device.handle = nullptr;
  s.timeline.drop(context->number);
  const auto belongs = [&](const auto& object) { return object.context == context; };
  s.streams.remove_if(belongs);
  s.events.remove_if(belongs);
  s.graphs.remove_if(belongs);
  s.graph_execs.remove_if(belongs);
  s.functions.remove_if([&](const Function& function) { return belongs(*function.module); });
  s.modules.remove_if(belongs);
  context->legacy_stream.reset();
}

void require_no_context(const State& s) {
  require(!any_context_active(s), "the machine cannot change while a context is in use",
          CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
}

template <class T>
using Named = std::pair<std::string_view, T>;
constexpr Named<std::optional<Fp8Mode>> kArithmetics[] = {{"native", std::nullopt},
                                                          {"exact", Fp8Mode::kExact},
                                                          {"hopper", Fp8Mode::kHopper},
                                                          {"blackwell", Fp8Mode::kBlackwell}};

template <class T, std::size_t N>
T named(const Named<T> (&all)[N], const char* name, const char* expected) {
  const std::string_view wanted(name == nullptr ? "" : name);
  const auto* it = std::ranges::find(all, wanted, [](const Named<T>& item) { return item.first; });
  require(it != std::end(all), expected);
  return it->second;
}

Policy named_policy(const char* name) {
  const std::optional<Policy> found = find_policy(name == nullptr ? "" : name);
  const std::string expected = "policy: expected one of " + policy_names(true);
  require(found.has_value(), expected.c_str());
  return *found;
}

}  // namespace
}  // namespace mxfa::emu::driver

using namespace mxfa::emu::driver;  // the calls below are the driver's, in the global namespace

CUresult cuInit(unsigned int flags) {
  return call_uninitialised([&](State& s) {
    require(flags == 0, "flags: expected 0");
    s.initialised = true;
  });
}

CUresult cuDriverGetVersion(int* version) {
  return call_uninitialised([&](State&) {
    require(version != nullptr, "driverVersion: expected a pointer, got null");
    *version = CUDA_VERSION;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return call([&](State& s) {
    require(device != nullptr, "device: expected a pointer, got null");
    device_of(s, ordinal);
    *device = ordinal;
  });
}

CUresult cuDeviceGetCount(int* count) {
  return call([&](State& s) {
    require(count != nullptr, "count: expected a pointer, got null");
    *count = s.settings.device_count;
  });
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  return call([&](State& s) {
    device_of(s, device);
    require(name != nullptr && length > 0, "name: expected room for a text");
    const std::string text = fmt::format("mxemu {}", s.settings.arch->name);
    const auto copied = std::min<std::size_t>(text.size(), static_cast<std::size_t>(length) - 1);
    std::memcpy(name, text.data(), copied);
    name[copied] = 0;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return call([&](State& s) {
    require(value != nullptr, "pi: expected a pointer, got null");
    device_of(s, device);
    *value = attribute_of(s, attribute);
  });
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  return call([&](State& s) {
    require(bytes != nullptr, "bytes: expected a pointer, got null");
    device_of(s, device);
    *bytes = device_memory_bytes(s);
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* result, CUdevice device) {
  return call([&](State& s) {
    require(result != nullptr, "pctx: expected a pointer, got null");
    PrimaryContext& primary = device_of(s, device);
    if (primary.retained++ == 0) {
      auto context = std::make_shared<Context>();
      context->device = device;
      context->number = ++s.contexts_made;
      context->legacy_stream = std::make_shared<Stream>();
      context->legacy_stream->context = context;
      primary.handle = s.contexts.add(std::move(context));
    }
    *result = primary.handle;
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return call([&](State& s) {
    PrimaryContext& primary = device_of(s, device);
    require(primary.retained > 0, "the primary context was not retained",
            CUDA_ERROR_INVALID_CONTEXT);
    if (--primary.retained == 0) destroy(s, primary);
  });
}

CUresult cuCtxGetCurrent(CUcontext* result) {
  return call([&](State&) {
    require(result != nullptr, "pctx: expected a pointer, got null");
    *result = context_stack().empty() ? nullptr : context_stack().back();
  });
}

CUresult cuCtxPushCurrent(CUcontext context) {
  return call([&](State& s) {
    s.contexts.get(context, CUDA_ERROR_INVALID_CONTEXT);
    context_stack().push_back(context);
  });
}

CUresult cuCtxPopCurrent(CUcontext* result) {
  return call([&](State&) {
    require(!context_stack().empty(), "no context is current", CUDA_ERROR_INVALID_CONTEXT);
    if (result != nullptr) *result = context_stack().back();
    context_stack().pop_back();
  });
}

CUresult cuCtxSynchronize() {
  return call([&](State& s) {
    const ContextPtr context = current_context(s);
    const auto captures = captures_in(s, *context);
    for (const auto& capture : captures) capture->invalid = true;
    require(captures.empty(), "the context has a stream that is captured",
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    s.timeline.run_all(context->number);
    check_fault(*context);
  });
}

CUresult mxemuSetArch(const char* arch) {
  return call_uninitialised([&](State& s) {
    const Architecture* found = arch == nullptr ? nullptr : find_architecture(arch);
    require(found != nullptr, "arch: expected sm_90a, sm_100a or sm_103a");
    if (found == s.settings.arch) return;
    require_no_context(s);
    s.settings.arch = found;
  });
}

CUresult mxemuSetDeviceCount(int count) {
  return call_uninitialised([&](State& s) {
    require(count >= 1 && count <= 64, "count: expected 1 to 64");
    if (count == s.settings.device_count) return;
    require_no_context(s);
    s.settings.device_count = count;
  });
}

CUresult mxemuSetMultiprocessorCount(int count) {
  return call_uninitialised([&](State& s) {
    require(count >= 0 && count <= 1024, "count: expected 0 to 1024");
    if (count == s.settings.multiprocessors) return;
    require_no_context(s);
    s.settings.multiprocessors = count;
  });
}

CUresult mxemuSetSchedule(const char* policy, uint64_t seed) {
  return call_uninitialised([&](State& s) {
    s.settings.policy = named_policy(policy);
    s.settings.seed = seed;
    s.launches = 0;
    s.timeline.configure(s.settings.policy, seed);
  });
}

CUresult mxemuSetThreads(int threads) {
  return call_uninitialised([&](State& s) {
    require(threads >= 1 && threads <= 1024, "threads: expected 1 to 1024");
    s.settings.threads = threads;
  });
}

CUresult mxemuSetMemory(int poison, int check_uninitialised) {
  return call_uninitialised([&](State& s) {
    s.settings.poison = poison != 0;
    s.settings.check_uninitialised = check_uninitialised != 0;
  });
}

CUresult mxemuSetArithmetic(const char* mode) {
  return call_uninitialised([&](State& s) {
    s.settings.arithmetic =
        named(kArithmetics, mode, "mode: expected native, exact, hopper or blackwell");
  });
}

CUresult mxemuSetStrict(int strict) {
  return call_uninitialised([&](State& s) { s.settings.strict = strict != 0; });
}

CUresult mxemuSetChecker(int enabled) {
  return call_uninitialised([&](State& s) { s.settings.check_hazards = enabled != 0; });
}

CUresult mxemuSetTrace(const char* folder) {
  return call_uninitialised([&](State& s) {
    const std::string name = folder == nullptr ? "" : folder;
    std::error_code fault;
    if (!name.empty()) std::filesystem::create_directories(name, fault);
    require(!fault, "folder: expected one that is there or can be made");
    s.settings.trace_folder = name;
  });
}

CUresult mxemuGetReport(const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = report().c_str();
  return CUDA_SUCCESS;
}
