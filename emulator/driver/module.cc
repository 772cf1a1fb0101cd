#include <cuda.h>

#include <algorithm>
#include <charconv>

#include "state.h"

/// Modules and functions.
namespace mxfa::emu::driver {
namespace {

// How machine code begins.
constexpr std::string_view kElf = "\x7F\x45LF";
constexpr std::string_view kFatbin = "\x50\xED\x55\xBA";

// Names a PTX text as the build does, "quantize.sm_90a.ptx", by the CUDA source in its first
// .file directive that has one: reports then tell where to look.
std::string name_of(const std::string& ptx, std::uint64_t number) {
  constexpr std::string_view kExtension = ".cu\"";
  const std::size_t directive = ptx.find("\n\t.file\t");
  const std::size_t end =
      directive == std::string::npos ? directive : ptx.find(kExtension, directive);
  if (end == std::string::npos) return fmt::format("module {}", number);
  const std::size_t begin = ptx.find_last_of("/\"", end - 1) + 1;
  constexpr std::string_view kTarget = "\n.target ";
  const std::size_t target = ptx.find(kTarget);
  if (target == std::string::npos) return ptx.substr(begin, end - begin);
  const std::size_t word = target + kTarget.size();
  return fmt::format("{}.{}.ptx", ptx.substr(begin, end - begin),
                     ptx.substr(word, ptx.find_first_of(" ,\r\n", word) - word));
}

std::string text_of(const void* image) {
  require(image != nullptr, "image: expected a pointer, got null");
  const std::string text(static_cast<const char*>(image));
  require(!text.starts_with(kElf) && !text.starts_with(kFatbin),
          "the emulator runs PTX, not machine code", CUDA_ERROR_NO_BINARY_FOR_GPU);
  return text;
}

// A plain target runs on all later architectures, sm_Xf on those of its family, sm_Xa on its own.
void check_target(const Architecture& arch, const std::string& target, const std::string& name) {
  if (target == arch.name) return;
  const int version = 10 * arch.major + arch.minor;
  int number = 0;
  const char* end = target.data() + target.size();
  const auto parsed =
      std::from_chars(target.data() + std::min<std::size_t>(3, target.size()), end, number);
  const std::string_view suffix(parsed.ptr, end);
  const bool family = suffix == "f" && number / 10 == arch.major;
  if (number > 0 && number <= version && (suffix.empty() || family)) return;
  fail(CUDA_ERROR_INVALID_PTX,
       fmt::format("{}: code for {} does not run on {}", name, target, arch.name));
}

std::uint64_t volume(const std::array<std::uint32_t, 3>& dims) {
  return std::uint64_t{dims[0]} * dims[1] * dims[2];
}

int max_threads(const EntryInfo& info) {
  const auto& limit = volume(info.required_threads) != 0 ? info.required_threads : info.max_threads;
  return volume(limit) == 0 ? kMaxThreadsPerBlock : static_cast<int>(volume(limit));
}

int attribute_of(const State& s, const Function& function, CUfunction_attribute attribute) {
  const EntryInfo& info = function.info;
  const int version = 10 * s.settings.arch->major + s.settings.arch->minor;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return max_threads(info);
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      return static_cast<int>(info.shared_bytes);
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      return static_cast<int>(info.local_bytes);
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return version;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return function.max_dynamic_shared_bytes;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      return function.nonportable_cluster ? 1 : 0;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      return info.explicit_cluster ? 1 : 0;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      return static_cast<int>(info.cluster[0]);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
      return static_cast<int>(info.cluster[1]);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      return static_cast<int>(info.cluster[2]);
    default:
      break;
  }
  require(attribute >= 0 && attribute < CU_FUNC_ATTRIBUTE_MAX, "no such attribute");
  fail(CUDA_ERROR_NOT_SUPPORTED,
       fmt::format("function attribute {} is a property of machine code, which an emulator of PTX "
                   "does not have",
                   static_cast<int>(attribute)));
}

}  // namespace
}  // namespace mxfa::emu::driver

using namespace mxfa::emu::driver;  // the calls below are the driver's, in the global namespace

CUresult cuModuleLoadData(CUmodule* result, const void* image) {
  return call([&](State& s) {
    require(result != nullptr, "module: expected a pointer, got null");
    auto module = std::make_shared<LoadedModule>();
    module->context = current_context(s);
    const std::string text = text_of(image);
    module->name = name_of(text, ++s.modules_loaded);
    try {
      module->module =
          std::make_unique<mxfa::emu::Module>(text, module->name, module->context->memory);
    } catch (const mxfa::Error& error) {
      fail(CUDA_ERROR_INVALID_PTX, error.what());
    }
    check_target(*s.settings.arch, module->module->target(), module->name);
    *result = s.modules.add(std::move(module));
  });
}

// Launches that were asked for keep the module until they have run.
CUresult cuModuleUnload(CUmodule handle) {
  return call([&](State& s) {
    const auto module = s.modules.get(handle);
    check_fault(*module->context);
    s.functions.remove_if([&](const Function& function) { return function.module == module; });
    s.modules.remove(handle);
  });
}

CUresult cuModuleGetFunction(CUfunction* result, CUmodule handle, const char* name) {
  return call([&](State& s) {
    require(result != nullptr && name != nullptr, "expected pointers, got null");
    const auto module = s.modules.get(handle);
    check_fault(*module->context);
    if (const auto known = module->functions.find(name); known != module->functions.end()) {
      *result = known->second;
      return;
    }
    const std::vector<std::string> entries = module->module->entries();
    if (std::ranges::find(entries, name) == entries.end()) {
      fail(CUDA_ERROR_NOT_FOUND, fmt::format("{} has no entry {}", module->name, name));
    }
    auto function = std::make_shared<Function>();
    function->module = module;
    try {
      function->info = module->module->entry(name);
    } catch (const mxfa::Error& error) {
      fail(CUDA_ERROR_INVALID_PTX, error.what());
    }
    function->max_dynamic_shared_bytes =
        std::max(0, kDefaultSharedBytes - static_cast<int>(function->info.shared_bytes));
    *result = s.functions.add(std::move(function));
    module->functions.emplace(name, *result);
  });
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  return call([&](State& s) {
    require(value != nullptr, "pi: expected a pointer, got null");
    const Function& function = *s.functions.get(handle);
    check_fault(*function.module->context);
    *value = attribute_of(s, function, attribute);
  });
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  return call([&](State& s) {
    Function& function = *s.functions.get(handle);
    check_fault(*function.module->context);
    if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) {
      require(value == 0 || value == 1, "value: expected 0 or 1");
      function.nonportable_cluster = value == 1;
      return;
    }
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
      require(value >= -1 && value <= 100, "value: expected -1 to 100 percent");
      return;  // a hint
    }
    require(attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            "attrib: one that can be set");
    const int limit = kMaxSharedBytes - static_cast<int>(function.info.shared_bytes);
    if (value < 0 || value > limit) {
      fail(CUDA_ERROR_INVALID_VALUE,
           fmt::format("dynamic shared memory: expected at most {} bytes, got {}", limit, value));
    }
    function.max_dynamic_shared_bytes = value;
  });
}
