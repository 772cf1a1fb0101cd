#include "device/fp8.cuh"
#include "device/jagged.cuh"
#include "device/scaled_sums.cuh"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/warpgroup.cuh"
#include "kernels/sm90/common/mxfp8.cuh"
#include "ptx/griddepcontrol.cuh"
#include "ptx/half2.cuh"

/// What goes behind the backward: dQ's sums to rows.
namespace mxfa::sm90::backward {
namespace {

constexpr int kThreads = 256;

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
