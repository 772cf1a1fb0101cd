#include "kernels/sm90/forward/launch.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "core/check.h"
#include "kernels/sm90/common/operand_maps.h"
#include "kernels/sm90/forward/params.h"
#include "mx/scale_layout.h"

namespace mxfa::sm90::forward {
namespace {

using core::expect;
using core::text;

/// K and V of so many bytes stay in L2 while the tiles of a section read them.
constexpr std::int64_t kSectionBytes = 24ll << 20;

/// Whose parts are largest.
using Wide = Config<128, Scores::kF32>;
/// A divided round gives a CTA at least so many key blocks: fewer cost more than they save.
constexpr std::int64_t kLeastShare = 4;

int multiprocessors(const driver::Device& device) {
  return device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
}
std::int64_t arrivals_bytes(std::int64_t ctas) {
  return mx::ceil_div(ctas * Wide::kConsumers * 4, 256) * 256;
}

void check_rows(const device::AttentionOperand& x, std::string_view name) {
  expect(x.rows != nullptr || x.total == 0, fmt::format("{}.rows", name), "an address", "none");
  expect(x.token_stride % 16 == 0 && x.head_stride % 16 == 0 && x.token_stride >= 0,
         fmt::format("{}.token_stride, head_stride", name), "multiples of 16",
         fmt::format("{}, {}", x.token_stride, x.head_stride));
}

void check_operand(const device::AttentionOperand& x, std::string_view name, int head_dim) {
  expect(x.head_dim == head_dim, fmt::format("{}.head_dim", name), fmt::format("{}", head_dim),
         text(x.head_dim));
  if (x.block_shape != BlockShape::k32xD) {
    throw Error(ErrorKind::kUnsupported, fmt::format("{}.block_shape: expected 32xD, got {}", name,
                                                     block_shape_name(x.block_shape)));
  }
  expect(x.scales.data != nullptr || x.total == 0, fmt::format("{}.scales", name), "an address",
         "none");
  expect(x.total >= 0, fmt::format("{}.total", name), "at least 0", text(x.total));
}

void refuse(bool given, std::string_view name) {
  if (given) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}: expected none, this kernel does not have it; got one", name));
  }
}

void check_call(const ForwardCall& call) {
  refuse(call.q_bf16.data != nullptr || call.k_bf16.data != nullptr, "q_bf16, k_bf16");
  refuse(call.o_mxfp8.codes != nullptr, "o_mxfp8");
  refuse(call.o_batch_stride != 0, "o_batch_stride");
  const std::int32_t head_dim = call.q.head_dim;
  if (head_dim != 64 && head_dim != 128) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("q.head_dim: expected 64 or 128 (padded), got {}", head_dim));
  }
  check_operand(call.q, "q", head_dim);
  check_operand(call.k, "k", head_dim);
  check_operand(call.v, "v", head_dim);
  check_rows(call.q, "q");
  check_rows(call.k, "k");
  expect(call.scores == Scores::kF32 ||
             (call.q.lowered >= device::kLoweredQ && call.k.lowered >= device::kLoweredK),
         "q.lowered, k.lowered",
         fmt::format("at least {} and {}, where scores are half", device::kLoweredQ,
                     device::kLoweredK),
         fmt::format("{}, {}", call.q.lowered, call.k.lowered));
  expect(call.v.transposed != nullptr || call.v.total == 0, "v.transposed", "an address", "none");
  expect(call.v.order == device::TokenOrder::kPi, "v.order", "pi", "another");
  expect(call.v.pitch % 128 == 0, "v.pitch", "a multiple of 128", text(call.v.pitch));
  expect(call.k.num_heads > 0 && call.q.num_heads % call.k.num_heads == 0, "q.num_heads",
         fmt::format("a multiple of k.num_heads = {}", call.k.num_heads), text(call.q.num_heads));
  expect(call.v.num_heads == call.k.num_heads, "v.num_heads", text(call.k.num_heads),
         text(call.v.num_heads));
  expect(std::isfinite(call.softmax_scale) && call.softmax_scale > 0, "softmax_scale",
         "a finite number above 0", fmt::format("{}", call.softmax_scale));
  const std::int32_t columns = call.columns == 0 ? head_dim : call.columns;
  expect(columns % 8 == 0 && columns > 0 && columns <= head_dim, "columns",
         fmt::format("a multiple of 8 up to {}", head_dim), text(columns));
  expect(call.o_token_stride % 2 == 0 && call.o_head_stride % 2 == 0,
         "o_token_stride, o_head_stride", "even",
         fmt::format("{}, {}", call.o_token_stride, call.o_head_stride));
  expect(call.o != nullptr && reinterpret_cast<std::uintptr_t>(call.o) % 4 == 0, "o",
         "an address on 4 bytes", call.o == nullptr ? "none" : "another");
  expect(call.lse != nullptr, "lse", "an address", "none");
}

attention::TileShape tile_shape(const ForwardCall& call, std::int32_t batch) {
  const std::int64_t mean = batch > 0 ? call.k.total / batch : 0;
  // Costs fall from tile to tile under a causal mask: sections would bring costly ones last.
  const std::int32_t pairs =
      call.mask.causal ? batch * call.k.num_heads
                       : attention::kv_heads_per_section(kSectionBytes, mean, 2 * call.k.head_dim);
  return {.mask = call.mask,
          .num_heads = call.q.num_heads,
          .num_heads_kv = call.k.num_heads,
          .tile_m = Config<128, Scores::kF32>::kTileM,
          .tile_n = Config<128, Scores::kF32>::kTileN,
          .pairs_per_section = pairs > 0 ? pairs : 1};
}

/// Lengths on the device: the plan is made there, in the workspace, before the kernel.
void plan_jagged(const device::Queue& queue, const ForwardCall& call, ForwardParams& params) {
  const bool cu_q = call.broadcast_q || call.q.offsets.cu_seqlens != nullptr;
  expect(cu_q, "q.offsets", "cu_seqlens, as k has", "dense sequences");
  expect(!call.broadcast_q || call.q.offsets.seqlen >= 0, "q.offsets",
         "one dense sequence where q is broadcast", "cu_seqlens");
  expect(call.k.offsets.cu_seqlens != nullptr, "k.offsets", "cu_seqlens, as q has",
         "dense sequences");
  expect(call.workspace != nullptr, "workspace",
         fmt::format("{} bytes", forward_workspace_bytes(queue.device, params.batch)), "none");
  params.seqlens = {.cu_seqlens_q = call.broadcast_q ? nullptr : call.q.offsets.cu_seqlens,
                    .cu_seqlens_k = call.k.offsets.cu_seqlens,
                    .broadcast_seqlen_q = call.broadcast_q ? call.q.offsets.seqlen : 0};
  auto* const memory = static_cast<std::int32_t*>(call.workspace);
  params.counter = memory;
  params.plan = attention::plan_in(memory + 2, params.batch);
  device::tile_plan(queue, {.shape = params.shape,
                            .seqlens = params.seqlens,
                            .batch = params.batch,
                            .plan = memory + 2,
                            .counter = memory});
}

ForwardParams make_params(const device::Queue& queue, const ForwardCall& call) {
  // Straight into the members: a compiler's temporary need not have their alignment.
  ForwardParams params = {.q_map = rows_map(queue.device, call.q, 64),
                          .k_map = rows_map(queue.device, call.k, 128),
                          .v_map = transposed_map(queue.device, call.v, 128)};
  params.batch = call.k.offsets.batch;
  params.shape = tile_shape(call, params.batch);
  params.q = {call.q.scales, call.q.offsets};
  params.k = {call.k.scales, call.k.offsets};
  params.v_scales = call.v.scales;
  params.o = call.o;
  params.o_token_stride = call.o_token_stride;
  params.o_head_stride = call.o_head_stride;
  params.o_aligned = (reinterpret_cast<std::uintptr_t>(call.o) % 16 == 0) &&
                     call.o_token_stride % 8 == 0 && call.o_head_stride % 8 == 0;
  params.lse = call.lse;
  params.row_max = call.row_max;
  params.lse_head_stride = call.lse_head_stride;
  params.columns = call.columns == 0 ? call.q.head_dim : call.columns;
  params.broadcast_q = call.broadcast_q;
  params.seqlen_q = call.q.offsets.seqlen;
  params.seqlen_k = call.k.offsets.seqlen;
  params.scale_log2 = static_cast<float>(call.softmax_scale * 1.4426950408889634);
  return params;
}

/// CTAs of a dense call, and whether they share its last round: where every tile has all the keys.
unsigned plan_dense(const device::Queue& queue, const ForwardCall& call, std::int64_t tiles,
                    ForwardParams& params) {
  const attention::Mask& mask = call.mask;
  const std::int64_t blocks = mx::ceil_div(params.seqlen_k, std::int64_t{Wide::kTileN});
  const bool whole = !mask.causal && mask.window_left < 0 && mask.window_right < 0;
  const std::int64_t limit = multiprocessors(queue.device);
  const std::int64_t ctas =
      std::min(limit, std::max(tiles, whole ? tiles * blocks / kLeastShare : 0));
  const std::int64_t share = tiles % ctas * blocks / ctas;
  if (!whole || share < kLeastShare || call.workspace == nullptr) {
    return static_cast<unsigned>(std::min(limit, tiles));
  }
  auto* const memory = static_cast<std::byte*>(call.workspace);
  params.arrivals = reinterpret_cast<std::int32_t*>(memory);
  params.partials = reinterpret_cast<float*>(memory + arrivals_bytes(limit));
  const driver::CurrentDevice current(queue.device);
  queue.device.driver().check(
      queue.device.calls().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory), 0,
                                           arrivals_bytes(limit), queue.stream),
      "cuMemsetD8Async");
  return static_cast<unsigned>(ctas);
}

template <int kHeadDim>
unsigned smem_bytes(Scores scores) {
  return scores == Scores::kF16 ? sizeof(SmemPlan<Config<kHeadDim, Scores::kF16>>)
                                : sizeof(SmemPlan<Config<kHeadDim, Scores::kF32>>);
}

}  // namespace

std::int64_t forward_workspace_bytes(const driver::Device& device, std::int32_t batch) {
  const std::int64_t plan =
      (attention::plan_elems(batch) + 2) * static_cast<std::int64_t>(sizeof(std::int32_t));
  const std::int64_t ctas = multiprocessors(device);
  return std::max(plan, arrivals_bytes(ctas) + 2 * ctas * Wide::kConsumers * kPartBytes<Wide>);
}

void attention_forward(const device::Queue& queue, const ForwardCall& call) {
  check_call(call);
  ForwardParams params = make_params(queue, call);
  if (!call.broadcast_q) {
    expect(call.q.offsets.batch == params.batch, "q.offsets.batch", text(params.batch),
           text(call.q.offsets.batch));
  }
  const bool dense = params.seqlen_q >= 0 && params.seqlen_k >= 0;
  const std::int64_t rows = call.broadcast_q ? call.q.total * params.batch : call.q.total;
  const std::int64_t tiles = attention::most_tiles(params.shape, rows, params.batch);
  expect(tiles < (1ll << 31), "q", "fewer than 2^31 tiles of 192 rows", text(tiles));
  if (tiles == 0 || params.batch == 0) return;
  driver::LaunchShape shape;
  if (dense) {
    const std::int64_t all =
        std::int64_t{params.batch} * call.q.num_heads * params.shape.m_blocks(params.seqlen_q);
    if (all == 0) return;
    shape.grid[0] = plan_dense(queue, call, all, params);
  } else {
    plan_jagged(queue, call, params);
    shape.grid[0] =
        static_cast<unsigned>(std::min<std::int64_t>(multiprocessors(queue.device), tiles));
  }
  shape.block[0] = Config<128, Scores::kF32>::kThreads;
  shape.dynamic_smem_bytes =
      call.q.head_dim == 128 ? smem_bytes<128>(call.scores) : smem_bytes<64>(call.scores);
  const std::string name = fmt::format("attention_forward_d{}_{}", call.q.head_dim,
                                       call.scores == Scores::kF16 ? "f16" : "f32");
  queue.kernels.get("attention_forward", name, {.dynamic_smem_bytes = shape.dynamic_smem_bytes})
      .launch(queue.stream, shape, params);
}

}  // namespace mxfa::sm90::forward
