#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/inst.h"
#include "ptx/source.h"

namespace mxfa::emu::ir {

struct Param {
  std::string name;
  std::uint32_t offset = 0;
  std::uint32_t bytes = 0;
};

/// A pool row that holds an address in the parameters, known only at the launch.
struct ParamPatch {
  std::int32_t row = 0;
  std::uint64_t offset = 0;
};

/// An instruction names a register that wgmma uses.
struct MatrixRegisterUse {
  std::uint32_t inst = 0;
  std::uint32_t reg = 0;  ///< a number for the register
  bool is_def = false;
};

/// A function made executable. Immutable; shared by all launches.
struct Kernel {
  std::string name;
  std::shared_ptr<const ptx::Source> source;
  std::vector<Inst> code;  ///< ends with an exit
  std::vector<std::int32_t> lists;
  std::vector<std::byte> pool;  ///< constants as rows; operands count from its end
  std::vector<ParamPatch> patches;
  std::vector<MatrixRegisterUse> matrix_registers;  ///< in the order of the instructions
  std::vector<Param> params;
  std::uint32_t param_bytes = 0;
  std::uint32_t register_bytes = 0;  ///< of one warp
  std::uint32_t predicates = 0;      ///< slots of one warp
  std::uint32_t shared_bytes = 0;    ///< static; dynamic shared memory begins here, aligned so
  std::uint32_t shared_align = 16;
  std::uint32_t local_bytes = 0;  ///< of one lane
  std::array<std::uint32_t, 3> max_threads{};
  std::array<std::uint32_t, 3> required_threads{};
  std::array<std::uint32_t, 3> cluster{};  ///< required size, zeros where not given
  bool explicit_cluster = false;
  std::uint32_t virtual_registers = 0;
  /// Of a thread, when the kernel begins, where setmaxnreg trades them; 0: the text does not say.
  std::uint32_t launch_registers = 0;

  [[noreturn]] void fail(std::uint32_t line, const std::string& reason) const {
    source->fail(line, reason);
  }
};

}  // namespace mxfa::emu::ir
