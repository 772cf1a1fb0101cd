#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "device/operands.h"
#include "dispatch/gpu/device_state.h"
#include "mxfa/attention.h"

/// A forward on a device, from public arguments to what kernels take.
namespace mxfa::dispatch {

/// Checked for what all architectures ask for; pointers are device addresses. Lives as long as the
/// arguments that it was made from.
struct ForwardProblem {
  const attention::ForwardArgs& args;
  const attention::Options& options;
  device::Queue queue;
  device::OperandsSpec operands;  ///< q, k, v, sequences, heads
  attention::Mask mask;
  double softmax_scale = 0.0;
  std::int64_t rows_o = 0;
  std::int64_t o_token_stride = 0;  ///< elements
  std::int64_t o_head_stride = 0;
  std::int64_t o_batch_stride = 0;  ///< 0: sequences lie side by side

  bool dense() const { return operands.k_sequences.cu_seqlens == nullptr; }
};

/// Throws Error(kInvalidArgument) that names the argument, what was expected and what came.
ForwardProblem make_forward_problem(const attention::ForwardArgs& args,
                                    const attention::Options& options);

/// For kernels that write row_max where lse's strides say. Throws likewise.
void check_row_max(const ForwardProblem& problem);

}  // namespace mxfa::dispatch
