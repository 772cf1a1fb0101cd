#include "device/operands.h"

#include <utility>

#include "device/checks.h"
#include "device/preparation.h"
#include "mx/half_sums.h"
#include "mx/jagged_scale.h"

namespace mxfa::device {
namespace {

/// Which copies of a tensor are made, and how.
struct Copies {
  bool rows = false;
  bool transposed = false;
  TokenOrder order = TokenOrder::kPi;
  BlockShape block_shape = BlockShape::k32xD;
  std::uint8_t min_scale = 0;
  std::uint8_t lowered = 0;
  bool coarse = false;
  float half_sums = 0.0f;
};

/// Of o and dout: q's, or one of its length for every sequence of k's batch where it is broadcast.
Sequences sequences_of_o(const OperandsSpec& spec) {
  Sequences sequences = spec.q_sequences;
  if (spec.broadcast_q) {
    sequences.batch = spec.k_sequences.batch;
    sequences.total = sequences.seqlen * sequences.batch;
  }
  return sequences;
}

/// Lays operands out in memory and, given a queue, launches what fills them.
class Preparation {
 public:
  Preparation(const OperandsSpec& spec, void* memory, const Queue* queue)
      : spec_(spec), memory_(operand_arena(memory, kMemoryAlignment)), queue_(queue) {}

  AttentionOperands run() {
    const BlockShape shape = spec_.leak_free ? BlockShape::k1xD : BlockShape::k32xD;
    const bool backward = spec_.backward;
    const JaggedOffsetsView q_offsets = offsets(spec_.q_sequences);
    const JaggedOffsetsView k_offsets = offsets(spec_.k_sequences);
    const Sequences o_sequences = sequences_of_o(spec_);
    JaggedOffsetsView o_offsets = q_offsets;
    o_offsets.batch = o_sequences.batch;
    AttentionOperands result;
    const bool rows = !spec_.bf16_scores;
    result.q = operand(spec_.q, q_offsets, spec_.q_sequences, spec_.num_heads,
                       {.rows = rows,
                        .transposed = backward,
                        .block_shape = shape,
                        .lowered = spec_.half_scores ? kLoweredQ : std::uint8_t{0},
                        .half_sums = half_gradients() ? mx::kHalfSumsQ : 0.0f});
    result.k = operand(spec_.k, k_offsets, spec_.k_sequences, spec_.num_heads_kv,
                       {.rows = rows,
                        .transposed = backward,
                        .order = TokenOrder::kSigma,
                        .block_shape = shape,
                        .lowered = spec_.half_scores ? kLoweredK : std::uint8_t{0},
                        .coarse = spec_.leak_free || spec_.half_scores,
                        .half_sums = half_gradients() ? mx::kHalfSumsK : 0.0f});
    result.v = operand(spec_.v, k_offsets, spec_.k_sequences, spec_.num_heads_kv,
                       {.rows = backward && !spec_.bf16_dp,
                        .transposed = spec_.forward,
                        .block_shape = shape,
                        .min_scale = spec_.leak_free ? kLeakFreeMinScale : std::uint8_t{0},
                        .lowered = lowered_v(),
                        .coarse = spec_.leak_free,
                        .half_sums = spec_.half_sums() ? mx::kHalfSumsV : 0.0f});
    if (backward) {
      result.dout = operand(spec_.dout, o_offsets, o_sequences, spec_.num_heads,
                            {.rows = !spec_.bf16_dp,
                             .transposed = true,
                             .lowered = spec_.half_scores ? kLoweredDout : std::uint8_t{0},
                             .half_sums = half_gradients() ? mx::kHalfSumsDout : 0.0f});
    }
    result.bytes = memory_.used();
    return result;
  }

 private:
  /// Payload of Q and K is the same without a backward, whose scores are the forward's.
  bool half_gradients() const { return spec_.half_scores && !spec_.leak_free; }
  std::uint8_t lowered_v() const {
    if (spec_.leak_free) return kLoweredTokenV;
    return spec_.half_scores && spec_.backward ? kLoweredV : std::uint8_t{0};
  }
  JaggedOffsetsView offsets(const Sequences& sequences) {
    return place_offsets(queue_, sequences, memory_);
  }

  AttentionOperand operand(const OperandInput& input, const JaggedOffsetsView& offsets,
                           const Sequences& sequences, std::int32_t num_heads,
                           const Copies& copies) {
    if (!copies.rows && !copies.transposed) {
      return {.block_shape = copies.block_shape,
              .offsets = offsets,
              .total = sequences.total,
              .num_heads = num_heads,
              .head_dim = spec_.head_dim <= 64 ? 64 : 128};
    }
    if (input.dtype == DType::kE4M3) return payload(input, offsets, sequences, num_heads, copies);
    const std::int32_t head_dim = spec_.head_dim <= 64 ? 64 : 128;
    const std::int64_t tiles = mx::max_tiles(sequences.total, sequences.batch);
    const std::int64_t scales = scale_pitch(copies.block_shape, sequences.total, sequences.batch);
    const std::int64_t width = std::int64_t{num_heads} * head_dim;
    auto* const rows = copies.rows ? memory_.take<std::uint8_t>(sequences.total * width) : nullptr;
    auto* const transposed =
        copies.transposed ? memory_.take<std::uint8_t>(tiles * mx::kAtomRows * width) : nullptr;
    auto* const scale_bytes = memory_.take<std::uint8_t>(scales * num_heads);
    if (queue_ != nullptr) {
      quantize(*queue_,
               {.input = quantize_input(input, offsets, sequences, spec_.head_dim),
                .codes = rows,
                .codes_row_stride = width,
                .codes_head_stride = head_dim,
                .compact = scale_bytes,
                .compact_strides = {.row = 1, .head = scales},
                .transposed = transposed,
                .offsets = offsets,
                .num_heads = num_heads,
                .head_dim = head_dim,
                .block_shape = copies.block_shape,
                .order = copies.order,
                .min_scale = copies.min_scale,
                .lowered = copies.lowered,
                .coarse = copies.coarse,
                .half_sums = copies.half_sums,
                .overlap = std::exchange(launched_, true)},
               tiles);
    }
    return {.rows = rows,
            .token_stride = width,
            .head_stride = head_dim,
            .transposed = transposed,
            .tiles = tiles,
            .order = copies.order,
            .scales = {.data = scale_bytes, .row_stride = 1, .head_stride = scales},
            .block_shape = copies.block_shape,
            .offsets = offsets,
            .total = sequences.total,
            .num_heads = num_heads,
            .head_dim = head_dim,
            .lowered = copies.lowered,
            .half_sums = copies.half_sums > 0};
  }

  /// Payload that exists: only its transposed copy is made.
  AttentionOperand payload(const OperandInput& input, const JaggedOffsetsView& offsets,
                           const Sequences& sequences, std::int32_t num_heads,
                           const Copies& copies) {
    const auto* const codes = static_cast<const std::uint8_t*>(input.data);
    AttentionOperand result{.rows = codes,
                            .token_stride = input.token_stride,
                            .head_stride = input.head_stride,
                            .order = copies.order,
                            .scales = {.data = input.scales,
                                       .row_stride = input.scale_strides.row,
                                       .head_stride = input.scale_strides.head},
                            .block_shape = copies.block_shape,
                            .offsets = offsets,
                            .total = sequences.total,
                            .num_heads = num_heads,
                            .head_dim = spec_.head_dim};
    if (!copies.transposed) return result;
    const std::int64_t tiles = mx::max_tiles(sequences.total, sequences.batch);
    const std::int64_t scales = scale_pitch(copies.block_shape, sequences.total, sequences.batch);
    auto* const transposed =
        memory_.take<std::uint8_t>(tiles * TransposedTiles{num_heads, spec_.head_dim}.tile_bytes());
    auto* const scale_bytes = memory_.take<std::uint8_t>(scales * num_heads);
    result.transposed = transposed;
    result.tiles = tiles;
    // Not the caller's: a group of zeros has scale 0, and one that holds a NaN code 0xFF.
    result.scales = {.data = scale_bytes, .row_stride = 1, .head_stride = scales};
    if (queue_ == nullptr) return result;
    realign(*queue_,
            {.codes = codes,
             .row_stride = input.token_stride,
             .head_stride = input.head_stride,
             .scales = input.scales,
             .scale_strides = input.scale_strides,
             .out_scales = scale_bytes,
             .out_scale_strides = {.row = 1, .head = scales},
             .transposed = transposed,
             .order = copies.order,
             .offsets = offsets,
             .num_heads = num_heads,
             .head_dim = spec_.head_dim,
             .transposed_head_dim = spec_.head_dim,
             .block_shape = copies.block_shape},
            DType::kE4M3, tiles);
    return result;
  }

  const OperandsSpec& spec_;
  core::Arena memory_;
  const Queue* queue_;
  bool launched_ = false;  ///< an operand before this one
};

void check_sequences(const Sequences& sequences, std::string_view name) {
  core::expect(sequences.batch >= 0 && sequences.total >= 0 && sequences.seqlen >= 0, name,
               "no negative batch, total or seqlen",
               core::later("batch {}, total {}, seqlen {}", sequences.batch, sequences.total,
                           sequences.seqlen));
  core::expect(
      sequences.cu_seqlens != nullptr || sequences.total == sequences.batch * sequences.seqlen,
      name, "total = batch * seqlen where cu_seqlens is not given",
      core::later("total {}, batch {}, seqlen {}", sequences.total, sequences.batch,
                  sequences.seqlen));
}

void check(const OperandsSpec& spec) {
  core::expect(spec.head_dim > 0 && spec.head_dim % 8 == 0 && spec.head_dim <= 128, "head_dim",
               "a multiple of 8 up to 128", spec.head_dim);
  check_sequences(spec.q_sequences, "q_sequences");
  check_sequences(spec.k_sequences, "k_sequences");
  core::expect(
      !spec.broadcast_q || (spec.q_sequences.cu_seqlens == nullptr && spec.q_sequences.batch == 1),
      "q_sequences", "one dense sequence where q is broadcast",
      core::later("batch {}", spec.q_sequences.batch));
  check_operand_input(spec.q, spec, spec.q_sequences, "q");
  check_operand_input(spec.k, spec, spec.k_sequences, "k");
  check_operand_input(spec.v, spec, spec.k_sequences, "v");
  if (spec.backward) check_operand_input(spec.dout, spec, sequences_of_o(spec), "dout");
}

}  // namespace

std::int64_t operands_bytes(const OperandsSpec& spec) {
  check(spec);
  return Preparation(spec, nullptr, nullptr).run().bytes;
}

AttentionOperands prepare_operands(const Queue& queue, const OperandsSpec& spec, void* memory) {
  check(spec);
  internal::expect_aligned(memory, "memory", kMemoryAlignment);
  return Preparation(spec, memory, &queue).run();
}

AttentionOperands operands_in(const OperandsSpec& spec, void* memory) {
  check(spec);
  internal::expect_aligned(memory, "memory", kMemoryAlignment);
  return Preparation(spec, memory, nullptr).run();
}

}  // namespace mxfa::device
