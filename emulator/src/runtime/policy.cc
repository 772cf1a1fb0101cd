#include <algorithm>
#include <utility>

#include "mxemu/emulator.h"

namespace mxfa::emu {
namespace {

constexpr std::pair<std::string_view, Policy> kNames[] = {
    {"random", Policy::kRandom}, {"earliest", Policy::kEarliest}, {"latest", Policy::kLatest},
    {"lifo", Policy::kLifo},     {"starve", Policy::kStarve},     {"timed", Policy::kTimed}};

}  // namespace

const char* policy_name(Policy policy) {
  return std::ranges::find(kNames, policy, [](const auto& one) { return one.second; })
      ->first.data();
}

std::optional<Policy> find_policy(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name, [](const auto& one) { return one.first; });
  return found == std::end(kNames) ? std::nullopt : std::optional(found->second);
}

std::string policy_names(bool timed) {
  std::string text;
  for (const auto& [name, policy] : kNames) {
    if (policy == Policy::kTimed && !timed) continue;
    text.append(text.empty() ? "" : ", ").append(name);
  }
  return text;
}

}  // namespace mxfa::emu
