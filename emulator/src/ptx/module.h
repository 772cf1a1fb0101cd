#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "ptx/source.h"
#include "ptx/type.h"

/// A parsed PTX text: names are resolved (registers, variables, labels are indices), opcodes are
/// not yet looked at. Views point into the source, which the module keeps alive.
namespace mxfa::emu::ptx {

enum class Space : std::uint8_t { kGeneric, kGlobal, kConst, kShared, kLocal, kParam };

struct Register {
  const Type* type = nullptr;
  std::string_view name;  ///< of a range: its prefix
  std::uint32_t number = 0;
};

/// A pointer to another variable inside an initialiser.
struct InitPointer {
  std::uint64_t offset = 0;    ///< where, in bytes
  std::uint32_t variable = 0;  ///< module variable
  std::int64_t addend = 0;
  bool generic = false;
};

struct Variable {
  std::string_view name;
  Space space = Space::kGlobal;
  const Type* type = nullptr;
  std::uint64_t bytes = 0;  ///< 0 for an array without size: the dynamic shared memory
  std::uint32_t align = 1;
  std::uint32_t line = 0;
  std::vector<std::byte> init;  ///< the first bytes; the rest is zero
  bool has_init = false;
  std::vector<InitPointer> pointers;
};

struct Operand {
  enum class Kind : std::uint8_t {
    kRegister,  ///< `index` into Function::registers
    kInteger,   ///< `value`
    kFloat32,   ///< bits in `value`
    kFloat64,
    kVariable,  ///< `index`; `value` is added to the address
    kSpecial,   ///< %tid.x, ...: `name`
    kLabel,     ///< `index` of the instruction
    kFunction,  ///< `name` of a call's target
    kAddress,   ///< [parts[0] + value, parts[1], ...]
    kVector,    ///< {parts}
    kPair,      ///< parts[0] | parts[1]
    kSink,      ///< _
  };
  Kind kind = Kind::kSink;
  bool negated = false;       ///< !%p
  bool module_scope = false;  ///< kVariable: of the module, not of the function
  std::uint32_t index = 0;
  std::int64_t value = 0;
  std::string_view name;
  std::vector<Operand> parts;
};

struct Instruction {
  std::string_view opcode;
  std::uint32_t line = 0;
  std::int32_t guard = -1;  ///< predicate register, -1 for none
  bool guard_negated = false;
  std::vector<Operand> operands;
};

struct Function {
  std::string_view name;
  std::uint32_t line = 0;
  bool is_entry = false;
  bool has_body = false;
  std::uint32_t num_params = 0;
  std::vector<Register> registers;
  std::vector<Variable> variables;  ///< parameters, then shared, local and the slots of calls
  std::vector<Instruction> instructions;
  std::array<std::uint32_t, 3> max_threads{};       ///< .maxntid, 0 where not given
  std::array<std::uint32_t, 3> required_threads{};  ///< .reqntid
  std::array<std::uint32_t, 3> cluster{};           ///< .reqnctapercluster
  bool explicit_cluster = false;
  std::uint32_t max_registers = 0;  ///< .maxnreg
  std::uint32_t min_blocks = 0;     ///< .minnctapersm
};

struct Module {
  std::shared_ptr<const Source> source;
  std::string_view version;
  std::string_view target;
  std::vector<Variable> variables;
  std::vector<Function> functions;

  const Function* find_entry(std::string_view name) const;
};

/// Parses a whole text. Throws PtxError for anything malformed.
Module parse(std::shared_ptr<const Source> source);

}  // namespace mxfa::emu::ptx
