#include <cmath>

#include "device/exact_attention.h"
#include "device/fp8.cuh"
#include "device/jagged.cuh"
#include "mx/permutation.h"

namespace mxfa::device {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxHeadDim = 128;

/// A row of o: its sequence, and its place there.
struct Row {
  int sequence;
  std::int64_t first;  ///< packed row of o where the sequence begins
  std::int64_t seqlen_q;
  std::int64_t q_row;  ///< packed row of q
};

__device__ int sequence_of(const std::int32_t* cu_seqlens, int batch, std::int64_t row) {
  int low = 0, high = batch;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (cu_seqlens[middle] <= row ? low : high) = middle;
  }
  return low;
}

/// False for a row behind the last sequence.
__device__ bool locate_row(const ExactAttentionParams& params, std::int64_t row, Row& result) {
  const JaggedOffsetsView& offsets = params.q.offsets;
  if (offsets.dense()) {
    result.sequence = static_cast<int>(row / offsets.seqlen);
    result.first = result.sequence * offsets.seqlen;
    result.seqlen_q = offsets.seqlen;
    result.q_row = params.broadcast_q ? row - result.first : row;
    return true;
  }
  if (row >= offsets.tokens(offsets.batch)) return false;
  result.sequence = sequence_of(offsets.cu_seqlens, offsets.batch, row);
  result.first = offsets.tokens(result.sequence);
  result.seqlen_q = offsets.tokens(result.sequence + 1) - result.first;
  result.q_row = row;
  return true;
}

__device__ float scale_of(const AttentionOperand& x, std::int64_t head, int sequence,
                          std::int64_t token) {
  const std::int64_t row = mx::block_rows(x.block_shape) == 1
                               ? x.offsets.tokens(sequence) + token
                               : x.offsets.groups(sequence) + token / kScaleBlock;
  return mx::decode_e8m0(x.scales.data[row * x.scales.row_stride + head * x.scales.head_stride]);
}

/// The dot product of q (in shared memory, scaled) and one row of payload.
__device__ float dot(const float* q, const std::uint8_t* codes, int head_dim) {
  float sum = 0.0f;
  for (int d = 0; d < head_dim; d += 4) {
    float value[4];
    decode_quad<mx::E4M3>(*reinterpret_cast<const unsigned*>(codes + d), value);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum = fmaf(q[d + j], value[j], sum);
  }
  return sum;
}

__device__ float warp_max(float value) {
  for (int mask = 16; mask > 0; mask /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, mask));
  }
  return value;
}

/// A warp's row: lane i holds columns 4 i .. 4 i + 3 of O.
struct RowState {
  float max = -INFINITY;  ///< log2 units
  float sum = 0.0f;       ///< of 2^(s - max), the lane's keys
  float o[4] = {};

  __device__ void rescale(float new_max) {
    const float factor = max == -INFINITY ? 0.0f : exp2f(max - new_max);
    sum *= factor;
#pragma unroll
    for (float& value : o) value *= factor;
    max = new_max;
  }
};

/// Up to 32 keys from `key`, a multiple of 32.
__device__ void take_keys(const ExactAttentionParams& params, const Row& row, std::int64_t head,
                          std::int64_t key, const attention::KeyRange& visible, const float* q,
                          RowState& state) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t own = key + lane;
  const bool seen = own >= visible.begin && own < visible.end;
  float score = -INFINITY;
  if (seen) {
    const std::int64_t at = (params.k.offsets.tokens(row.sequence) + own) * params.k.token_stride +
                            head * params.k.head_stride;
    score =
        dot(q, params.k.rows + at, params.k.head_dim) * scale_of(params.k, head, row.sequence, own);
  }
  const float new_max = fmaxf(state.max, warp_max(score));
  state.rescale(new_max);
  const float p = seen ? exp2f(score - new_max) : 0.0f;
  state.sum += p;
  const float weight = seen ? p * scale_of(params.v, head, row.sequence, own) : 0.0f;
  const unsigned mask = __ballot_sync(kAllLanes, seen);
  const int column = 4 * lane;
  const TransposedTiles tiles{params.v.num_heads, params.v.head_dim};
  const std::int64_t place =
      tiles.at(params.v.offsets.tiles(row.sequence) + key / mx::kAtomRows, head, column) +
      key % mx::kAtomRows;
  for (int t = 0; t < 32; ++t) {
    if ((mask >> t & 1u) == 0) continue;
    const float factor = __shfl_sync(kAllLanes, weight, t);
    if (column >= params.v.head_dim) continue;
    const std::int64_t position = place + t / 16 * 16 + mx::pi_position(t % 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float value[4];
      decode_quad<mx::E4M3>(params.v.transposed[position + j * mx::kAtomRows], value);
      state.o[j] = fmaf(factor, value[0], state.o[j]);
    }
  }
}

__device__ void store(const ExactAttentionParams& params, std::int64_t row, std::int64_t head,
                      const RowState& state) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float sum = state.sum;
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(kAllLanes, sum, mask);
  const bool none = state.max == -INFINITY && sum == 0.0f;
  for (int j = 0; j < 4; ++j) {
    const int column = 4 * lane + j;
    if (column >= params.columns) break;
    const float value = none ? 0.0f : state.o[j] / sum;
    const std::int64_t at = row * params.o_token_stride + head * params.o_head_stride + column;
    if (params.o_f32) {
      static_cast<float*>(params.o)[at] = value;
    } else {
      static_cast<std::uint16_t*>(params.o)[at] = mx::encode_bf16(value);
    }
  }
  if (lane != 0) return;
  params.lse[head * params.lse_head_stride + row] =
      none ? -INFINITY : (state.max + log2f(sum)) * 0.6931471805599453f;
  if (params.row_max != nullptr) {
    params.row_max[head * params.row_max_head_stride + row] = state.max;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(32 * kWarps)
    exact_attention(const __grid_constant__ ExactAttentionParams params) {
  __shared__ float rows[kWarps][kMaxHeadDim];
  const int warp = static_cast<int>(threadIdx.x / 32);
  float* const q = rows[warp];
  const std::int64_t works = params.rows * params.q.num_heads;
  for (std::int64_t work = std::int64_t{blockIdx.x} * kWarps + warp; work < works;
       work += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t row = work / params.q.num_heads;
    const std::int64_t head = work % params.q.num_heads;
    Row place;
    if (!locate_row(params, row, place)) continue;
    const std::int64_t head_kv = head / (params.q.num_heads / params.k.num_heads);
    const std::int64_t in_sequence = row - place.first;
    const float q_scale =
        scale_of(params.q, head, params.broadcast_q ? 0 : place.sequence, in_sequence) *
        params.scale_log2;
    __syncwarp();
    for (int d = 4 * static_cast<int>(threadIdx.x % 32); d < params.q.head_dim; d += 128) {
      float value[4];
      const std::int64_t at = place.q_row * params.q.token_stride + head * params.q.head_stride + d;
      decode_quad<mx::E4M3>(*reinterpret_cast<const unsigned*>(params.q.rows + at), value);
      for (int j = 0; j < 4; ++j) q[d + j] = value[j] * q_scale;
    }
    __syncwarp();
    const std::int64_t seqlen_k =
        params.k.offsets.tokens(place.sequence + 1) - params.k.offsets.tokens(place.sequence);
    const attention::KeyRange visible =
        attention::visible_keys(params.mask, place.seqlen_q, seqlen_k, in_sequence);
    RowState state;
    for (std::int64_t key = visible.begin / 32 * 32; key < visible.end; key += 32) {
      take_keys(params, place, head_kv, key, visible, q, state);
    }
    store(params, row, head, state);
  }
}

}  // namespace mxfa::device
