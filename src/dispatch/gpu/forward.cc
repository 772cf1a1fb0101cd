#include "core/check.h"
#include "dispatch/device_calls.h"
#include "dispatch/gpu/architectures.h"
#include "dispatch/gpu/device_memory.h"
#include "dispatch/refuse.h"

namespace mxfa::dispatch {
namespace {

constexpr std::uintptr_t kAlignment = 256;

const ForwardKernels& kernels_of(const ForwardProblem& problem) {
  const attention::Options& options = problem.options;
  const ForwardKernels* kernels = &kExactForward;
  if (!options.exact) {
    const Architecture& own = expect_architecture(options.device->arch(), "attention");
    if (own.forward == nullptr) {
      unsupported("device", "an architecture that has an attention forward", own.arch);
    }
    if (options.recipe != own.recipe) {
      unsupported("recipe", fmt::format("that of {}, native_recipe()", own.arch), "another");
    }
    kernels = own.forward;
  }
  kernels->check(problem);
  return *kernels;
}

void check_workspace(const ForwardProblem& problem, std::span<std::byte> workspace,
                     std::int64_t bytes) {
  if (!(static_cast<std::int64_t>(workspace.size()) >= bytes))
    refuse("workspace", fmt::format("at least {} bytes", bytes),
           fmt::format("{}", workspace.size()));
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
  if (!(address % kAlignment == 0))
    refuse("workspace", "an address on 256 bytes",
           fmt::format("one {} bytes past that", address % kAlignment));
  expect_on_device(problem.queue.device, workspace.data(), "workspace");
}

/// Rows that no kernel writes, since no sequence has them.
void clear_behind(const ForwardProblem& problem) {
  const device::Sequences& sequences = problem.operands.q_sequences;
  if (sequences.cu_seqlens == nullptr || problem.rows_o == 0) return;
  const attention::ForwardArgs& args = problem.args;
  device::clear_behind(
      problem.queue, {.o = args.o.values.data,
                      .o_element_bytes = static_cast<std::int32_t>(dtype_size(args.o.values.dtype)),
                      .o_token_stride = problem.o_token_stride,
                      .o_head_stride = problem.o_head_stride,
                      .head_dim = problem.operands.head_dim,
                      .lse = static_cast<float*>(args.lse.data),
                      .lse_head_stride = args.lse.strides[0],
                      .row_max = static_cast<float*>(args.row_max.data),
                      .row_max_head_stride = args.row_max.strides[0],
                      .cu_seqlens = sequences.cu_seqlens,
                      .batch = sequences.batch,
                      .rows = problem.rows_o,
                      .num_heads = problem.operands.num_heads});
}

}  // namespace

std::int64_t device_forward_workspace_bytes(const attention::ForwardArgs& args,
                                            const attention::Options& options) {
  const driver::CurrentDevice current(options.device->state().device);
  const ForwardProblem problem = make_forward_problem(args, options);
  return kernels_of(problem).workspace_bytes(problem);
}

void device_forward(const attention::ForwardArgs& args, const attention::Options& options,
                    std::span<std::byte> workspace, const ForwardPhases& phases) {
  const driver::CurrentDevice current(options.device->state().device);
  const ForwardProblem problem = make_forward_problem(args, options);
  const ForwardKernels& kernels = kernels_of(problem);
  check_workspace(problem, workspace, kernels.workspace_bytes(problem));
  if (phases.prepare) kernels.prepare(problem, workspace.data());
  if (!phases.attend) return;
  kernels.attend(problem, workspace.data());
  clear_behind(problem);
}

}  // namespace mxfa::dispatch
