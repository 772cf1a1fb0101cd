#pragma once

#include "device/fp8.cuh"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/warpgroup.cuh"

/// dV and dK of a warpgroup's 64 keys.
namespace mxfa::sm90::backward {

/// Read anew where it is used: addresses made of it would else be kept through the main loop.
__device__ inline int fresh_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// `part` 0: dV, 1: dK. A thread's floats of the CTA's scratch lie 256 float4 apart.
template <class Config>
__device__ inline float4* scratch_of(const BackwardParams& params, int part) {
  return reinterpret_cast<float4*>(params.scratch + blockIdx.x * kScratchFloats<Config>) +
         part * (Config::kHeadDim / 8) * Config::kConsumerThreads + fresh_thread() - 128;
}

/// Adds sums * 2^exponent to the scratch, which only this thread reads and writes. By plain loads
/// and stores: reductions have a quarter of their bandwidth, and dQ needs that.
/// `four`: a thread's sums as float4s.
template <class Config, class Four>
__device__ inline void promote(const BackwardParams& params, int part, bool fresh, int exponent,
                               const Four& four) {
  float4* const scratch = scratch_of<Config>(params, part);
  const float factor = power_of_two(exponent);
  constexpr int kBatch = 4;  // loads in flight
#pragma unroll
  for (int first = 0; first < Config::kHeadDim / 8; first += kBatch) {
    float4 sums[kBatch] = {};
    if (!fresh) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        sums[i] = __ldcg(&scratch[(first + i) * Config::kConsumerThreads]);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float4 x = four(first + i);
      __stcg(&scratch[(first + i) * Config::kConsumerThreads],
             make_float4(fmaf(x.x, factor, sums[i].x), fmaf(x.y, factor, sums[i].y),
                         fmaf(x.z, factor, sums[i].z), fmaf(x.w, factor, sums[i].w)));
    }
  }
}

/// What a gradient is besides its accumulators: (acc * 2^exponent, and the scratch where it has a
/// sum) * factor.
struct GradientTerms {
  int part;
  bool scratch_has;
  int exponent;
  float factor;
};

/// Eight columns of one row, from shared memory.
__device__ inline void store_piece(const GradientOut& out, std::int64_t row, int head, int column,
                                   uint4 piece) {
  std::uint16_t* const target = out.data + row * out.token_stride + head * out.head_stride + column;
  const bool wide =
      ((reinterpret_cast<std::uintptr_t>(out.data) | out.token_stride * 2 | out.head_stride * 2) &
       15) == 0;
  if (wide) {
    *reinterpret_cast<uint4*>(target) = piece;
    return;
  }
  auto* const words = reinterpret_cast<std::uint32_t*>(target);
  words[0] = piece.x;
  words[1] = piece.y;
  words[2] = piece.z;
  words[3] = piece.w;
}

/// Where a warp stages its 16 rows of a gradient on their way out, as from registers each store
/// would touch eight rows: the two halves of the columns, each in rows of kHeadDim bytes, one after
/// the other.
using Staging = std::uint8_t* const (&)[2];

/// Where a piece of 16 bytes of a row is: swizzled, so that eight rows have theirs in different
/// banks.
template <class Config>
inline constexpr int kStagedPieces = Config::kHeadDim / 16;
template <class Config>
__device__ inline int staged_at(int row, int piece) {
  constexpr int kPieces = kStagedPieces<Config>;
  return row * Config::kHeadDim + 16 * (piece ^ (row * kPieces / 8 % kPieces));
}

/// Stages columns from 8 `first` on, a half of all, of a warp's 16 rows.
template <class Config, class Four>
__device__ inline void stage_gradient(const BackwardParams& params, const GradientTerms& terms,
                                      int first, std::uint32_t staging, const Four& four) {
  const float4* const scratch = scratch_of<Config>(params, terms.part);
  const int lane = fresh_thread() % 32, row_of_matrix = lane % 16, piece_of_matrix = lane / 16;
#pragma unroll
  for (int i0 = 0; i0 < Config::kHeadDim / 16; i0 += 2) {  // two pieces of eight columns
    float4 sum[2] = {};
    if (terms.scratch_has) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum[i] = __ldcg(&scratch[(first + i0 + i) * Config::kConsumerThreads]);
      }
    }
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 x = four(first + i0 + i);
      const auto value = [&](float sum_of, float rest) {
        return (sum_of + scaled(rest, terms.exponent)) * terms.factor;
      };
      words[2 * i] = device::encode_bf16_pair(value(sum[i].x, x.x), value(sum[i].y, x.y));
      words[2 * i + 1] = device::encode_bf16_pair(value(sum[i].z, x.z), value(sum[i].w, x.w));
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     staging + staged_at<Config>(row_of_matrix, i0 + piece_of_matrix)),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}

/// Stores a warp's 16 rows from `first_row` of the key tile on.
template <class Config, class Four>
__device__ inline void store_gradient(const BackwardParams& params, const GradientOut& out,
                                      const KeyRecord& keys, const GradientTerms& terms,
                                      int first_row, Staging staging, const Four& four) {
  if (out.data == nullptr) return;
  constexpr int kPieces = kStagedPieces<Config>, kRows = 32 / kPieces;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    stage_gradient<Config>(params, terms, half * kPieces, shared_address(staging[half]), four);
    __syncwarp();
    const int lane = fresh_thread() % 32;
    uint4 values[16 / kRows];
#pragma unroll
    for (int step = 0; step < 16 / kRows; ++step) {
      const int row = kRows * step + lane / kPieces;
      values[step] =
          *reinterpret_cast<const uint4*>(staging[half] + staged_at<Config>(row, lane % kPieces));
    }
#pragma unroll
    for (int step = 0; step < 16 / kRows; ++step) {
      const int row = first_row + kRows * step + lane / kPieces;
      const int column = 8 * (half * kPieces + lane % kPieces);
      if (row < keys.count && column < params.columns) {
        store_piece(out, keys.out_row + row, keys.head, column, values[step]);
      }
    }
    __syncwarp();
  }
}

}  // namespace mxfa::sm90::backward
