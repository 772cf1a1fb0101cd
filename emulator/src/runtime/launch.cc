#include "runtime/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>

#include "check/checker.h"
#include "exec/machine.h"
#include "exec/perturb.h"
#include "sched/scheduler.h"
#include "trace/tracer.h"

namespace mxfa::emu::runtime {
namespace {

constexpr std::uint64_t kMaxThreads = 1024;
constexpr exec::Dim3 kMaxGrid{0x7FFFFFFF, 65535, 65535};
constexpr exec::Dim3 kMaxBlock{1024, 1024, 64};
constexpr std::uint32_t kMaxClusterBlocks = 16;
constexpr exec::Dim3 kMaxCluster{kMaxClusterBlocks, kMaxClusterBlocks, kMaxClusterBlocks};
constexpr std::uint64_t kMaxSharedBytes = 227u << 10;

[[noreturn]] void fail(const ir::Kernel& kernel, const std::string& reason) {
  throw PtxError({kernel.source->name, 0, {}},
                 fmt::format("launch of {}: {}", kernel.name, reason));
}

std::string text(const exec::Dim3& d) { return fmt::format("({},{},{})", d[0], d[1], d[2]); }

exec::Dim3 cluster_size(const ir::Kernel& kernel, const LaunchConfig& config) {
  const bool fixed = kernel.cluster[0] != 0;
  const bool given = config.cluster != exec::Dim3{};
  if (fixed && given && kernel.cluster != config.cluster) {
    fail(kernel,
         fmt::format("cluster: expected {}, got {}", text(kernel.cluster), text(config.cluster)));
  }
  return fixed ? kernel.cluster : given ? config.cluster : exec::Dim3{1, 1, 1};
}

void check_size(const ir::Kernel& kernel, const char* what, const exec::Dim3& size,
                const exec::Dim3& most) {
  for (std::size_t i = 0; i < 3; ++i) {
    if (size[i] > 0 && size[i] <= most[i]) continue;
    fail(kernel, fmt::format("{}: expected (1,1,1) to {}, got {}", what, text(most), text(size)));
  }
}

void check(const ir::Kernel& kernel, const exec::Launch& launch) {
  check_size(kernel, "grid", launch.grid, kMaxGrid);
  check_size(kernel, "block", launch.block, kMaxBlock);
  check_size(kernel, "cluster", launch.cluster, kMaxCluster);
  const std::uint64_t threads = exec::volume(launch.block);
  if (threads > kMaxThreads) {
    fail(kernel, fmt::format("block: expected 1 to {} threads, got {}", kMaxThreads, threads));
  }
  if (kernel.required_threads[0] != 0 && kernel.required_threads != launch.block) {
    fail(kernel, fmt::format("block: expected {}, got {}", text(kernel.required_threads),
                             text(launch.block)));
  }
  if (kernel.max_threads[0] != 0 && threads > exec::volume(kernel.max_threads)) {
    fail(kernel, fmt::format("block: expected at most {} threads, got {}",
                             exec::volume(kernel.max_threads), threads));
  }
  const std::uint64_t blocks = exec::volume(launch.cluster);
  if (blocks > kMaxClusterBlocks) {
    fail(kernel,
         fmt::format("cluster: expected at most {} blocks, got {}", kMaxClusterBlocks, blocks));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    if (launch.grid[i] % launch.cluster[i] != 0) {
      fail(kernel, fmt::format("grid {}: not a multiple of the cluster {}", text(launch.grid),
                               text(launch.cluster)));
    }
  }
  const std::uint64_t shared = std::uint64_t{kernel.shared_bytes} + launch.dynamic_shared;
  if (shared > kMaxSharedBytes) {
    fail(kernel,
         fmt::format("shared memory: expected at most {} bytes, got {}", kMaxSharedBytes, shared));
  }
}

model::ArithmeticMode arithmetic(Fp8Mode mode) {
  switch (mode) {
    case Fp8Mode::kHopper:
      return model::ArithmeticMode::kHopper;
    case Fp8Mode::kBlackwell:
      return model::ArithmeticMode::kBlackwell;
    default:
      return model::ArithmeticMode::kExact;
  }
}

void set_size(exec::Launch& launch, const ir::Kernel& kernel, const LaunchConfig& config) {
  launch.grid = config.grid;
  launch.block = config.block;
  launch.cluster = cluster_size(kernel, config);
  launch.dynamic_shared = config.dynamic_shared_bytes;
  check(kernel, launch);
}

exec::Launch make_launch(const LaunchRequest& request, const LaunchOptions& options) {
  const ir::Kernel& kernel = *request.kernel;
  exec::Launch launch;
  launch.kernel = &kernel;
  launch.code = kernel.code.data();
  set_size(launch, kernel, request.config);
  launch.checks.uninitialised = options.check_uninitialised;
  launch.converge = options.converge;
  launch.checks.strict = options.strict;
  launch.arithmetic = arithmetic(options.fp8);
  launch.perturbation = {options.perturb, options.seed};
  launch.print = options.print;
  launch.warnings->sink = options.warn;
  launch.memory = request.memory;
  if (request.params.size() != kernel.param_bytes) {
    fail(kernel, fmt::format("parameters: expected {} bytes, got {}", kernel.param_bytes,
                             request.params.size()));
  }
  launch.params.assign(request.params.begin(), request.params.end());
  launch.pool.assign(kernel.pool.begin(), kernel.pool.end());
  return launch;
}

// Parameters can be read through generic addresses, so they are memory like any other.
void publish_params(exec::Launch& launch) {
  if (launch.params.empty()) return;
  auto region = std::make_shared<mem::Region>();
  region->begin = reinterpret_cast<std::uint64_t>(launch.params.data());
  region->size = launch.params.size();
  region->name = "parameters";
  region->writable = false;
  auto table = std::make_shared<mem::RegionTable>(*launch.memory);
  const auto at =
      std::upper_bound(table->begin(), table->end(), region->begin,
                       [](std::uint64_t begin, const auto& other) { return begin < other->begin; });
  table->insert(at, std::move(region));
  launch.memory = std::move(table);
  const auto base = reinterpret_cast<std::uint64_t>(launch.params.data());
  std::byte* end = launch.pool.data() + launch.pool.size();
  for (const ir::ParamPatch& patch : launch.kernel->patches) {
    const std::uint64_t value = base + patch.offset;
    for (int lane = 0; lane < exec::kLanes; ++lane) {
      std::memcpy(end + patch.row + 8 * lane, &value, sizeof(value));
    }
  }
}

}  // namespace

void check_launch(const ir::Kernel& kernel, const LaunchConfig& config) {
  exec::Launch launch;
  set_size(launch, kernel, config);
}

LaunchStats launch(const LaunchRequest& original, const LaunchOptions& options) {
  LaunchRequest request = original;
  if (options.perturb) {
    request.kernel = std::make_shared<const ir::Kernel>(
        exec::with_perturbation(*original.kernel, exec::KernelTable::best()));
  }
  exec::Launch state = make_launch(request, options);
  publish_params(state);
  std::unique_ptr<check::Checker> checker;
  if (options.check != nullptr) {
    checker = std::make_unique<check::Checker>(state, *options.check);
    checker->overlap(options.overlapped);
    if (request.filter) state.observer = request.filter(state.observer);
  }
  std::unique_ptr<trace::Tracer> tracer;
  if (options.trace != nullptr) {
    tracer = std::make_unique<trace::Tracer>(state, *options.trace);
  }
  const std::uint64_t clusters = exec::volume(state.cluster_grid());
  const bool alone = checker || tracer || options.policy == Policy::kTimed;
  const auto threads = static_cast<std::uint64_t>(std::clamp<std::int64_t>(
      alone ? 1 : options.threads, 1, static_cast<std::int64_t>(clusters)));
  sched::Team team;
  team.size = static_cast<int>(threads);
  team.moving = team.size;
  std::vector<LaunchStats> stats(threads);
  std::vector<std::exception_ptr> errors(threads);
  const auto work = [&](std::uint64_t index) {
    try {
      stats[index] = sched::Scheduler(state, options, {index, threads, clusters}, team).run();
    } catch (...) {
      errors[index] = std::current_exception();
      team.cancelled = true;
    }
    team.moving.fetch_sub(1);
  };
  std::vector<std::thread> others;
  for (std::uint64_t i = 1; i < threads; ++i) others.emplace_back(work, i);
  work(0);
  for (std::thread& thread : others) thread.join();
  if (checker) checker->finish();
  if (options.footprint != nullptr) {
    *options.footprint = checker ? checker->footprint() : nullptr;
  }
  if (tracer) tracer->finish();
  LaunchStats total;
  for (std::uint64_t i = 0; i < threads; ++i) {
    if (errors[i]) std::rethrow_exception(errors[i]);
    total.warp_instructions += stats[i].warp_instructions;
    total.thread_instructions += stats[i].thread_instructions;
  }
  return total;
}

}  // namespace mxfa::emu::runtime
