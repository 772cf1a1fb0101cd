#include "device/clear_behind.cuh"
#include "device/jagged.cuh"
#include "device/rowwise.cuh"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/warpgroup.cuh"
#include "kernels/sm90/common/half_exponential.h"
#include "kernels/sm90/common/mma.cuh"
#include "ptx/griddepcontrol.cuh"
#include "ptx/half2.cuh"

/// What goes before the backward: constants of query rows.
namespace mxfa::sm90::backward {
namespace {

constexpr int kThreads = 256;
constexpr float kLog2e = 1.44269504f;
/// Magnitudes of delta in half stay below 2^it.
constexpr int kHalfDeltaBits = 14;

/// To the ten bits of a half.
__device__ float round_to_half_mantissa(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return __uint_as_float((bits + 0xFFFu + (bits >> 13 & 1)) & ~0x1FFFu);
}

/// Binades that dP^T stays below kMostHalfDp at least.
__device__ int dp_room(float most_dp) {
  const float ratio = kMostHalfDp / fmaxf(most_dp, 1.0f);
  return max(static_cast<int>(__float_as_uint(ratio) >> 23) - 127, 0);
}

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
  /// Where every token has a scale; -127 of a row that does not exist.
  __device__ int q_token_exponent(int g) const {
    if (!exists(g)) return -127;
    const device::OperandScales& scales = params.q_scales;
    const int sequence = params.sides.broadcast_q ? 0 : tile.sequence;
    const std::int64_t token =
        params.sides.q.tokens(sequence) + tile.first + 64 * half + 32 * g + lane;
    return scale_exponent(scales.data[token * scales.row_stride + tile.head * scales.head_stride]);
  }
  /// ceil(log2 Pmax) of a row, at most 0.
  __device__ int pmax_exponent(int g, float lse) const {
    if (params.row_max == nullptr) return 0;
    const float largest = params.row_max[tile.head * params.lse_head_stride + row(g)];
    const float log2_pmax = __fsub_rn(largest, __fmul_rn(lse, kLog2e));
    if (!isfinite(log2_pmax)) return 0;
    return static_cast<int>(fminf(fmaxf(ceilf(log2_pmax), -126.0f), 0.0f));
  }
  /// Of a row of half scores: what |dP^T| cannot exceed, in units of payload. 0 of NaN.
  __device__ float most_dp(int g, int dout_exponent) const {
    const float sum = params.dout_sums[tile.head * params.delta_head_stride + row(g)];
    return fmaxf(scaled(sum, -dout_exponent) * kMostHalfV, 0.0f);
  }
  /// Of the sequence's tile `m` of 64 rows and this head.
  __device__ std::int32_t& anchor(std::int64_t m) const {
    return params.anchors[tile.head * params.records_head_stride +
                          2 * params.sides.o.tiles(tile.sequence) + m];
  }
  __device__ int tiles() const {
    const device::JaggedOffsetsView& o = params.sides.o;
    return 2 * static_cast<int>(o.tiles(tile.sequence + 1) - o.tiles(tile.sequence));
  }
};

/// The largest exponent of P times dO of each 64 rows and head.
__device__ void find_anchors(const RowsParams& params) {
  for_each_tile(params.sides.o, params.sides.num_heads, [&](const device::Tile& tile, int half) {
    const Rows rows{params, tile, half};
    int largest = kNoExponent;
    for (int g = 0; g < kQGroups; ++g) {
      if (!rows.exists(g)) continue;
      const float lse = rows.lse(g);
      if (lse == -INFINITY) continue;
      largest = max(largest, rows.dout_exponent(g) + rows.pmax_exponent(g, lse));
    }
    largest = __reduce_max_sync(~0u, largest);
    if (rows.lane == 0) rows.anchor(tile.first / kTileM + half) = largest;
  });
}

/// By one warp: the sequences of K in streams that have about as many tiles.
__device__ void store_streams(const PrepareParams& params) {
  const device::JaggedOffsetsView& keys = params.rows.sides.k;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t tiles = keys.tiles(keys.batch);
  const std::int64_t wanted = tiles * min(lane, params.stream_count) / params.stream_count;
  int low = 0, high = keys.batch;  // the first sequence that begins there or later
  while (low < high) {
    const int middle = (low + high) / 2;
    if (keys.tiles(middle) < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const int begin = static_cast<int>(keys.tiles(low));
  const int most = __reduce_max_sync(~0u, __shfl_down_sync(~0u, begin, 1) - begin);
  params.streams->begin[lane] = begin;
  if (lane != 0) return;
  params.streams->count = params.stream_count;
  params.streams->most_tiles = most;
}

/// All that waits for nothing of this call: gradients of rows that no sequence has, anchors of
/// tiles, delta, zeros where sums begin.
template <DType kDout>
__device__ void prepare(const PrepareParams& params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t threads = std::int64_t{gridDim.x} * kThreads;
  device::clear_behind(params.rows.behind, static_cast<std::int32_t>(thread / 32),
                       static_cast<std::int32_t>(threads / 32));
  if (params.streams != nullptr && thread < 32) store_streams(params);
  find_anchors(params.rows);
  device::delta<kDout, DType::kBF16>(params.delta);
  for (std::int64_t i = thread; i < params.zero_bytes / 16; i += threads) {
    static_cast<uint4*>(params.zeros)[i] = uint4{};
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    backward_prepare_e4m3(const __grid_constant__ PrepareParams params) {
  prepare<DType::kE4M3>(params);
}

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    backward_prepare_bf16(const __grid_constant__ PrepareParams params) {
  prepare<DType::kBF16>(params);
}

namespace {

/// What records of either kind hold of 64 rows.
struct TileTerms {
  int anchor;
  int reference;  ///< the largest exponent of Q
  int q_exponent[kQGroups];
  int dout[kQGroups];
  int fold[kQGroups];

  __device__ explicit TileTerms(const Rows& rows)
      : TileTerms(rows, {rows.group_exists(0) ? rows.q_exponent(0) : -127,
                         rows.group_exists(1) ? rows.q_exponent(1) : -127}) {}
  /// `q`: exponents of a lane's rows, or of their groups.
  __device__ TileTerms(const Rows& rows, int2 q) : q_exponent{q.x, q.y} {
    int largest = kNoExponent;
    for (int m = rows.lane; m < rows.tiles(); m += 32) largest = max(largest, rows.anchor(m));
    largest = __reduce_max_sync(~0u, largest);
    anchor = (largest == kNoExponent ? 0 : largest) - kOffset;
    reference = max(q.x, q.y);
    for (int g = 0; g < kQGroups; ++g) {
      dout[g] = rows.group_exists(g) ? rows.dout_exponent(g) : 0;
      fold[g] = max(dout[g] - anchor, kLeastFold);
    }
  }
  __device__ int q_shift(const Rows& rows, int g) const {
    return rows.group_exists(g) ? max(q_exponent[g] - reference, kLeastShift) : 0;
  }
  /// What S^T is multiplied by.
  __device__ float s_factor(const Rows& rows, int g, float scale) const {
    if (rows.params.bf16_s) return scale;
    return ldexpf(scale, rows.group_exists(g) ? q_exponent[g] : reference);
  }
};

/// Bias and -delta * 2^-fold of a lane's row.
struct RowTerms {
  float bias = -INFINITY;
  float minus_delta = 0.0f;

  __device__ RowTerms(const Rows& rows, const TileTerms& terms, int g) {
    if (!rows.exists(g)) return;
    const float lse = rows.lse(g);
    if (lse == -INFINITY) return;
    const RowsParams& params = rows.params;
    const float delta = params.delta[rows.tile.head * params.delta_head_stride + rows.row(g)];
    bias = __fsub_rn(static_cast<float>(terms.fold[g]), __fmul_rn(lse, kLog2e));
    minus_delta = -delta * power_of_two(-terms.fold[g]);
  }
};

/// Where thread `pair` of a quad finds a lane's row 32 g + lane = 8 j + 2 pair + c: at [2 j + c].
struct RecordPlace {
  int pair, at;
  __device__ RecordPlace(int lane, int g)
      : pair(lane % 8 / 2), at(2 * (4 * g + lane / 8) + lane % 2) {}
};

template <class Record>
__device__ Record& record_of(const Rows& rows) {
  const device::Tile& tile = rows.tile;
  return static_cast<Record*>(rows.params.records)[tile.head * rows.params.records_head_stride +
                                                   2 * tile.index + rows.half];
}

}  // namespace

/// The records of 64 rows each.
extern "C" __global__ void __launch_bounds__(kThreads)
    backward_records(const __grid_constant__ RowsParams params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  for_each_tile(params.sides.o, params.sides.num_heads, [&](const device::Tile& tile, int half) {
    const Rows rows{params, tile, half};
    const TileTerms terms(rows);
    RowRecord& out = record_of<RowRecord>(rows);
    float(&padded)[20] =
        rows.lane < 16 ? out.bias[rows.lane / 4] : out.minus_delta[rows.lane / 4 - 4];
    padded[16 + rows.lane % 4] = 0.0f;  // the copy engine reads all of it
    for (int g = 0; g < kQGroups; ++g) {
      const int q_shift = terms.q_shift(rows, g);
      const RowTerms row(rows, terms, g);
      const RecordPlace place(rows.lane, g);
      out.bias[place.pair][place.at] = row.bias;
      out.minus_delta[place.pair][place.at] = row.minus_delta * power_of_two(q_shift);
      if (rows.lane != 0) continue;
      out.s_factor[g] = terms.s_factor(rows, g, params.scale_log2);
      out.dp_factor[g] =
          power_of_two((params.bf16_dp ? 0 : terms.dout[g]) - terms.fold[g] + q_shift);
      out.dq_factor[g] = power_of_two(-q_shift);
      out.reference = terms.reference;
      out.anchor = terms.anchor;
    }
  });
}

/// The same where every query has a scale.
extern "C" __global__ void __launch_bounds__(kThreads)
    backward_token_records(const __grid_constant__ RowsParams params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  for_each_tile(params.sides.o, params.sides.num_heads, [&](const device::Tile& tile, int half) {
    const Rows rows{params, tile, half};
    TileTerms terms(rows, {rows.q_token_exponent(0), rows.q_token_exponent(1)});
    terms.reference = __reduce_max_sync(~0u, terms.reference);
    TokenRowRecord& out = record_of<TokenRowRecord>(rows);
    const int pad = 16 + rows.lane % 4;  // the copy engine reads all of it
    float(&half_of)[4][20] = rows.lane < 16 ? out.bias : out.minus_delta;
    float(&other)[4][20] = rows.lane < 16 ? out.s_factor : out.q_relative;
    half_of[rows.lane / 4 % 4][pad] = other[rows.lane / 4 % 4][pad] = 0.0f;
    for (int g = 0; g < kQGroups; ++g) {
      const RowTerms row(rows, terms, g);
      const RecordPlace place(rows.lane, g);
      out.bias[place.pair][place.at] = row.bias;
      out.minus_delta[place.pair][place.at] = row.minus_delta;
      out.s_factor[place.pair][place.at] = ldexpf(params.scale_log2, terms.q_exponent[g]);
      out.q_relative[place.pair][place.at] =
          power_of_two(max(terms.q_exponent[g] - terms.reference, kLeastShift));
      if (rows.lane == 0) out.dp_factor[g] = power_of_two(terms.dout[g] - terms.fold[g]);
    }
    if (rows.lane != 0) return;
    out.reference = terms.reference;
    out.anchor = terms.anchor;
  });
}

/// The same for half scores.
extern "C" __global__ void __launch_bounds__(kThreads)
    backward_half_records(const __grid_constant__ RowsParams params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  // As the forward rounds it.
  const float scale = round_to_half_mantissa(params.scale_log2);
  for_each_tile(params.sides.o, params.sides.num_heads, [&](const device::Tile& tile, int half) {
    const Rows rows{params, tile, half};
    const TileTerms terms(rows);
    RowTerms row[kQGroups] = {{rows, terms, 0}, {rows, terms, 1}};
    HalfRowRecord& out = record_of<HalfRowRecord>(rows);
    std::uint32_t largest = 0, largest_dp = 0;
    bool wide = false;
    for (RowTerms& of : row) {
      // Less than a half's last bit of most biases, so right in the mean over rows.
      of.bias += kHalfExp2Raise;
      const std::uint32_t bits = __float_as_uint(of.minus_delta) & 0x7FFFFFFFu;
      if (bits < 0x7F800000u) largest = max(largest, bits);
      wide = wide || (isfinite(of.bias) && fabsf(of.bias) > kMostHalfBias);
    }
    const int delta_exponent =
        static_cast<int>(__reduce_max_sync(~0u, largest) >> 23) - 127 - kHalfDeltaBits + 1;
    wide = __any_sync(~0u, wide);
    int dp_exponent = kNoExponent, p_exponent = -1;
    bool q_uniform = true;
    for (int g = 0; g < kQGroups; ++g) {
      const RecordPlace place(rows.lane, g);
      const float minus_delta = scaled(row[g].minus_delta, -delta_exponent);
      reinterpret_cast<std::uint16_t*>(out.bias[place.pair])[place.at] =
          static_cast<std::uint16_t>(ptx::half2_pack(row[g].bias, row[g].bias));
      reinterpret_cast<std::uint16_t*>(out.minus_delta[place.pair])[place.at] =
          static_cast<std::uint16_t>(ptx::half2_pack(minus_delta, minus_delta));
      out.wide_bias[place.pair][place.at] = row[g].bias;
      if (row[g].bias != -INFINITY) {
        p_exponent = max(p_exponent, terms.fold[g] + rows.pmax_exponent(g, rows.lse(g)));
        largest_dp = max(largest_dp, __float_as_uint(rows.most_dp(g, terms.dout[g])));
      }
      if (!rows.group_exists(g)) continue;
      dp_exponent = max(dp_exponent, terms.dout[g] - terms.fold[g]);
      q_uniform = q_uniform && terms.q_shift(rows, g) == 0;
    }
    p_exponent = __reduce_max_sync(~0u, p_exponent);
    const float most_dp = __uint_as_float(__reduce_max_sync(~0u, largest_dp));
    if (rows.lane != 0) return;
    for (int g = 0; g < kQGroups; ++g) {
      const float relative = power_of_two(terms.q_shift(rows, g));
      out.s_factor[g] = terms.s_factor(rows, g, scale);
      out.q_relative[g] = ptx::half2_pack(relative, relative);
    }
    out.reference = terms.reference;
    out.anchor = terms.anchor;
    out.dp_exponent = dp_exponent;
    out.delta_exponent = delta_exponent;
    out.p_exponent = static_cast<std::int16_t>(p_exponent);
    out.dp_room = static_cast<std::int16_t>(dp_room(most_dp));
    out.flags = (wide ? kWide : 0u) | (q_uniform ? 0u : kQVaries);
    for (std::int32_t& unused : out.unused) unused = 0;
  });
}

}  // namespace mxfa::sm90::backward
