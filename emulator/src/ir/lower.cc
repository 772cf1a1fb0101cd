#include "ir/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "exec/handlers.h"
#include "ir/allocate.h"
#include "ir/flow_graph.h"
#include "ir/lowering.h"
#include "ir/protect.h"

namespace mxfa::emu::ir {
namespace {

constexpr std::uint64_t kMaxShared = 1u << 24;   // offsets have 24 bits
constexpr std::uint64_t kMaxLocal = 512u << 10;  // of one lane, as on hardware
constexpr std::uint64_t kMaxParams = 32764;

std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

class Placer {
 public:
  Placer(const ptx::Module& module, const ptx::Function& function, Kernel& kernel)
      : module_(module), function_(function), kernel_(kernel) {}

  Placement run(const std::vector<std::uint64_t>& module_addresses) {
    placement_.module_addresses = module_addresses;
    placement_.module_shared.assign(module_.variables.size(), 0);
    placement_.local_offsets.assign(function_.variables.size(), 0);
    referenced_.assign(module_.variables.size(), false);
    for (const ptx::Instruction& instruction : function_.instructions) {
      for (const ptx::Operand& operand : instruction.operands) find_references(operand);
    }
    place_params();
    place_function_variables();
    place_module_shared();
    return std::move(placement_);
  }

 private:
  void find_references(const ptx::Operand& operand) {
    if (operand.kind == ptx::Operand::Kind::kVariable && operand.module_scope) {
      referenced_[operand.index] = true;
    }
    for (const ptx::Operand& part : operand.parts) find_references(part);
  }

  std::uint64_t append(std::uint64_t& end, const ptx::Variable& variable, std::uint64_t limit) {
    const std::uint64_t offset = align_up(end, variable.align);
    end = offset + variable.bytes;
    if (end > limit) {
      module_.source->fail(variable.line, fmt::format("more than {} bytes of this space", limit));
    }
    return offset;
  }

  void place_params() {
    std::uint64_t end = 0;
    for (std::uint32_t i = 0; i < function_.num_params; ++i) {
      const ptx::Variable& variable = function_.variables[i];
      const std::uint64_t offset = append(end, variable, kMaxParams);
      placement_.local_offsets[i] = offset;
      kernel_.params.push_back({std::string(variable.name), static_cast<std::uint32_t>(offset),
                                static_cast<std::uint32_t>(variable.bytes)});
    }
    kernel_.param_bytes = static_cast<std::uint32_t>(end);
  }

  // The slots of call parameters are local memory here.
  void place_function_variables() {
    std::uint64_t local = 0;
    for (std::size_t i = function_.num_params; i < function_.variables.size(); ++i) {
      const ptx::Variable& variable = function_.variables[i];
      if (variable.space == ptx::Space::kShared) {
        place_shared(variable, placement_.local_offsets[i]);
      } else {
        placement_.local_offsets[i] = append(local, variable, kMaxLocal);
      }
    }
    kernel_.local_bytes = static_cast<std::uint32_t>(align_up(local, 16));
  }

  void place_shared(const ptx::Variable& variable, std::uint64_t& offset) {
    kernel_.shared_align = std::max(kernel_.shared_align, variable.align);
    offset = append(shared_, variable, kMaxShared);
  }

  // Arrays without size all begin where the dynamic shared memory does.
  void place_module_shared() {
    const auto wanted = [&](std::size_t i) {
      return module_.variables[i].space == ptx::Space::kShared && referenced_[i];
    };
    for (std::size_t i = 0; i < referenced_.size(); ++i) {
      if (wanted(i) && module_.variables[i].bytes > 0) {
        place_shared(module_.variables[i], placement_.module_shared[i]);
      }
    }
    std::uint32_t dynamic_align = 16;
    for (std::size_t i = 0; i < referenced_.size(); ++i) {
      if (wanted(i) && module_.variables[i].bytes == 0) {
        dynamic_align = std::max(dynamic_align, module_.variables[i].align);
      }
    }
    kernel_.shared_align = std::max(kernel_.shared_align, dynamic_align);
    kernel_.shared_bytes = static_cast<std::uint32_t>(align_up(shared_, dynamic_align));
    for (std::size_t i = 0; i < referenced_.size(); ++i) {
      if (wanted(i) && module_.variables[i].bytes == 0) {
        placement_.module_shared[i] = kernel_.shared_bytes;
      }
    }
  }

  const ptx::Module& module_;
  const ptx::Function& function_;
  Kernel& kernel_;
  Placement placement_;
  std::vector<bool> referenced_;
  std::uint64_t shared_ = 0;
};

void lower_instruction(LowerContext& c) {
  using enum ptx::OpClass;
  switch (c.opcode().spec->op) {
    case kLane:
      return c.opcode().qualifiers[0] == "set" ? lower_set(c) : lower_lane(c);
    case kSetp:
      return lower_setp(c);
    case kPredLogic:
      return lower_predicate_logic(c);
    case kMov:
      return lower_mov(c);
    case kCvt:
      return lower_cvt(c);
    case kCvta:
      return lower_cvta(c);
    case kLoad:
      return lower_load(c);
    case kStore:
      return lower_store(c);
    case kAtomic:
    case kReduction:
      return lower_atomic(c);
    case kLoadMatrix:
    case kStoreMatrix:
    case kMoveMatrix:
      return lower_matrix(c);
    case kBranch:
      return lower_branch(c);
    case kBranchIndexed:
      return lower_indexed_branch(c);
    case kCall:
      return lower_call(c);
    case kShfl:
    case kVote:
    case kMatch:
    case kActiveMask:
    case kElect:
    case kRedux:
      return lower_together(c);
    case kWarpBarrier:
    case kCtaBarrier:
    case kClusterBarrier:
      return lower_barrier(c);
    case kMbarrier:
      return lower_mbarrier(c);
    case kBulkCopy:
      return lower_bulk_copy(c);
    case kBulkGroup:
    case kCpAsync:
      return lower_async_group(c);
    case kTensorMap:
      return lower_tensor_map(c);
    case kWgmma:
      return lower_wgmma(c);
    case kTcgen05:
      return lower_tcgen05(c);
    case kLaunchControl:
      return lower_launch_control(c);
    default:
      return lower_control(c);
  }
}

// wgmma.fence must stand between other uses of a register and its use by wgmma.
void note_matrix_registers(Kernel& kernel, const Builder& builder) {
  std::set<std::uint32_t> registers;
  for (const HoldEvent& event : builder.holds) {
    if (event.owner == RegisterOwner::kWgmma && event.is_register()) {
      registers.insert(event.reg);
    }
  }
  if (registers.empty()) return;
  for (const RegisterUse& use : builder.uses) {
    if (use.where != RegisterUse::kGuard && registers.contains(use.reg)) {
      kernel.matrix_registers.push_back({use.inst, use.reg, use.is_def});
    }
  }
}

// Writes rows and slots in the place of virtual registers.
void patch(Kernel& kernel, const Builder& builder, const Allocation& allocation) {
  for (const RegisterUse& use : builder.uses) {
    std::int32_t place = allocation.place[use.reg];
    if (builder.registers[use.reg].row == RowClass::kPredicate) {
      place = 2 * place + (use.negated ? 1 : 0);
    }
    Inst& in = kernel.code[use.inst];
    if (use.where == RegisterUse::kGuard) {
      in.guard = static_cast<std::uint32_t>(place);
    } else if (use.where == RegisterUse::kList) {
      kernel.lists[use.list_index] = place;
    } else {
      in.op[use.where] = place;
    }
  }
}

// What the assembler gives a thread whose kernel uses setmaxnreg: all that fits. Registers of a
// multiprocessor are divided among groups of four warps, in steps of 8 a thread.
std::uint32_t launch_registers(const ptx::Function& function) {
  constexpr std::uint64_t kOfMultiprocessor = 65536;
  constexpr std::uint64_t kGroupThreads = 128;
  constexpr std::uint64_t kMost = 256;
  if (function.max_registers != 0) return function.max_registers;
  const auto& block =
      function.max_threads[0] != 0 ? function.max_threads : function.required_threads;
  const std::uint64_t threads = std::uint64_t{block[0]} * block[1] * block[2];
  if (threads == 0) return 0;
  const std::uint64_t groups = (threads + kGroupThreads - 1) / kGroupThreads;
  const std::uint64_t blocks = std::max(function.min_blocks, 1u);
  const std::uint64_t share = kOfMultiprocessor / (groups * kGroupThreads) / blocks;
  return static_cast<std::uint32_t>(std::min(share / 8 * 8, kMost));
}

}  // namespace

ExecFn LowerContext::lane_kernel(std::string_view key) const {
  const ExecFn fn = kernels.find(key);
  if (fn == nullptr) b.fail(fmt::format("no lane kernel for {}", key));
  return fn;
}

void LowerContext::expect_operands(std::size_t least, std::size_t most) const {
  const std::size_t count = operands().size();
  if (count < least || count > most) {
    b.fail(fmt::format("expected {} to {} operands, got {}", least, most, count));
  }
}

Kernel lower(const ptx::Module& module, const ptx::Function& function,
             const std::vector<std::uint64_t>& module_addresses, const exec::KernelTable& kernels,
             ptx::OpcodeFinder& opcodes) {
  Kernel kernel;
  kernel.name = function.name;
  kernel.source = module.source;
  kernel.max_threads = function.max_threads;
  kernel.required_threads = function.required_threads;
  kernel.cluster = function.cluster;
  kernel.explicit_cluster = function.explicit_cluster;
  kernel.launch_registers = launch_registers(function);
  const Placement placement = Placer(module, function, kernel).run(module_addresses);
  Builder builder(module, function, placement);
  LowerContext context{builder, kernels};

  std::vector<std::uint32_t> first(function.instructions.size() + 1);
  for (std::size_t i = 0; i < function.instructions.size(); ++i) {
    const ptx::Instruction& instruction = function.instructions[i];
    first[i] = static_cast<std::uint32_t>(builder.code.size());
    builder.begin(instruction,
                  opcodes.require(instruction.opcode, *module.source, instruction.line));
    try {
      lower_instruction(context);
    } catch (const PtxError&) {
      throw;
    } catch (const Error& error) {  // of a model: a combination that the ISA does not list
      builder.fail(error.what());
    }
  }
  first.back() = static_cast<std::uint32_t>(builder.code.size());
  Inst end;
  end.exec = &exec::no_operation;
  end.flow = Flow::kExit;
  end.line = builder.code.empty() ? function.line : builder.code.back().line;
  builder.code.push_back(end);
  for (Inst& in : builder.code) {
    if (in.flow == Flow::kBranch) in.imm = first[static_cast<std::size_t>(in.imm)];
  }

  std::ranges::stable_sort(builder.uses, {}, &RegisterUse::inst);
  const std::vector<HeldRange> held = protect_held_registers(builder);
  const Allocation allocation =
      allocate_registers(builder.code, builder.uses, builder.registers, held);
  kernel.code = std::move(builder.code);
  kernel.lists = std::move(builder.lists);
  mark_outer_loops(kernel.code);
  patch(kernel, builder, allocation);
  note_matrix_registers(kernel, builder);
  kernel.pool = builder.take_pool();
  kernel.patches = builder.patches;
  kernel.register_bytes = allocation.register_bytes;
  kernel.predicates = allocation.predicates;
  kernel.virtual_registers = static_cast<std::uint32_t>(builder.registers.size());
  return kernel;
}

}  // namespace mxfa::emu::ir
