#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// What the hazard checker finds: see LaunchOptions::check.
namespace mxfa::emu {

enum class HazardLevel : std::uint8_t {
  kWarning,  ///< the ISA does not order it, but practice relies on it; or it is merely suspicious
  kError,    ///< the ISA does not order it: a GPU may do it either way
};

/// One side of a hazard.
struct HazardSite {
  std::uint32_t ptx_line = 0;  ///< 0 where there is no such side
  std::string ptx_text;
  std::string source_file;  ///< through .loc; empty where the text has none
  std::uint32_t source_line = 0;
  /// Where the function of that line was inlined, innermost first: "b.cuh:7, a.cu:40".
  std::string inlined_at;
  std::string who;   ///< block, warp and what it does, lanes
  std::string what;  ///< "write of a tensor load", ...
};

struct Hazard {
  HazardLevel level = HazardLevel::kError;
  std::string rule;   ///< a short name: "race", "proxy fence", ...
  std::string where;  ///< memory: space and bytes; empty where it is not about memory
  HazardSite first;   ///< in the order of this run
  HazardSite second;
  std::string missing;  ///< what would order them
  std::uint64_t count = 1;

  /// Several lines without a newline at the end.
  std::string text() const;
};

/// One wait of the program, over the launch. A wait that never had to wait proves nothing about
/// what it protects: a ring that never wraps around, for instance.
struct WaitCoverage {
  std::uint32_t ptx_line = 0;
  std::string ptx_text;
  std::string source_file;  ///< as in HazardSite
  std::uint32_t source_line = 0;
  std::string inlined_at;
  std::uint64_t passed = 0;   ///< times that it went on
  std::uint64_t blocked = 0;  ///< times that it found its phase or group incomplete
  std::uint64_t initial = 0;  ///< of `passed`: the phase before a barrier's first one
};

struct CheckReport {
  std::vector<Hazard> hazards;  ///< each pair of instructions once, in the order they were found
  std::vector<WaitCoverage> waits;

  bool clean() const { return errors() == 0; }
  std::size_t errors() const;
  std::size_t warnings() const { return hazards.size() - errors(); }
  /// Adds what another launch of the same text found.
  void merge(const CheckReport& other);
};

/// What a launch did to global memory, for one that may begin before it has ended.
class GridFootprint {
 public:
  virtual ~GridFootprint() = default;
};

}  // namespace mxfa::emu
