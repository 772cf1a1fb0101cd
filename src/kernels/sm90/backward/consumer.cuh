#pragma once

#include <cuda/ptx>

#include "kernels/sm90/backward/epilogue.cuh"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/scores.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

/// The consumer role.
namespace mxfa::sm90::backward {

/// One warpgroup, 64 keys. Of each query tile: S^T and dP^T with keys as rows, so that P^T and dS^T
/// are A operands in registers and a warp owns the keys whose dK rows it accumulates; a second
/// payload of dS, transposed through shared memory, for half of dQ's columns. S^T of the next query
/// tile, of the next keys too, is issued before dQ is written, so that the tensor cores have work.
/// Waits on full, key_full; signals empty, key_empty.
template <class Config>
class Consumer {
 public:
  using Plan = SmemPlan<Config>;
  static constexpr int kDim = Config::kHeadDim;
  using Gradient = float[kDim / 2];

  /// Addresses come out of a reduction so that the compiler keeps them in uniform registers.
  __device__ Consumer(const BackwardParams& params, Plan& smem, int warpgroup)
      : params_(params),
        smem_(smem),
        part_(static_cast<int>(__reduce_or_sync(~0u, static_cast<unsigned>(warpgroup)))),
        base_(__reduce_or_sync(~0u, shared_address(&smem))),
        warp_(static_cast<int>(__reduce_or_sync(~0u, threadIdx.x / 32 % 4))),
        lane_(threadIdx.x % 32) {}

  __device__ void run() {
    ptx::mbarrier_wait(at(offsetof(Plan, full), stage_, 8), phase_);
    if ((smem_.stage[stage_].flags & kValid) == 0) return;
    ptx::mbarrier_wait(at(offsetof(Plan, key_full), key_buffer_, 8), key_phase_);
    begin_keys();
    Fragment s;
    Gradient dv, dk;
    ptx::wgmma_fence();
    issue_scores(s, stage_, key_buffer_);
    bool more = true;
    while (more) more = run_tile(s, dv, dk);
    ptx::wgmma_wait<0>();
    fence_registers(s);
    if (leads()) cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>());
  }

 private:
  __device__ std::uint32_t at(std::size_t member, int index, std::size_t size) const {
    return base_ + static_cast<std::uint32_t>(member) + index * static_cast<std::uint32_t>(size);
  }
  /// This warp's exponents of K and V.
  __device__ void begin_keys() {
    const KeyRecord& keys = smem_.keys[key_buffer_];
    const int group = 2 * part_ + warp_ / 2;
    k_exponent_ = keys.k_exponent[group];
    v_exponent_ = keys.v_exponent[group];
    k_reference_ = keys.reference;
  }

  // The five GEMMs of a warpgroup.
  __device__ void issue_rows(Fragment& out, std::uint32_t keys, std::uint32_t queries) const {
    const std::uint64_t a = tile_descriptor<Config::kRowBytes>(keys + part_ * 64 * kDim);
    const std::uint64_t b = tile_descriptor<Config::kRowBytes>(queries);
#pragma unroll
    for (int step = 0; step < kDim / 32; ++step) {
      ptx::WgmmaSs<kTileM>::run(out, a + 2 * step, b + 2 * step, step != 0);
    }
    ptx::wgmma_commit();
  }
  __device__ void issue_scores(Fragment& s, int stage, int key_buffer) const {
    issue_rows(s, at(offsetof(Plan, k), key_buffer, sizeof(smem_.k[0])),
               at(offsetof(Plan, q), stage, sizeof(smem_.q[0])));
  }
  __device__ void issue_tokens(Gradient& out, const Payload& a, std::uint32_t queries,
                               bool accumulate) const {
    const std::uint64_t b = tile_descriptor<kTileM>(queries);
#pragma unroll
    for (int step = 0; step < kTileM / 32; ++step) {
      ptx::WgmmaRs<kDim>::run(out, a + 4 * step, b + 2 * step, step != 0 || accumulate);
    }
    ptx::wgmma_commit();
  }
  __device__ void issue_dq(float (&dq)[Config::kDqColumns / 2]) const {
    const std::uint64_t a = tile_descriptor<kTileN>(at(offsetof(Plan, ds), 0, 0));
    const std::uint64_t b =
        tile_descriptor<kTileN>(at(offsetof(Plan, kt), key_buffer_, sizeof(smem_.kt[0])) +
                                part_ * Config::kDqColumns * kTileN);
#pragma unroll
    for (int step = 0; step < kTileN / 32; ++step) {
      ptx::WgmmaSs<Config::kDqColumns>::run(dq, a + 2 * step, b + 2 * step, step != 0);
    }
    ptx::wgmma_commit();
  }

  __device__ bool leads() const { return threadIdx.x % 128 == 0; }

  /// Whether another tile follows, whose S^T is then in flight into s.
  __device__ bool run_tile(Fragment& s, Gradient& dv, Gradient& dk) {
    const RowRecord& rows = smem_.rows[stage_];
    const std::uint32_t flags = smem_.stage[stage_].flags;
    const int pair = lane_ % 4;
    Payload p, codes;
    float dq_factor;
    // Before anything else is issued: the compiler serializes all MMAs where S^T of the last round
    // is waited for beside others.
    ptx::wgmma_wait<0>();
    fence_registers(s);
    {
      Fragment dp;
      ptx::wgmma_fence();
      issue_rows(dp, at(offsetof(Plan, v), key_buffer_, sizeof(smem_.v[0])),
                 at(offsetof(Plan, dout), stage_, sizeof(smem_.dout[0])));
      float s_factor[kQGroups], dp_factor[kQGroups], amax[kQGroups];
#pragma unroll
      for (int g = 0; g < kQGroups; ++g) {
        s_factor[g] = params_.scale_log2 * power_of_two(rows.q_exponent[g] + k_exponent_);
        dp_factor[g] = power_of_two(rows.dp_exponent[g] + v_exponent_);
      }
      SeeingColumns seeing[2] = {};
      if (flags & kMasked) find_seeing(seeing);
      if (flags & kMasked) {
        exponentiate<true>(rows, pair, s_factor, seeing, s, p);
      } else {
        exponentiate<false>(rows, pair, s_factor, seeing, s, p);
      }
      ptx::wgmma_fence();
      issue_tokens(dv, p, at(offsetof(Plan, dout_t), stage_, sizeof(smem_.dout_t[0])),
                   (flags & kFresh) == 0);
      ptx::wgmma_wait<1>();
      fence_registers(dp);
      if (flags & kMasked) {
        differentiate<true>(rows, pair, dp_factor, seeing, s, dp, amax);
      } else {
        differentiate<false>(rows, pair, dp_factor, seeing, s, dp, amax);
      }
      const float dk_factor = choose_scales(rows, flags, amax, dk);
      encode_for_dk(dp, dk_factor, codes);
      ptx::wgmma_fence();
      issue_tokens(dk, codes, at(offsetof(Plan, qt), stage_, sizeof(smem_.qt[0])),
                   (flags & kFresh) == 0);
      // The copy engine has read what was staged last, and every warp's amax is known.
      if (leads()) cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>());
      sync_threads(1, Config::kConsumerThreads);
      dq_factor = store_ds(rows, dp);
    }
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    sync_threads(2, Config::kConsumerThreads);
    float dq[Config::kDqColumns / 2];
    ptx::wgmma_fence();
    issue_dq(dq);

    const int stage = stage_, key_buffer = key_buffer_;
    const std::int64_t dq_tile = smem_.stage[stage].dq_tile;
    const bool more = find_next();
    ptx::wgmma_fence();
    issue_scores(s, stage_, key_buffer_);
    ptx::wgmma_wait<1>();
    fence_registers(dq);
    store_dq(dq, dq_factor, dq_tile);
    if (flags & (kPromote | kStore)) finish(flags, rows.anchor, key_buffer, dv, dk);
    __syncwarp();
    if (lane_ == 0) {
      ptx::mbarrier_arrive(at(offsetof(Plan, empty), stage, 8));
      if (flags & kStore) ptx::mbarrier_arrive(at(offsetof(Plan, key_empty), key_buffer, 8));
    }
    if (flags & kStore) begin_keys();
    return more;
  }

  /// Moves on to the next tile, if there is one, and waits for what S^T of it reads; else stays, so
  /// that the S^T that follows without a condition reads something.
  __device__ bool find_next() {
    const bool last = (smem_.stage[stage_].flags & kStore) != 0;
    int stage = stage_ + 1;
    unsigned phase = phase_;
    if (stage == Config::kStages) {
      stage = 0;
      phase ^= 1;
    }
    ptx::mbarrier_wait(at(offsetof(Plan, full), stage, 8), phase);
    if ((smem_.stage[stage].flags & kValid) == 0) return false;
    stage_ = stage;
    phase_ = phase;
    if (!last) return true;
    if (++key_buffer_ == Config::kKeyBuffers) {
      key_buffer_ = 0;
      key_phase_ ^= 1;
    }
    ptx::mbarrier_wait(at(offsetof(Plan, key_full), key_buffer_, 8), key_phase_);
    return true;
  }

  __device__ void find_seeing(SeeingColumns (&seeing)[2]) const {
    const KeyRecord& keys = smem_.keys[key_buffer_];
    const int first = smem_.stage[stage_].row0 + 2 * (lane_ % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int key = keys.key0 + 64 * part_ + 16 * warp_ + 8 * h + lane_ / 4;
      const attention::KeyRange rows =
          attention::seeing_rows(params_.mask, keys.seqlen_q, keys.seqlen_k, key, key + 1);
      seeing[h] = {static_cast<int>(rows.begin) - first, static_cast<int>(rows.end) - first};
    }
  }

  /// The warp's exponent of dS for dK, which only grows: returns the factor of y. Publishes the
  /// amax, K's exponents folded, that dQ's scale comes from.
  __device__ float choose_scales(const RowRecord& rows, std::uint32_t flags,
                                 const float (&own)[kQGroups], Gradient& dk) {
    float amax[kQGroups];
#pragma unroll
    for (int g = 0; g < kQGroups; ++g) {
      amax[g] = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(own[g])));
    }
    if (lane_ == 0) {
      const float fold = power_of_two(k_exponent_ - k_reference_);
      smem_.amax[4 * part_ + warp_] =
          __float_as_uint(fmaxf(amax[0] * power_of_two(rows.dq_exponent[0]),
                                amax[1] * power_of_two(rows.dq_exponent[1])) *
                          fold);
    }
    const float largest = fmaxf(amax[0], amax[1]);
    if (flags & kHeadBegins) exponent_ = kNoExponent;
    const int old = exponent_;
    if (is_usable(largest)) {
      const int needed = amax_exponent(largest) + rows.reference;
      if (needed > exponent_) exponent_ = needed;
    }
    if (exponent_ != old && old != kNoExponent) {
      const float shrink = power_of_two(old - exponent_);
#pragma unroll
      for (float& value : dk) value *= shrink;
    }
    const float factor = power_of_two(exponent_ == kNoExponent ? 0 : rows.reference - exponent_);
    return largest == 0.0f || is_usable(largest) ? factor : poison();
  }

  /// dS for dQ under the scale of the whole tile; returns the factor of dQ.
  __device__ float store_ds(const RowRecord& rows, const Fragment& y) const {
    std::uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4 * Config::kConsumers; ++i) {
      const std::uint32_t other = smem_.amax[i];
      bits = other > bits ? other : bits;
    }
    const float amax = __uint_as_float(bits);
    const int exponent = bits == 0 ? 0 : amax_exponent(amax) + k_reference_;
    float factor[kQGroups];
#pragma unroll
    for (int g = 0; g < kQGroups; ++g) {
      factor[g] = bits == 0 || is_usable(amax)
                      ? power_of_two(rows.dq_exponent[g] + k_exponent_ - exponent)
                      : poison();
    }
    const int piece = (4 * part_ + warp_) ^ (lane_ & 7);
    store_for_dq(y, factor, at(offsetof(Plan, ds), 0, 0) + lane_ * kTileN + 16 * piece);
    return scaled(params_.softmax_scale, exponent);
  }

  /// Adds a warpgroup's half of a dQ tile to the sums: one bulk reduction of contiguous memory.
  __device__ void store_dq(const float (&dq)[Config::kDqColumns / 2], float factor,
                           std::int64_t tile) const {
    float* const stage = smem_.dq[part_];
#pragma unroll
    for (int i = 0; i < Config::kDqColumns / 8; ++i) {
      reinterpret_cast<float4*>(stage)[128 * i + threadIdx.x % 128] =
          make_float4(dq[4 * i] * factor, dq[4 * i + 1] * factor, dq[4 * i + 2] * factor,
                      dq[4 * i + 3] * factor);
    }
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    sync_threads(3 + part_, 128);
    if (!leads()) return;
    float* const target = params_.dq_sums + tile * kDqTileFloats<Config> +
                          part_ * (kDqTileFloats<Config> / Config::kConsumers);
    cuda::ptx::cp_reduce_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared,
                                    cuda::ptx::op_add, target, stage, sizeof(smem_.dq[0]));
    cuda::ptx::cp_async_bulk_commit_group();
  }

  __device__ void finish(std::uint32_t flags, int anchor, int key_buffer, const Gradient& dv,
                         const Gradient& dk) const {
    const KeyRecord& keys = smem_.keys[key_buffer];
    const bool scratch_has = (flags & kScratchHas) != 0;
    const int exponent = exponent_ == kNoExponent ? 0 : exponent_;
    if (flags & kPromote) {
      promote<Config>(params_, 0, !scratch_has, anchor, dv);
      promote<Config>(params_, 1, !scratch_has, exponent, dk);
      return;
    }
    const int first_row = 64 * part_ + 16 * warp_;
    store_gradient<Config>(params_, params_.dv, keys, {0, scratch_has, anchor, 1.0f}, first_row,
                           dv);
    store_gradient<Config>(params_, params_.dk, keys,
                           {1, scratch_has, exponent, params_.softmax_scale}, first_row, dk);
  }

  const BackwardParams& params_;
  Plan& smem_;
  int part_;
  std::uint32_t base_;
  int warp_;
  int lane_;
  int stage_ = 0;
  unsigned phase_ = 0;
  int key_buffer_ = 0;
  unsigned key_phase_ = 0;
  int k_exponent_ = 0, v_exponent_ = 0, k_reference_ = 0;
  int exponent_ = kNoExponent;  ///< of dS for dK
};

}  // namespace mxfa::sm90::backward
