#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "attention/problem.h"
#include "core/arena.h"
#include "cpu/attention.h"
#include "dispatch/packed.h"
#include "mxfa/attention.h"

/// From the tensors of an attention call to what its kernels read and write.
namespace mxfa::dispatch {

using core::Arena;

/// The checked lengths and heads of a call. Self-referential: neither copied nor moved.
struct AttentionShape {
  AttentionShape(const attention::ForwardArgs& args, const attention::Options& options);
  AttentionShape(const AttentionShape&) = delete;
  AttentionShape& operator=(const AttentionShape&) = delete;

  attention::AttentionProblem problem;
  std::vector<std::int32_t> cu_seqlens_q;  ///< of q: one sequence where it is broadcast
  std::vector<std::int32_t> cu_seqlens_o;
  std::vector<std::int32_t> cu_seqlens_k;
  mx::JaggedOffsets q_offsets, o_offsets, k_offsets;
};

/// One of a call's packed tensors: rows, lengths and name.
struct Role {
  std::string_view name;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  const std::vector<std::int32_t>* cu_seqlens = nullptr;
  const mx::JaggedOffsets* offsets = nullptr;
  BlockShape block_shape = BlockShape::k32x32;
  bool shared = false;
};
Role q_role(const AttentionShape& shape, const attention::Options& options);
Role k_role(const AttentionShape& shape, const attention::Options& options, std::string_view name);
Role o_role(const AttentionShape& shape, std::string_view name, BlockShape block_shape);

/// Checks dtype, shape and scales of an input.
void check_input(const attention::Tensor& tensor, const Role& role, std::int64_t head_dim);
/// The same for an output; kF32, kBF16 or kE4M3 with scales.
void check_output_tensor(const attention::Tensor& tensor, const Role& role, std::int64_t head_dim);
/// FP32 [num_heads, rows_o].
void check_row_values(const TensorView& tensor, std::string_view name,
                      const attention::AttentionProblem& problem, bool output);

/// Makes operands out of checked inputs, in an arena.
class OperandMaker {
 public:
  OperandMaker(Arena& arena, ScaleRule rule) : arena_(arena), rule_(rule) {}

  /// MXFP8: the tensor's own payload, or its BF16 values quantized in the role's block shape.
  cpu::Operand quantized(const attention::Tensor& tensor, const Role& role);
  /// Values as they are, F16 as BF16.
  cpu::Operand values(const attention::Tensor& tensor, const Role& role);

 private:
  TensorView bf16_copy(const TensorView& tensor);
  TensorView contiguous_copy(const TensorView& tensor);
  cpu::Operand operand(const TensorView& values, const Role& role);

  Arena& arena_;
  ScaleRule rule_;
};

cpu::Target make_target(const attention::Tensor& tensor, const Role& role, ScaleRule rule);
cpu::RowValues row_values(const TensorView& tensor);
/// Zeros behind the last sequence, in scales as well.
void clear_behind(const attention::Tensor& tensor, const Role& role);
/// Writes the tiled copies of the tensor's scales that are given, zeros behind the last sequence.
void tile_scales(const attention::Tensor& tensor, const attention::TiledScales& tiled,
                 const Role& role);

}  // namespace mxfa::dispatch
