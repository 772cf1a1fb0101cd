#include "bench.h"
#include "mx/jagged_scale.h"

namespace mxfa::bench {
namespace {

constexpr std::int64_t kHeadDim = 128;

struct Form {
  const char* routine;
  BlockShape block_shape;
  bool tokens_axis;  ///< scales along tokens too
  bool transposed;
  DType dtype = DType::kBF16;
};
constexpr Form kForms[] = {{"quantize_dual", BlockShape::k32x32, true, false},
                           {"quantize_dual_transposed", BlockShape::k32x32, true, true},
                           {"quantize_dual_transposed", BlockShape::k32xD, true, true},
                           {"quantize_dual_transposed", BlockShape::k32xD, true, true, DType::kF32},
                           {"quantize", BlockShape::k1x32, false, false},
                           {"quantize", BlockShape::k1xD, false, false},
                           {"quantize", BlockShape::k32xD, false, false, DType::kF32}};

/// [tokens, heads, 128] in sequences of `seqlen`.
io::Record quantize(Bench& bench, const Form& form, std::int64_t tokens, int heads,
                    std::int64_t seqlen) {
  const std::int64_t elements = tokens * heads * kHeadDim;
  const auto batch = static_cast<std::int32_t>(tokens / seqlen);
  const std::int64_t tiles = mx::max_tiles(tokens, batch);
  const std::int64_t scale_bytes = tiles * heads * mx::kAtomBytes;
  const auto x = noisy(bench, elements, form.dtype);
  const driver::DeviceBuffer codes(bench.device, elements), dim_scales(bench.device, scale_bytes),
      token_scales(bench.device, scale_bytes),
      transposed(bench.device, form.transposed ? tiles * 128 * heads * kHeadDim : 0);
  const device::AtomStrides strides{.head_bytes = tiles * mx::kAtomBytes};
  const device::QuantizeParams params{
      .input = {.data = pointer<const void>(x),
                .dtype = form.dtype,
                .row_stride = heads * kHeadDim,
                .head_stride = kHeadDim,
                .batch_stride = seqlen * heads * kHeadDim,
                .rows = seqlen,
                .head_dim = kHeadDim},
      .codes = pointer<std::uint8_t>(codes),
      .codes_row_stride = heads * kHeadDim,
      .codes_head_stride = kHeadDim,
      .tiled_dim = pointer<std::uint8_t>(dim_scales),
      .dim_strides = strides,
      .tiled_tokens = form.tokens_axis ? pointer<std::uint8_t>(token_scales) : nullptr,
      .token_strides = strides,
      .transposed = form.transposed ? pointer<std::uint8_t>(transposed) : nullptr,
      .offsets = {.batch = batch, .seqlen = seqlen},
      .num_heads = heads,
      .head_dim = kHeadDim,
      .block_shape = form.block_shape,
      .order = device::TokenOrder::kPi};
  const auto timing = bench.time([&] { device::quantize(bench.queue(), params, tiles); });
  const double bytes =
      static_cast<double>(elements) * (dtype_size(form.dtype) + (form.transposed ? 2 : 1)) +
      static_cast<double>(scale_bytes) * (form.tokens_axis ? 2 : 1);
  io::Record record = bench.record(form.routine, bytes, timing);
  record.variant.block_shape = block_shape_name(form.block_shape);
  record.extra = {{"tokens", tokens},
                  {"num_heads", heads},
                  {"seqlen", seqlen},
                  {"dtype", dtype_name(form.dtype)}};
  print(record, fmt::format("[{}, {}, 128] {} {}", tokens, heads, record.variant.block_shape,
                            dtype_name(form.dtype)));
  return record;
}

}  // namespace

void bench_quantize(Bench& bench, std::vector<io::Record>& records) {
  for (const Form& form : kForms) {
    records.push_back(quantize(bench, form, 1048576, 4, 4096));
    records.push_back(quantize(bench, form, 1048576, 3, 512));
  }
}

}  // namespace mxfa::bench
