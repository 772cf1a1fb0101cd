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
      std::uint32_t flags = load(offsetof(Plan, stage) + offsetof(StageRecord, flags),
                                 tile % Config::kTileRecords, sizeof(StageRecord));
      int2 exponents;
      // Loads side by side: they take long where MMAs read shared memory.
      if constexpr (Config::kTellsExponents) exponents = told_exponents(tile);
      flags = uniform(flags);
      if ((flags & kValid) == 0) break;
      if constexpr (!Config::kTellsExponents) exponents = find_exponents(tile);
      make_tile(tile, key_buffer, flags, this->stage_record(tile).dq,
                {uniform(exponents.x), uniform(exponents.y)});
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

  /// Of dS of both consumers' keys, K's reference left out.
  __device__ int2 told_exponents(unsigned tile) const {
    const float2 words = ptx::load_shared_f32x2(
        this->at(offsetof(Plan, ds_exponent), static_cast<int>(tile % Config::kAmaxBuffers),
                 sizeof(this->smem_.ds_exponent[0])));
    return {__float_as_int(words.x), __float_as_int(words.y)};
  }
  __device__ int2 find_exponents(unsigned tile) const {
    const std::uint32_t a = this->largest_amax(tile, 0), b = this->largest_amax(tile, 1);
    return {amax_exponent(__uint_as_float(a)), amax_exponent(__uint_as_float(b))};
  }

  __device__ void make_tile(unsigned tile, int key_buffer, std::uint32_t flags, const DqRecord& dq,
                            int2 exponents) {
    const int buffer = static_cast<int>(tile % Config::kDsBuffers);
    const int reference = static_cast<int>(
        load(offsetof(Plan, keys) + offsetof(KeyRecord, reference), key_buffer, sizeof(KeyRecord)));
#pragma unroll 1
    for (int piece = 0; piece < Config::kDqPieces; ++piece) {
      Columns sum;
      multiply(sum, buffer, key_buffer, piece, exponents);
      const float factor = scaled(params_.softmax_scale,
                                  max(exponents.x, exponents.y) + reference + params_.dq_exponent);
      ptx::wgmma_wait<0>();
      fence_registers(sum);
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

  /// Issues both halves of the keys, in one chain where their exponents are the same; else the half
  /// of the smaller goes first and is multiplied by a power of two.
  __device__ void multiply(Columns& sum, int buffer, int key_buffer, int piece, int2 exponents) {
    const int first = exponents.x > exponents.y ? 1 : 0;
    const int drop = -abs(exponents.x - exponents.y);
    ptx::wgmma_fence();
    issue<true>(sum, buffer, key_buffer, piece, first);
    if (drop != 0) {
      ptx::wgmma_wait<0>();
      fence_registers(sum);
      const float shrink = power_of_two(drop);
#pragma unroll
      for (float& value : sum) value *= shrink;
    }
    ptx::wgmma_fence();
    issue<false>(sum, buffer, key_buffer, piece, first ^ 1);
  }
  template <bool kStart>
  __device__ void issue(Columns& sum, int buffer, int key_buffer, int piece, int half) const {
    const Plan& smem = this->smem_;
    const std::uint64_t a = tile_descriptor_of<kTileN>(
        this->word_at(offsetof(Plan, ds), buffer, sizeof(smem.ds[0])) + 4 * half);
    const std::uint64_t b = tile_descriptor_of<kTileN>(
        this->word_at(offsetof(Plan, kt), key_buffer, sizeof(smem.kt[0])) +
        piece * (kDqColumns * kTileN / 16) + 4 * half);
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
