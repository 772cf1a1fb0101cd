#pragma once

#include <cuda_fp16.h>

#include <cuda/ptx>
#include <type_traits>

#include "kernels/sm90/backward/epilogue.cuh"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/scores.cuh"
#include "ptx/global.cuh"
#include "ptx/half2.cuh"
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
    Fragment s, dp;
    Gradient dv, dk;
    ptx::wgmma_fence();
    issue_scores(s);
    NextRows next = next_rows();
    ptx::wgmma_wait<0>();
    fence_registers(s);
    ptx::wgmma_fence();
    issue_dp(dp);
    while (run_tile(s, dp, next, dv, dk)) {
    }
    ptx::wgmma_wait<0>();
    fence_registers(dp);
    end_add();
  }

 private:
  /// What a tile's exponentials need: read while nothing else wants shared memory, which wgmma with
  /// 64 columns has no bandwidth left of.
  struct NextRows {
    RowValues bias;
    TileFactors factors;
  };

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
  __device__ void issue_scores(Fragment& s) const {
    issue_rows(s, at(offsetof(Plan, k), key_buffer_, sizeof(smem_.k[0])),
               at(offsetof(Plan, q), stage_, sizeof(smem_.q[0])));
  }
  __device__ void issue_dp(Fragment& dp) const {
    issue_rows(dp, at(offsetof(Plan, v), key_buffer_, sizeof(smem_.v[0])),
               at(offsetof(Plan, dout), stage_, sizeof(smem_.dout[0])));
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
  __device__ void issue_dq(float (&dq)[Config::kDqColumns / 2], int key_buffer) const {
    const std::uint64_t a = tile_descriptor<kTileN>(at(offsetof(Plan, ds), 0, 0));
    const std::uint64_t b =
        tile_descriptor<kTileN>(at(offsetof(Plan, kt), key_buffer, sizeof(smem_.kt[0])) +
                                part_ * Config::kDqColumns * kTileN);
#pragma unroll
    for (int step = 0; step < kTileN / 32; ++step) {
      ptx::WgmmaSs<Config::kDqColumns>::run(dq, a + 2 * step, b + 2 * step, step != 0);
    }
    ptx::wgmma_commit();
  }

  __device__ bool leads() const { return threadIdx.x % 128 == 0; }

  /// A tile whose S^T is in s and whose dP^T is in flight. Whether another follows, of which the
  /// same is then true. Every wait is for all MMAs: the compiler serializes all of them where one
  /// of the last round is waited for beside others.
  __device__ bool run_tile(Fragment& s, Fragment& dp, NextRows& next, Gradient& dv, Gradient& dk) {
    const int stage = stage_, key_buffer = key_buffer_;
    const RowRecord& rows = smem_.rows[stage];
    const std::uint32_t flags = smem_.stage[stage].flags;
    Payload p, codes;
    SeeingColumns seeing[2] = {};
    if (flags & kMasked) find_seeing(seeing);
    const TileFactors factors = next.factors;
    if (flags & kMasked) {
      exponentiate<true>(next.bias, factors.s, seeing, s, p);
    } else {
      exponentiate<false>(next.bias, factors.s, seeing, s, p);
    }
    RowValues minus_delta;
    load_rows(rows.minus_delta, minus_delta);
    ptx::wgmma_wait<0>();
    fence_registers(dp);
    ptx::wgmma_fence();
    issue_tokens(dv, p, at(offsetof(Plan, dout_t), stage, sizeof(smem_.dout_t[0])),
                 (flags & kFreshDv) == 0);
    const bool next_full = next_is_full();
    float amax[kQGroups];
    if (flags & kMasked) {
      differentiate<true>(minus_delta, factors.dp, seeing, s, dp, amax);
    } else {
      differentiate<false>(minus_delta, factors.dp, seeing, s, dp, amax);
    }
    const float dk_factor = choose_scales(rows, flags, amax, dk);
    encode_for_dk(dp, dk_factor, codes);
    const bool more = find_next(flags, next_full);
    ptx::wgmma_fence();
    issue_tokens(dk, codes, at(offsetof(Plan, qt), stage, sizeof(smem_.qt[0])),
                 (flags & kFreshDk) == 0);
    issue_scores(s);
    // The copy engine has read what was staged last, and every warp's amax is known.
    end_add();
    sync_threads(1, Config::kConsumerThreads);
    const float dq_factor = store_ds(rows, dp);
    // The last read of what the copy engine overwrites: the fences below are between the two.
    const int anchor = rows.anchor;
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    sync_threads(2, Config::kConsumerThreads);
    float dq[Config::kDqColumns / 2];
    ptx::wgmma_fence();
    issue_dq(dq, key_buffer);
    if (flags & kStore) begin_keys();
    next = next_rows();
    ptx::wgmma_wait<0>();
    fence_registers(s);
    fence_registers(dq);
    stage_dq(dq, dq_factor);
    add_dq(smem_.stage[stage]);
    if (flags & (kPromoteDv | kPromoteDk | kStore)) finish(flags, anchor, key_buffer, dv, dk);
    __syncwarp();
    if (more && lane_ == 0) {
      ptx::mbarrier_arrive(at(offsetof(Plan, empty), stage, 8));
      if (flags & kStore) ptx::mbarrier_arrive(at(offsetof(Plan, key_empty), key_buffer, 8));
    }
    ptx::wgmma_fence();
    issue_dp(dp);
    return more;
  }

  /// Whether the next stage is full already: asked for ahead, since even a yes takes long.
  __device__ bool next_is_full() const {
    int stage = stage_ + 1;
    unsigned phase = phase_;
    if (stage == Config::kStages) {
      stage = 0;
      phase ^= 1;
    }
    return ptx::mbarrier_try_wait(at(offsetof(Plan, full), stage, 8), phase);
  }

  /// Moves on to the next tile, if there is one, and waits for what S^T of it reads; else stays, so
  /// that what follows without a condition reads something.
  __device__ bool find_next(std::uint32_t flags, bool full) {
    int stage = stage_ + 1;
    unsigned phase = phase_;
    if (stage == Config::kStages) {
      stage = 0;
      phase ^= 1;
    }
    if (!full) ptx::mbarrier_wait(at(offsetof(Plan, full), stage, 8), phase);
    if ((smem_.stage[stage].flags & kValid) == 0) return false;
    stage_ = stage;
    phase_ = phase;
    if ((flags & kStore) == 0) return true;
    if (++key_buffer_ == Config::kKeyBuffers) {
      key_buffer_ = 0;
      key_phase_ ^= 1;
    }
    ptx::mbarrier_wait(at(offsetof(Plan, key_full), key_buffer_, 8), key_phase_);
    return true;
  }

  __device__ void load_rows(const float (&rows)[4][20], RowValues& values) const {
    const float4* const source = reinterpret_cast<const float4*>(rows[lane_ % 4]);
#pragma unroll
    for (int t = 0; t < kTileM / 16; ++t) values[t] = source[t];
  }
  __device__ NextRows next_rows() const {
    const RowRecord& rows = smem_.rows[stage_];
    NextRows next;
    load_rows(rows.bias, next.bias);
#pragma unroll
    for (int g = 0; g < kQGroups; ++g) {
      next.factors.s[g] = params_.scale_log2 * power_of_two(rows.q_exponent[g] + k_exponent_);
      next.factors.dp[g] = power_of_two(rows.dp_exponent[g] + v_exponent_);
    }
    return next;
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
    return scaled(params_.softmax_scale, exponent + params_.dq_exponent);
  }

  __device__ void stage_dq(const float (&dq)[Config::kDqColumns / 2], float factor) const {
    auto* const pieces = reinterpret_cast<uint4*>(smem_.dq[part_]) + threadIdx.x % 128;
    constexpr int kPieces = Config::kDqBytes / (16 * 128);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if constexpr (Config::kDqSums == DqSums::kF16) {
        const float* const e = dq + 8 * i;
        pieces[128 * i] = make_uint4(ptx::half2_pack(e[0] * factor, e[1] * factor),
                                     ptx::half2_pack(e[2] * factor, e[3] * factor),
                                     ptx::half2_pack(e[4] * factor, e[5] * factor),
                                     ptx::half2_pack(e[6] * factor, e[7] * factor));
      } else {
        const float* const e = dq + 4 * i;
        pieces[128 * i] =
            make_uint4(__float_as_uint(e[0] * factor), __float_as_uint(e[1] * factor),
                       __float_as_uint(e[2] * factor), __float_as_uint(e[3] * factor));
      }
    }
  }
  /// The copy engine has read what was staged last; in a fixed order, it has added it too, and the
  /// next in line may.
  __device__ void end_add() {
    if (!leads()) return;
    if (params_.dq_turns == nullptr) {
      cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>());
      return;
    }
    cuda::ptx::cp_async_bulk_wait_group(cuda::ptx::n32_t<0>());
    if (added_ >= 0) ptx::add_release(&params_.dq_turns[added_], 1);
    added_ = -1;
  }
  /// Adds a warpgroup's half of a dQ tile to the sums: one bulk reduction of contiguous memory.
  __device__ void add_dq(const StageRecord& record) {
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    sync_threads(3 + part_, 128);
    if (!leads()) return;
    using Sum = std::conditional_t<Config::kDqSums == DqSums::kF16, __half, float>;
    const int half = Config::kConsumers * record.dq_tile + part_;
    if (params_.dq_turns != nullptr) {
      while (ptx::load_acquire(&params_.dq_turns[half]) != record.turn) {
      }
      added_ = half;
    }
    std::uint8_t* const target = params_.dq_sums + std::int64_t{half} * Config::kDqBytes;
    cuda::ptx::cp_reduce_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared,
                                    cuda::ptx::op_add, reinterpret_cast<Sum*>(target),
                                    reinterpret_cast<const Sum*>(smem_.dq[part_]),
                                    Config::kDqBytes);
    cuda::ptx::cp_async_bulk_commit_group();
  }

  __device__ void finish(std::uint32_t flags, int anchor, int key_buffer, const Gradient& dv,
                         const Gradient& dk) const {
    const KeyRecord& keys = smem_.keys[key_buffer];
    const bool scratch_dv = (flags & kScratchDv) != 0, scratch_dk = (flags & kScratchDk) != 0;
    const int exponent = exponent_ == kNoExponent ? 0 : exponent_;
    if ((flags & kStore) == 0) {
      if (flags & kPromoteDv) promote<Config>(params_, 0, !scratch_dv, anchor, dv);
      if (flags & kPromoteDk) promote<Config>(params_, 1, !scratch_dk, exponent, dk);
      return;
    }
    const int first_row = 64 * part_ + 16 * warp_;
    std::uint8_t* const staging = smem_.out[4 * part_ + warp_];
    store_gradient<Config>(params_, params_.dv, keys, {0, scratch_dv, anchor, 1.0f}, first_row,
                           staging, dv);
    store_gradient<Config>(params_, params_.dk, keys,
                           {1, scratch_dk, exponent, params_.softmax_scale}, first_row, staging,
                           dk);
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
  int added_ = -1;              ///< half of a tile whose add has not been followed up
};

}  // namespace mxfa::sm90::backward
