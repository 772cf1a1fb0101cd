#include "kernels/sm90/forward/launch.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>

#include "core/check.h"
#include "kernels/sm90/common/operand_maps.h"
#include "kernels/sm90/forward/params.h"
#include "mx/scale_layout.h"

namespace mxfa::sm90::forward {
namespace {

using core::expect;
using core::later;

/// K and V of so many bytes stay in L2 while the tiles of a section read them.
constexpr std::int64_t kSectionBytes = 24ll << 20;

/// Whose parts are largest, and most.
using Wide = Config<128, Scores::kF16>;
/// A divided round gives a CTA at least so many key blocks: fewer cost more than they save.
constexpr std::int32_t kLeastShare = 4;

std::int64_t arrivals_bytes(std::int64_t ctas) {
  return mx::ceil_div(ctas * Wide::kConsumers * 4, 256) * 256;
}

/// Of a workspace: what comes before folded sums, the plan of a jagged call or what a divided round
/// needs.
std::int64_t folded_offset(const driver::Device& device, std::int32_t batch) {
  const std::int64_t plan =
      device::jagged_work_elems(batch) * static_cast<std::int64_t>(sizeof(std::int32_t));
  const std::int64_t ctas = device.multiprocessors();
  const std::int64_t most =
      std::max(plan, arrivals_bytes(ctas) + 2 * ctas * Wide::kConsumers * kPartBytes<Wide>);
  return mx::ceil_div(most, std::int64_t{256}) * 256;
}

bool leak_free(const ForwardCall& call) { return call.v.block_shape == BlockShape::k1xD; }
bool bf16_product(const ForwardCall& call) {
  return call.q_bf16.data != nullptr || call.k_bf16.data != nullptr;
}
/// All kinds but FP32 scores of payload in 32xD blocks.
bool half_sums(const ForwardCall& call) {
  return call.scores == Scores::kF16 || leak_free(call) || bf16_product(call);
}
/// What the host must know of a kernel.
struct Kernel {
  std::string_view entry;
  unsigned smem_bytes = 0;
  unsigned threads = 0;
  std::int32_t tile_m = 0;

  template <class Config>
  static Kernel of(std::string_view entry) {
    return {entry, sizeof(SmemPlan<Config>), Config::kThreads, Config::kTileM};
  }
};
template <int kHeadDim>
Kernel kernel_of(const ForwardCall& call) {
  using enum Product;
  constexpr bool kWide = kHeadDim == 128;
  const bool half = call.scores == Scores::kF16;
  if (leak_free(call) && half) {
    return Kernel::of<Config<kHeadDim, Scores::kF16, kTokenScales>>(
        kWide ? "attention_forward_d128_tokens_f16" : "attention_forward_d64_tokens_f16");
  }
  if (leak_free(call)) {
    return Kernel::of<Config<kHeadDim, Scores::kF32, kTokenScales>>(
        kWide ? "attention_forward_d128_tokens" : "attention_forward_d64_tokens");
  }
  if (bf16_product(call)) {
    return Kernel::of<Config<kHeadDim, Scores::kF32, kBf16>>(kWide ? "attention_forward_d128_bf16"
                                                                   : "attention_forward_d64_bf16");
  }
  if (half) {
    return Kernel::of<Config<kHeadDim, Scores::kF16>>(kWide ? "attention_forward_d128_f16"
                                                            : "attention_forward_d64_f16");
  }
  return Kernel::of<Config<kHeadDim, Scores::kF32>>(kWide ? "attention_forward_d128_f32"
                                                          : "attention_forward_d64_f32");
}
Kernel kernel_of(const ForwardCall& call) {
  return call.q.head_dim == 128 ? kernel_of<128>(call) : kernel_of<64>(call);
}

std::int32_t columns_of(const ForwardCall& call) {
  return call.columns == 0 ? call.q.head_dim : call.columns;
}

void check_address(const void* address, std::size_t alignment, std::string_view name) {
  expect(address != nullptr && reinterpret_cast<std::uintptr_t>(address) % alignment == 0, name,
         later("an address on {} bytes", alignment), address == nullptr ? "none" : "another");
}

void check_scales(const device::AttentionOperand& x, std::string_view name, BlockShape shape) {
  if (x.block_shape != shape) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}.block_shape: expected {}, got {}", name, block_shape_name(shape),
                            block_shape_name(x.block_shape)));
  }
  expect(x.scales.data != nullptr || x.total == 0, later("{}.scales", name), "an address", "none");
}

void check_rows(const device::AttentionOperand& x, std::string_view name, BlockShape shape) {
  check_scales(x, name, shape);
  expect(x.rows != nullptr || x.total == 0, later("{}.rows", name), "an address", "none");
  device::expect_map_strides(x.token_stride, x.head_stride, name);
}

void check_sizes(const device::AttentionOperand& x, std::string_view name, int head_dim) {
  expect(x.head_dim == head_dim, later("{}.head_dim", name), head_dim, x.head_dim);
  expect(x.total >= 0, later("{}.total", name), "at least 0", x.total);
}

void check_operands(const ForwardCall& call) {
  const std::int32_t head_dim = call.q.head_dim;
  if (head_dim != 64 && head_dim != 128) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("q.head_dim: expected 64 or 128 (padded), got {}", head_dim));
  }
  check_sizes(call.q, "q", head_dim);
  check_sizes(call.k, "k", head_dim);
  check_sizes(call.v, "v", head_dim);
  const BlockShape shape = leak_free(call) ? BlockShape::k1xD : BlockShape::k32xD;
  check_scales(call.v, "v", shape);
  expect(call.v.transposed != nullptr || call.v.total == 0, "v.transposed", "an address", "none");
  expect(call.v.order == device::TokenOrder::kPi, "v.order", "pi", "another");
  if (bf16_product(call)) {
    check_bf16_rows(call.q_bf16, "q_bf16");
    check_bf16_rows(call.k_bf16, "k_bf16");
  } else {
    check_rows(call.q, "q", shape);
    check_rows(call.k, "k", shape);
  }
  expect(call.k.num_heads > 0 && call.q.num_heads % call.k.num_heads == 0, "q.num_heads",
         later("a multiple of k.num_heads = {}", call.k.num_heads), call.q.num_heads);
  expect(call.v.num_heads == call.k.num_heads, "v.num_heads", call.k.num_heads, call.v.num_heads);
}

void check_scores(const ForwardCall& call) {
  if (leak_free(call) && bf16_product(call)) {
    throw Error(ErrorKind::kUnsupported, "v.block_shape: expected 32xD beside q_bf16, got 1xD");
  }
  if (call.scores == Scores::kF16) {
    if (bf16_product(call)) {
      throw Error(ErrorKind::kUnsupported, "scores: expected FP32 with Q and K in BF16, got half");
    }
    expect(call.q.lowered >= device::kLoweredQ && call.k.lowered >= device::kLoweredK,
           "q.lowered, k.lowered",
           later("at least {} and {}, where scores are half", device::kLoweredQ, device::kLoweredK),
           later("{}, {}", call.q.lowered, call.k.lowered));
  }
  expect(call.v.half_sums || !half_sums(call), "v.half_sums",
         "true but with FP32 scores of payload in 32xD blocks", "false");
  expect(std::isfinite(call.softmax_scale) && call.softmax_scale > 0, "softmax_scale",
         "a finite number above 0", later("{}", call.softmax_scale));
}

void check_outputs(const ForwardCall& call) {
  const std::int32_t columns = columns_of(call);
  expect(columns % 8 == 0 && columns > 0 && columns <= call.q.head_dim, "columns",
         later("a multiple of 8 up to {}", call.q.head_dim), columns);
  expect(call.lse != nullptr, "lse", "an address", "none");
  const device::Mxfp8Rows& o = call.o_mxfp8;
  if (o.codes == nullptr) {
    expect(
        call.o_token_stride % 2 == 0 && call.o_head_stride % 2 == 0 && call.o_batch_stride % 2 == 0,
        "o_token_stride, o_head_stride, o_batch_stride", "even",
        later("{}, {}, {}", call.o_token_stride, call.o_head_stride, call.o_batch_stride));
    check_address(call.o, 4, "o");
    return;
  }
  expect(call.o == nullptr, "o", "none beside o_mxfp8", "an address");
  check_address(o.codes, 2, "o_mxfp8.codes");
  check_address(o.scales, 1, "o_mxfp8.scales");
  expect(o.token_stride % 2 == 0 && o.head_stride % 2 == 0, "o_mxfp8.token_stride, head_stride",
         "even", later("{}, {}", o.token_stride, o.head_stride));
  if (o.block_shape != BlockShape::k1x32 && o.block_shape != BlockShape::k32x32) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("o_mxfp8.block_shape: expected 1x32 or 32x32, got {}",
                            block_shape_name(o.block_shape)));
  }
}

void check_call(const ForwardCall& call) {
  check_operands(call);
  check_scores(call);
  if (call.q.total > 0) check_outputs(call);
}

attention::TileShape tile_shape(const ForwardCall& call, std::int32_t batch) {
  attention::TileShape shape = {.mask = call.mask,
                                .num_heads = call.q.num_heads,
                                .num_heads_kv = call.k.num_heads,
                                .tile_m = kernel_of(call).tile_m,
                                .tile_n = Wide::kTileN};
  shape.pairs_per_section = attention::forward_pairs_per_section(
      shape, batch, call.k.total, kSectionBytes, 2 * call.k.head_dim);
  return shape;
}

/// Lengths on the device: the plan is made there, in the workspace, before the kernel.
void plan_jagged(const device::Queue& queue, const ForwardCall& call, ForwardParams& params) {
  const device::JaggedWork work =
      device::plan_jagged(queue, params.shape,
                          {.q = call.q.offsets,
                           .k = call.k.offsets,
                           .broadcast_q = call.broadcast_q,
                           .workspace = call.workspace,
                           .workspace_bytes = folded_offset(queue.device, params.batch),
                           .phase = call.phase});
  params.seqlens = work.seqlens;
  params.counter = work.counter;
  params.plan = work.plan;
}

ForwardParams make_params(const device::Queue& queue, const ForwardCall& call) {
  const bool bf16 = bf16_product(call);
  const auto rows = [&](const device::AttentionOperand& x, const Bf16Rows& wide,
                        std::uint32_t tokens) {
    return bf16 ? bf16_rows_map(queue.device, wide, x, columns_of(call), tokens)
                : rows_map(queue.device, x, tokens);
  };
  // Straight into the members: a compiler's temporary need not have their alignment.
  ForwardParams params = {.q_map = rows(call.q, call.q_bf16, 64),
                          .k_map = rows(call.k, call.k_bf16, 128),
                          .v_map = value_map(queue.device, call.v)};
  params.batch = call.k.offsets.batch;
  params.shape = tile_shape(call, params.batch);
  params.q = {call.q.scales, call.q.offsets};
  params.k = {call.k.scales, call.k.offsets};
  params.v_scales = call.v.scales;
  params.o = call.o;
  params.o_token_stride = call.o_token_stride;
  params.o_head_stride = call.o_head_stride;
  params.o_batch_stride =
      call.o_batch_stride != 0 ? call.o_batch_stride : call.q.offsets.seqlen * call.o_token_stride;
  params.o_aligned = reinterpret_cast<std::uintptr_t>(call.o) % 16 == 0 &&
                     call.o_token_stride % 8 == 0 && call.o_head_stride % 8 == 0 &&
                     params.o_batch_stride % 8 == 0;
  params.o_mxfp8 = call.o_mxfp8;
  params.lse = call.lse;
  params.row_max = call.row_max;
  params.lse_head_stride = call.lse_head_stride;
  params.columns = columns_of(call);
  params.broadcast_q = call.broadcast_q;
  params.seqlen_q = call.q.offsets.seqlen;
  params.seqlen_k = call.k.offsets.seqlen;
  params.scale_log2 = static_cast<float>(call.softmax_scale * std::numbers::log2e);
  params.behind = call.behind;
  return params;
}

/// How `ctas` CTAs share a dense call in which every tile has all the keys. Warpgroups without rows
/// leave the tensor cores to the others, whose softmax takes as long as before: on an H200 a block
/// of one of three costs 0.61 of a whole one, of two 0.77.
attention::SplitTail split_tail(const ForwardParams& params, std::int64_t ctas) {
  const attention::TileShape& shape = params.shape;
  const std::int64_t heads = std::int64_t{params.batch} * shape.num_heads;
  const std::int64_t last_rows = params.seqlen_q % shape.tile_m;
  const auto warpgroups = static_cast<std::int32_t>(mx::ceil_div(last_rows, std::int64_t{64}));
  const std::int32_t all = shape.tile_m / 64;
  const bool has_short = warpgroups > 0 && warpgroups < all;
  const std::int64_t m_blocks = shape.m_blocks(params.seqlen_q) - (has_short ? 1 : 0);
  return {.ctas = static_cast<std::int32_t>(ctas),
          .tiles = static_cast<std::int32_t>(heads * m_blocks),
          .short_tiles = static_cast<std::int32_t>(has_short ? heads : 0),
          .blocks =
              static_cast<std::int32_t>(mx::ceil_div(params.seqlen_k, std::int64_t{Wide::kTileN})),
          .cost = all + 2,
          .short_cost = warpgroups + 2};
}

/// CTAs of a dense call, and whether they share its last round: where every tile has all the keys.
unsigned plan_dense(const device::Queue& queue, const ForwardCall& call, std::int64_t tiles,
                    ForwardParams& params) {
  const attention::Mask& mask = call.mask;
  const bool whole =
      !mask.causal && mask.window_left < 0 && mask.window_right < 0 && !leak_free(call);
  const std::int64_t limit = queue.device.multiprocessors();
  const unsigned undivided = static_cast<unsigned>(std::min(limit, tiles));
  if (!whole || call.workspace == nullptr) return undivided;
  attention::SplitTail tail = split_tail(params, limit);
  const std::int64_t ctas = std::min(limit, std::max(tiles, tail.most_ctas(kLeastShare)));
  tail.ctas = static_cast<std::int32_t>(ctas);
  if (!tail.gives(kLeastShare)) return undivided;
  auto* const memory = static_cast<std::byte*>(call.workspace);
  params.tail = tail;
  params.arrivals = reinterpret_cast<unsigned*>(memory);
  params.partials = reinterpret_cast<float*>(memory + arrivals_bytes(limit));
  if (call.phase == device::Phase::kAttend) return static_cast<unsigned>(ctas);
  driver::fill_async(queue.device, memory, 0, static_cast<std::size_t>(arrivals_bytes(limit)),
                     queue.stream);
  return static_cast<unsigned>(ctas);
}

/// Where tiles may have more key blocks than are summed in half.
void place_folded_sums(const device::Queue& queue, const ForwardCall& call, ForwardParams& params) {
  constexpr std::int64_t kKeys = std::int64_t{kFirstSegment} * Wide::kTileN;
  const bool few = params.seqlen_k >= 0 && params.seqlen_k <= kKeys;
  if (few || !half_sums(call)) return;
  check_address(call.workspace, 16, "workspace");
  params.folded =
      static_cast<std::byte*>(call.workspace) + folded_offset(queue.device, params.batch);
}

}  // namespace

std::int64_t forward_workspace_bytes(const driver::Device& device, std::int32_t batch) {
  return folded_offset(device, batch) +
         device.multiprocessors() * Wide::kConsumers * kMostFolds * kFoldedBytes<Wide>;
}

void attention_forward(const device::Queue& queue, const ForwardCall& call) {
  check_call(call);
  ForwardParams params = make_params(queue, call);
  if (!call.broadcast_q) {
    expect(call.q.offsets.batch == params.batch, "q.offsets.batch", params.batch,
           call.q.offsets.batch);
  }
  const bool dense = params.seqlen_q >= 0 && params.seqlen_k >= 0;
  const std::int64_t rows = call.broadcast_q ? call.q.total * params.batch : call.q.total;
  const std::int64_t tiles = attention::most_tiles(params.shape, rows, params.batch);
  expect(tiles < (1ll << 31), "q", later("fewer than 2^31 tiles of {} rows", params.shape.tile_m),
         tiles);
  if (tiles == 0 || params.batch == 0) {
    return call.phase == device::Phase::kPlan ? void() : device::clear_behind(queue, call.behind);
  }
  driver::LaunchShape shape;
  if (dense) {
    const std::int64_t all =
        std::int64_t{params.batch} * call.q.num_heads * params.shape.m_blocks(params.seqlen_q);
    if (all == 0) return;
    shape.grid[0] = plan_dense(queue, call, all, params);
  } else {
    plan_jagged(queue, call, params);
    shape.grid[0] =
        static_cast<unsigned>(std::min<std::int64_t>(queue.device.multiprocessors(), tiles));
  }
  if (call.phase == device::Phase::kPlan) return;
  place_folded_sums(queue, call, params);
  const Kernel kernel = kernel_of(call);
  shape.block[0] = kernel.threads;
  shape.dynamic_smem_bytes = kernel.smem_bytes;
  shape.programmatic_launch = true;
  queue.kernels
      .get("attention_forward", kernel.entry, {.dynamic_smem_bytes = shape.dynamic_smem_bytes})
      .launch(queue.stream, shape, params);
}

}  // namespace mxfa::sm90::forward
