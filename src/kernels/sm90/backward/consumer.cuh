#pragma once

#include <cuda/ptx>

#include "kernels/sm90/backward/epilogue.cuh"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/scores.cuh"
#include "ptx/half2.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

/// The consumer role.
namespace mxfa::sm90::backward {

/// One warpgroup, 64 keys. Of each query tile: S^T and dP^T with keys as rows, so that P^T and dS^T
/// are A operands in registers and a warp owns the keys whose dK rows it accumulates; a second
/// payload of dS, transposed, to shared memory. Of every other tile, one tile later, dQ of all
/// keys: so a warpgroup may be up to a tile ahead of the other, and has MMAs for the tensor cores
/// while the other has arithmetic. Waits on rows_full, columns_full, key_full, ds_full, ds_empty,
/// dq_empty; signals rows_empty, columns_empty, key_empty, ds_full, ds_empty, dq_full.
template <class Config>
class Consumer {
 public:
  using Plan = SmemPlan<Config>;
  static constexpr int kDim = Config::kHeadDim;
  using Gradient = float[kDim / 2];

  __device__ Consumer(const BackwardParams& params, Plan& smem, int warpgroup)
      : params_(params),
        smem_(smem),
        part_(static_cast<int>(uniform(static_cast<unsigned>(warpgroup)))),
        base_(uniform(shared_address(&smem))),
        warp_(static_cast<int>(uniform(threadIdx.x / 32 % 4))),
        lane_(threadIdx.x % 32) {}

  __device__ void run() {
    Gradient dv, dk;
    std::uint32_t flags = wait_for_tile();
    while (flags & kValid) flags = run_tile(flags, dv, dk);
    // Where keys have two buffers, dQ of the last tile is left, for whom it falls to.
    if (Config::kKeyBuffers > 1 && tile_ > 0 && is_own(tile_ - 1)) {
      make_dq(tile_ - 1, key_buffer());
      hand_over();
    }
    if (is_own(tile_)) end_adds();
  }

 private:
  struct DsFactors {
    float dq[kQGroups];  ///< what dS is multiplied by for dQ: 2^(reference - Q's exponent), K's
                         ///< folded
    int reference;       ///< the larger exponent of Q
  };

  /// What all lanes have, in a uniform register: branches by it then need no convergence, and
  /// addresses made of it no vector arithmetic.
  static __device__ std::uint32_t uniform(std::uint32_t value) {
    return __reduce_or_sync(~0u, value);
  }
  __device__ std::uint32_t at(std::size_t member, int index, std::size_t size) const {
    return base_ + static_cast<std::uint32_t>(member) + index * static_cast<std::uint32_t>(size);
  }
  __device__ std::uint32_t barrier(std::size_t member, int index) const {
    return at(member, index, 8);
  }
  /// Whether dQ of a tile is this consumer's.
  __device__ bool is_own(unsigned tile) const {
    return tile % Config::kConsumers == static_cast<unsigned>(part_);
  }
  /// One thread of the warpgroup; by whole warps.
  __device__ bool leads() const { return warp_ == 0 && ptx::elect_one(); }

  /// Of this warp's keys.
  __device__ int group() const { return 2 * part_ + warp_ / 2; }

  // The five GEMMs.
  __device__ void issue_rows(Fragment& out, std::uint32_t keys, std::uint32_t queries) const {
    const std::uint64_t a = tile_descriptor<Config::kRowBytes>(keys + part_ * 64 * kDim);
    const std::uint64_t b = tile_descriptor<Config::kRowBytes>(queries);
#pragma unroll
    for (int step = 0; step < kDim / 32; ++step) {
      ptx::WgmmaSs<kTileM>::run(out, a + 2 * step, b + 2 * step, step != 0);
    }
    ptx::wgmma_commit();
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
  /// dQ of the keys of one consumer's half.
  __device__ void issue_dq(Gradient& dq, int key_buffer, int half, bool accumulate) const {
    const std::uint64_t a =
        tile_descriptor<kTileN>(at(offsetof(Plan, ds), part_, sizeof(smem_.ds[0])) + 64 * half);
    const std::uint64_t b = tile_descriptor<kTileN>(
        at(offsetof(Plan, kt), key_buffer, sizeof(smem_.kt[0])) + 64 * half);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      ptx::WgmmaSs<kDim>::run(dq, a + 2 * step, b + 2 * step, step != 0 || accumulate);
    }
    ptx::wgmma_commit();
  }

  /// Returns the flags of the tile that comes next.
  __device__ std::uint32_t run_tile(std::uint32_t flags, Gradient& dv, Gradient& dk) {
    if (flags & kKeysBegin) [[unlikely]]
      next_keys();
    const int stage = this->stage();
    const RowRecord& rows = smem_.rows[record()];
    SeeingColumns seeing[2] = {};
    if (flags & kMasked) [[unlikely]]
      find_seeing(seeing);
    Fragment s, dp;
    Payload p, codes;
    RowValues values;
    load_rows(rows.bias, values);
    const TileFactors factors = tile_factors(rows);
    ptx::wgmma_fence();
    issue_rows(s, at(offsetof(Plan, k), key_buffer(), sizeof(smem_.k[0])),
               at(offsetof(Plan, q), stage, sizeof(smem_.q[0])));
    issue_rows(dp, at(offsetof(Plan, v), key_buffer(), sizeof(smem_.v[0])),
               at(offsetof(Plan, dout), stage, sizeof(smem_.dout[0])));
    const bool columns_full =
        ptx::mbarrier_test_wait(barrier(offsetof(Plan, columns_full), stage), phase());
    ptx::wgmma_wait<1>();
    fence_registers(s);
    if (flags & kMasked) [[unlikely]] {
      exponentiate<true>(values, factors.s, seeing, s, p);
    } else {
      exponentiate<false>(values, factors.s, seeing, s, p);
    }
    load_rows(rows.minus_delta, values);
    const DsFactors ds_factors = load_ds_factors(rows);
    if (!columns_full) ptx::mbarrier_wait(barrier(offsetof(Plan, columns_full), stage), phase());
    ptx::wgmma_wait<0>();
    fence_registers(dp);
    arrive(offsetof(Plan, rows_empty), stage);
    ptx::wgmma_fence();
    issue_tokens(dv, p, at(offsetof(Plan, dout_t), stage, sizeof(smem_.dout_t[0])),
                 (flags & kFreshDv) == 0);
    float amax[kQGroups];
    if (flags & kMasked) [[unlikely]] {
      differentiate<true>(values, factors.dp, seeing, s, dp, amax);
    } else {
      differentiate<false>(values, factors.dp, seeing, s, dp, amax);
    }
    const float dk_factor = choose_scales(ds_factors, flags, amax, dk);
    encode_for_dk(dp, dk_factor, codes);
    ptx::wgmma_fence();
    issue_tokens(dk, codes, at(offsetof(Plan, qt), stage, sizeof(smem_.qt[0])),
                 (flags & kFreshDk) == 0);
    store_ds(ds_factors, dp);
    const bool makes_dq = __any_sync(~0u, has_dq(flags));
    if (makes_dq) {
      make_dq(tile_ - 1, (flags & kKeysBegin) ? other_keys() : key_buffer());
    } else {
      ptx::wgmma_wait<0>();
    }
    fence_registers(dv);
    fence_registers(dk);
    arrive(offsetof(Plan, columns_empty), stage);
    if (Config::kKeyBuffers > 1 && (flags & kKeysBegin) && tile_ > 0) [[unlikely]] {
      arrive(offsetof(Plan, key_empty), other_keys());
    }
    if (flags & (kPromoteDv | kPromoteDk | kStore | kFoldDv)) [[unlikely]] {
      finish(flags, rows.anchor, dv, dk);
    }
    ++tile_;
    return hand_over_and_wait(makes_dq);
  }

  /// Whether dQ of the tile before is this consumer's to make: with one buffer of keys, that of
  /// their last tile has been made.
  __device__ bool has_dq(std::uint32_t flags) const {
    if (Config::kKeyBuffers == 1 && (flags & kKeysBegin)) return false;
    return tile_ > 0 && is_own(tile_ - 1);
  }
  __device__ int other_keys() const { return Config::kKeyBuffers - 1 - key_buffer(); }

  /// Beside the fence's latency, what the next tile begins with, if it is there; else what it waits
  /// for may itself wait for this tile's dQ.
  __device__ std::uint32_t hand_over_and_wait(bool makes_dq) const {
    const bool ready = __all_sync(
        ~0u, ptx::mbarrier_test_wait(barrier(offsetof(Plan, rows_full), stage()), phase()));
    if (!ready) {
      if (makes_dq) hand_over();
      return wait_for_tile();
    }
    const std::uint32_t flags = uniform(smem_.stage[record()].flags);
    if (makes_dq) hand_over();
    return flags;
  }
  __device__ std::uint32_t wait_for_tile() const {
    ptx::mbarrier_wait(barrier(offsetof(Plan, rows_full), stage()), phase());
    return uniform(smem_.stage[record()].flags);
  }

  // Where a tile's operands are.
  __device__ int stage() const { return static_cast<int>(tile_ % Config::kStages); }
  __device__ unsigned phase() const { return tile_ / Config::kStages % 2; }
  __device__ int record() const { return static_cast<int>(tile_ % Config::kRecords); }
  __device__ int key_buffer() const { return static_cast<int>(key_tile_ % Config::kKeyBuffers); }

  /// By each warp, of what it has done with.
  __device__ void arrive(std::size_t member, int index) const {
    __syncwarp();
    if (ptx::elect_one()) ptx::mbarrier_arrive(barrier(member, index));
  }
  __device__ void next_keys() {
    ++key_tile_;
    ptx::mbarrier_wait(barrier(offsetof(Plan, key_full), key_buffer()),
                       key_tile_ / Config::kKeyBuffers % 2);
  }

  __device__ void load_rows(const float (&rows)[4][20], RowValues& values) const {
    const float4* const source = reinterpret_cast<const float4*>(rows[lane_ % 4]);
#pragma unroll
    for (int t = 0; t < kTileM / 16; ++t) values[t] = source[t];
  }
  __device__ TileFactors tile_factors(const RowRecord& rows) const {
    const float4 factors = *reinterpret_cast<const float4*>(rows.s_factor);
    const KeyRecord& keys = smem_.keys[key_buffer()];
    const float k = keys.k_factor[group()], v = keys.v_factor[group()];
    return {{factors.x * k, factors.y * k}, {factors.z * v, factors.w * v}};
  }

  __device__ DsFactors load_ds_factors(const RowRecord& rows) const {
    const int4 words = *reinterpret_cast<const int4*>(rows.dq_factor);
    const float k = smem_.keys[key_buffer()].k_relative[group()];
    return {{__int_as_float(words.x) * k, __int_as_float(words.y) * k}, words.z};
  }

  __device__ void find_seeing(SeeingColumns (&seeing)[2]) const {
    const KeyRecord& keys = smem_.keys[key_buffer()];
    const int first = smem_.stage[record()].row0 + 2 * (lane_ % 4);
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
  __device__ float choose_scales(const DsFactors& factors, std::uint32_t flags,
                                 const float (&own)[kQGroups], Gradient& dk) {
    const std::uint32_t for_dk = __reduce_max_sync(~0u, __float_as_uint(fmaxf(own[0], own[1])));
    const std::uint32_t for_dq = __reduce_max_sync(
        ~0u, __float_as_uint(fmaxf(own[0] * factors.dq[0], own[1] * factors.dq[1])));
    if (lane_ == 0) smem_.amax[tile_ % 2][part_][warp_] = for_dq;
    const float largest = __uint_as_float(for_dk);
    const int old = (flags & kHeadBegins) ? kNoExponent : exponent_;
    exponent_ = is_usable(largest) ? max(old, amax_exponent(largest) + factors.reference) : old;
    if (__any_sync(~0u, exponent_ != old && old != kNoExponent)) [[unlikely]] {
      const float shrink = power_of_two(old - exponent_);
#pragma unroll
      for (float& value : dk) value *= shrink;
    }
    // All zero so far: any finite factor serves.
    return for_dk < 0x7F800000u ? power_of_two(factors.reference - exponent_) : poison();
  }

  /// dS for dQ, under the scale of this consumer's keys.
  __device__ void store_ds(const DsFactors& factors, const Fragment& y) const {
    const int buffer = static_cast<int>(tile_ % Config::kConsumers);
    sync_threads(1 + part_, 128);
    const uint4 others = *reinterpret_cast<const uint4*>(smem_.amax[tile_ % 2][part_]);
    const std::uint32_t bits = max(max(others.x, others.y), max(others.z, others.w));
    const int exponent = amax_exponent(__uint_as_float(bits));
    const float scale = power_of_two(-exponent);
    float factor[kQGroups];
#pragma unroll
    for (int g = 0; g < kQGroups; ++g) {
      // Not infinite: of an amax that is next to nothing, 0 times it stays 0.
      factor[g] = bits < 0x7F800000u ? fminf(factors.dq[g] * scale, 0x1p127f) : poison();
    }
    ptx::mbarrier_wait(barrier(offsetof(Plan, ds_empty), buffer),
                       (tile_ / Config::kConsumers + 1) % 2);
    const int piece = (4 * part_ + warp_) ^ (lane_ & 7);
    store_for_dq(y, factor,
                 at(offsetof(Plan, ds), buffer, sizeof(smem_.ds[0])) + lane_ * kTileN + 16 * piece);
    if (leads()) {
      smem_.ds_exponent[buffer][part_] =
          bits == 0 ? kNoExponent : exponent + smem_.keys[key_buffer()].reference;
      if (buffer == part_) smem_.dq_of_ds[part_] = smem_.stage[record()].dq;
    }
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    arrive(offsetof(Plan, ds_full), buffer);
  }

  /// dQ of the tile before, to shared memory, and waits for every MMA. Both halves of the keys in
  /// one chain where they have one scale; else the smaller goes first and is multiplied by a power
  /// of two.
  __device__ void make_dq(unsigned tile, int key_buffer) {
    ptx::mbarrier_wait(barrier(offsetof(Plan, ds_full), part_), tile / Config::kConsumers % 2);
    const int a = __reduce_max_sync(~0u, smem_.ds_exponent[part_][0]),
              b = __reduce_max_sync(~0u, smem_.ds_exponent[part_][1]);
    const int first = a > b ? 1 : 0;
    const int least = min(a, b), exponent = max(a, b);
    Gradient dq;
    ptx::wgmma_fence();
    issue_dq(dq, key_buffer, first, false);
    if (least != exponent && least != kNoExponent) {
      ptx::wgmma_wait<0>();
      fence_registers(dq);
      const float shrink = power_of_two(least - exponent);
#pragma unroll
      for (float& value : dq) value *= shrink;
      ptx::wgmma_fence();
    }
    issue_dq(dq, key_buffer, first ^ 1, true);
    ptx::wgmma_wait<0>();
    fence_registers(dq);
    arrive(offsetof(Plan, ds_empty), part_);
    wait_for_dq_buffer(tile);
    stage_dq(dq, scaled(params_.softmax_scale,
                        (exponent == kNoExponent ? 0 : exponent) + params_.dq_exponent));
    if (leads()) smem_.dq_record = smem_.dq_of_ds[part_];
  }
  __device__ void wait_for_dq_buffer(unsigned tile) const {
    ptx::mbarrier_wait(barrier(offsetof(Plan, dq_empty), part_),
                       (tile / Config::kConsumers + 1 + part_) % 2);
  }
  /// What is staged, to the adder.
  __device__ void hand_over() const {
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    arrive(offsetof(Plan, dq_full), 0);
  }
  __device__ void end_adds() const {
    wait_for_dq_buffer(tile_);
    if (leads()) smem_.dq_record = {.tile = -1, .turn = 0, .last = 1};
    arrive(offsetof(Plan, dq_full), 0);
  }

  __device__ void stage_dq(const Gradient& dq, float factor) const {
    auto* const pieces = reinterpret_cast<uint4*>(smem_.dq) + threadIdx.x % 128;
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

  /// What of dV is beyond BF16's rounding error of all of it goes to shared memory: the tensor
  /// cores' 13-bit accumulators keep the rest, which is small, and so lose little of what is added
  /// to it.
  __device__ void fold(bool folded, Gradient& dv) const {
    auto* const pieces = reinterpret_cast<uint4*>(smem_.fold[part_]) + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const uint4 old = folded ? pieces[128 * i] : uint4{};
      std::uint32_t pairs[4] = {old.x, old.y, old.z, old.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& low = dv[8 * i + 2 * k];
        float& high = dv[8 * i + 2 * k + 1];
        low += device::bf16_low(pairs[k]);
        high += device::bf16_high(pairs[k]);
        pairs[k] = device::encode_bf16_pair(low, high);
        low -= device::bf16_low(pairs[k]);
        high -= device::bf16_high(pairs[k]);
      }
      pieces[128 * i] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
  __device__ void unfold(Gradient& dv) const {
    const auto* const pieces =
        reinterpret_cast<const uint4*>(smem_.fold[part_]) + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const uint4 piece = pieces[128 * i];
      const std::uint32_t pairs[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        dv[8 * i + 2 * k] += device::bf16_low(pairs[k]);
        dv[8 * i + 2 * k + 1] += device::bf16_high(pairs[k]);
      }
    }
  }

  __device__ void finish(std::uint32_t flags, int anchor, Gradient& dv, const Gradient& dk) {
    const KeyRecord& keys = smem_.keys[key_buffer()];
    const bool scratch_dv = (flags & kScratchDv) != 0, scratch_dk = (flags & kScratchDk) != 0;
    const int exponent = exponent_ == kNoExponent ? 0 : exponent_;
    if constexpr (Config::kFolds) {
      if (flags & kFoldDv) {
        fold((flags & kFolded) != 0, dv);
      } else if ((flags & kFolded) && (flags & (kPromoteDv | kStore))) {
        unfold(dv);
      }
    }
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
    if constexpr (Config::kKeyBuffers == 1) {
      if (__any_sync(~0u, is_own(tile_))) {
        make_dq(tile_, 0);
        hand_over();
      }
      arrive(offsetof(Plan, key_empty), 0);
    }
  }

  const BackwardParams& params_;
  Plan& smem_;
  int part_;
  std::uint32_t base_;
  int warp_;
  int lane_;
  unsigned tile_ = 0;
  unsigned key_tile_ = ~0u;
  int exponent_ = kNoExponent;  ///< of dS for dK
};

}  // namespace mxfa::sm90::backward
