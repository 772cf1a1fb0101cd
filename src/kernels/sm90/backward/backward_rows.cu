#include "device/fp8.cuh"
#include "device/jagged.cuh"
#include "device/scaled_sums.cuh"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/common/mma.cuh"

/// What goes before the backward and after it: constants of query rows, and dQ sums to BF16.
namespace mxfa::sm90::backward {
namespace {

constexpr int kThreads = 256;
constexpr float kLog2e = 1.44269504f;

/// Calls body(tile, half) by one warp for each 64 rows and head of a side.
template <class Body>
__device__ void for_each_tile(const device::JaggedOffsetsView& offsets, int num_heads, Body body) {
  const std::int64_t works = 2 * offsets.tiles(offsets.batch) * num_heads;
  int sequence = 0;
  for (std::int64_t work = std::int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
       work < works; work += std::int64_t{gridDim.x} * (blockDim.x / 32)) {
    body(device::locate_tile(offsets, num_heads, work / 2, sequence), static_cast<int>(work % 2));
  }
}

/// Rows lane and lane + 32 of 64, one of each group of 32.
struct Rows {
  const RowsParams& params;
  const device::Tile& tile;
  int half;
  int lane = static_cast<int>(threadIdx.x % 32);

  __device__ bool exists(int g) const { return 64 * half + 32 * g + lane < tile.rows; }
  __device__ bool group_exists(int g) const { return 64 * half + 32 * g < tile.rows; }
  __device__ std::int64_t row(int g) const { return tile.row0 + 64 * half + 32 * g + lane; }
  __device__ float lse(int g) const {
    return params.lse[tile.head * params.lse_head_stride + row(g)];
  }
  __device__ int dout_exponent(int g) const {
    const device::OperandScales& scales = params.dout_scales;
    return scale_exponent(scales.data[(tile.group + 2 * half + g) * scales.row_stride +
                                      tile.head * scales.head_stride]);
  }
  __device__ int q_exponent(int g) const {
    const device::OperandScales& scales = params.q_scales;
    const int sequence = params.sides.broadcast_q ? 0 : tile.sequence;
    const std::int64_t group =
        params.sides.q.groups(sequence) + tile.first / kScaleGroup + 2 * half + g;
    return scale_exponent(scales.data[group * scales.row_stride + tile.head * scales.head_stride]);
  }
  /// ceil(log2 Pmax) of a row, at most 0.
  __device__ int pmax_exponent(int g, float lse) const {
    if (params.row_max == nullptr) return 0;
    const float largest = params.row_max[tile.head * params.lse_head_stride + row(g)];
    const float log2_pmax = __fsub_rn(largest, __fmul_rn(lse, kLog2e));
    if (!isfinite(log2_pmax)) return 0;
    return static_cast<int>(fminf(fmaxf(ceilf(log2_pmax), -126.0f), 0.0f));
  }
  __device__ std::int32_t* anchor() const {
    return params.anchors + std::int64_t{tile.sequence} * params.sides.num_heads + tile.head;
  }
};

}  // namespace

/// The largest exponent of P times dO of each sequence and head.
extern "C" __global__ void __launch_bounds__(kThreads)
    backward_anchors(const __grid_constant__ RowsParams params) {
  for_each_tile(params.sides.o, params.sides.num_heads, [&](const device::Tile& tile, int half) {
    const Rows rows{params, tile, half};
    int largest = kNoAnchor;
    for (int g = 0; g < kQGroups; ++g) {
      if (!rows.exists(g)) continue;
      const float lse = rows.lse(g);
      if (lse == -INFINITY) continue;
      largest = max(largest, rows.dout_exponent(g) + rows.pmax_exponent(g, lse));
    }
    largest = __reduce_max_sync(~0u, largest);
    if (rows.lane == 0 && largest != kNoAnchor) atomicMax(rows.anchor(), largest);
  });
}

/// The records of 64 rows each.
extern "C" __global__ void __launch_bounds__(kThreads)
    backward_records(const __grid_constant__ RowsParams params) {
  for_each_tile(params.sides.o, params.sides.num_heads, [&](const device::Tile& tile, int half) {
    const Rows rows{params, tile, half};
    const std::int64_t index = 2 * tile.index + half;
    RowRecord& out = params.records[tile.head * params.records_head_stride + index];
    const int largest = *rows.anchor();
    const int anchor = (largest == kNoAnchor ? 0 : largest) - kOffset;
    int q_exponent[kQGroups];
    int reference = -127;
    for (int g = 0; g < kQGroups; ++g) {
      q_exponent[g] = rows.group_exists(g) ? rows.q_exponent(g) : -127;
      reference = max(reference, q_exponent[g]);
    }
    float(&padded)[20] =
        rows.lane < 16 ? out.bias[rows.lane / 4] : out.minus_delta[rows.lane / 4 - 4];
    padded[16 + rows.lane % 4] = 0.0f;  // the copy engine reads all of it
    for (int g = 0; g < kQGroups; ++g) {
      const int q_shift = rows.group_exists(g) ? max(q_exponent[g] - reference, kLeastShift) : 0;
      const int dout = rows.group_exists(g) ? rows.dout_exponent(g) : 0;
      const int fold = max(dout - anchor, kLeastFold);
      float bias = -INFINITY, minus_delta = 0.0f;
      if (rows.exists(g)) {
        const float lse = rows.lse(g);
        if (lse != -INFINITY) {
          const float delta = params.delta[tile.head * params.delta_head_stride + rows.row(g)];
          bias = __fsub_rn(static_cast<float>(fold), __fmul_rn(lse, kLog2e));
          minus_delta = -delta * power_of_two(q_shift - fold);
        }
      }
      // Query 32 g + lane is 8 j + 2 pair + c.
      const int j = 4 * g + rows.lane / 8, pair = rows.lane % 8 / 2, c = rows.lane % 2;
      out.bias[pair][2 * j + c] = bias;
      out.minus_delta[pair][2 * j + c] = minus_delta;
      if (rows.lane != 0) continue;
      const int q = rows.group_exists(g) ? q_exponent[g] : reference;
      out.s_factor[g] = ldexpf(params.scale_log2, q);
      out.dp_factor[g] = power_of_two(dout - fold + q_shift);
      out.dq_factor[g] = power_of_two(-q_shift);
      out.reference = reference;
      out.anchor = anchor;
    }
  });
}

namespace {

/// Rows of 128 columns and 16 bytes more: threads of a quad, 8 rows apart, meet no bank twice.
using StagedRows = std::uint16_t[kTileM][128 + 8];

/// A thread's sums of a tile to rows in shared memory.
struct DqReader {
  const DqParams& params;
  const device::Tile& tile;
  const device::SumsOfHead& scaled;
  int first;  ///< row of the tile of 128
  int half = static_cast<int>(threadIdx.x) / 128;
  int thread = static_cast<int>(threadIdx.x) % 128;
  unsigned overflows = 0;

  __device__ void read(const std::uint8_t* sums, StagedRows& rows) {
    const bool f16 = params.kind == DqSums::kF16;
    const int width = params.head_dim / 2, pieces = width / (f16 ? 16 : 8);
    const auto* const source = reinterpret_cast<const uint4*>(sums) + half * pieces * 128 + thread;
    for (int i = 0; i < pieces; ++i) {
      const uint4 piece = __ldcs(&source[128 * i]);
      if (f16) {
        const int column = half * width + 16 * i;
        put(rows, column,
            make_float4(device::f16_low(piece.x), device::f16_high(piece.x),
                        device::f16_low(piece.y), device::f16_high(piece.y)));
        put(rows, column + 8,
            make_float4(device::f16_low(piece.z), device::f16_high(piece.z),
                        device::f16_low(piece.w), device::f16_high(piece.w)));
      } else {
        put(rows, half * width + 8 * i,
            make_float4(__uint_as_float(piece.x), __uint_as_float(piece.y),
                        __uint_as_float(piece.z), __uint_as_float(piece.w)));
      }
    }
  }

  /// Two columns of row `quad` and of row quad + 8 of a warp's 16.
  __device__ void put(StagedRows& rows, int column0, float4 sum) {
    const int row = 16 * (thread / 32) + thread % 32 / 4;
    const int column = column0 + 2 * (thread % 4);
    if (params.kind == DqSums::kF16) {
      sum = make_float4(finished(sum.x, row), finished(sum.y, row), finished(sum.z, row + 8),
                        finished(sum.w, row + 8));
    }
    *reinterpret_cast<std::uint32_t*>(&rows[row][column]) = device::encode_bf16_pair(sum.x, sum.y);
    *reinterpret_cast<std::uint32_t*>(&rows[row + 8][column]) =
        device::encode_bf16_pair(sum.z, sum.w);
  }
  __device__ float finished(float sum, int row) {
    if (first + row >= tile.rows) return 0.0f;
    return scaled.finish(sum, tile.row0 + first + row, overflows);
  }
};

}  // namespace

/// Sums as threads of the backward hold them (dq_tile_bytes) to rows.
extern "C" __global__ void __launch_bounds__(kThreads)
    backward_dq(const __grid_constant__ DqParams params) {
  __shared__ __align__(16) StagedRows rows;
  const std::int64_t works = 2 * params.q.tiles(params.q.batch) * params.num_heads;
  const std::int64_t tile_bytes = dq_tile_bytes(params.head_dim, params.kind);
  int sequence = 0;
  for (std::int64_t work = blockIdx.x; work < works; work += gridDim.x) {
    const device::Tile tile = device::locate_tile(params.q, params.num_heads, work / 2, sequence);
    const device::SumsOfHead scaled(params.scaled, tile.sequence, params.num_heads, tile.head);
    DqReader reader{params, tile, scaled, kTileM * static_cast<int>(work % 2)};
    reader.read(
        params.sums + (tile.head * params.head_stride + 2 * tile.index + work % 2) * tile_bytes,
        rows);
    __syncthreads();
    const int pairs = params.columns / 2;
    const int count = min(kTileM, tile.rows - reader.first);
    for (int i = static_cast<int>(threadIdx.x); i < count * pairs; i += kThreads) {
      auto* const target = params.dq.data +
                           (tile.row0 + reader.first + i / pairs) * params.dq.token_stride +
                           tile.head * params.dq.head_stride;
      reinterpret_cast<std::uint32_t*>(target)[i % pairs] =
          reinterpret_cast<const std::uint32_t*>(rows[i / pairs])[i % pairs];
    }
    scaled.report(reader.overflows);
    __syncthreads();
  }
}

}  // namespace mxfa::sm90::backward
