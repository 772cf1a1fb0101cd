#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/inst.h"

namespace mxfa::emu::exec {

/// Instruction sets that the lane kernels are compiled for.
enum class Isa { kDefault, kAvx2, kAvx512 };

/// The lane kernels of one instruction set, by the key of their opcode.
class KernelTable {
 public:
  /// The best one that this build has and this machine runs, of those up to the limit.
  static const KernelTable& best();
  /// For measurements of what other machines have: before any module is loaded. False where this
  /// build or machine lacks it.
  static bool limit(Isa isa);
  /// Null where this build lacks it or the machine cannot run it.
  static const KernelTable* of(Isa isa);

  /// Null where there is no kernel.
  ir::ExecFn find(std::string_view key) const;
  std::vector<std::string> keys() const;

 private:
  explicit KernelTable(Isa isa);
  std::unordered_map<std::string, ir::ExecFn> kernels_;
};

}  // namespace mxfa::emu::exec
