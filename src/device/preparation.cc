#include "device/preparation.h"

#include <limits>

namespace mxfa::device {

core::Arena operand_arena(void* memory, std::int64_t align) {
  if (memory == nullptr) return core::Arena({}, align);
  return core::Arena({static_cast<std::byte*>(memory), std::numeric_limits<std::ptrdiff_t>::max()},
                     align);
}

JaggedOffsetsView place_offsets(const Queue* queue, const Sequences& sequences,
                                core::Arena& memory) {
  JaggedOffsetsView view{.batch = sequences.batch};
  if (sequences.cu_seqlens == nullptr) {
    view.seqlen = sequences.seqlen;
    return view;
  }
  auto* const groups = memory.take<std::int64_t>(sequences.batch + 1);
  auto* const tiles = memory.take<std::int64_t>(sequences.batch + 1);
  view.cu_seqlens = sequences.cu_seqlens;
  view.group_begin = groups;
  view.tile_begin = tiles;
  if (queue != nullptr) {
    jagged_offsets(*queue, sequences.cu_seqlens, sequences.batch, groups, tiles);
  }
  return view;
}

QuantizeInput quantize_input(const OperandInput& input, const JaggedOffsetsView& offsets,
                             const Sequences& sequences, std::int32_t head_dim) {
  return {.data = input.data,
          .dtype = input.dtype,
          .row_stride = input.token_stride,
          .head_stride = input.head_stride,
          .batch_stride = input.batch_stride,
          .rows = offsets.dense() ? sequences.seqlen : sequences.total,
          .head_dim = head_dim,
          .round_bf16 = true,
          .shift = input.shift,
          .shift_batch_stride = input.shift_batch_stride};
}

}  // namespace mxfa::device
