#include "kernels/sm100/forward/launch.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>

#include "core/check.h"
#include "device/ragged_map.h"
#include "device/tensor_map.h"
#include "mx/scale_layout.h"

namespace mxfa::sm100::forward {
namespace {

using core::expect;
using core::later;

/// K and V of so many bytes stay in L2 while the tiles of a section read them.
constexpr std::int64_t kSectionBytes = 48ll << 20;

void check_operand(const device::BlockScaledOperand& x, std::string_view name, int head_dim,
                   ScaleAxis axis) {
  expect(x.head_dim == head_dim, later("{}.head_dim", name), head_dim, x.head_dim);
  expect(x.axis == axis, later("{}.axis", name),
         axis == ScaleAxis::kHeadDim ? "head_dim" : "tokens",
         axis == ScaleAxis::kHeadDim ? "tokens" : "head_dim");
  expect(x.total >= 0 && x.total < (1ll << 30), later("{}.total", name), "0 .. 2^30 - 1 rows",
         x.total);
  expect(x.rows != nullptr || x.total == 0, later("{}.rows", name), "an address", "none");
  device::expect_map_strides(x.token_stride, x.head_stride, name, device::kRaggedStrideEnd);
  expect((x.atoms != nullptr || x.total == 0) &&
             reinterpret_cast<std::uintptr_t>(x.atoms) % 16 == 0 && x.head_bytes % 16 == 0,
         later("{}.atoms, head_bytes", name), "an address and stride on 16 bytes",
         later("{:#x}, {}", reinterpret_cast<std::uintptr_t>(x.atoms), x.head_bytes));
}

std::int32_t columns_of(const ForwardCall& call) {
  return call.columns == 0 ? call.q.head_dim : call.columns;
}

void check_mxfp8(const device::Mxfp8Rows& o) {
  expect(o.token_stride % 8 == 0 && o.head_stride % 8 == 0 && o.token_stride >= 0 &&
             o.head_stride >= 0 && reinterpret_cast<std::uintptr_t>(o.codes) % 8 == 0,
         "o_mxfp8.codes", "an address and strides on 8 bytes",
         later("{:#x}, {}, {}", reinterpret_cast<std::uintptr_t>(o.codes), o.token_stride,
               o.head_stride));
  expect(o.scales != nullptr, "o_mxfp8.scales", "an address", "none");
  if (o.block_shape == BlockShape::k1x32 || o.block_shape == BlockShape::k32x32) return;
  throw Error(ErrorKind::kUnsupported,
              fmt::format("o_mxfp8.block_shape: expected 1x32 or 32x32, got {}",
                          block_shape_name(o.block_shape)));
}

void check_output(const ForwardCall& call) {
  const std::int32_t head_dim = call.q.head_dim;
  const std::int32_t columns = columns_of(call);
  expect(call.lse != nullptr, "lse", "an address", "none");
  expect(columns % 8 == 0 && columns > 0 && columns <= head_dim, "columns",
         later("a multiple of 8 up to {}", head_dim), columns);
  if (call.o_mxfp8.codes != nullptr) {
    expect(call.o == nullptr, "o", "none beside o_mxfp8", "an address");
    return check_mxfp8(call.o_mxfp8);
  }
  device::expect_map_strides(2 * call.o_token_stride, 2 * call.o_head_stride, "o",
                             device::kRaggedStrideEnd);
  expect(call.o != nullptr && reinterpret_cast<std::uintptr_t>(call.o) % 16 == 0, "o",
         "an address on 16 bytes", call.o == nullptr ? "none" : "another");
}

void check_call(const ForwardCall& call) {
  const std::int32_t head_dim = call.q.head_dim;
  if (head_dim != 64 && head_dim != 128) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("q.head_dim: expected 64 or 128 (padded), got {}", head_dim));
  }
  check_operand(call.q, "q", head_dim, ScaleAxis::kHeadDim);
  check_operand(call.k, "k", head_dim, ScaleAxis::kHeadDim);
  check_operand(call.v, "v", head_dim, call.leak_free ? ScaleAxis::kHeadDim : ScaleAxis::kTokens);
  expect(!call.leak_free || call.p_scale == PScale::kConstant, "p_scale",
         "constant in leak-free form", "block scales");
  expect(call.k.num_heads > 0 && call.q.num_heads % call.k.num_heads == 0, "q.num_heads",
         later("a multiple of k.num_heads = {}", call.k.num_heads), call.q.num_heads);
  expect(call.v.num_heads == call.k.num_heads, "v.num_heads", call.k.num_heads, call.v.num_heads);
  expect(std::isfinite(call.softmax_scale) && call.softmax_scale > 0, "softmax_scale",
         "a finite number above 0", later("{}", call.softmax_scale));
  if (call.q.total > 0) check_output(call);
}

CUtensorMap rows_map(const driver::Device& device, const device::BlockScaledOperand& x) {
  return device::make_ragged_map(
      device,
      {.address = reinterpret_cast<std::uint64_t>(x.rows),
       .columns = static_cast<std::uint64_t>(x.head_dim),
       .heads = static_cast<std::uint64_t>(x.num_heads),
       .head_stride_bytes = static_cast<std::uint64_t>(x.head_stride),
       .row_stride_bytes = static_cast<std::uint64_t>(x.token_stride),
       .box_columns = static_cast<std::uint32_t>(x.head_dim),
       .box_rows = kTileM,
       .swizzle = x.head_dim == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B});
}

CUtensorMap out_map(const driver::Device& device, const ForwardCall& call) {
  return device::make_ragged_map(
      device, {.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
               .address = reinterpret_cast<std::uint64_t>(call.o),
               .columns = static_cast<std::uint64_t>(columns_of(call)),
               .heads = static_cast<std::uint64_t>(call.q.num_heads),
               .head_stride_bytes = static_cast<std::uint64_t>(call.o_head_stride) * 2,
               .row_stride_bytes = static_cast<std::uint64_t>(call.o_token_stride) * 2,
               .box_columns = 64,
               .box_rows = kTileM,
               .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

attention::TileShape tile_shape(const ForwardCall& call, std::int32_t batch) {
  attention::TileShape shape = {.mask = call.mask,
                                .num_heads = call.q.num_heads,
                                .num_heads_kv = call.k.num_heads,
                                .tile_m = kStreams * kTileM,
                                .tile_n = kTileN};
  shape.pairs_per_section = attention::forward_pairs_per_section(
      shape, batch, call.k.total, kSectionBytes, 2 * call.k.head_dim);
  return shape;
}

SideParams side_of(const device::BlockScaledOperand& x) {
  return {.atoms = x.atoms, .head_bytes = x.head_bytes, .offsets = x.offsets};
}

ForwardParams make_params(const device::Queue& queue, const ForwardCall& call) {
  ForwardParams params;
  params.batch = call.k.offsets.batch;
  params.shape = tile_shape(call, params.batch);
  params.q_map = rows_map(queue.device, call.q);
  params.k_map = rows_map(queue.device, call.k);
  params.v_map = rows_map(queue.device, call.v);
  if (call.o_mxfp8.codes == nullptr) params.o_map = out_map(queue.device, call);
  params.q = side_of(call.q);
  params.k = side_of(call.k);
  params.v = side_of(call.v);
  params.o_mxfp8 = call.o_mxfp8;
  params.columns = columns_of(call);
  params.lse = call.lse;
  params.row_max = call.row_max;
  params.lse_head_stride = call.lse_head_stride;
  params.broadcast_q = call.broadcast_q;
  params.seqlen_q = call.q.offsets.seqlen;
  params.seqlen_k = call.k.offsets.seqlen;
  params.scale_log2 = static_cast<float>(call.softmax_scale * std::numbers::log2e);
  return params;
}

/// Lengths on the device: the plan is made there, in the workspace, before the kernel.
void plan_jagged(const device::Queue& queue, const ForwardCall& call, ForwardParams& params) {
  const device::JaggedWork work =
      device::plan_jagged(queue, params.shape,
                          {.q = call.q.offsets,
                           .k = call.k.offsets,
                           .broadcast_q = call.broadcast_q,
                           .workspace = call.workspace,
                           .workspace_bytes = forward_workspace_bytes(params.batch),
                           .phase = call.phase});
  params.seqlens = work.seqlens;
  params.counter = work.counter;
  params.plan = work.plan;
}

std::string_view entry_name(const ForwardCall& call) {
  if (call.leak_free) return "leak_free";
  switch (call.p_scale) {
    case PScale::kConstant:
      return "constant";
    case PScale::kBlockAmax:
      return "amax";
    case PScale::kBlockRowMax:
      return "row_max";
  }
  throw Error(ErrorKind::kInvalidArgument, "p_scale: not one of its values");
}

template <PScale kScale, bool kLeakFree = false>
unsigned smem_bytes(int head_dim) {
  return head_dim == 128 ? sizeof(SmemPlan<Config<128, kScale, kLeakFree>>)
                         : sizeof(SmemPlan<Config<64, kScale, kLeakFree>>);
}
unsigned smem_bytes(const ForwardCall& call) {
  if (call.leak_free) return smem_bytes<PScale::kConstant, true>(call.q.head_dim);
  return call.p_scale == PScale::kConstant ? smem_bytes<PScale::kConstant>(call.q.head_dim)
                                           : smem_bytes<PScale::kBlockAmax>(call.q.head_dim);
}

void launch(const device::Queue& queue, const ForwardCall& call, std::string_view module,
            const Probe& probe) {
  check_call(call);
  if (call.q.total == 0 || call.k.offsets.batch == 0) return;
  ForwardParams params = make_params(queue, call);
  params.probe = probe;
  if (!call.broadcast_q) {
    expect(call.q.offsets.batch == params.batch, "q.offsets.batch", params.batch,
           call.q.offsets.batch);
  }
  const bool dense = params.seqlen_q >= 0 && params.seqlen_k >= 0;
  const std::int64_t rows = call.broadcast_q ? call.q.total * params.batch : call.q.total;
  std::int64_t tiles = attention::most_tiles(params.shape, rows, params.batch);
  expect(tiles < (1ll << 31) && rows < (1ll << 30), "q",
         "fewer than 2^30 rows and 2^31 tiles of 256 rows", later("{}, {}", rows, tiles));
  if (dense) {
    tiles = std::int64_t{params.batch} * call.q.num_heads * params.shape.m_blocks(params.seqlen_q);
  }
  if (tiles == 0) return;
  if (!dense) plan_jagged(queue, call, params);
  if (call.phase == device::Phase::kPlan) return;
  driver::LaunchShape shape;
  const int ctas = queue.device.multiprocessors();
  shape.grid[0] = static_cast<unsigned>(std::min<std::int64_t>(ctas, tiles));
  shape.block[0] = kThreads;
  shape.dynamic_smem_bytes = smem_bytes(call);
  const std::string name = fmt::format("{}_d{}_{}", module, call.q.head_dim, entry_name(call));
  queue.kernels.get(module, name, {.dynamic_smem_bytes = shape.dynamic_smem_bytes})
      .launch(queue.stream, shape, params);
}

}  // namespace

std::int64_t forward_workspace_bytes(std::int32_t batch) {
  return device::jagged_work_elems(batch) * static_cast<std::int64_t>(sizeof(std::int32_t));
}

void attention_forward(const device::Queue& queue, const ForwardCall& call) {
  launch(queue, call, "attention_forward", {});
}

void attention_forward_probed(const device::Queue& queue, const ForwardCall& call,
                              const Probe& probe) {
  launch(queue, call, "attention_forward_probe", probe);
}

}  // namespace mxfa::sm100::forward
