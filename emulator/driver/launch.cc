#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "mxemu/check.h"
#include "state.h"

/// Launches.
namespace mxfa::emu::driver {
namespace {

using Dim3 = std::array<std::uint32_t, 3>;

std::uint64_t volume(const Dim3& d) { return std::uint64_t{d[0]} * d[1] * d[2]; }
std::string text(const Dim3& d) { return fmt::format("({},{},{})", d[0], d[1], d[2]); }

struct Plan {
  LaunchConfig config;
  Arguments arguments;
  bool cooperative = false;
  bool overlaps = false;  ///< may begin before the launch in front of it has ended
  std::shared_ptr<LaunchRecord> record = std::make_shared<LaunchRecord>();
  std::shared_ptr<const LaunchRecord> before;  ///< of the launch that it overlaps, or null
};

void read_attributes(const CUlaunchConfig& config, Plan& plan) {
  require(config.numAttrs == 0 || config.attrs != nullptr, "attrs: expected a pointer, got null");
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config.attrs[i];
    switch (attribute.id) {
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        plan.config.cluster = {attribute.value.clusterDim.x, attribute.value.clusterDim.y,
                               attribute.value.clusterDim.z};
        require(volume(plan.config.cluster) > 0, "clusterDim: expected more than 0");
        break;
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        plan.cooperative = attribute.value.cooperative != 0;
        break;
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        plan.overlaps = attribute.value.programmaticStreamSerializationAllowed != 0;
        break;
      // Hints.
      case CU_LAUNCH_ATTRIBUTE_IGNORE:
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        break;
      default:
        fail(CUDA_ERROR_NOT_SUPPORTED,
             fmt::format("launch attribute {} is not emulated", static_cast<int>(attribute.id)));
    }
  }
}

void check_dims(const LaunchConfig& config) {
  const Dim3& grid = config.grid;
  const Dim3& block = config.block;
  if (volume(grid) == 0 || grid[0] > 0x7FFFFFFF || grid[1] > 65535 || grid[2] > 65535) {
    fail(CUDA_ERROR_INVALID_VALUE, fmt::format("grid {}: out of range", text(grid)));
  }
  if (volume(block) == 0 || volume(block) > kMaxThreadsPerBlock || block[2] > 64) {
    fail(CUDA_ERROR_INVALID_VALUE, fmt::format("block {}: out of range", text(block)));
  }
}

void check_kernel_limits(const Function& function, const LaunchConfig& config) {
  const EntryInfo& info = function.info;
  const bool required = volume(info.required_threads) != 0;
  if (required && info.required_threads != config.block) {
    fail(CUDA_ERROR_INVALID_VALUE, fmt::format("block {}: the kernel requires {}",
                                               text(config.block), text(info.required_threads)));
  }
  if (volume(info.max_threads) != 0 && volume(config.block) > volume(info.max_threads)) {
    fail(CUDA_ERROR_INVALID_VALUE,
         fmt::format("block {}: the kernel was compiled for at most {} threads", text(config.block),
                     volume(info.max_threads)));
  }
  if (config.dynamic_shared_bytes > static_cast<unsigned>(function.max_dynamic_shared_bytes)) {
    fail(CUDA_ERROR_INVALID_VALUE,
         fmt::format("sharedMemBytes {}: the function allows {} (cuFuncSetAttribute raises it)",
                     config.dynamic_shared_bytes, function.max_dynamic_shared_bytes));
  }
}

void check_cluster(const Function& function, LaunchConfig& config) {
  const Dim3& fixed = function.info.cluster;
  const bool given = volume(config.cluster) != 0;
  if (volume(fixed) != 0 && given && fixed != config.cluster) {
    fail(CUDA_ERROR_INVALID_CLUSTER_SIZE,
         fmt::format("cluster {}: the kernel requires {}", text(config.cluster), text(fixed)));
  }
  require(given || volume(fixed) != 0 || !function.info.explicit_cluster,
          "the kernel was compiled for launches that name a cluster size",
          CUDA_ERROR_INVALID_CLUSTER_SIZE);
  if (!given) config.cluster = volume(fixed) != 0 ? fixed : Dim3{1, 1, 1};
  const unsigned limit = function.nonportable_cluster ? kMaxCluster : kPortableCluster;
  if (volume(config.cluster) > limit) {
    fail(CUDA_ERROR_INVALID_CLUSTER_SIZE,
         fmt::format("cluster {}: at most {} CTAs", text(config.cluster), limit));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    if (config.grid[i] % config.cluster[i] == 0) continue;
    fail(CUDA_ERROR_INVALID_CLUSTER_SIZE, fmt::format("grid {} is not a multiple of the cluster {}",
                                                      text(config.grid), text(config.cluster)));
  }
}

void read_shape(const CUlaunchConfig& config, const Function& function, Plan& plan) {
  plan.config.grid = {config.gridDimX, config.gridDimY, config.gridDimZ};
  plan.config.block = {config.blockDimX, config.blockDimY, config.blockDimZ};
  plan.config.dynamic_shared_bytes = config.sharedMemBytes;
  read_attributes(config, plan);
  check_dims(plan.config);
  check_kernel_limits(function, plan.config);
  check_cluster(function, plan.config);
}

// CTAs of a multiprocessor. Registers, which only machine code has, may let fewer be resident on a
// GPU.
std::uint64_t resident_ctas(const Function& function, const LaunchConfig& config) {
  const std::uint64_t threads = (volume(config.block) + 31) / 32 * 32;
  const std::uint64_t shared =
      function.info.shared_bytes + config.dynamic_shared_bytes + kReservedSharedBytes;
  return std::min({kMaxThreadsPerMultiprocessor / threads, kSharedBytesPerMultiprocessor / shared,
                   std::uint64_t{kMaxBlocksPerMultiprocessor}});
}

// The CTAs of a cluster share a group of multiprocessors; a GPU's groups have 16 or 18. A machine
// too small for a cluster runs one at a time all the same.
std::uint64_t resident_clusters(const State& s, const Function& function,
                                const LaunchConfig& config) {
  constexpr int kGroup = 18;
  std::uint64_t clusters = 0;
  for (int first = 0; first < s.multiprocessors(); first += kGroup) {
    const int group = std::min(kGroup, s.multiprocessors() - first);
    clusters += static_cast<std::uint64_t>(group) * resident_ctas(function, config) /
                volume(config.cluster);
  }
  return std::max<std::uint64_t>(clusters, 1);
}

void check_residency(const State& s, const Function& function, const Plan& plan) {
  if (!plan.cooperative) return;
  const std::uint64_t capacity =
      resident_ctas(function, plan.config) * static_cast<std::uint64_t>(s.multiprocessors());
  if (volume(plan.config.grid) <= capacity) return;
  fail(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
       fmt::format("cooperative grid {}: at most {} CTAs are resident at once",
                   text(plan.config.grid), capacity));
}

// `extra` as in cuLaunchKernel: one buffer with the parameters at their offsets.
std::pair<const std::byte*, std::size_t> parameter_buffer(void** extra) {
  const std::byte* data = nullptr;
  std::size_t size = 0;
  for (void** item = extra; *item != CU_LAUNCH_PARAM_END; item += 2) {
    if (item[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      data = static_cast<const std::byte*>(item[1]);
    } else if (item[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      require(item[1] != nullptr, "extra: expected the size's address, got null");
      size = *static_cast<const std::size_t*>(item[1]);
    } else {
      fail(CUDA_ERROR_INVALID_VALUE, "extra: unknown key");
    }
  }
  return {data, size};
}

Arguments read_arguments(const Function& function, void** pointers, void** extra) {
  require(pointers == nullptr || extra == nullptr, "both kernelParams and extra were given");
  Arguments arguments;
  const auto& params = function.info.params;
  if (extra != nullptr) {
    const auto [data, size] = parameter_buffer(extra);
    for (const ParamInfo& param : params) {
      require(data != nullptr && param.offset + param.bytes <= size,
              "extra: the buffer is smaller than the kernel's parameters");
      arguments.add_bytes(data + param.offset, param.bytes);
    }
    return arguments;
  }
  for (std::size_t i = 0; i < params.size(); ++i) {
    require(pointers != nullptr && pointers[i] != nullptr,
            "kernelParams: expected a pointer for every parameter of the kernel");
    arguments.add_bytes(pointers[i], params[i].bytes);
  }
  return arguments;
}

LaunchOptions options_of(State& s, const Plan& plan) {
  const Settings& settings = s.settings;
  LaunchOptions options;
  options.seed = settings.seed + s.launches++;
  options.policy = settings.policy;
  options.threads = settings.threads;
  options.check_uninitialised = settings.check_uninitialised;
  options.fp8 = settings.arithmetic.value_or(settings.arch->fp8);
  options.strict = settings.strict;
  // As device code's printf does on a GPU.
  options.print = [](const std::string& line) { std::fputs(line.c_str(), stdout); };
  if (plan.cooperative) {
    const std::uint64_t clusters = volume(plan.config.grid) / volume(plan.config.cluster);
    options.resident_clusters = static_cast<int>(std::min<std::uint64_t>(clusters, 1 << 20));
  }
  return options;
}

// The first errors of the hazard checker, as text; empty where it found none.
std::string hazards(const CheckReport& report) {
  constexpr std::size_t kShown = 4;
  std::string result;
  std::size_t shown = 0;
  for (const Hazard& hazard : report.hazards) {
    if (hazard.level != HazardLevel::kError || shown == kShown) continue;
    result += fmt::format("{}{}", shown++ == 0 ? "" : "\n", hazard.text());
  }
  if (report.errors() > shown) result += fmt::format("\nand {} more", report.errors() - shown);
  return result;
}

/// Writes what the launch did when it has ended, in a fault or not.
class LaunchTrace {
 public:
  LaunchTrace(const State& s, LaunchOptions& options)
      : folder_(s.settings.trace_folder), number_(s.launches), check_(options.check) {
    if (!folder_.empty()) options.trace = &report_;
  }
  ~LaunchTrace() {
    if (folder_.empty()) return;
    const std::string stem = fmt::format("{}/{}.{}", folder_, report_.kernel, number_);
    std::ofstream(stem + ".json") << chrome_json(report_);
    std::ofstream(stem + ".svg") << timeline_svg(report_, guess_roles(report_));
    if (check_ == nullptr) return;
    std::ofstream waits(stem + ".waits");
    for (const WaitCoverage& wait : check_->waits) {
      waits << fmt::format("{} {} {} {}\n", wait.ptx_line, wait.passed, wait.blocked, wait.initial);
    }
  }
  LaunchTrace(const LaunchTrace&) = delete;
  LaunchTrace& operator=(const LaunchTrace&) = delete;

 private:
  std::string folder_;
  std::uint64_t number_;
  const CheckReport* check_;
  TraceReport report_;
};

void run(State& s, const Function& function, const Plan& plan) {
  LaunchOptions options = options_of(s, plan);
  CheckReport check;
  if (s.settings.check_hazards) {
    options.check = &check;
    options.footprint = &plan.record->footprint;
    if (plan.before != nullptr) options.overlapped = plan.before->footprint;
  }
  LaunchTrace trace(s, options);
  const std::string where =
      fmt::format("[kernel {}, grid {}, block {}, launch seed {}]", function.info.name,
                  text(plan.config.grid), text(plan.config.block), options.seed);
  try {
    function.module->module->launch(function.info.name, plan.config, plan.arguments, options);
  } catch (const PtxError& error) {
    const std::string found = hazards(check);
    throw PtxError(
        error.location(),
        fmt::format("{} {}{}{}", error.reason(), where, found.empty() ? "" : "\n", found),
        error.fault());
  }
  if (check.clean()) return;
  throw PtxError({function.module->name, 0, {}},
                 fmt::format("hazards {}\n{}", where, hazards(check)));
}

// Only the launch directly in front, in the same stream or the same captured chain.
std::shared_ptr<const LaunchRecord> launch_in_front(const Stream& stream) {
  const LastLaunch& last = stream.launch;
  const bool captures = stream.capture != nullptr;
  const bool in_front =
      captures ? last.graph == stream.capture->graph && stream.tail == std::vector{last.node}
               : last.op != nullptr && last.op == stream.last;
  return in_front ? last.record : nullptr;
}

void note_launch(Stream& stream, const Plan& plan) {
  stream.launch = {plan.record, stream.last, nullptr, 0};
  if (stream.capture == nullptr) return;
  stream.launch = {plan.record, nullptr, stream.capture->graph, stream.tail[0]};
}

}  // namespace
}  // namespace mxfa::emu::driver

using namespace mxfa::emu::driver;  // the calls below are the driver's, in the global namespace

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction handle, void** parameters,
                          void** extra) {
  return call([&](State& s) {
    require(config != nullptr, "config: expected a pointer, got null");
    const std::shared_ptr<Function> function = s.functions.get(handle);
    const StreamPtr stream = find_stream(s, config->hStream);
    require(function->module->context == stream->context,
            "function and stream are of different contexts", CUDA_ERROR_INVALID_HANDLE);
    auto plan = std::make_shared<Plan>();
    read_shape(*config, *function, *plan);
    check_residency(s, *function, *plan);
    plan->arguments = read_arguments(*function, parameters, extra);
    if (plan->overlaps) plan->before = launch_in_front(*stream);
    enqueue(s, *stream, [&s, function, plan] { run(s, *function, *plan); });
    note_launch(*stream, *plan);
  });
}

CUresult cuOccupancyMaxActiveClusters(int* count, CUfunction handle, const CUlaunchConfig* config) {
  return call([&](State& s) {
    require(count != nullptr && config != nullptr, "expected pointers, got null");
    const Function& function = *s.functions.get(handle);
    check_fault(*function.module->context);
    Plan plan;
    read_shape(*config, function, plan);
    *count = static_cast<int>(resident_clusters(s, function, plan.config));
  });
}
