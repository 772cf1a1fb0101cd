#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Mutants of a PTX text: each lacks one piece of synchronisation, or has it weaker.
namespace mxfa::emu {

struct Mutation {
  std::uint32_t line = 0;
  std::string source_file;  ///< through .loc; empty where the text has none
  std::uint32_t source_line = 0;
  std::string inlined_at;  ///< as in HazardSite
  std::string kind;        ///< wait, arrive, expect_tx, fence, commit, barrier, order
  std::string statement;   ///< as it stands
  std::string change;      ///< "removed", "bytes + 16", ...
  std::size_t begin = 0;   ///< what is replaced in the text
  std::size_t end = 0;
  std::string replacement;
};

/// The mutants of an entry, in the order of the text. Line numbers do not change.
std::vector<Mutation> find_mutations(const std::string& ptx, const std::string& name,
                                     const std::string& entry);
std::string mutated(const std::string& ptx, const Mutation& mutation);
/// The text with a trap in the statement's place: tells whether it is reached at all.
std::string with_trap(const std::string& ptx, const Mutation& mutation);

}  // namespace mxfa::emu
