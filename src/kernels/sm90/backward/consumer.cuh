#pragma once

#include <cuda/ptx>

#include "kernels/sm90/backward/epilogue.cuh"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/scores.cuh"
#include "kernels/sm90/backward/warpgroup.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

/// The consumer role.
namespace mxfa::sm90::backward {

/// One warpgroup, 64 keys. Of each query tile: S^T and dP^T with keys as rows, so that P^T and dS^T
/// are A operands in registers and a warp owns the keys whose dK rows it accumulates; a second
/// payload of dS, transposed, to shared memory, for the role that makes dQ. S^T of the next tile is
/// issued as soon as its registers are free, unless keys end. Waits on rows_full, columns_full,
/// key_full, ds_empty; signals rows_empty, columns_empty, key_empty, ds_full.
template <class Config>
class Consumer : Warpgroup<Config> {
 public:
  using Base = Warpgroup<Config>;
  using Plan = typename Base::Plan;
  static constexpr int kDim = Config::kHeadDim;
  using Gradient = float[kDim / 2];

  __device__ Consumer(const BackwardParams& params, Plan& smem, int warpgroup)
      : Base(smem), params_(params), part_(uniform(warpgroup)), lane_(threadIdx.x % 32) {
    const int piece = (4 * part_ + warp_) ^ (lane_ & 7);
    ds_address_ = base_ + offsetof(Plan, ds) + lane_ * kTileN + 16 * piece;
  }

  __device__ void run() {
    Gradient dv, dk;
    Fragment s;
    std::uint32_t flags = wait_for(0);
    while (flags & kValid) {
      next_keys();
      issue_s(s, stage_of(tile_));
      while ((flags & kStore) == 0) flags = run_tile<false>(flags, dv, dk, s);
      run_tile<true>(flags, dv, dk, s);
      flags = wait_for(tile_);
    }
    // The dQ role reads the same flags.
    wait(offsetof(Plan, ds_empty), ds_buffer(tile_), ds_empty_phase());
    arrive(offsetof(Plan, ds_full), ds_buffer(tile_));
  }

 private:
  using Base::arrive;
  using Base::at;
  using Base::barrier;
  using Base::base_;
  using Base::smem_;
  using Base::warp_;

  /// The scale of y = dS * 2^(Q's exponent - reference + shift). The warp's exponent of dS for dK
  /// only grows, so dS is made under the one that it has, within limits where nothing on the way
  /// overflows.
  struct DsScale {
    int reference;  ///< the larger exponent of Q
    int shift;      ///< y is dK's payload where it is settled and not too large
    bool is_settled;
  };

  // The GEMMs.
  __device__ void issue_rows(Fragment& out, std::uint32_t keys, std::uint32_t queries) const {
    const std::uint64_t a = tile_descriptor<Config::kRowBytes>(keys + part_ * 64 * kDim);
    const std::uint64_t b = tile_descriptor<Config::kRowBytes>(queries);
    ptx::wgmma_fence();
    ptx::WgmmaSs<kTileM>::start(out, a, b);
#pragma unroll
    for (int step = 1; step < kDim / 32; ++step) {
      ptx::WgmmaSs<kTileM>::run(out, a + 2 * step, b + 2 * step, true);
    }
    ptx::wgmma_commit();
  }
  __device__ void issue_s(Fragment& s, int stage) const {
    issue_rows(s, at(offsetof(Plan, k), key_buffer(), sizeof(smem_.k[0])),
               at(offsetof(Plan, q), stage, sizeof(smem_.q[0])));
  }
  __device__ void issue_tokens(Gradient& out, const Payload& a, std::uint32_t queries,
                               bool accumulate) const {
    const std::uint64_t b = tile_descriptor<kTileM>(queries);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileM / 32; ++step) {
      ptx::WgmmaRs<kDim>::run(out, a + 4 * step, b + 2 * step, step != 0 || accumulate);
    }
    ptx::wgmma_commit();
  }

  /// Of a tile whose S^T is under way. `kLast` of its keys; else S^T of the next tile is under way
  /// afterwards, whose flags it returns.
  template <bool kLast>
  __device__ std::uint32_t run_tile(std::uint32_t flags, Gradient& dv, Gradient& dk, Fragment& s) {
    const int stage = stage_of(tile_);
    const std::uint32_t rows = at(offsetof(Plan, rows), record_of(tile_), sizeof(RowRecord));
    Seen seen = 0;
    if (flags & kMasked) [[unlikely]]
      seen = find_seen();
    Fragment dp, p;
    Payload codes;
    RowValues biases;
    load_rows(thread_rows(rows + offsetof(RowRecord, bias)), biases);
    const SFactors s_factors = this->s_factors(rows);
    const DsScale scale = choose_scale(rows, flags);
    ptx::wgmma_wait<0>();  // also for dV and dK of the tile before
    fence_registers(s);
    add_biases(biases, s_factors.of, s, p);
    fence_registers(p);
    issue_rows(dp, at(offsetof(Plan, v), key_buffer(), sizeof(smem_.v[0])),
               at(offsetof(Plan, dout), stage, sizeof(smem_.dout[0])));
    if ((flags & kKeysBegin) == 0) {
      hand_over_ds(tile_ - 1);
      arrive(offsetof(Plan, columns_empty), stage_of(tile_ - 1));
    }
    if (flags & kMasked) [[unlikely]] {
      exponentiate_early<true>(seen, p);
    } else {
      exponentiate_early<false>(seen, p);
    }
    const DsTerms terms = ds_terms(rows, scale);
    const bool columns_are_full = test(offsetof(Plan, columns_full), stage, phase_of(tile_));
    ptx::wgmma_wait<0>();
    fence_registers(dp);
    arrive(offsetof(Plan, rows_empty), stage);
    float amax[kQGroups];
    if (flags & kMasked) [[unlikely]] {
      differentiate<true, Config::kEarlySteps>(terms, seen, p, codes, dp, amax);
    } else {
      differentiate<false, Config::kEarlySteps>(terms, seen, p, codes, dp, amax);
    }
    DqFactors factors = dq_factors(rows, scale);
    publish_amax(factors, amax);
    if (!columns_are_full) wait(offsetof(Plan, columns_full), stage, phase_of(tile_));
    issue_tokens(dv, codes, at(offsetof(Plan, dout_t), stage, sizeof(smem_.dout_t[0])),
                 (flags & kFreshDv) == 0);
    const bool too_large = !scale.is_settled || fmaxf(amax[0], amax[1]) > mx::E4M3::kMaxValue;
    if (__any_sync(~0u, too_large)) [[unlikely]]
      settle(scale, amax, dp, dk, factors);
    Payload ds_codes, transposed;
#pragma unroll
    for (int t = 0; t < kTileM / 16; ++t) encode_tokens(dp, t, ds_codes);
    issue_tokens(dk, ds_codes, at(offsetof(Plan, qt), stage, sizeof(smem_.qt[0])),
                 (flags & kFreshDk) == 0);
    const bool ds_is_empty = test(offsetof(Plan, ds_empty), ds_buffer(tile_), ds_empty_phase());
    encode_ds(factors, dp, transposed);
    std::uint32_t next_flags = 0;
    if constexpr (!kLast) {
      next_flags = wait_for(tile_ + 1);
      issue_s(s, stage_of(tile_ + 1));
    }
    if (!ds_is_empty) wait(offsetof(Plan, ds_empty), ds_buffer(tile_), ds_empty_phase());
    store_for_dq(transposed, ds_address_ + ds_buffer(tile_) * sizeof(smem_.ds[0]));
    if (kLast) hand_over_ds(tile_);
    if (kLast || (flags & (kPromoteDv | kPromoteDk | kFoldDv))) {
      ptx::wgmma_wait<0>();
      fence_registers(dv);
      fence_registers(dk);
      finish<kLast>(flags, dv, dk);
    }
    ++tile_;
    return next_flags;
  }

  // Where a tile's operands are.
  __device__ int stage_of(unsigned tile) const { return static_cast<int>(tile % Config::kStages); }
  __device__ unsigned phase_of(unsigned tile) const { return tile / Config::kStages % 2; }
  __device__ int record_of(unsigned tile) const {
    return static_cast<int>(tile % Config::kRecords);
  }
  __device__ int key_buffer() const { return static_cast<int>(key_tile_ % Config::kKeyBuffers); }

  /// Returns a tile's flags.
  __device__ std::uint32_t wait_for(unsigned tile) const {
    ptx::mbarrier_wait(barrier(offsetof(Plan, rows_full), stage_of(tile)), phase_of(tile));
    return uniform(smem_.stage[tile % Config::kTileRecords].flags);
  }
  __device__ void next_keys() {
    ++key_tile_;
    ptx::mbarrier_wait(barrier(offsetof(Plan, key_full), key_buffer()),
                       key_tile_ / Config::kKeyBuffers % 2);
  }

  template <bool kMasked>
  static __device__ void exponentiate_early(Seen seen, Fragment& p) {
#pragma unroll
    for (int t = 0; t < Config::kEarlySteps; ++t) exponentiate<kMasked>(t, seen, p);
  }
  __device__ bool test(std::size_t member, int index, unsigned phase) const {
    return ptx::mbarrier_test_wait(barrier(member, index), phase);
  }
  __device__ void wait(std::size_t member, int index, unsigned phase) const {
    ptx::mbarrier_wait(barrier(member, index), phase);
  }

  /// What S^T is multiplied by.
  struct SFactors {
    float of[kQGroups];
  };
  __device__ SFactors s_factors(std::uint32_t rows) const {
    const float2 factors = ptx::load_shared_f32x2(rows + offsetof(RowRecord, s_factor));
    const float k = key_factor(offsetof(KeyRecord, k_factor));
    return {{factors.x * k, factors.y * k}};
  }
  __device__ DsTerms ds_terms(std::uint32_t rows, const DsScale& scale) const {
    const float2 factors = ptx::load_shared_f32x2(rows + offsetof(RowRecord, dp_factor));
    const std::uint32_t minus_deltas = thread_rows(rows + offsetof(RowRecord, minus_delta));
    const float power = power_of_two(scale.shift);
    const float v = key_factor(offsetof(KeyRecord, v_factor)) * power;
    return {
        minus_deltas, ptx::load_shared_f32x4(minus_deltas), {factors.x * v, factors.y * v}, power};
  }
  __device__ std::uint32_t thread_rows(std::uint32_t rows) const {
    return rows + sizeof(RowRecord{}.bias[0]) * (lane_ % 4);
  }
  /// Of this warp's keys.
  __device__ float key_factor(std::size_t member) const {
    return ptx::load_shared_f32(at(offsetof(Plan, keys), key_buffer(), sizeof(KeyRecord)) + member +
                                4 * (2 * part_ + warp_ / 2));
  }
  __device__ Seen find_seen() const {
    const KeyRecord& keys = smem_.keys[key_buffer()];
    const int first = smem_.stage[tile_ % Config::kTileRecords].row0 + 2 * (lane_ % 4);
    Seen seen = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int key = keys.key0 + 64 * part_ + 16 * warp_ + 8 * h + lane_ / 4;
      const attention::KeyRange rows =
          attention::seeing_rows(params_.mask, keys.seqlen_q, keys.seqlen_k, key, key + 1);
      seen |= (queries_before(static_cast<int>(rows.end) - first) &
               ~queries_before(static_cast<int>(rows.begin) - first))
              << 16 * h;
    }
    return seen;
  }

  __device__ DsScale choose_scale(std::uint32_t rows, std::uint32_t flags) {
    if (flags & kHeadBegins) [[unlikely]]
      exponent_ = kNoExponent;
    DsScale scale;
    scale.reference = static_cast<int>(
        uniform(__float_as_uint(ptx::load_shared_f32(rows + offsetof(RowRecord, reference)))));
    const int wanted = scale.reference - exponent_;
    scale.shift = exponent_ == kNoExponent ? 0 : min(max(wanted, -kMostShift), kMostShift);
    scale.is_settled = scale.shift == wanted;
    return scale;
  }
  /// What y is multiplied by for dQ: Q's exponent and the shift out, K's in.
  struct DqFactors {
    float of[kQGroups];
  };
  __device__ DqFactors dq_factors(std::uint32_t rows, const DsScale& scale) const {
    const float2 factors = ptx::load_shared_f32x2(rows + offsetof(RowRecord, dq_factor));
    const float k = key_factor(offsetof(KeyRecord, k_relative)) * power_of_two(-scale.shift);
    return {{factors.x * k, factors.y * k}};
  }

  /// The amax of the warp's dS, K's exponents folded, that dQ's scale comes from.
  __device__ void publish_amax(const DqFactors& factors, const float (&own)[kQGroups]) const {
    const std::uint32_t for_dq = __reduce_max_sync(
        ~0u, __float_as_uint(fmaxf(own[0] * factors.of[0], own[1] * factors.of[1])));
    if (ptx::elect_one()) smem_.amax[tile_ % Config::kAmaxBuffers][part_][warp_] = for_dq;
  }

  /// A larger exponent, or the first, or dS made under another: y becomes dK's payload.
  __device__ void settle(const DsScale& scale, const float (&own)[kQGroups], Fragment& y,
                         Gradient& dk, DqFactors& factors) {
    const std::uint32_t bits = __reduce_max_sync(~0u, __float_as_uint(fmaxf(own[0], own[1])));
    const float largest = __uint_as_float(bits);
    const int old = exponent_;
    if (is_usable(largest)) {
      exponent_ = max(old, amax_exponent(largest, scale.shift) + scale.reference);
    }
    if (exponent_ != old && old != kNoExponent) {
      const float shrink = power_of_two(old - exponent_);
#pragma unroll
      for (float& value : dk) value *= shrink;
    }
    // All zero so far: any finite factor serves.
    const int shift = scale.reference - exponent_ - scale.shift;
    const float factor = bits < 0x7F800000u ? power_of_two(shift) : poison();
#pragma unroll
    for (float& value : y) value *= factor;
    for (float& value : factors.of) value *= power_of_two(-shift);
  }

  /// dS for dQ, under the scale of this consumer's keys.
  __device__ void encode_ds(const DqFactors& factors, const Fragment& y, Payload& codes) const {
    sync_threads(1 + part_, 128);
    const std::uint32_t bits = largest_amax(
        at(offsetof(Plan, amax), Config::kConsumers * (tile_ % Config::kAmaxBuffers) + part_,
           sizeof(smem_.amax[0][0])));
    const float scale = power_of_two(-amax_exponent(__uint_as_float(bits)));
    float factor[kQGroups];
#pragma unroll
    for (int g = 0; g < kQGroups; ++g) {
      // Not infinite: of an amax that is next to nothing, 0 times it stays 0.
      factor[g] = bits < 0x7F800000u ? fminf(factors.of[g] * scale, 0x1p127f) : poison();
    }
    encode_for_dq(y, factor, codes);
  }
  /// What was stored of a tile, to the dQ role; the later, the less this waits.
  __device__ void hand_over_ds(unsigned tile) const {
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    arrive(offsetof(Plan, ds_full), ds_buffer(tile));
  }
  __device__ unsigned ds_empty_phase() const { return (tile_ / Config::kDsBuffers + 1) % 2; }
  static __device__ int ds_buffer(unsigned tile) {
    return static_cast<int>(tile % Config::kDsBuffers);
  }

  /// What of dV is beyond BF16's rounding error of all of it goes to shared memory: the tensor
  /// cores' 13-bit accumulators keep the rest, which is small, and so lose little of what is added
  /// to it.
  __device__ void fold(bool folded, Gradient& dv) const {
    auto* const pieces = reinterpret_cast<uint4*>(smem_.fold[part_]) + fresh_thread() % 128;
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
        reinterpret_cast<const uint4*>(smem_.fold[part_]) + fresh_thread() % 128;
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

  template <bool kLast>
  __device__ void finish(std::uint32_t flags, Gradient& dv, const Gradient& dk) {
    const int anchor = smem_.rows[record_of(tile_)].anchor;
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
    if constexpr (!kLast) {
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
    arrive(offsetof(Plan, columns_empty), stage_of(tile_));
    arrive(offsetof(Plan, key_empty), key_buffer());
  }

  const BackwardParams& params_;
  int part_;
  int lane_;
  std::uint32_t ds_address_;  ///< where this lane's rows of its warp's keys begin in ds[0]
  unsigned tile_ = 0;
  unsigned key_tile_ = ~0u;
  int exponent_ = kNoExponent;  ///< of dS for dK
};

}  // namespace mxfa::sm90::backward
