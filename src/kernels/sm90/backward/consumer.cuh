#pragma once

#include "kernels/sm90/backward/consumer_base.cuh"
#include "kernels/sm90/backward/token_scores.cuh"
#include "ptx/lane.cuh"

/// The consumer role of FP32 scores.
namespace mxfa::sm90::backward {

/// S^T of the next tile is issued as soon as its registers are free, unless keys end.
template <class Config>
class Consumer : ConsumerBase<Config> {
 public:
  using Base = ConsumerBase<Config>;
  using Base::Base;
  using typename Base::Gradient;
  using typename Base::Plan;

  __device__ void run() {
    Gradient dv, dk;
    Fragment s;
    std::uint32_t flags = wait_for(0);
    while (flags & kValid) {
      this->next_keys();
      this->wait_for_v();
      if constexpr (kTokens) {
        keys_differ_ = uniform(__float_as_uint(warp_factor(offsetof(KeyTokens, differ)))) != 0;
      }
      issue_s(s, stage_of(tile_));
      while ((flags & kStore) == 0) flags = run_tile<false>(flags, dv, dk, s);
      run_tile<true>(flags, dv, dk, s);
      flags = wait_for(tile_);
    }
    this->end_ds();
  }

 private:
  using Record = typename Config::Record;
  static constexpr bool kTokens = Config::kTokenScales;
  using SFactors = std::conditional_t<kTokens, TokenFactors, GroupFactors>;
  using Amax = std::conditional_t<kTokens, TokenAmax, GroupAmax>;
  using Terms = std::conditional_t<kTokens, TokenDsTerms, DsTerms>;

  using Base::arrive;
  using Base::at;
  using Base::ds_buffer;
  using Base::ds_empty_phase;
  using Base::exponent_;
  using Base::issue_s;
  using Base::issue_tokens;
  using Base::key_factor;
  using Base::lane_;
  using Base::part_;
  using Base::phase_of;
  using Base::smem_;
  using Base::stage_of;
  using Base::test;
  using Base::tile_;
  using Base::wait;
  using Base::wait_for;
  using Base::warp_;
  using Base::word_at;

  /// The scale of y = dS * 2^(Q's exponent - reference + shift). The warp's exponent of dS for dK
  /// only grows, so dS is made under the one that it has, within limits where nothing on the way
  /// overflows.
  struct DsScale {
    int reference;  ///< the larger exponent of Q
    int shift;      ///< y is dK's payload where it is settled and not too large
    bool is_settled;
  };

  /// Of a tile whose S^T is under way. `kLast` of its keys; else S^T of the next tile is under way
  /// afterwards, whose flags it returns.
  template <bool kLast>
  __device__ std::uint32_t run_tile(std::uint32_t flags, Gradient& dv, Gradient& dk, Fragment& s) {
    const int stage = stage_of(tile_);
    const std::uint32_t rows = at(offsetof(Plan, rows), this->record_of(tile_), sizeof(Record));
    Fragment p;
    Fragment& dp = s;
    Payload codes;
    RowValues biases;
    load_rows(thread_rows(rows + offsetof(Record, bias)), biases);
    const SFactors s_factors = this->s_factors(rows);
    const DsScale scale = choose_scale(rows, flags);
    ptx::wgmma_wait<0>();  // also for dV and dK of the tile before
    fence_registers(s);
    if (keys_differ()) [[unlikely]]
      scale_keys(of_keys(offsetof(KeyTokens, k_within)), s);
    add_biases(biases, s_factors, s, p);
    fence_registers(p);
    this->issue_dp(dp, stage);
    if ((flags & kKeysBegin) == 0) {
      this->hand_over_ds(tile_ - 1);
      arrive(offsetof(Plan, columns_empty), stage_of(tile_ - 1));
    }
#pragma unroll
    for (int t = 0; t < Config::kEarlySteps; ++t) exponentiate(t, p);
    if (flags & kMasked) [[unlikely]]
      hide<Config::kEarlySteps>(this->find_seen(), p);
    const Terms terms = ds_terms(rows, scale);
    ptx::wgmma_wait<0>();
    fence_registers(dp);
    if (keys_differ()) [[unlikely]]
      scale_keys(of_keys(offsetof(KeyTokens, v_within)), dp);
    arrive(offsetof(Plan, rows_empty), stage);
    Amax amax;
    // Of what is hidden P' is 0, so that it has no part in any maximum.
    differentiate<Config::kEarlySteps>(terms, p, codes, dp, amax);
    if (flags & kMasked) [[unlikely]]
      hide<kTileM / 16>(this->find_seen(), dp);
    if constexpr (kTokens) {
      if (keys_differ_) [[unlikely]]
        amax.dq = dq_amax_of_keys(of_keys(offsetof(KeyTokens, k_within)), dp);
    }
    wait(offsetof(Plan, columns_full), stage, phase_of(tile_));
    issue_tokens(dv, codes, word_at(offsetof(Plan, dout_t), stage, sizeof(smem_.dout_t[0])),
                 (flags & kFreshDv) == 0);
    GroupFactors factors = dq_factors(rows, scale);
    publish_amax(factors, amax);
    const bool too_large = !scale.is_settled || amax.largest() > mx::E4M3::kMaxValue;
    if (__any_sync(~0u, too_large)) [[unlikely]]
      settle(scale, amax, dp, dk, factors);
    Payload ds_codes, transposed;
#pragma unroll
    for (int t = 0; t < kTileM / 16; ++t) {
      if constexpr (kTokens) {
        encode_for_dk(dp, q_relative(rows), t, ds_codes);
      } else {
        encode_tokens(dp, t, ds_codes);
      }
    }
    issue_tokens(dk, ds_codes, word_at(offsetof(Plan, qt), stage, sizeof(smem_.qt[0])),
                 (flags & kFreshDk) == 0);
    if (keys_differ()) [[unlikely]]
      scale_keys(of_keys(offsetof(KeyTokens, k_within)), dp);
    const bool ds_is_empty = test(offsetof(Plan, ds_empty), ds_buffer(tile_), ds_empty_phase());
    encode_ds(factors, dp, transposed);
    std::uint32_t next_flags = 0;
    if constexpr (!kLast) {
      next_flags = wait_for(tile_ + 1);
      issue_s(s, stage_of(tile_ + 1));
    }
    if (!ds_is_empty) wait(offsetof(Plan, ds_empty), ds_buffer(tile_), ds_empty_phase());
    store_for_dq<Config::kPanel>(
        transposed, this->ds_address(ptx::lane_now()) + ds_buffer(tile_) * sizeof(smem_.ds[0]));
    if (kLast) this->hand_over_ds(tile_);
    if (kLast || (flags & (kPromoteDv | kPromoteDk | kFoldDv))) {
      ptx::wgmma_wait<0>();
      fence_registers(dv);
      fence_registers(dk);
      this->template finish<kLast>(flags, dv, dk);
    }
    ++tile_;
    return next_flags;
  }

  /// Whether the warp's keys have scales that differ.
  __device__ bool keys_differ() const { return kTokens && keys_differ_; }
  /// What S^T is multiplied by.
  __device__ SFactors s_factors(std::uint32_t rows) const {
    if constexpr (kTokens) {
      return {thread_rows(rows + offsetof(Record, s_factor)),
              warp_factor(offsetof(KeyTokens, k_factor))};
    } else {
      const float2 factors = ptx::load_shared_f32x2(rows + offsetof(Record, s_factor));
      const float k = key_factor(offsetof(KeyRecord, k_factor));
      return {{factors.x * k, factors.y * k}};
    }
  }
  __device__ Terms ds_terms(std::uint32_t rows, const DsScale& scale) const {
    const float2 factors = ptx::load_shared_f32x2(rows + offsetof(Record, dp_factor));
    const std::uint32_t minus_deltas = thread_rows(rows + offsetof(Record, minus_delta));
    const float power = power_of_two(scale.shift);
    if constexpr (kTokens) {
      const float v = warp_factor(offsetof(KeyTokens, v_factor)) * power;
      return {minus_deltas, q_relative(rows), {factors.x * v, factors.y * v}, power};
    } else {
      const float v = key_factor(offsetof(KeyRecord, v_factor)) * power;
      return {minus_deltas,
              ptx::load_shared_f32x4(minus_deltas),
              {factors.x * v, factors.y * v},
              power};
    }
  }
  __device__ std::uint32_t q_relative(std::uint32_t rows) const {
    return thread_rows(rows + offsetof(TokenRowRecord, q_relative));
  }
  /// A word that belongs to the warp's keys.
  __device__ float warp_factor(std::size_t member) const {
    return ptx::load_shared_f32(
        at(offsetof(Plan, tokens) + member, 4 * part_ + warp_, sizeof(float)));
  }
  /// Of this thread's keys quad and quad + 8 of the warp's 16.
  __device__ float2 of_keys(std::size_t member) const {
    const int key = 64 * part_ + 16 * warp_ + ptx::lane_now() / 4;
    const std::uint32_t address = at(offsetof(Plan, tokens) + member, key, sizeof(float));
    return {ptx::load_shared_f32(address), ptx::load_shared_f32(address + 8 * sizeof(float))};
  }
  __device__ std::uint32_t thread_rows(std::uint32_t rows) const {
    const int lane = kTokens ? ptx::lane_now() : lane_;  // the former where registers are fewest
    return rows + sizeof(Record{}.bias[0]) * (lane % 4);
  }
  __device__ DsScale choose_scale(std::uint32_t rows, std::uint32_t flags) {
    if (flags & kHeadBegins) [[unlikely]]
      exponent_ = kNoExponent;
    DsScale scale;
    scale.reference = static_cast<int>(
        uniform(__float_as_uint(ptx::load_shared_f32(rows + offsetof(Record, reference)))));
    const int wanted = scale.reference - exponent_;
    scale.shift = exponent_ == kNoExponent ? 0 : min(max(wanted, -kMostShift), kMostShift);
    scale.is_settled = scale.shift == wanted;
    return scale;
  }
  /// What y is multiplied by for dQ: Q's exponent and the shift out, K's in.
  __device__ GroupFactors dq_factors(std::uint32_t rows, const DsScale& scale) const {
    if constexpr (kTokens) {
      const float k = warp_factor(offsetof(KeyTokens, k_relative)) * power_of_two(-scale.shift);
      return {{k, k}};
    } else {
      const float2 factors = ptx::load_shared_f32x2(rows + offsetof(Record, dq_factor));
      const float k = key_factor(offsetof(KeyRecord, k_relative)) * power_of_two(-scale.shift);
      return {{factors.x * k, factors.y * k}};
    }
  }

  /// The amax of the warp's dS, K's exponents folded, that dQ's scale comes from.
  __device__ void publish_amax(const GroupFactors& factors, const Amax& own) const {
    const std::uint32_t for_dq = __reduce_max_sync(~0u, __float_as_uint(dq_amax(own, factors)));
    if (ptx::elect_one()) smem_.amax[tile_ % Config::kAmaxBuffers][part_][warp_] = for_dq;
  }

  /// A larger exponent, or the first, or dS made under another: y becomes dK's payload.
  __device__ void settle(const DsScale& scale, const Amax& own, Fragment& y, Gradient& dk,
                         GroupFactors& factors) {
    const std::uint32_t bits = __reduce_max_sync(~0u, __float_as_uint(own.largest()));
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
  __device__ void encode_ds(const GroupFactors& factors, const Fragment& y, Payload& codes) const {
    sync_threads(1 + part_, 128);
    const std::uint32_t bits = this->largest_amax(tile_, part_);
    const float scale = power_of_two(-amax_exponent(__uint_as_float(bits)));
    GroupFactors scaled = factors;
    for (float& value : scaled.of) {
      // Not infinite: of an amax that is next to nothing, 0 times it stays 0.
      value = bits < 0x7F800000u ? fminf(value * scale, 0x1p127f) : poison();
    }
    encode_for_dq(y, scaled, codes);
  }

  bool keys_differ_ = false;
};

}  // namespace mxfa::sm90::backward
