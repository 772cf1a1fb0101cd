#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "mxemu/emulator.h"

namespace mxfa::emu::exec {
class Observer;
}

/// Litmus programs: see litmus/README.md.
namespace mxfa::emu::test {

enum class Verdict : std::uint8_t {
  kRight,
  kWarning,
  kError,
  kFault,
  kWrong,  ///< an error or a fault: who goes first decides which
};

struct LitmusVariant {
  std::string program;  ///< the file's name without .ptx
  std::string name;     ///< "right" where the file gives none
  Verdict verdict = Verdict::kRight;
  std::string text;  ///< part of the rule, or of the fault's message; "a | b": either
  std::string ptx;
  std::uint32_t grid = 1;
  std::uint32_t block = 1;
  std::uint32_t cluster = 1;
};

inline void PrintTo(const LitmusVariant& litmus, std::ostream* out) {
  *out << litmus.program << " " << litmus.name;
}

struct LitmusResult {
  CheckReport report;
  std::string fault;
  std::vector<std::uint32_t> output;
};
/// `filter`: who hears in the checker's place; may be empty.
using ObserverFilter = std::function<exec::Observer*(exec::Observer*)>;
LitmusResult run_litmus(const LitmusVariant& litmus, Policy policy, std::uint64_t seed,
                        const ObserverFilter& filter = {});

/// Whether a text contains one of "a | b | c".
bool contains_one_of(const std::string& text, std::string choices);
/// A hazard of the level whose rule contains one of the choices.
bool has_hazard(const CheckReport& report, HazardLevel level, const std::string& choices);

/// All variants of all files of a folder, in the order of their names.
std::vector<LitmusVariant> load_litmus(const std::string& folder);

}  // namespace mxfa::emu::test
