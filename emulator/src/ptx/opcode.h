#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ptx/source.h"
#include "ptx/type.h"

namespace mxfa::emu::ptx {

/// What family of handlers executes an opcode.
enum class OpClass : std::uint8_t {
  kLane,       ///< pure function of each lane's operands, found by key
  kSetp,       ///< comparison into predicates
  kPredLogic,  ///< and, or, xor, not of predicates
  kMov,        ///< mov, also of addresses, special registers, packs and unpacks
  kCvt,
  kCvta,
  kLoad,
  kStore,
  kAtomic,     ///< atom
  kReduction,  ///< red
  kBranch,
  kBranchIndexed,
  kExit,
  kTrap,
  kCall,
  kShfl,
  kVote,
  kMatch,
  kActiveMask,
  kElect,
  kRedux,
  kWarpBarrier,
  kCtaBarrier,
  kClusterBarrier,
  kFence,
  kHint,  ///< no effect on results: prefetch, pragma-like instructions
  kSleep,
  kLoadMatrix,
  kStoreMatrix,
  kMoveMatrix,
  kMapa,
  kIsSpace,
  kSetMaxRegisters,
  kGridDependency,
  kCreatePolicy,
  kMbarrier,
  kBulkCopy,
  kBulkGroup,
  kTensorMap,
  kCpAsync,
  kWgmma,
  kTcgen05,
  kLaunchControl,
};

/// Which lanes must arrive together.
enum class Sync : std::uint8_t {
  kNone,
  kMembers,  ///< the last operand (before an optional one) names the lanes
  kAligned,  ///< every lane of the warp that has not exited
};

/// One row of the opcode table.
///
/// `pattern`: groups separated by blanks. "a|b" is one of these qualifiers, "[a|b]" may be absent,
/// '#' in a qualifier stands for a number, a '-' after a group leaves the qualifier out of the key
/// (it does not change what is executed). `operands`: one token for each operand. "=" marks a
/// destination. Types: T the last type in the opcode, U the first one, W twice T, or a type by
/// name. "pred" may be negated, "=pred2" is p or p|q, "@" an address, "vT" a vector of T or one T,
/// "imm" an integer known at parse time, "label" a branch target; "[x]" may be absent and must come
/// last; "*" leaves the rest to the lowering.
struct OpcodeSpec {
  std::string_view pattern;
  std::string_view operands;
  OpClass op = OpClass::kLane;
  Sync sync = Sync::kNone;
};

std::span<const OpcodeSpec> opcode_table();

/// An opcode that the table knows.
struct Opcode {
  const OpcodeSpec* spec = nullptr;
  std::string key;  ///< the opcode without the qualifiers that do not matter
  std::vector<std::string_view> qualifiers;  ///< all of them, in order
  const Type* type = nullptr;                ///< T; null where the opcode names no type
  const Type* first_type = nullptr;          ///< U

  bool has(std::string_view qualifier) const;
  /// The first of `choices` that the opcode has, as an index; -1 for none.
  int which(std::initializer_list<std::string_view> choices) const;
};

/// Finds opcodes in the table and remembers them by their text.
class OpcodeFinder {
 public:
  OpcodeFinder();
  /// Null where no row matches. The result lives as long as the finder.
  const Opcode* find(std::string_view text);
  /// As find(), but an unknown opcode or qualifier is an error that names file, line and text.
  const Opcode& require(std::string_view text, const Source& source, std::uint32_t line);

 private:
  struct Group {
    std::vector<std::string_view> choices;
    bool optional = false;
    bool in_key = true;
  };
  struct Row {
    const OpcodeSpec* spec;
    std::vector<Group> groups;
  };
  static Row compile(const OpcodeSpec& spec);
  static bool match(const Row& row, std::size_t group, std::span<const std::string_view> words,
                    std::vector<bool>& keep);

  std::unordered_map<std::string_view, std::vector<Row>> rows_;  ///< by the opcode's first word
  std::unordered_map<std::string, Opcode> known_;
};

}  // namespace mxfa::emu::ptx
