#include "check/findings.h"

#include <fmt/format.h>

#include <algorithm>

#include "ptx/debug_info.h"

namespace mxfa::emu {
namespace {

/// Different pairs of instructions that are reported; a broken program may have any number.
constexpr std::size_t kMaxFindings = 256;

std::string describe(const HazardSite& site) {
  std::string text = fmt::format("{} by {}", site.what, site.who);
  if (site.ptx_line == 0) return text;
  text += fmt::format("\n      PTX line {}: {}", site.ptx_line, site.ptx_text);
  if (site.source_line != 0)
    text += fmt::format("\n      {}:{}{}{}", site.source_file, site.source_line,
                        site.inlined_at.empty() ? "" : ", inlined at ", site.inlined_at);
  return text;
}

}  // namespace

std::string Hazard::text() const {
  std::string text =
      fmt::format("{}: {}", level == HazardLevel::kError ? "error" : "warning", rule);
  if (!where.empty()) text += ": " + where;
  if (count > 1) text += fmt::format(" ({} times)", count);
  if (!first.what.empty()) text += "\n  first:   " + describe(first);
  if (!second.what.empty()) {
    text += (first.what.empty() ? "\n  by:      " : "\n  second:  ") + describe(second);
  }
  if (!missing.empty()) text += "\n  missing: " + missing;
  return text;
}

std::size_t CheckReport::errors() const {
  return static_cast<std::size_t>(std::ranges::count(hazards, HazardLevel::kError, &Hazard::level));
}

void CheckReport::merge(const CheckReport& other) {
  for (const Hazard& hazard : other.hazards) {
    const auto same = std::ranges::find_if(hazards, [&](const Hazard& h) {
      return h.rule == hazard.rule && h.level == hazard.level &&
             h.first.ptx_line == hazard.first.ptx_line &&
             h.second.ptx_line == hazard.second.ptx_line;
    });
    if (same == hazards.end()) {
      hazards.push_back(hazard);
    } else {
      same->count += hazard.count;
    }
  }
  for (const WaitCoverage& wait : other.waits) {
    const auto same = std::ranges::find(waits, wait.ptx_line, &WaitCoverage::ptx_line);
    if (same == waits.end()) {
      waits.push_back(wait);
      continue;
    }
    same->passed += wait.passed;
    same->blocked += wait.blocked;
    same->initial += wait.initial;
  }
  std::ranges::sort(waits, {}, &WaitCoverage::ptx_line);
}

namespace check {

const char* rule_name(Rule rule) {
  switch (rule) {
    case Rule::kRace:
      return "race";
    case Rule::kProxyFence:
      return "no proxy fence";
    case Rule::kTensorFence:
      return "no tcgen05 fence";
    case Rule::kIssueOrder:
      return "tcgen05 work that only its order of issue orders";
    case Rule::kExecutionOrder:
      return "only a relaxed cluster barrier between";
    case Rule::kSameAddress:
      return "lanes write the same bytes";
    case Rule::kMbarrierInit:
      return "mbarrier used without order after its init";
    case Rule::kMbarrierPhase:
      return "arrival before anybody has seen the phase before complete";
    case Rule::kUninitialised:
      return "uninitialised read";
    case Rule::kWgmmaFence:
      return "no wgmma.fence";
    case Rule::kWorkAtExit:
      return "work that nobody waited for at exit";
    case Rule::kClusterStart:
      return "access to a block that may not have started or may have exited";
    case Rule::kMaxRegisters:
      return "setmaxnreg";
    case Rule::kGridDependency:
      return "no griddepcontrol.wait";
    case Rule::kPractice:
      return "what only practice vouches for";
  }
  return "";
}

bool Findings::repeat(const Key& key, std::uint64_t begin, std::uint64_t end) {
  const auto it = found_.find(key);
  if (it == found_.end()) return false;
  Found& found = it->second;
  ++found.count;
  if (found.finding.place && end > begin) {
    found.finding.place->begin = std::min(found.finding.place->begin, begin);
    found.finding.place->end = std::max(found.finding.place->end, end);
  }
  return true;
}

void Findings::add(const Key& key, Finding finding) {
  if (found_.size() >= kMaxFindings) return;
  found_.emplace(key, Found{found_.size(), std::move(finding), 1});
}

void Findings::count_wait(std::uint32_t line, bool passed, bool initial) {
  WaitCoverage& wait = waits_[line];
  wait.passed += passed ? 1 : 0;
  wait.blocked += passed ? 0 : 1;
  wait.initial += passed && initial ? 1 : 0;
}

HazardSite Findings::describe(const Site& site) {
  HazardSite result;
  result.who = site.who;
  result.what = site.what;
  result.ptx_line = site.line;
  if (site.line == 0) return result;
  const ptx::Source& source = site.source ? *site.source : *kernel_.source;
  result.ptx_text = source.line_text(site.line);
  const ptx::SourcePosition position = source.debug_info().at(site.line);
  result.source_file = position.file;
  result.source_line = position.line;
  result.inlined_at = position.inlined_at;
  return result;
}

void Findings::finish() {
  std::vector<const std::pair<const Key, Found>*> order(found_.size());
  for (const auto& entry : found_) order[entry.second.index] = &entry;
  CheckReport mine;
  for (const auto* entry : order) {
    const Finding& finding = entry->second.finding;
    Hazard hazard;
    hazard.level = finding.level;
    hazard.rule = rule_name(entry->first.rule);
    if (finding.place) {
      const Place& place = *finding.place;
      hazard.where =
          fmt::format("{}, {} {}..{}", place.space, place.unit, place.begin, place.end - 1);
    }
    hazard.first = describe(finding.first);
    hazard.second = describe(finding.second);
    hazard.missing = finding.missing;
    hazard.count = entry->second.count;
    mine.hazards.push_back(std::move(hazard));
  }
  for (auto& [line, wait] : waits_) {
    wait.ptx_line = line;
    const HazardSite site = describe(Site{line, {}, {}});
    wait.ptx_text = site.ptx_text;
    wait.source_file = site.source_file;
    wait.source_line = site.source_line;
    wait.inlined_at = site.inlined_at;
    mine.waits.push_back(wait);
  }
  report_.merge(mine);
}

}  // namespace check
}  // namespace mxfa::emu
