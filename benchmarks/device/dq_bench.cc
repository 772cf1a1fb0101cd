#include <optional>

#include "bench.h"
#include "kernels/sm90/backward/launch.h"
#include "kernels/sm90/forward/launch.h"
#include "mx/jagged_scale.h"

namespace mxfa::bench {
namespace {

using sm90::backward::DqSums;

/// The last step of Hopper's backward: sums of [tokens, heads, 128] in sequences of 4096 as its
/// threads hold them, to rows of BF16 or MXFP8.
io::Record finish_dq(Bench& bench, DqSums kind, std::optional<BlockShape> shape) {
  constexpr std::int64_t kTokens = 524288, kSeqlen = 4096, kDim = 128;
  constexpr std::int32_t kHeads = 4;
  constexpr std::int64_t kElements = kTokens * kHeads * kDim;
  const DType dtype = kind == DqSums::kF16 ? DType::kF16 : DType::kF32;
  driver::KernelCache kernels(bench.device, sm90::kernel_images());
  const auto sums = noisy(bench, kElements, dtype);
  const driver::DeviceBuffer out(bench.device, kElements * (shape ? 1 : 2)),
      scales(bench.device, kElements / 32), overflows(bench.device, 8);
  overflows.fill(0);
  sm90::backward::DqParams params;
  params.q = {.batch = static_cast<std::int32_t>(kTokens / kSeqlen), .seqlen = kSeqlen};
  params.num_heads = kHeads;
  params.head_dim = params.columns = kDim;
  params.sums = pointer<const std::uint8_t>(sums);
  params.kind = kind;
  params.scaled = {.exponent = kind == DqSums::kF16 ? 9 : 0,
                   .overflows = pointer<unsigned long long>(overflows)};
  params.head_stride = kTokens / sm90::backward::kTileM;
  double bytes = static_cast<double>(kElements) * (dtype_size(dtype) + (shape ? 1.0 : 2.0));
  if (shape) {
    params.dq_mxfp8 = {.codes = pointer<std::uint8_t>(out),
                       .token_stride = kHeads * kDim,
                       .head_stride = kDim,
                       .scales = pointer<std::uint8_t>(scales),
                       .scale_row_stride = kHeads * kDim / 32,
                       .scale_head_stride = kDim / 32,
                       .block_shape = *shape};
    bytes += static_cast<double>(kElements) / 32 / mx::block_rows(*shape);
  } else {
    params.dq = {pointer<std::uint16_t>(out), kHeads * kDim, kDim};
  }
  const device::Queue queue{bench.device, kernels, bench.stream.handle()};
  const auto timing = bench.time([&] { sm90::backward::finish_dq(queue, params); });
  io::Record record = bench.record(
      fmt::format("finish_dq_{}{}", dtype_name(dtype), shape ? "_mxfp8" : ""), bytes, timing);
  if (shape) record.variant.block_shape = block_shape_name(*shape);
  record.extra = {{"tokens", kTokens}, {"num_heads", kHeads}, {"seqlen", kSeqlen}};
  print(record, fmt::format("[{}, {}, 128] {}", kTokens, kHeads,
                            shape ? block_shape_name(*shape) : "bf16"));
  return record;
}

}  // namespace

void bench_dq(Bench& bench, std::vector<io::Record>& records) {
  if (bench.device.arch() != "sm_90a") return;
  for (const DqSums kind : {DqSums::kF32, DqSums::kF16}) {
    records.push_back(finish_dq(bench, kind, {}));
    records.push_back(finish_dq(bench, kind, BlockShape::k1x32));
    records.push_back(finish_dq(bench, kind, BlockShape::k32x32));
  }
}

}  // namespace mxfa::bench
