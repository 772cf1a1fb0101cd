#include "check/agents.h"

#include "model/fault.h"

namespace mxfa::emu::check {

AgentTable::AgentTable(std::uint32_t warps) {
  add({});  // kNoAgent
  for (std::uint32_t warp = 0; warp < warps; ++warp) of(AgentKind::kThreads, warp);
}

AgentId AgentTable::add(const Agent& agent) {
  if (agents_.size() > 0xFFFF) model::unsupported("hazard checker", "more than 65535 agents");
  agents_.push_back(agent);
  lanes_.emplace_back();
  return static_cast<AgentId>(agents_.size() - 1);
}

AgentId AgentTable::of(AgentKind kind, std::uint32_t place) {
  const auto [it, fresh] = found_.try_emplace({kind, place}, kNoAgent);
  if (fresh) it->second = add({kind, Agent::kAllLanes, kNoAgent, place});
  return it->second;
}

AgentId AgentTable::of_lane(AgentId whole, std::uint32_t lane) {
  if (!lanes_[whole]) lanes_[whole] = std::make_unique<std::array<AgentId, kLanes>>();
  AgentId& id = (*lanes_[whole])[lane];
  if (id == kNoAgent) {
    const Agent& of = agents_[whole];
    const AgentId made = add({of.kind, static_cast<std::uint8_t>(lane), whole, of.place});
    (*lanes_[whole])[lane] = made;
    return made;
  }
  return id;
}

}  // namespace mxfa::emu::check
