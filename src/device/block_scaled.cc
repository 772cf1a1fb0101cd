#include "device/block_scaled.h"

#include <string_view>

#include "device/checks.h"
#include "device/preparation.h"
#include "mx/jagged_scale.h"

namespace mxfa::device {
namespace {

void check(const OperandsSpec& spec) {
  core::expect(spec.head_dim > 0 && spec.head_dim % 8 == 0 && spec.head_dim <= 128, "head_dim",
               "a multiple of 8 up to 128", spec.head_dim);
  check_operand_input(spec.q, spec, spec.q_sequences, "q");
  check_operand_input(spec.k, spec, spec.k_sequences, "k");
  check_operand_input(spec.v, spec, spec.k_sequences, "v");
}

/// Lays operands out in memory and, given a queue, launches what fills them.
class Preparation {
 public:
  Preparation(const OperandsSpec& spec, void* memory, const Queue* queue)
      : spec_(spec), memory_(operand_arena(memory, 64)), queue_(queue) {}

  BlockScaledOperands run() {
    const JaggedOffsetsView q = offsets(spec_.q_sequences), k = offsets(spec_.k_sequences);
    const ScaleAxis v_axis = spec_.leak_free ? ScaleAxis::kHeadDim : ScaleAxis::kTokens;
    BlockScaledOperands result;
    result.q = operand(spec_.q, q, spec_.q_sequences, spec_.num_heads, ScaleAxis::kHeadDim, 0);
    result.k = operand(spec_.k, k, spec_.k_sequences, spec_.num_heads_kv, ScaleAxis::kHeadDim, 0);
    result.v = operand(spec_.v, k, spec_.k_sequences, spec_.num_heads_kv, v_axis,
                       spec_.leak_free ? kLeakFreeMinScale : std::uint8_t{0});
    return result;
  }
  std::int64_t bytes() const { return memory_.used(); }

 private:
  JaggedOffsetsView offsets(const Sequences& sequences) {
    return place_offsets(queue_, sequences, memory_);
  }

  BlockScaledOperand operand(const OperandInput& input, const JaggedOffsetsView& offsets,
                             const Sequences& sequences, std::int32_t num_heads, ScaleAxis axis,
                             std::uint8_t min_scale) {
    const std::int32_t head_dim = spec_.head_dim <= 64 ? 64 : 128;
    const std::int64_t width = std::int64_t{num_heads} * head_dim;
    const std::int64_t tiles = mx::max_tiles(sequences.total, sequences.batch);
    const std::int64_t head_bytes = tiles * mx::kAtomBytes;
    const bool payload = input.dtype == DType::kE4M3;
    auto* const rows = payload ? nullptr : memory_.take<std::uint8_t>(sequences.total * width);
    auto* const atoms = memory_.take<std::uint8_t>(head_bytes * num_heads);
    BlockScaledOperand result{.rows = rows,
                              .token_stride = width,
                              .head_stride = head_dim,
                              .atoms = atoms,
                              .head_bytes = head_bytes,
                              .axis = axis,
                              .offsets = offsets,
                              .total = sequences.total,
                              .num_heads = num_heads,
                              .head_dim = head_dim};
    if (payload) {
      result.rows = static_cast<const std::uint8_t*>(input.data);
      result.token_stride = input.token_stride;
      result.head_stride = input.head_stride;
    }
    if (queue_ == nullptr) return result;
    if (payload) {
      move_scales(input, result, tiles);
    } else {
      const AtomStrides strides{.head_bytes = head_bytes, .tile_bytes = mx::kAtomBytes};
      const bool along_dim = axis == ScaleAxis::kHeadDim;
      quantize(*queue_,
               {.input = quantize_input(input, offsets, sequences, spec_.head_dim),
                .codes = rows,
                .codes_row_stride = width,
                .codes_head_stride = head_dim,
                .tiled_dim = along_dim ? atoms : nullptr,
                .dim_strides = strides,
                .tiled_tokens = along_dim ? nullptr : atoms,
                .token_strides = strides,
                .offsets = offsets,
                .num_heads = num_heads,
                .head_dim = head_dim,
                .block_shape = spec_.leak_free ? BlockShape::k1xD : BlockShape::k32x32,
                .min_scale = min_scale},
               tiles);
    }
    return result;
  }

  /// Of payload that lies where it lies.
  void move_scales(const OperandInput& input, const BlockScaledOperand& operand,
                   std::int64_t tiles) const {
    tile_scales(*queue_,
                {.compact = const_cast<std::uint8_t*>(input.scales),
                 .row_stride = input.scale_strides.row,
                 .head_stride = input.scale_strides.head,
                 .tiled = const_cast<std::uint8_t*>(operand.atoms),
                 .head_bytes = operand.head_bytes,
                 .offsets = operand.offsets,
                 .num_heads = operand.num_heads,
                 .head_dim = operand.head_dim,
                 .block_shape = BlockShape::k32x32,
                 .axis = operand.axis},
                tiles);
  }

  const OperandsSpec& spec_;
  core::Arena memory_;
  const Queue* queue_;
};

}  // namespace

std::int64_t block_scaled_bytes(const OperandsSpec& spec) {
  check(spec);
  Preparation counted(spec, nullptr, nullptr);
  counted.run();
  return mx::ceil_div(counted.bytes(), kMemoryAlignment) * kMemoryAlignment;
}

BlockScaledOperands prepare_block_scaled(const Queue& queue, const OperandsSpec& spec,
                                         void* memory) {
  check(spec);
  internal::expect_aligned(memory, "memory", kMemoryAlignment);
  return Preparation(spec, memory, &queue).run();
}

BlockScaledOperands block_scaled_in(const OperandsSpec& spec, void* memory) {
  check(spec);
  internal::expect_aligned(memory, "memory", kMemoryAlignment);
  return Preparation(spec, memory, nullptr).run();
}

}  // namespace mxfa::device
