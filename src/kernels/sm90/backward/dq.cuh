#pragma once

#include <cuda/ptx>

#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/scores.cuh"
#include "kernels/sm90/backward/warpgroup.cuh"
#include "ptx/half2.cuh"
#include "ptx/wgmma.cuh"

/// The role that makes dQ.
namespace mxfa::sm90::backward {

/// One warpgroup: dQ of each tile of dS by 64 columns, to shared memory. Waits on ds_full,
/// dq_empty; signals ds_empty, key_empty, dq_full.
template <class Config>
class DqMaker : Warpgroup<Config> {
 public:
  using Base = Warpgroup<Config>;
  using Plan = typename Base::Plan;
  using Columns = float[kDqColumns / 2];

  __device__ DqMaker(const BackwardParams& params, Plan& smem) : Base(smem), params_(params) {}

  __device__ void run() {
    int key_buffer = 0;
    for (unsigned tile = 0;; ++tile) {
      ptx::mbarrier_wait(this->barrier(offsetof(Plan, ds_full), tile % Config::kDsBuffers),
                         tile / Config::kDsBuffers % 2);
      const std::uint32_t flags = uniform(load(offsetof(Plan, stage) + offsetof(StageRecord, flags),
                                               tile % Config::kTileRecords, sizeof(StageRecord)));
      if ((flags & kValid) == 0) break;
      const int reference = static_cast<int>(load(
          offsetof(Plan, keys) + offsetof(KeyRecord, reference), key_buffer, sizeof(KeyRecord)));
      const int a = ds_exponent(tile, reference, 0), b = ds_exponent(tile, reference, 1);
      make_tile(tile, key_buffer, flags, this->stage_record(tile).dq, {uniform(a), uniform(b)});
      if (flags & kStore) key_buffer = Config::kKeyBuffers - 1 - key_buffer;
    }
    wait_for_staging();
    if (this->leads()) {
      this->smem_.dq_record[staging()] = {.tile = -1, .turn = 0, .last = 1};
    }
    this->arrive(offsetof(Plan, dq_full), staging());
  }

 private:
  /// A word of an element of an array.
  __device__ std::uint32_t load(std::size_t word, unsigned index, std::size_t size) const {
    return __float_as_uint(ptx::load_shared_f32(this->at(word, static_cast<int>(index), size)));
  }
  __device__ int staging() const { return static_cast<int>(piece_ % Config::kDqBuffers); }
  __device__ void wait_for_staging() const {
    ptx::mbarrier_wait(this->barrier(offsetof(Plan, dq_empty), staging()),
                       (piece_ / Config::kDqBuffers + 1) % 2);
  }

  /// Of dS of a consumer's keys; kNoExponent where it is all zeros. `reference`: of K's exponents.
  __device__ int ds_exponent(unsigned tile, int reference, int part) const {
    const std::uint32_t bits = this->largest_amax(tile, part);
    const int exponent = amax_exponent(__uint_as_float(bits)) + reference;
    return bits == 0 ? kNoExponent : exponent;
  }

  /// `exponents`: of dS of both consumers.
  __device__ void make_tile(unsigned tile, int key_buffer, std::uint32_t flags, const DqRecord& dq,
                            int2 exponents) {
    const int buffer = static_cast<int>(tile % Config::kDsBuffers);
    const int a = exponents.x, b = exponents.y;
#pragma unroll 1
    for (int piece = 0; piece < Config::kDqPieces; ++piece) {
      Columns sum;
      multiply(sum, buffer, key_buffer, piece, a, b);
      const int exponent = max(a, b);
      const float factor = scaled(params_.softmax_scale,
                                  (exponent == kNoExponent ? 0 : exponent) + params_.dq_exponent);
      if (piece + 1 == Config::kDqPieces) {
        this->arrive(offsetof(Plan, ds_empty), buffer);
        if (flags & kStore) this->arrive(offsetof(Plan, key_empty), key_buffer);
      }
      wait_for_staging();
      stage(sum, factor);
      if (this->leads()) this->smem_.dq_record[staging()] = dq;
      cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
      this->arrive(offsetof(Plan, dq_full), staging());
      ++piece_;
    }
  }

  /// Both halves of the keys, with the exponents a and b, in one chain where these are the same;
  /// else the smaller goes first and is multiplied by a power of two.
  __device__ void multiply(Columns& sum, int buffer, int key_buffer, int piece, int a, int b) {
    const int first = a > b ? 1 : 0;
    const int least = min(a, b), exponent = max(a, b);
    ptx::wgmma_fence();
    issue<true>(sum, buffer, key_buffer, piece, first);
    if (least != exponent && least != kNoExponent) {
      ptx::wgmma_wait<0>();
      fence_registers(sum);
      const float shrink = power_of_two(least - exponent);
#pragma unroll
      for (float& value : sum) value *= shrink;
    }
    ptx::wgmma_fence();
    issue<false>(sum, buffer, key_buffer, piece, first ^ 1);
    ptx::wgmma_wait<0>();
    fence_registers(sum);
  }
  template <bool kStart>
  __device__ void issue(Columns& sum, int buffer, int key_buffer, int piece, int half) const {
    const Plan& smem = this->smem_;
    const std::uint64_t a = tile_descriptor<kTileN>(
        this->at(offsetof(Plan, ds), buffer, sizeof(smem.ds[0])) + 64 * half);
    const std::uint64_t b =
        tile_descriptor<kTileN>(this->at(offsetof(Plan, kt), key_buffer, sizeof(smem.kt[0])) +
                                piece * kDqColumns * kTileN + 64 * half);
    if constexpr (kStart) {
      ptx::WgmmaSs<kDqColumns>::start(sum, a, b);
    } else {
      ptx::WgmmaSs<kDqColumns>::run(sum, a, b, true);
    }
    ptx::WgmmaSs<kDqColumns>::run(sum, a + 2, b + 2, true);
    ptx::wgmma_commit();
  }

  __device__ void stage(const Columns& sum, float factor) const {
    auto* const pieces = reinterpret_cast<uint4*>(this->smem_.dq[staging()]) + threadIdx.x % 128;
    constexpr int kPieces = Config::kDqPieceBytes / (16 * 128);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if constexpr (Config::kDqSums == DqSums::kF16) {
        const float* const e = sum + 8 * i;
        pieces[128 * i] = make_uint4(ptx::half2_pack(e[0] * factor, e[1] * factor),
                                     ptx::half2_pack(e[2] * factor, e[3] * factor),
                                     ptx::half2_pack(e[4] * factor, e[5] * factor),
                                     ptx::half2_pack(e[6] * factor, e[7] * factor));
      } else {
        const float* const e = sum + 4 * i;
        pieces[128 * i] =
            make_uint4(__float_as_uint(e[0] * factor), __float_as_uint(e[1] * factor),
                       __float_as_uint(e[2] * factor), __float_as_uint(e[3] * factor));
      }
    }
  }

  const BackwardParams& params_;
  unsigned piece_ = 0;  ///< of all that it stages
};

}  // namespace mxfa::sm90::backward
