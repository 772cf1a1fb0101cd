#include "device/clear_behind.cuh"
#include "device/fp8.cuh"
#include "device/jagged.cuh"
#include "device/scaled_sums.cuh"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/warpgroup.cuh"
#include "kernels/sm90/common/mma.cuh"
#include "kernels/sm90/common/mxfp8.cuh"
#include "ptx/griddepcontrol.cuh"
#include "ptx/half2.cuh"

/// What goes before the backward and after it: constants of query rows, and dQ sums to rows.
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

/// The largest exponent of P times dO of each sequence and head. Clears gradients of rows that no
/// sequence has, which nobody else touches.
extern "C" __global__ void __launch_bounds__(kThreads)
    backward_anchors(const __grid_constant__ RowsParams params) {
  ptx::griddepcontrol_wait();
  device::clear_behind(params.behind,
                       static_cast<std::int32_t>((blockIdx.x * kThreads + threadIdx.x) / 32),
                       static_cast<std::int32_t>(gridDim.x * kThreads / 32));
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
    if (rows.lane == 0 && largest > kNoExponent) {
      atomicMax(rows.anchor(), largest - kNoExponent);
    }
  });
}

namespace {

/// What records of either kind hold of 64 rows.
struct TileTerms {
  int anchor;
  int reference = -127;  ///< the larger exponent of Q
  int q_exponent[kQGroups];
  int dout[kQGroups];
  int fold[kQGroups];

  __device__ TileTerms(const Rows& rows) {
    const int largest = *rows.anchor();
    anchor = (largest == 0 ? 0 : largest + kNoExponent) - kOffset;
    for (int g = 0; g < kQGroups; ++g) {
      q_exponent[g] = rows.group_exists(g) ? rows.q_exponent(g) : -127;
      reference = max(reference, q_exponent[g]);
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

/// The same for half scores.
extern "C" __global__ void __launch_bounds__(kThreads)
    backward_half_records(const __grid_constant__ RowsParams params) {
  ptx::griddepcontrol_wait();
  // As the forward rounds it.
  const float scale = round_to_half_mantissa(params.scale_log2);
  for_each_tile(params.sides.o, params.sides.num_heads, [&](const device::Tile& tile, int half) {
    const Rows rows{params, tile, half};
    const TileTerms terms(rows);
    const RowTerms row[kQGroups] = {{rows, terms, 0}, {rows, terms, 1}};
    HalfRowRecord& out = record_of<HalfRowRecord>(rows);
    std::uint32_t largest = 0;
    bool wide = false;
    for (const RowTerms& of : row) {
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
      }
      if (!rows.group_exists(g)) continue;
      dp_exponent = max(dp_exponent, terms.dout[g] - terms.fold[g]);
      q_uniform = q_uniform && terms.q_shift(rows, g) == 0;
    }
    p_exponent = __reduce_max_sync(~0u, p_exponent);
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
    out.p_exponent = p_exponent;
    out.flags = (wide ? kWide : 0u) | (q_uniform ? 0u : kQVaries);
    for (std::int32_t& unused : out.unused) unused = 0;
  });
}

namespace {

/// Rows of up to 128 columns and 16 bytes more: threads of a quad, 8 rows apart, meet no bank
/// twice. BF16 codes, or pairs of E4M3 codes.
using StagedRows = std::uint16_t[kTileM][128 + 8];

/// A thread's sums of a tile of 64 rows: two columns of rows row() and row() + 8 in each of kPieces
/// pieces of eight columns, which are half of head_dim.
template <int kPieces>
struct DqReader {
  const DqParams& params;
  const device::Tile& tile;
  const device::SumsOfHead& scaled;
  int first;  ///< row of the tile of 128
  int half = static_cast<int>(threadIdx.x) / 128;
  int thread = static_cast<int>(threadIdx.x) % 128;
  unsigned overflows = 0;

  __device__ int row() const { return 16 * (thread / 32) + thread % 32 / 4; }
  __device__ int column(int piece) const { return 8 * (half * kPieces + piece) + 2 * (thread % 4); }
  __device__ bool exists(int row) const { return first + row < tile.rows; }

  /// Sum 4 i + 2 h + c is of piece i, row() + 8 h, column(i) + c; 0 in rows that do not exist.
  __device__ void read(const std::uint8_t* sums, float (&x)[4 * kPieces]) {
    const auto* const source = reinterpret_cast<const uint4*>(sums) + thread;
    if (params.kind == DqSums::kF16) {
#pragma unroll
      for (int i = 0; i < kPieces / 2; ++i) {
        const uint4 words = __ldcs(&source[128 * (half * (kPieces / 2) + i)]);
        const unsigned pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          x[8 * i + 2 * pair] = device::f16_low(pairs[pair]);
          x[8 * i + 2 * pair + 1] = device::f16_high(pairs[pair]);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const uint4 words = __ldcs(&source[128 * (half * kPieces + i)]);
        x[4 * i] = __uint_as_float(words.x);
        x[4 * i + 1] = __uint_as_float(words.y);
        x[4 * i + 2] = __uint_as_float(words.z);
        x[4 * i + 3] = __uint_as_float(words.w);
      }
    }
    const auto row_of = [&](int i) { return row() + 8 * (i / 2 % 2); };
#pragma unroll
    for (int i = 0; i < 4 * kPieces; ++i) {
      if (!exists(row_of(i))) x[i] = 0.0f;
    }
    if (params.kind == DqSums::kF16) {
      scaled.finish<true>(
          x, [&](int i) { return tile.row0 + first + row_of(i); }, overflows);
    }
  }
};

template <int kPieces>
__device__ void stage_bf16(const DqReader<kPieces>& reader, const float (&x)[4 * kPieces],
                           StagedRows& rows) {
#pragma unroll
  for (int i = 0; i < 2 * kPieces; ++i) {
    std::uint16_t* const target = &rows[reader.row() + 8 * (i % 2)][reader.column(i / 2)];
    *reinterpret_cast<std::uint32_t*>(target) = device::encode_bf16_pair(x[2 * i], x[2 * i + 1]);
  }
}

/// Payload to `rows`, scales to their place. `amax`: of each warp's 16 rows.
template <int kPieces>
__device__ void stage_mxfp8(const DqReader<kPieces>& reader, const float (&x)[4 * kPieces],
                            float (&amax)[kThreads / 32][2], StagedRows& rows) {
  constexpr int kParts = kPieces / 4;  // of 32 columns
  const DqParams& params = reader.params;
  const device::Mxfp8Rows& out = params.dq_mxfp8;
  const bool square = out.block_shape == BlockShape::k32x32;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (square) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float most = rows_amax(x + 16 * part);
      if (lane == 0) amax[warp][part] = most;
    }
    __syncthreads();
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = reader.row() + 8 * h, column = 32 * (reader.half * kParts + part);
      const float most = square ? device::max_nan(amax[warp][part], amax[warp ^ 1][part])
                                : row_amax(x + 16 * part, h);
      const std::uint8_t scale = mx::scale_from_amax<mx::E4M3>(most, ScaleRule::kRoundUp);
      const float inverse = mx::inverse_e8m0(scale);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const pair = x + 16 * part + 4 * j + 2 * h;
        rows[row][reader.column(4 * part + j) / 2] = static_cast<std::uint16_t>(
            device::encode_e4m3_pair(pair[0] * inverse, pair[1] * inverse));
      }
      const bool first_of_block = lane % 4 == 0 && (!square || row % kScaleBlock == 0);
      if (!first_of_block || !reader.exists(row) || column >= params.columns) continue;
      const device::Tile& tile = reader.tile;
      const std::int64_t scale_row =
          square ? tile.group + (reader.first + row) / kScaleBlock : tile.row0 + reader.first + row;
      out.scales[scale_row * out.scale_row_stride + tile.head * out.scale_head_stride +
                 column / kScaleBlock] = scale;
    }
  }
}

/// Rows of a head in memory; strides in bytes.
struct RowsOfBytes {
  std::uint8_t* data;
  std::int64_t token_stride;
  std::int64_t head_stride;
  int bytes;  ///< of a row: a multiple of 16 in BF16, of 8 in MXFP8
};
template <bool kMxfp8>
__device__ RowsOfBytes target_of(const DqParams& params) {
  if constexpr (kMxfp8) {
    const device::Mxfp8Rows& out = params.dq_mxfp8;
    return {out.codes, out.token_stride, out.head_stride, params.columns};
  } else {
    const GradientOut& out = params.dq;
    return {reinterpret_cast<std::uint8_t*>(out.data), 2 * out.token_stride, 2 * out.head_stride,
            2 * params.columns};
  }
}

/// `count` staged rows of up to kRowBytes to memory, a Piece at a time.
template <class Piece, int kRowBytes>
__device__ void copy_rows(const StagedRows& rows, std::uint8_t* target, std::int64_t stride,
                          int bytes, int count) {
  constexpr int kPieceBytes = sizeof(Piece), kPieces = kRowBytes / kPieceBytes;
#pragma unroll 2
  for (int first = 0; first < kTileM * kPieces; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const int row = i / kPieces, at = i % kPieces * kPieceBytes;
    if (row >= count || at >= bytes) continue;
    *reinterpret_cast<Piece*>(target + row * stride + at) =
        *reinterpret_cast<const Piece*>(reinterpret_cast<const std::uint8_t*>(rows[row]) + at);
  }
}

/// Shared memory of the kernels that finish dQ.
struct DqPlan {
  alignas(16) StagedRows rows;
  float amax[kThreads / 32][2];
};

/// Sums as threads of the backward hold them (dq_tile_bytes) to rows.
template <int kPieces, bool kMxfp8>
__device__ void finish_dq(const DqParams& params, DqPlan& smem) {
  using Piece = std::conditional_t<kMxfp8, uint2, uint4>;
  constexpr int kRowBytes = 16 * kPieces * (kMxfp8 ? 1 : 2);
  ptx::griddepcontrol_wait();
  const std::int64_t works = params.q.tiles(params.q.batch) * params.num_heads;
  const std::int64_t tile_bytes = dq_tile_bytes(params.head_dim, params.kind);
  const RowsOfBytes out = target_of<kMxfp8>(params);
  const bool whole =
      ((reinterpret_cast<std::uintptr_t>(out.data) | out.token_stride | out.head_stride) &
       (sizeof(Piece) - 1)) == 0;
  int sequence = 0;
  for (std::int64_t work = blockIdx.x; work < works; work += gridDim.x) {
    const device::Tile tile = device::locate_tile(params.q, params.num_heads, work, sequence);
    const device::SumsOfHead scaled(params.scaled, tile.sequence, params.num_heads, tile.head);
    const std::uint8_t* sums =
        params.sums + (tile.head * params.head_stride + 2 * tile.index) * tile_bytes;
    for (int first = 0; first < tile.rows; first += kTileM, sums += tile_bytes) {
      DqReader<kPieces> reader{params, tile, scaled, first};
      float x[4 * kPieces];
      reader.read(sums, x);
      if constexpr (kMxfp8) {
        stage_mxfp8(reader, x, smem.amax, smem.rows);
      } else {
        stage_bf16(reader, x, smem.rows);
      }
      __syncthreads();
      std::uint8_t* const target =
          out.data + (tile.row0 + first) * out.token_stride + tile.head * out.head_stride;
      const int count = min(kTileM, tile.rows - first);
      if (whole) {
        copy_rows<Piece, kRowBytes>(smem.rows, target, out.token_stride, out.bytes, count);
      } else {
        copy_rows<unsigned, kRowBytes>(smem.rows, target, out.token_stride, out.bytes, count);
      }
      scaled.report(reader.overflows);
      __syncthreads();
    }
  }
}

template <bool kMxfp8>
__device__ void finish_dq(const DqParams& params) {
  __shared__ DqPlan smem;
  if (params.head_dim == 128) {
    finish_dq<8, kMxfp8>(params, smem);
  } else {
    finish_dq<4, kMxfp8>(params, smem);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    backward_dq(const __grid_constant__ DqParams params) {
  finish_dq<false>(params);
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    backward_dq_mxfp8(const __grid_constant__ DqParams params) {
  finish_dq<true>(params);
}

}  // namespace mxfa::sm90::backward
