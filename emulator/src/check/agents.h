#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

/// Who accesses memory in a cluster: warps, and asynchronous work by what completes it. Work that
/// completes together is one agent whose clock counts completions, so that clocks stay short
/// however many operations a kernel issues.
namespace mxfa::emu::check {

using AgentId = std::uint16_t;
using Clock = std::uint32_t;
inline constexpr AgentId kNoAgent = 0;
inline constexpr std::uint32_t kLanes = 32;

enum class AgentKind : std::uint8_t {
  kThreads,       ///< what the lanes of a warp do themselves
  kCopies,        ///< cp.async of a warp's lanes; the clock counts commit groups
  kBulkReads,     ///< shared memory read by a warp's bulk stores; likewise
  kBulkWrites,    ///< memory written by them
  kBarrier,       ///< what completes at an mbarrier; the clock counts its phases
  kWgmma,         ///< of a warpgroup; the clock counts instructions
  kStart,         ///< the start of a block, at clock 1
  kTensorPipe,    ///< tcgen05.mma and .cp of one thread; the clock counts instructions
  kTensorLoads,   ///< tcgen05.ld of a warp; likewise
  kTensorStores,  ///< tcgen05.st
};

struct Agent {
  static constexpr std::uint8_t kAllLanes = 0xFF;
  AgentKind kind = AgentKind::kThreads;
  std::uint8_t lane = kAllLanes;  ///< of a warp's agent: one lane of it alone
  AgentId whole = kNoAgent;       ///< the warp's agent, for an agent of one lane
  std::uint32_t place = 0;        ///< warp or warpgroup in the cluster, or shared address
};

/// The agents of one cluster. Lanes get agents of their own when they synchronise alone.
class AgentTable {
 public:
  explicit AgentTable(std::uint32_t warps);

  /// The agent of a kind at a place, made when first asked for.
  AgentId of(AgentKind kind, std::uint32_t place);
  AgentId threads_of(std::uint32_t warp) const { return static_cast<AgentId>(1 + warp); }
  AgentId of_lane(AgentId whole, std::uint32_t lane);
  /// kNoAgent where the lane has none.
  AgentId find_lane(AgentId whole, std::uint32_t lane) const {
    const auto& lanes = lanes_[whole];
    return lanes ? (*lanes)[lane] : kNoAgent;
  }
  const Agent& operator[](AgentId id) const { return agents_[id]; }
  std::size_t size() const { return agents_.size(); }

 private:
  AgentId add(const Agent& agent);

  std::vector<Agent> agents_;
  std::vector<std::unique_ptr<std::array<AgentId, kLanes>>> lanes_;
  std::map<std::pair<AgentKind, std::uint32_t>, AgentId> found_;
};

/// The tables of all clusters that have run in a launch, by the cluster's index.
class AgentTables {
 public:
  AgentTable& add(std::uint32_t cluster, std::uint32_t warps) {
    if (tables_.size() <= cluster) tables_.resize(cluster + 1u);
    tables_[cluster] = std::make_unique<AgentTable>(warps);
    return *tables_[cluster];
  }
  const AgentTable& operator[](std::uint32_t cluster) const { return *tables_[cluster]; }

 private:
  std::vector<std::unique_ptr<AgentTable>> tables_;
};

}  // namespace mxfa::emu::check
