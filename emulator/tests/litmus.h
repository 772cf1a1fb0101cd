#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

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

/// All variants of all files of a folder, in the order of their names.
std::vector<LitmusVariant> load_litmus(const std::string& folder);

}  // namespace mxfa::emu::test
