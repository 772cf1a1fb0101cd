#include "exec/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "exec/observer.h"
#include "mxemu/error.h"

namespace mxfa::emu::exec {

Cta::Cta(Launch& the_launch, Cluster& the_cluster, const Dim3& id, std::uint32_t the_rank)
    : launch(the_launch),
      cluster(the_cluster),
      ctaid(id),
      rank(the_rank),
      smem(the_launch.kernel->shared_bytes + the_launch.dynamic_shared),
      mma(the_launch.arithmetic) {
  const auto threads = static_cast<std::uint32_t>(volume(launch.block));
  for (std::uint32_t first = 0; first < threads; first += kLanes) {
    warps.push_back(std::make_unique<Warp>(*this, first / kLanes,
                                           std::min<std::uint32_t>(kLanes, threads - first)));
  }
  live_warps = static_cast<std::uint32_t>(warps.size());
  warpgroups.resize(warps.size() / 4);
  for (std::size_t i = 0; i < barriers.size(); ++i) {
    barriers[i].gate.name = fmt::format("barrier {}", i);
    barriers[i].lanes.assign(warps.size(), 0);
  }
}

TensorCore& Cta::tensor() {
  if (tensor_core == nullptr) {
    tensor_core = std::make_unique<TensorCore>(tmem_columns);
    // An observer looks for itself.
    tensor_core->memory.set_check_written(launch.checks.uninitialised &&
                                          launch.observer == nullptr);
  }
  return *tensor_core;
}

Cta* Cta::peer() { return cluster.find(rank ^ 1u); }

std::string Cta::name() const {
  return fmt::format("block ({},{},{})", ctaid[0], ctaid[1], ctaid[2]);
}

void Cta::drain() {
  draining = true;
  const auto next = [&]() -> std::optional<std::size_t> {
    for (const std::size_t i : async.eligible()) {
      if (async.at(i).needs_block()) return i;
    }
    return {};
  };
  for (auto op = next(); op; op = next()) async.complete(*op);
  draining = false;
}

void Cta::check_exit() const {
  if (tensor_core != nullptr && tensor_core->memory.live_columns() != 0) {
    throw PtxError({launch.kernel->source->name, 0, {}},
                   fmt::format("{} exits with {} columns of tensor memory allocated", name(),
                               tensor_core->memory.live_columns()));
  }
  for (std::size_t i = 0; i < async.size(); ++i) {
    if (!async.at(i).needs_block()) continue;
    const std::string reason = fmt::format("{} exits with asynchronous work in flight: {}", name(),
                                           async.at(i).describe());
    if (launch.checks.strict || !async.at(i).may_outlive_block()) {
      throw PtxError({launch.kernel->source->name, 0, {}}, reason);
    }
    launch.warnings->give("exit", fmt::format("{}: {}", launch.kernel->source->name, reason));
  }
  mbarriers.for_each([&](std::uint32_t address, const model::Mbarrier& barrier) {
    if (barrier.tx_count() == 0) return;
    throw PtxError(
        {launch.kernel->source->name, 0, {}},
        fmt::format("{} exits while the mbarrier at shared offset {} waits for bytes: {}", name(),
                    address, barrier.describe()));
  });
}

Cluster::Cluster(Launch& launch, Progress& the_progress, std::uint64_t the_index,
                 const SmColumns& columns)
    : progress(the_progress), index(the_index) {
  const Dim3 clusters = launch.cluster_grid();
  id = {static_cast<std::uint32_t>(index % clusters[0]),
        static_cast<std::uint32_t>(index / clusters[0] % clusters[1]),
        static_cast<std::uint32_t>(index / clusters[0] / clusters[1])};
  const Dim3& size = launch.cluster;
  std::uint32_t rank = 0;
  for (std::uint32_t z = 0; z < size[2]; ++z) {
    for (std::uint32_t y = 0; y < size[1]; ++y) {
      for (std::uint32_t x = 0; x < size[0]; ++x) {
        const Dim3 cta{id[0] * size[0] + x, id[1] * size[1] + y, id[2] * size[2] + z};
        ctas.push_back(std::make_unique<Cta>(launch, *this, cta, rank));
        ctas.back()->tmem_columns = columns[rank++];
      }
    }
  }
  gate.name = "the cluster barrier";
  arrived.assign(ctas.size() * ctas[0]->warps.size(), 0);
  if (launch.observer != nullptr) launch.observer->begin(*this);
}

bool Cluster::exited() const {
  return std::ranges::all_of(ctas, [](const auto& cta) { return cta->exited(); });
}

// Threads that have exited count as arrived.
void Cluster::check_barrier() {
  bool anybody = false;
  std::size_t at = 0;
  for (const auto& cta : ctas) {
    for (const auto& warp : cta->warps) {
      const std::uint32_t lanes = arrived[at++];
      if ((warp->live() & ~lanes) != 0) return;
      anybody |= lanes != 0;
    }
  }
  if (!anybody) return;
  std::ranges::fill(arrived, 0u);
  if (Observer* observer = ctas[0]->launch.observer) observer->cluster_complete(*this);
  ++gate.generation;
  ++progress.count;
}

}  // namespace mxfa::emu::exec
