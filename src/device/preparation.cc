#include "device/preparation.h"

#include <limits>
#include <string>

#include "device/checks.h"

namespace mxfa::device {
namespace {

void check_payload(const OperandInput& input, const OperandsSpec& spec, const Sequences& sequences,
                   std::string_view name) {
  const auto refuse = [&](std::string_view expected, const std::string& got) {
    core::expect(false, name, expected, got);
  };
  const auto unsupported = [&](std::string_view expected, const std::string& got) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}: expected {}, got {}", name, expected, got));
  };
  if (spec.leak_free || spec.half_scores) {
    unsupported("bf16 or f32 where operands are lowered or leak-free", "e4m3 payload");
  }
  if (spec.head_dim != 64 && spec.head_dim != 128) {
    unsupported("payload of head_dim 64 or 128", core::text(spec.head_dim));
  }
  if (input.scales == nullptr && sequences.total > 0) refuse("scales of e4m3 payload", "none");
  if (input.shift != nullptr) refuse("no shift of e4m3 payload", "one");
  const auto address = reinterpret_cast<std::uintptr_t>(input.data);
  if (address % 16 != 0 || input.token_stride % 16 != 0 || input.head_stride % 16 != 0) {
    refuse("payload whose address and strides are multiples of 16",
           fmt::format("strides {}, {}, address {}", input.token_stride, input.head_stride,
                       fmt::ptr(input.data)));
  }
  if (sequences.cu_seqlens == nullptr && sequences.batch > 1 &&
      input.batch_stride != sequences.seqlen * input.token_stride) {
    unsupported(
        "payload whose sequences lie side by side (batch stride = seqlen * token stride)",
        fmt::format("batch stride {}, token stride {}", input.batch_stride, input.token_stride));
  }
}

}  // namespace

void check_operand_input(const OperandInput& input, const OperandsSpec& spec,
                         const Sequences& sequences, std::string_view name) {
  if (input.dtype == DType::kE4M3) return check_payload(input, spec, sequences, name);
  if (input.dtype == DType::kBF16 || input.dtype == DType::kF32) return;
  core::expect(false, name, "bf16, f32 or e4m3", dtype_name(input.dtype));
}

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
