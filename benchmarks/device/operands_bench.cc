#include "bench.h"
#include "device/operands.h"
#include "mx/jagged_scale.h"

namespace mxfa::bench {
namespace {

constexpr std::int64_t kDim = 128;

/// Operands of attention, dense [batch, seqlen, heads, 128] BF16.
io::Record prepare(Bench& bench, std::int32_t batch, std::int32_t heads, std::int64_t seqlen,
                   bool backward) {
  const std::int64_t elements = batch * seqlen * heads * kDim;
  const auto x = noisy(bench, elements);
  const device::OperandInput input{.data = pointer<const void>(x),
                                   .token_stride = heads * kDim,
                                   .head_stride = kDim,
                                   .batch_stride = seqlen * heads * kDim};
  const device::Sequences sequences{.seqlen = seqlen, .batch = batch, .total = batch * seqlen};
  const device::OperandsSpec spec{.q = input,
                                  .k = input,
                                  .v = input,
                                  .dout = input,
                                  .q_sequences = sequences,
                                  .k_sequences = sequences,
                                  .num_heads = heads,
                                  .num_heads_kv = heads,
                                  .head_dim = kDim,
                                  .forward = !backward,
                                  .backward = backward};
  const driver::DeviceBuffer memory(bench.device,
                                    static_cast<std::size_t>(device::operands_bytes(spec)));
  const auto timing =
      bench.time([&] { device::prepare_operands(bench.queue(), spec, pointer<void>(memory)); });
  // Each tensor is read and each copy written once: Q, K, V^T; or Q, Q^T, K, K^T, V, dO, dO^T.
  const double bytes = static_cast<double>(elements) * (backward ? 4 * 2 + 7 : 3 * 2 + 3);
  io::Record record = bench.record("prepare_operands", bytes, timing);
  record.shape.batch = batch;
  record.shape.num_heads = record.shape.num_heads_kv = heads;
  record.shape.seqlen_q = record.shape.seqlen_k = seqlen;
  record.shape.head_dim = kDim;
  record.variant.block_shape = "32xD";
  record.extra = {{"pass", backward ? "backward" : "forward"}};
  print(record, fmt::format("[{}, {}, {}, 128] {}", batch, seqlen, heads,
                            backward ? "backward" : "forward"));
  return record;
}

/// Rows of [tokens, heads, 128] in sequences of 4096, MXFP8 payload among the inputs.
class Rows {
 public:
  explicit Rows(Bench& bench)
      : bench_(bench),
        codes_(noisy(bench, kElements, DType::kE4M3)),
        // Codes below 120 are scales, too, near 2^-67.
        scales_(noisy(bench, kTokens * kHeads * kDim / 32, DType::kE4M3)),
        values_(noisy(bench, kElements, DType::kF32)),
        halves_(noisy(bench, kElements, DType::kF16)),
        out_(bench.device, kElements * 2) {}

  io::Record delta() {
    const device::DeltaParams params{.dout = payload(BlockShape::k32xD),
                                     .o = {.data = pointer<const void>(values_),
                                           .dtype = DType::kBF16,
                                           .row_stride = kHeads * kDim,
                                           .head_stride = kDim},
                                     .delta = pointer<float>(out_),
                                     .delta_head_stride = kTokens,
                                     .offsets = offsets(),
                                     .num_heads = kHeads,
                                     .head_dim = kDim};
    return time("delta", 3.0 * kElements + 4.0 * kTokens * kHeads,
                [&] { device::delta(bench_.queue(), params, tiles()); });
  }
  io::Record dequantize() {
    const device::DequantizeParams params{.input = payload(BlockShape::k32xD),
                                          .out = pointer<std::uint16_t>(out_),
                                          .out_row_stride = kHeads * kDim,
                                          .out_head_stride = kDim,
                                          .offsets = offsets(),
                                          .num_heads = kHeads,
                                          .head_dim = kDim};
    return time("dequantize_bf16", 3.0 * kElements,
                [&] { device::dequantize_bf16(bench_.queue(), params, tiles()); });
  }
  io::Record finish_sums(DType dtype) {
    const device::FinishSumsParams params{.data = sums_of(dtype),
                                          .dtype = dtype,
                                          .row_stride = kHeads * kDim,
                                          .head_stride = kDim,
                                          .sums = {.exponent = 9},
                                          .out = pointer<std::uint16_t>(out_),
                                          .out_row_stride = kHeads * kDim,
                                          .out_head_stride = kDim,
                                          .offsets = offsets(),
                                          .num_heads = kHeads,
                                          .head_dim = kDim};
    return time(fmt::format("finish_sums_{}", dtype_name(dtype)),
                (2.0 + static_cast<double>(dtype_size(dtype))) * kElements,
                [&] { device::finish_sums_bf16(bench_.queue(), params, tiles()); });
  }
  /// Sums, with the counter of those that overflowed, to payload and compact scales.
  io::Record finish_sums_mxfp8(DType dtype, BlockShape shape) {
    const driver::DeviceBuffer overflows(bench_.device, 8);
    overflows.fill(0);
    const std::int64_t scale_rows = kTokens / mx::block_rows(shape);
    const device::QuantizeParams params{
        .input = {.data = sums_of(dtype),
                  .dtype = dtype,
                  .row_stride = kHeads * kDim,
                  .head_stride = kDim,
                  .batch_stride = kSeqlen * kHeads * kDim,
                  .rows = kSeqlen,
                  .head_dim = kDim,
                  .sums = {.exponent = dtype == DType::kF16 ? 9 : 0,
                           .overflows = pointer<unsigned long long>(overflows)}},
        .codes = pointer<std::uint8_t>(out_),
        .codes_row_stride = kHeads * kDim,
        .codes_head_stride = kDim,
        .compact = pointer<std::uint8_t>(out_) + kElements,
        .compact_strides = {.row = kHeads * kDim / 32, .head = kDim / 32},
        .offsets = offsets(),
        .num_heads = kHeads,
        .head_dim = kDim,
        .block_shape = shape};
    io::Record record = time(
        fmt::format("finish_sums_{}_mxfp8", dtype_name(dtype)),
        (1.0 + static_cast<double>(dtype_size(dtype))) * kElements +
            static_cast<double>(scale_rows) * kHeads * kDim / 32,
        [&] { device::quantize(bench_.queue(), params, tiles()); }, block_shape_name(shape));
    record.variant.block_shape = block_shape_name(shape);
    return record;
  }
  io::Record realign() {
    const driver::DeviceBuffer counters(bench_.device, sizeof(device::RealignCounters));
    counters.fill(0);
    const device::RealignParams params{
        .codes = pointer<const std::uint8_t>(codes_),
        .row_stride = kHeads * kDim,
        .head_stride = kDim,
        .scales = pointer<const std::uint8_t>(scales_),
        .scale_strides = {.row = kHeads * kDim / 32, .head = kDim / 32},
        .out = pointer<std::uint8_t>(out_),
        .out_row_stride = kHeads * kDim,
        .out_head_stride = kDim,
        .out_scales = pointer<std::uint8_t>(out_) + kElements,
        .out_scale_strides = {.row = kHeads, .head = 1},
        .counters = pointer<device::RealignCounters>(counters),
        .offsets = offsets(),
        .num_heads = kHeads,
        .head_dim = kDim,
        .block_shape = BlockShape::k1x32};
    return time("realign", (2.0 + 1.0 / 32) * kElements,
                [&] { device::realign(bench_.queue(), params, DType::kE4M3, tiles()); });
  }
  io::Record tile_scales() {
    const device::TileScalesParams params{.compact = pointer<std::uint8_t>(scales_),
                                          .row_stride = kHeads * kDim / 32,
                                          .head_stride = kDim / 32,
                                          .tiled = pointer<std::uint8_t>(out_),
                                          .head_bytes = tiles() * mx::kAtomBytes,
                                          .offsets = offsets(),
                                          .num_heads = kHeads,
                                          .head_dim = kDim,
                                          .block_shape = BlockShape::k1x32};
    return time("tile_scales", kElements / 16.0,
                [&] { device::tile_scales(bench_.queue(), params, tiles()); });
  }

 private:
  static constexpr std::int64_t kTokens = 1048576;
  static constexpr std::int32_t kHeads = 4;
  static constexpr std::int64_t kSeqlen = 4096;
  static constexpr std::int64_t kElements = kTokens * kHeads * kDim;

  static std::int64_t tiles() { return kTokens / mx::kAtomRows; }
  static device::JaggedOffsetsView offsets() {
    return {.batch = static_cast<std::int32_t>(kTokens / kSeqlen), .seqlen = kSeqlen};
  }
  const void* sums_of(DType dtype) const {
    return pointer<const void>(dtype == DType::kF16 ? halves_ : values_);
  }
  device::RowsView payload(BlockShape shape) const {
    return {.data = pointer<const void>(codes_),
            .dtype = DType::kE4M3,
            .row_stride = kHeads * kDim,
            .head_stride = kDim,
            .scales = pointer<const std::uint8_t>(scales_),
            .scale_strides = {.row = kHeads, .head = 1},
            .block_shape = shape};
  }
  io::Record time(const std::string& routine, double bytes, const std::function<void()>& body,
                  std::string_view form = {}) {
    io::Record record = bench_.record(routine, bytes, bench_.time(body));
    record.extra = {{"tokens", kTokens}, {"num_heads", kHeads}, {"seqlen", kSeqlen}};
    print(record, fmt::format("[{}, {}, 128] {}", kTokens, kHeads, form));
    return record;
  }

  Bench& bench_;
  driver::DeviceBuffer codes_, scales_, values_, halves_, out_;
};

}  // namespace

void bench_operands(Bench& bench, std::vector<io::Record>& records) {
  for (const bool backward : {false, true}) {
    records.push_back(prepare(bench, 4, 16, 4096, backward));
    records.push_back(prepare(bench, 1, 16, 16384, backward));
  }
  Rows rows(bench);
  records.push_back(rows.delta());
  records.push_back(rows.dequantize());
  records.push_back(rows.finish_sums(DType::kF32));
  records.push_back(rows.finish_sums(DType::kF16));
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    for (const BlockShape shape : {BlockShape::k1x32, BlockShape::k32x32}) {
      records.push_back(rows.finish_sums_mxfp8(dtype, shape));
    }
  }
  records.push_back(rows.realign());
  records.push_back(rows.tile_scales());
}

}  // namespace mxfa::bench
