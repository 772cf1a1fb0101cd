#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/kernel.h"
#include "mxemu/check.h"

namespace mxfa::emu::check {

enum class Rule : std::uint8_t {
  kRace,
  kProxyFence,
  kTensorFence,
  kIssueOrder,
  kExecutionOrder,
  kSameAddress,
  kMbarrierInit,
  kMbarrierPhase,
  kUninitialised,
  kWgmmaFence,
  kWorkAtExit,
  kClusterStart,
  kMaxRegisters,
  kGridDependency,
  kPractice,
};
const char* rule_name(Rule rule);

/// Collects hazards: each pair of instructions once, with the bytes of all its occurrences.
class Findings {
 public:
  /// What tells findings apart.
  struct Key {
    Rule rule = Rule::kRace;
    std::uint32_t first = 0;  ///< PTX lines
    std::uint32_t second = 0;
    std::uint32_t variant = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Site {
    std::uint32_t line = 0;
    std::string who;
    std::string what;
    std::shared_ptr<const ptx::Source> source{};  ///< of the line; null: the kernel's
  };
  /// Where in memory: `space` names it and its owner, bytes (or columns) are [begin, end).
  struct Place {
    std::string space;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    const char* unit = "bytes";
  };
  struct Finding {
    HazardLevel level = HazardLevel::kError;
    std::optional<Place> place;
    Site first;
    Site second;
    std::string missing;
  };

  Findings(const ir::Kernel& kernel, CheckReport& report) : kernel_(kernel), report_(report) {}

  /// Counts one more of a known kind; false where it is the first.
  bool repeat(const Key& key, std::uint64_t begin = 0, std::uint64_t end = 0);
  void add(const Key& key, Finding finding);
  void count_wait(std::uint32_t line, bool passed, bool initial);
  /// Writes everything to the report.
  void finish();

 private:
  struct Found {
    std::size_t index = 0;  ///< in the order of first occurrence
    Finding finding;
    std::uint64_t count = 0;
  };
  HazardSite describe(const Site& site);

  const ir::Kernel& kernel_;
  CheckReport& report_;
  std::map<Key, Found> found_;
  std::map<std::uint32_t, WaitCoverage> waits_;
};

}  // namespace mxfa::emu::check
