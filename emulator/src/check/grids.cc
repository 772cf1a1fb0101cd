#include <fmt/format.h>

#include <algorithm>

#include "check/checker.h"
#include "exec/handlers.h"

/// Programmatic dependent launch: what may still be going on while this launch begins.
namespace mxfa::emu::check {

void Checker::overlap(const std::shared_ptr<const GridFootprint>& before) {
  before_ = before;
  for (const auto* at = static_cast<const Footprint*>(before.get()); at != nullptr;
       at = static_cast<const Footprint*>(at->before.get())) {
    overlapped_.push_back(at);
  }
  const ir::Kernel& kernel = *launch_.kernel;
  const bool launches = std::ranges::any_of(kernel.code, [](const ir::Inst& in) {
    return in.exec == &exec::grid_dependency && in.a == 0;
  });
  if (launches) footprint_ = std::make_shared<Footprint>(kernel.name, kernel.source);
}

// A launch that has not waited may end first: then nobody knows that those before it have.
std::shared_ptr<const GridFootprint> Checker::footprint() const {
  if (footprint_ == nullptr || !footprint_->launched_dependents) return nullptr;
  if (!waited_) footprint_->before = before_;
  return footprint_;
}

void Checker::grid_dependency(exec::Warp& warp, const ir::Inst& in, std::uint32_t mask) {
  if (in.a == 0) {
    if (footprint_ != nullptr) footprint_->launched_dependents = true;
    return;
  }
  waited_ = true;
  if (!overlapped_.empty()) {
    findings_.count_wait(in.line, false, false);
    state(warp).clock.learn(mask, kEarlierGrids, kGridBefore, 1);
  }
  findings_.count_wait(in.line, true, false);
}

void Checker::touch_grid(const GridTouch& touch) {
  if (footprint_ != nullptr) {
    footprint_->add(touch.begin, touch.bytes, touch.write, touch.record.line);
  }
  AgentId grid = kGridBefore;
  for (const Footprint* earlier : overlapped_) {
    const AgentId agent = grid++;
    if (touch.knows.known.at(kEarlierGrids, agent) > 0) continue;
    const Footprint::Conflict found = earlier->find(touch.begin, touch.bytes, touch.write);
    if (found.line == 0) continue;
    const Findings::Key key{Rule::kGridDependency, found.line, touch.record.line, agent};
    if (findings_.repeat(key)) continue;
    const mem::Region* region = mem::find_region(*launch_.memory, found.address);
    const std::uint64_t offset = region == nullptr ? 0 : found.address - region->begin;
    Findings::Finding finding;
    finding.place = {fmt::format("global buffer '{}'", region == nullptr ? "?" : region->name),
                     offset, offset + 1};
    finding.first = {found.line, fmt::format("kernel {}, launched before", earlier->kernel()),
                     found.write ? "write" : "read", earlier->source()};
    finding.second = {touch.record.line, who(touch.record), what(touch.record, touch.write)};
    finding.missing =
        agent == kGridBefore
            ? "griddepcontrol.wait by the second's thread, or one that it synchronises with"
            : "griddepcontrol.wait in each kernel between: the last wait is for the launch before "
              "this one alone";
    findings_.add(key, std::move(finding));
  }
}

}  // namespace mxfa::emu::check
