#include "kernels/sm90/backward/launch.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <string>
#include <string_view>

#include "attention/problem.h"
#include "core/arena.h"
#include "core/check.h"
#include "kernels/sm90/common/operand_maps.h"
#include "mx/scale_layout.h"

namespace mxfa::sm90::backward {
namespace {

using core::expect;
using core::later;
using device::AttentionOperand;

constexpr int kRowsThreads = 256;

/// Tiles of 64 rows of a side, at most.
std::int64_t row_tiles(std::int64_t total, std::int32_t batch) {
  return 2 * mx::max_tiles(total, batch);
}

bool tokens(const BackwardCall& call) { return call.product == Product::kTokenScales; }

/// What of a kernel's Config its operands and its launch depend on.
struct TileShape {
  std::int32_t keys;   ///< of a tile
  std::int32_t panel;  ///< side by side in K^T
  std::int32_t threads;
};
template <class Config>
constexpr TileShape kTileShape = {Config::kTileN, Config::kPanel, Config::kThreads};
TileShape tile_shape(const BackwardCall& call) {
  return call.scores == Scores::kF16 ? kTileShape<Config<128, DqSums::kF32, true, Scores::kF16>>
                                     : kTileShape<Config<128, DqSums::kF32, true>>;
}

/// The workspace, in the order in which it is cleared: zeros first.
struct Workspace {
  std::int32_t* counter;
  std::int32_t* dq_turns = nullptr;
  std::uint8_t* dq_sums;
  std::int64_t zero_bytes;  ///< of these, a multiple of 16
  std::int32_t* anchors;
  float* delta;
  float* dout_sums = nullptr;
  StreamTable* streams = nullptr;
  void* records;  ///< of the kind that the scores have
  float* scratch;

  Workspace(core::Arena& arena, const driver::Device& device, const BackwardCall& call) {
    const std::int64_t heads = call.q.num_heads, dim = call.q.head_dim;
    counter = arena.take<std::int32_t>(64);
    if (call.deterministic) {
      dq_turns = arena.take<std::int32_t>(row_tiles(call.q.total, call.q.offsets.batch) * heads);
    }
    dq_sums = arena.take<std::uint8_t>(row_tiles(call.q.total, call.q.offsets.batch) * heads *
                                       dq_tile_bytes(dim, call.dq_sums));
    zero_bytes = arena.used();
    if (call.deterministic) streams = arena.take<StreamTable>(1);
    const std::int64_t tiles = row_tiles(call.dout.total, call.dout.offsets.batch) * heads;
    anchors = arena.take<std::int32_t>(tiles);
    delta = arena.take<float>(heads * call.dout.total);
    if (call.scores == Scores::kF16) dout_sums = arena.take<float>(heads * call.dout.total);
    records = call.scores == Scores::kF16 ? static_cast<void*>(arena.take<HalfRowRecord>(tiles))
              : tokens(call)              ? static_cast<void*>(arena.take<TokenRowRecord>(tiles))
                                          : arena.take<RowRecord>(tiles);
    scratch =
        arena.take<float>(device.multiprocessors() * std::int64_t{2} * tile_shape(call).keys * dim);
  }
};

/// What is read of an operand.
struct Copies {
  bool rows = true;
  bool transposed = true;
  device::TokenOrder order = device::TokenOrder::kPi;
  BlockShape block_shape = BlockShape::k32xD;
};

void check_operand(const AttentionOperand& x, std::string_view name, int head_dim,
                   const Copies& copies) {
  expect(x.head_dim == head_dim, later("{}.head_dim", name), head_dim, x.head_dim);
  if (x.block_shape != copies.block_shape) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}.block_shape: expected {}, got {}", name,
                            block_shape_name(copies.block_shape), block_shape_name(x.block_shape)));
  }
  const bool empty = x.total == 0;
  expect(x.total >= 0, later("{}.total", name), "at least 0", x.total);
  expect(empty || x.scales.data != nullptr || !(copies.rows || copies.transposed),
         later("{}.scales", name), "an address", "none");
  expect(empty || x.rows != nullptr || !copies.rows, later("{}.rows", name), "an address", "none");
  device::expect_map_strides(x.token_stride, x.head_stride, name);
  if (!copies.transposed) return;
  expect(empty || x.transposed != nullptr, later("{}.transposed", name), "an address", "none");
  expect(x.order == copies.order, later("{}.order", name),
         copies.order == device::TokenOrder::kPi ? "pi" : "sigma", "another");
}

void check_gradient(const GradientOut& out, std::string_view name) {
  expect(reinterpret_cast<std::uintptr_t>(out.data) % 4 == 0, name, "an address on 4 bytes",
         "another");
  expect(out.token_stride % 2 == 0 && out.head_stride % 2 == 0,
         later("{}.token_stride, head_stride", name), "even",
         later("{}, {}", out.token_stride, out.head_stride));
}

void check_mxfp8(const device::Mxfp8Rows& out, const GradientOut& bf16, std::string_view name) {
  if (out.codes == nullptr) return;
  expect(bf16.data == nullptr, name, later("none beside {}_mxfp8", name), "an address");
  expect(reinterpret_cast<std::uintptr_t>(out.codes) % 4 == 0 && out.scales != nullptr,
         later("{}_mxfp8", name), "codes on 4 bytes, and scales", "another");
  expect(out.token_stride % 4 == 0 && out.head_stride % 4 == 0,
         later("{}_mxfp8.token_stride, head_stride", name), "multiples of 4",
         later("{}, {}", out.token_stride, out.head_stride));
  if (out.block_shape != BlockShape::k1x32 && out.block_shape != BlockShape::k32x32) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}_mxfp8.block_shape: expected 1x32 or 32x32, got {}", name,
                            block_shape_name(out.block_shape)));
  }
}

void check_heads(const BackwardCall& call) {
  expect(call.k.num_heads > 0 && call.q.num_heads % call.k.num_heads == 0, "q.num_heads",
         later("a multiple of k.num_heads = {}", call.k.num_heads), call.q.num_heads);
  expect(call.v.num_heads == call.k.num_heads, "v.num_heads", call.k.num_heads, call.v.num_heads);
  expect(call.dout.num_heads == call.q.num_heads, "dout.num_heads", call.q.num_heads,
         call.dout.num_heads);
  const std::int32_t batch = call.k.offsets.batch;
  expect(call.dout.offsets.batch == batch, "dout.offsets.batch", batch, call.dout.offsets.batch);
  expect(call.q.offsets.batch == (call.broadcast_q ? 1 : batch), "q.offsets.batch",
         call.broadcast_q ? 1 : batch, call.q.offsets.batch);
  expect(!call.broadcast_q || (call.q.offsets.dense() && call.dout.offsets.dense()), "q.offsets",
         "one dense sequence where q is broadcast", "cu_seqlens");
}

void check_product(const BackwardCall& call) {
  if (call.product == Product::kGroupScales) return;
  if (call.scores != Scores::kF32 || call.dq_sums != DqSums::kF32) {
    throw Error(ErrorKind::kUnsupported,
                "scores, dq_sums: expected FP32 beside operands in BF16 or 1xD, got half");
  }
  const auto check = [](const AttentionOperand& shape, const Bf16Rows& x, std::string_view name) {
    if (shape.total > 0) check_bf16_rows(x, name);
  };
  if (bf16_s(call.product)) {
    check(call.q, call.q_bf16, "q_bf16");
    check(call.k, call.k_bf16, "k_bf16");
  }
  if (bf16_dp(call.product)) {
    check(call.v, call.v_bf16, "v_bf16");
    check(call.dout, call.dout_bf16, "dout_bf16");
  }
}

/// What half scores need, so that no sum of 128 columns overflows, nor one of 512 queries.
void check_lowered(const BackwardCall& call) {
  if (call.scores != Scores::kF16) return;
  const auto check = [](const AttentionOperand& x, std::string_view name, std::uint8_t lowered) {
    expect(x.lowered >= lowered, later("{}.lowered", name),
           later("at least {} for half scores", lowered), int{x.lowered});
  };
  check(call.q, "q", device::kLoweredQ);
  check(call.k, "k", device::kLoweredK);
  check(call.v, "v", device::kLoweredV);
  check(call.dout, "dout", device::kLoweredDout);
  expect(call.q.half_sums, "q.half_sums", "true for half scores", "false");
  expect(call.k.half_sums, "k.half_sums", "true for half scores", "false");
  expect(call.dout.half_sums, "dout.half_sums", "true for half scores", "false");
}

void check_call(const BackwardCall& call) {
  const std::int32_t head_dim = call.q.head_dim;
  if (head_dim != 64 && head_dim != 128) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("q.head_dim: expected 64 or 128 (padded), got {}", head_dim));
  }
  const bool s_rows = !bf16_s(call.product), dp_rows = !bf16_dp(call.product);
  const BlockShape blocks = tokens(call) ? BlockShape::k1xD : BlockShape::k32xD;
  check_operand(call.q, "q", head_dim, {.rows = s_rows, .block_shape = blocks});
  check_operand(call.k, "k", head_dim,
                {.rows = s_rows, .order = device::TokenOrder::kSigma, .block_shape = blocks});
  check_operand(call.v, "v", head_dim,
                {.rows = dp_rows, .transposed = false, .block_shape = blocks});
  check_operand(call.dout, "dout", head_dim, {.rows = dp_rows});
  check_product(call);
  check_lowered(call);
  check_heads(call);
  expect(std::isfinite(call.softmax_scale) && call.softmax_scale > 0, "softmax_scale",
         "a finite number above 0", later("{}", call.softmax_scale));
  const std::int32_t columns = call.columns == 0 ? head_dim : call.columns;
  expect(columns % 8 == 0 && columns > 0 && columns <= head_dim, "columns",
         later("a multiple of 8 up to {}", head_dim), columns);
  const bool rows = call.dout.total > 0;
  expect(!rows || call.o != nullptr, "o", "an address", "none");
  expect(!rows || call.lse != nullptr, "lse", "an address", "none");
  expect(attention::is_dq_exponent(call.dq_exponent), "dq_exponent", attention::kDqExponents,
         call.dq_exponent);
  if (call.deterministic && !dq_has_order(call.broadcast_q, call.mask)) {
    throw Error(ErrorKind::kUnsupported,
                "deterministic: expected no mask where q is broadcast, got one");
  }
  check_gradient(call.dq, "dq");
  check_gradient(call.dk, "dk");
  check_gradient(call.dv, "dv");
  check_mxfp8(call.dq_mxfp8, call.dq, "dq");
  const auto past = reinterpret_cast<std::uintptr_t>(call.workspace) % device::kMemoryAlignment;
  expect(call.workspace != nullptr && past == 0, "workspace",
         later("an address on {} bytes", device::kMemoryAlignment),
         call.workspace == nullptr ? "none" : "another");
}

template <class Params>
void launch_rows(const device::Queue& queue, std::string_view image, std::string_view entry,
                 const Params& params, std::int64_t works, int works_a_block) {
  const std::int64_t blocks = mx::ceil_div(works, works_a_block);
  driver::LaunchShape shape;
  shape.grid[0] = static_cast<unsigned>(
      std::min<std::int64_t>(blocks, std::int64_t{8} * queue.device.multiprocessors()));
  shape.block[0] = kRowsThreads;
  shape.programmatic_launch = true;
  queue.kernels.get(image, entry).launch(queue.stream, shape, params);
}

Sides sides_of(const BackwardCall& call) {
  return {.q = call.q.offsets,
          .o = call.dout.offsets,
          .k = call.k.offsets,
          .num_heads = call.q.num_heads,
          .num_heads_kv = call.k.num_heads,
          .broadcast_q = call.broadcast_q};
}

std::int32_t columns_of(const BackwardCall& call) {
  return call.columns == 0 ? call.q.head_dim : call.columns;
}

/// dO as dP sees it.
device::RowsView delta_rows(const BackwardCall& call) {
  if (bf16_dp(call.product)) {
    return {.data = call.dout_bf16.data,
            .dtype = DType::kBF16,
            .row_stride = call.dout_bf16.token_stride,
            .head_stride = call.dout_bf16.head_stride};
  }
  return {
      .data = call.dout.rows,
      .dtype = DType::kE4M3,
      .row_stride = call.dout.token_stride,
      .head_stride = call.dout.head_stride,
      .scales = call.dout.scales.data,
      .scale_strides = {.row = call.dout.scales.row_stride, .head = call.dout.scales.head_stride},
      .block_shape = BlockShape::k32xD};
}

/// In order CTAs wait for each other where many of them are at the queries of one head, and walk as
/// many heads, of as many sequences, by turns as have their rows (1 KB each: four operands, sums)
/// in a third of L2: more are slower.
struct Turns {
  std::int32_t heads = 1;    ///< of K, of a sequence
  std::int32_t streams = 1;  ///< of sequences
};
Turns turns_of(const BackwardCall& call) {
  constexpr std::int64_t kRows = 16384;
  const std::int64_t batch = call.q.offsets.batch;
  if (!call.deterministic || call.dout.total == 0 || batch == 0) return {};
  const std::int64_t rows =
      std::max<std::int64_t>(1, call.q.total / batch * call.q.num_heads / call.k.num_heads);
  const std::int64_t heads = std::clamp<std::int64_t>(kRows / rows, 1, call.k.num_heads);
  // Where all sequences add to the same queries, one comes after the other.
  const std::int64_t streams =
      call.broadcast_q
          ? 1
          : std::clamp<std::int64_t>(kRows / rows / call.k.num_heads, 1,
                                     std::min<std::int64_t>(batch, StreamTable::kMost));
  return {static_cast<std::int32_t>(heads), static_cast<std::int32_t>(streams)};
}

/// Zeros, delta, anchors, then records.
void prepare_rows(const device::Queue& queue, const BackwardCall& call, const Workspace& memory) {
  const std::int64_t tiles = row_tiles(call.dout.total, call.dout.offsets.batch);
  const PrepareParams params{
      .rows = {.sides = sides_of(call),
               .q_scales = call.q.scales,
               .dout_scales = call.dout.scales,
               .lse = call.lse,
               .row_max = call.row_max,
               .delta = memory.delta,
               .dout_sums = memory.dout_sums,
               .lse_head_stride = call.lse_head_stride,
               .delta_head_stride = call.dout.total,
               .anchors = memory.anchors,
               .records = memory.records,
               .records_head_stride = tiles,
               .scale_log2 = static_cast<float>(call.softmax_scale * std::numbers::log2e),
               .bf16_s = bf16_s(call.product),
               .bf16_dp = bf16_dp(call.product),
               .behind = call.behind},
      .delta = {.dout = delta_rows(call),
                .o = {.data = call.o,
                      .row_stride = call.o_token_stride,
                      .head_stride = call.o_head_stride},
                .delta = memory.delta,
                .delta_head_stride = call.dout.total,
                .dout_sums = memory.dout_sums,
                .offsets = call.dout.offsets,
                .num_heads = call.q.num_heads,
                .head_dim = columns_of(call)},
      .zeros = memory.counter,
      .zero_bytes = memory.zero_bytes,
      .streams = memory.streams,
      .stream_count = turns_of(call).streams};
  device::check_delta(params.delta);
  const std::int64_t works = tiles * call.q.num_heads;
  launch_rows(queue, "backward_rows",
              bf16_dp(call.product) ? "backward_prepare_bf16" : "backward_prepare_e4m3", params,
              works, kRowsThreads / 64);
  launch_rows(queue, "backward_rows",
              call.scores == Scores::kF16 ? "backward_half_records"
              : tokens(call)              ? "backward_token_records"
                                          : "backward_records",
              params.rows, works, kRowsThreads / 32);
}

template <int kHeadDim, bool kLong, Scores kScores = Scores::kF32>
unsigned smem_bytes(DqSums sums) {
  return sums == DqSums::kF16 ? sizeof(SmemPlan<Config<kHeadDim, DqSums::kF16, kLong, kScores>>)
                              : sizeof(SmemPlan<Config<kHeadDim, DqSums::kF32, kLong, kScores>>);
}

/// The kernel of a call.
struct Kernel {
  std::string image, entry;
  unsigned smem_bytes = 0;
};
template <int kHeadDim>
Kernel dial_kernel(Product product) {
  const auto kernel = [](std::string_view image, std::string_view part, unsigned bytes) {
    return Kernel{std::string(image), fmt::format("{}{}_d{}", image, part, kHeadDim), bytes};
  };
  constexpr std::string_view kBf16Image = "attention_backward_bf16";
  switch (product) {
    case Product::kTokenScales:
      return kernel("attention_backward_tokens", "",
                    sizeof(SmemPlan<DialConfig<kHeadDim, Product::kTokenScales>>));
    case Product::kBf16S:
      return kernel(kBf16Image, "_s", sizeof(SmemPlan<DialConfig<kHeadDim, Product::kBf16S>>));
    case Product::kBf16Dp:
      return kernel(kBf16Image, "_dp", sizeof(SmemPlan<DialConfig<kHeadDim, Product::kBf16Dp>>));
    case Product::kBf16:
      return kernel(kBf16Image, "", sizeof(SmemPlan<DialConfig<kHeadDim, Product::kBf16>>));
    case Product::kGroupScales:
      break;
  }
  throw Error(ErrorKind::kInvalidArgument, "product: expected a dial, got another");
}
template <int kHeadDim>
Kernel kernel_of(const BackwardCall& call) {
  if (call.product != Product::kGroupScales) return dial_kernel<kHeadDim>(call.product);
  const char* const sums = call.dq_sums == DqSums::kF16 ? "f16" : "f32";
  if (call.scores == Scores::kF16) {
    return {"attention_backward_half",
            fmt::format("attention_backward_half_d{}_{}", kHeadDim, sums),
            smem_bytes<kHeadDim, true, Scores::kF16>(call.dq_sums)};
  }
  // Of jagged queries the host knows the mean only.
  const bool is_long = call.q.total > kLongQueries * call.q.offsets.batch;
  return {"attention_backward",
          fmt::format("attention_backward_d{}_{}{}", kHeadDim, sums, is_long ? "_long" : ""),
          is_long ? smem_bytes<kHeadDim, true>(call.dq_sums)
                  : smem_bytes<kHeadDim, false>(call.dq_sums)};
}

std::int32_t sums_exponent(const BackwardCall& call) {
  return call.dq_sums == DqSums::kF16 ? call.dq_exponent : 0;
}

BackwardParams make_params(const device::Queue& queue, const BackwardCall& call,
                           const Workspace& memory) {
  BackwardParams params;
  const auto rows = [&](const AttentionOperand& x, bool is_bf16, const Bf16Rows& bf16,
                        std::uint32_t tokens) {
    return is_bf16 ? bf16_rows_map(queue.device, bf16, x, columns_of(call), tokens)
                   : rows_map(queue.device, x, tokens);
  };
  params.q_map = rows(call.q, bf16_s(call.product), call.q_bf16, kTileM);
  params.dout_map = rows(call.dout, bf16_dp(call.product), call.dout_bf16, kTileM);
  params.qt_map = transposed_map(queue.device, call.q, kTileM);
  params.dout_t_map = transposed_map(queue.device, call.dout, kTileM);
  const TileShape shape = tile_shape(call);
  params.k_map = rows(call.k, bf16_s(call.product), call.k_bf16, shape.keys);
  params.v_map = rows(call.v, bf16_dp(call.product), call.v_bf16, shape.keys);
  params.kt_map = transposed_map(queue.device, call.k, shape.panel);
  params.sides = sides_of(call);
  params.mask = call.mask;
  params.k_scales = call.k.scales;
  params.v_scales = call.v.scales;
  params.records = memory.records;
  params.records_head_stride = row_tiles(call.dout.total, call.dout.offsets.batch);
  params.dk = call.dk;
  params.dv = call.dv;
  params.columns = columns_of(call);
  params.dq_sums = memory.dq_sums;
  params.dq_head_stride = row_tiles(call.q.total, call.q.offsets.batch);
  params.dq_turns = memory.dq_turns;
  const Turns turns = turns_of(call);
  params.heads_at_once = turns.heads;
  params.streams = turns.streams > 1 ? memory.streams : nullptr;
  params.scratch = memory.scratch;
  params.counter = memory.counter;
  params.dq_exponent = sums_exponent(call);
  params.softmax_scale = static_cast<float>(call.softmax_scale);
  return params;
}

void run_backward(const device::Queue& queue, const BackwardCall& call, const Workspace& memory) {
  const BackwardParams params = make_params(queue, call, memory);
  const std::int64_t q_tiles = params.dq_head_stride * call.q.num_heads;
  expect(2 * q_tiles < (1ll << 31), "q", "fewer than 2^30 tiles of 64 queries", q_tiles);
  const std::int64_t works = mx::max_tiles(call.k.total, call.k.offsets.batch) * call.k.num_heads;
  expect(works < (1ll << 31), "k", "fewer than 2^31 tiles of 128 keys", works);
  if (works == 0) return;
  driver::LaunchShape shape;
  shape.grid[0] =
      static_cast<unsigned>(std::min<std::int64_t>(queue.device.multiprocessors(), works));
  shape.block[0] = tile_shape(call).threads;
  const Kernel kernel = call.q.head_dim == 128 ? kernel_of<128>(call) : kernel_of<64>(call);
  shape.dynamic_smem_bytes = kernel.smem_bytes;
  shape.programmatic_launch = true;
  queue.kernels.get(kernel.image, kernel.entry, {.dynamic_smem_bytes = shape.dynamic_smem_bytes})
      .launch(queue.stream, shape, params);
}

}  // namespace

std::int64_t backward_workspace_bytes(const driver::Device& device, const BackwardCall& call) {
  core::Arena counting;
  const Workspace memory(counting, device, call);
  return counting.used();
}

void attention_backward(const device::Queue& queue, const BackwardCall& call) {
  check_call(call);
  core::Arena arena({static_cast<std::byte*>(call.workspace),
                     static_cast<std::size_t>(backward_workspace_bytes(queue.device, call))});
  const Workspace memory(arena, queue.device, call);
  if (call.dout.total > 0 && call.dout.offsets.batch > 0) {
    prepare_rows(queue, call, memory);
  } else {
    driver::fill_async(queue.device, memory.counter, 0, static_cast<std::size_t>(memory.zero_bytes),
                       queue.stream);
    device::clear_behind(queue, call.behind);
  }
  run_backward(queue, call, memory);
  finish_dq(queue, {.q = call.q.offsets,
                    .num_heads = call.q.num_heads,
                    .head_dim = call.q.head_dim,
                    .sums = memory.dq_sums,
                    .kind = call.dq_sums,
                    .scaled = {.exponent = sums_exponent(call),
                               .lse = call.broadcast_q ? nullptr : call.lse,
                               .head_stride = call.lse_head_stride,
                               .overflows = call.dq_overflows},
                    .head_stride = row_tiles(call.q.total, call.q.offsets.batch),
                    .dq = call.dq,
                    .dq_mxfp8 = call.dq_mxfp8,
                    .columns = columns_of(call)});
}

void finish_dq(const device::Queue& queue, const DqParams& params) {
  const bool mxfp8 = params.dq_mxfp8.codes != nullptr;
  if (params.head_stride == 0 || (params.dq.data == nullptr && !mxfp8)) return;
  launch_rows(queue, "backward_dq", mxfp8 ? "backward_dq_mxfp8" : "backward_dq", params,
              params.head_stride / 2 * params.num_heads, 1);
}

}  // namespace mxfa::sm90::backward
