#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "check/registers.h"
#include "check/shadow.h"
#include "check/warp_clock.h"
#include "exec/observer.h"

/// What the checker keeps with a running cluster.
namespace mxfa::emu::check {

/// What a warp has been seen to do, for reports.
struct Role {
  static constexpr std::uint8_t kLoads = 1;
  static constexpr std::uint8_t kStores = 2;
  static constexpr std::uint8_t kMatrix = 4;
  static constexpr std::uint8_t kCopies = 8;
  static constexpr std::uint8_t kTensorMemory = 16;
};

struct OpState;

struct WarpState {
  WarpState(AgentTable& agents, std::uint32_t warp, std::uint32_t cluster, std::uint32_t lanes,
            exec::Warp& the_warp)
      : clock(agents, warp, cluster, lanes), exec_warp(&the_warp) {}

  WarpClock clock;
  exec::Warp* exec_warp;
  std::uint8_t role = 0;
  RegisterState registers;
  std::uint32_t max_registers = 0;  ///< of a thread, by the last setmaxnreg; 0: none yet
  std::uint32_t max_registers_line = 0;
  /// mbarriers that a lane has initialised and not fenced.
  struct Init {
    std::uint32_t lane = 0;
    AgentId agent = kNoAgent;
    Clock clock = 0;
  };
  std::vector<Init> inits;
  /// Last group of each lane that holds an operation, and its line, for the check at exit.
  struct LastCopy {
    Clock group = 0;
    std::uint32_t line = 0;
  };
  std::array<LastCopy, kLanes> last_bulk{};
  std::array<LastCopy, kLanes> last_copy{};
  /// What came before the last tcgen05.mma or .cp of each lane, and that one's line.
  struct LastTensor {
    std::shared_ptr<const OpState> op;
  };
  std::array<LastTensor, kLanes> last_tensor{};
};

/// Threads that wait at a barrier and what they will know when it completes.
struct ThreadBarrier {
  explicit ThreadBarrier(std::uint32_t home) : pending(home), complete(home) {}
  Knowledge pending;   ///< of the generation that is filling up
  Knowledge complete;  ///< of all generations that have completed
  std::vector<std::pair<WarpState*, std::uint32_t>> waiting;
};

/// An mbarrier: its agent's clock is `base` at the init, and base + 1 + p when phase p completes.
struct BarrierState {
  explicit BarrierState(std::uint32_t home) : pending(home), complete(home) {}
  AgentId agent = kNoAgent;
  Clock base = 0;
  std::uint32_t init_line = 0;
  Knowledge pending;
  Knowledge complete;
  Clock last_op = 0;  ///< phase of the last asynchronous operation, and its line
  std::uint32_t last_op_line = 0;
};

struct BlockState {
  BlockState(exec::Cta& cta, std::uint32_t home_cluster)
      : smem(cta.smem.size()), home(home_cluster) {}
  ThreadBarrier& barrier(std::uint32_t number) {
    if (!barriers[number]) barriers[number] = std::make_unique<ThreadBarrier>(home);
    return *barriers[number];
  }
  FlatGranules smem;
  TensorGranules tmem;
  std::uint32_t home;
  std::array<std::unique_ptr<ThreadBarrier>, 16> barriers;    ///< those that have been used
  std::unordered_map<std::uint32_t, BarrierState> mbarriers;  ///< by offset
  struct LastMatrix {
    Clock number = 0;
    std::uint32_t line = 0;
  };
  std::vector<LastMatrix> last_wgmma;  ///< by warpgroup
};

struct ClusterState : exec::ObservedCluster {
  ClusterState(exec::Cluster& the_cluster, AgentTable& the_agents);

  WarpState& warp(const exec::Warp& warp) {
    return warps[warp.cta().rank * warps_of_block + warp.index()];
  }

  exec::Cluster& cluster;
  std::uint32_t index;
  std::uint32_t warps_of_block;
  AgentTable& agents;
  std::vector<WarpState> warps;
  std::vector<BlockState> blocks;  ///< by rank
  ThreadBarrier barrier;
};

/// An asynchronous operation.
struct OpState : exec::ObservedOp {
  OpState(ClusterState& the_cluster, exec::OpKind the_kind)
      : cluster(the_cluster),
        kind(the_kind),
        knowledge(the_cluster.index),
        behind(the_cluster.index) {}
  ClusterState& cluster;
  exec::OpKind kind;
  Knowledge knowledge;                      ///< what comes before it
  std::shared_ptr<const Knowledge> shared;  ///< instead, where several operations share it
  AgentId agent = kNoAgent;
  Clock clock = 0;
  std::uint32_t line = 0;
  std::uint32_t warp = 0;  ///< in the cluster
  int lane = -1;           ///< -1: the whole warp
  exec::SharedPlace barrier{};
  bool reduces = false;
  // tcgen05
  TensorOrder behind;
  Clock loads_done = 0;
  Clock stores_done = 0;
  std::uint32_t accumulator = 0;
  std::shared_ptr<const OpState> tracked;  ///< of commit: the last operation before it

  const Knowledge& before() const { return shared ? *shared : knowledge; }
};

}  // namespace mxfa::emu::check
