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
/// kt_full, dq_empty; signals ds_empty, kt_empty, key_empty, dq_full.
template <class Config>
class DqMaker : Warpgroup<Config> {
 public:
  using Base = Warpgroup<Config>;
  using Plan = typename Base::Plan;
  using Columns =
      std::conditional_t<Config::kHalfSums, std::uint32_t[kDqColumns / 4], float[kDqColumns / 2]>;

  __device__ DqMaker(const BackwardParams& params, Plan& smem) : Base(smem), params_(params) {}

  __device__ void run() {
    unsigned keys = 0;
    for (unsigned tile = 0;; ++tile) {
      ptx::mbarrier_wait(this->barrier(offsetof(Plan, ds_full), tile % Config::kDsBuffers),
                         tile / Config::kDsBuffers % 2);
      std::uint32_t flags = load(offsetof(Plan, stage) + offsetof(StageRecord, flags),
                                 tile % Config::kTileRecords, sizeof(StageRecord));
      Parts parts;
      // Loads side by side: they take long where MMAs read shared memory.
      if constexpr (Config::kTellsExponents) parts = told_exponents(tile);
      flags = uniform(flags);
      if ((flags & kValid) == 0) break;
      if constexpr (!Config::kTellsExponents) parts = find_exponents(tile);
      for (int& exponent : parts.exponent) exponent = uniform(exponent);
      const int key_buffer = static_cast<int>(keys % Config::kKeyBuffers);
      if (flags & kKeysBegin) {
        ptx::mbarrier_wait(this->barrier(offsetof(Plan, kt_full), key_buffer),
                           keys / Config::kKeyBuffers % 2);
      }
      make_tile(tile, key_buffer, flags, this->stage_record(tile).dq, sorted(parts));
      if (flags & kStore) ++keys;
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

  /// The consumers' parts of the keys and what exponents their dS has, but for K's reference where
  /// it is not told.
  static constexpr int kParts = Config::kConsumers;
  struct Parts {
    int exponent[kParts];
    int part[kParts];
  };
  __device__ Parts told_exponents(unsigned tile) const {
    const std::uint32_t address =
        this->at(offsetof(Plan, ds_exponent), static_cast<int>(tile % Config::kAmaxBuffers),
                 sizeof(this->smem_.ds_exponent[0]));
    Parts parts;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      parts.exponent[part] = __float_as_int(ptx::load_shared_f32(address + 4 * part));
    }
    return parts;
  }
  __device__ Parts find_exponents(unsigned tile) const {
    Parts parts;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      parts.exponent[part] = amax_exponent(__uint_as_float(this->largest_amax(tile, part)));
    }
    return parts;
  }
  /// By growing exponent.
  static __device__ Parts sorted(Parts parts) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) parts.part[part] = part;
#pragma unroll
    for (int end = kParts - 1; end > 0; --end) {
#pragma unroll
      for (int i = 0; i < end; ++i) {
        const int low = parts.exponent[i], high = parts.exponent[i + 1];
        const int part = parts.part[i], other = parts.part[i + 1];
        parts.exponent[i] = min(low, high);
        parts.exponent[i + 1] = max(low, high);
        parts.part[i] = low > high ? other : part;
        parts.part[i + 1] = low > high ? part : other;
      }
    }
    return parts;
  }

  __device__ void make_tile(unsigned tile, int key_buffer, std::uint32_t flags, const DqRecord& dq,
                            const Parts& parts) {
    const int buffer = static_cast<int>(tile % Config::kDsBuffers);
    int exponent = parts.exponent[kParts - 1] + params_.dq_exponent;
    if constexpr (!Config::kTellsExponents) {
      exponent += static_cast<int>(load(offsetof(Plan, keys) + offsetof(KeyRecord, reference),
                                        key_buffer, sizeof(KeyRecord)));
    }
#pragma unroll 1
    for (int piece = 0; piece < Config::kDqPieces; ++piece) {
      Columns sum;
      multiply(sum, buffer, key_buffer, piece, parts);
      const float factor = scaled(params_.softmax_scale, exponent);
      ptx::wgmma_wait<0>();
      fence_registers(sum);
      if (piece + 1 == Config::kDqPieces) {
        this->arrive(offsetof(Plan, ds_empty), buffer);
        if (flags & kStore) {
          this->arrive(offsetof(Plan, kt_empty), key_buffer);
          if constexpr (!Config::kTellsExponents) {
            this->arrive(offsetof(Plan, key_empty), key_buffer);
          }
        }
      }
      wait_for_staging();
      stage(sum, factor);
      if (this->leads()) this->smem_.dq_record[staging()] = dq;
      cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
      this->arrive(offsetof(Plan, dq_full), staging());
      ++piece_;
    }
  }

  /// Issues the parts of the keys in one chain; what is summed is multiplied by a power of two
  /// where the next part has a larger exponent.
  __device__ void multiply(Columns& sum, int buffer, int key_buffer, int piece,
                           const Parts& parts) const {
    ptx::wgmma_fence();
    issue<true>(sum, buffer, key_buffer, piece, parts.part[0]);
#pragma unroll
    for (int i = 1; i < kParts; ++i) {
      const int drop = parts.exponent[i - 1] - parts.exponent[i];
      if (drop != 0) {
        ptx::wgmma_wait<0>();
        fence_registers(sum);
        scale_sums(drop, sum);
      }
      ptx::wgmma_fence();
      issue<false>(sum, buffer, key_buffer, piece, parts.part[i]);
    }
  }
  template <bool kStart>
  __device__ void issue(Columns& sum, int buffer, int key_buffer, int piece, int part) const {
    constexpr int kPanel = Config::kPanel;
    const Plan& smem = this->smem_;
    const int panel = 64 * part / kPanel, in_panel = 64 * part % kPanel / 16;
    const std::uint64_t a =
        tile_descriptor_of<kPanel>(this->word_at(offsetof(Plan, ds), buffer, sizeof(smem.ds[0])) +
                                   panel * (kTileM * kPanel / 16) + in_panel);
    const std::uint64_t b = tile_descriptor_of<kPanel>(
        this->word_at(offsetof(Plan, kt), key_buffer, sizeof(smem.kt[0])) +
        panel * (Config::kHeadDim * kPanel / 16) + piece * (kDqColumns * kPanel / 16) + in_panel);
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
        const auto e = [&](int k) { return sum_at(sum, 8 * i + k) * factor; };
        pieces[128 * i] = make_uint4(ptx::half2_pack(e(0), e(1)), ptx::half2_pack(e(2), e(3)),
                                     ptx::half2_pack(e(4), e(5)), ptx::half2_pack(e(6), e(7)));
      } else {
        const auto e = [&](int k) { return sum_at(sum, 4 * i + k) * factor; };
        pieces[128 * i] = make_uint4(__float_as_uint(e(0)), __float_as_uint(e(1)),
                                     __float_as_uint(e(2)), __float_as_uint(e(3)));
      }
    }
  }

  const BackwardParams& params_;
  unsigned piece_ = 0;  ///< of all that it stages
};

}  // namespace mxfa::sm90::backward
