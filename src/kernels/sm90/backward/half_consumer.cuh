#pragma once

#include "kernels/sm90/backward/consumer_base.cuh"
#include "kernels/sm90/backward/half_scores.cuh"
#include "kernels/sm90/backward/half_sums.cuh"

/// The consumer role of half scores.
namespace mxfa::sm90::backward {

/// S^T and dP^T of the next tile are issued as soon as dS of this one is made, unless keys end, so
/// that the exponentials and what follows wait for nothing.
template <class Config>
class HalfConsumer : ConsumerBase<Config> {
 public:
  using Base = ConsumerBase<Config>;
  using Base::Base;
  using Base::kDim;
  using typename Base::Gradient;
  using typename Base::Plan;

  __device__ void run() {
    Gradient dv, dk;
    HalfFragment s;
    std::uint32_t flags = wait_for(0);
    while (flags & kValid) {
      this->next_keys();
      if (64 * part_ < uniform(this->keys().count)) {
        issue_s(s, stage_of(tile_));
        while ((flags & kStore) == 0) flags = run_tile<false>(flags, dv, dk, s);
        run_tile<true>(flags, dv, dk, s);
      } else {
        while (pass_tile(flags)) flags = wait_for(tile_);
      }
      flags = wait_for(tile_);
    }
    this->end_ds();
  }

 private:
  using Base::arrive;
  using Base::at;
  using Base::ds_address_;
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

  /// The scale of y = dS * 2^shift. dK's payload is y * 2^(shift of dK) * 2^(Q's exponent -
  /// reference), usually y itself: the warp's exponent of dS for dK only grows, and y is made under
  /// the one that it has, within limits where half neither overflows nor loses what counts.
  struct Scale {
    int shift;
    int dk_shift;
    int dq_shift;  ///< dS under K's reference is y * 2^it
    bool varies;   ///< dK's payload is not y, or has no exponent yet
  };

  /// A query tile's record, and what of it decides.
  struct Rows {
    std::uint32_t address;
    std::uint32_t flags;
    float s_factor[kQGroups];
  };

  /// Of a tile whose S^T is under way. `kLast` of its keys; else that of the next tile is under way
  /// afterwards, whose flags it returns.
  template <bool kLast>
  __device__ std::uint32_t run_tile(std::uint32_t flags, Gradient& dv, Gradient& dk,
                                    HalfFragment& s) {
    const int stage = stage_of(tile_);
    HalfTerms terms;
    const Rows rows = load_rows(terms);
    HalfFragment dp;
    Payload codes, ds_codes, transposed;
    ptx::wgmma_wait<0>();  // also for dV and dK of the tile before
    fence_registers(s);
    if (flags & kKeysBegin) {
      this->wait_for_v();
    } else {
      this->hand_over_ds(tile_ - 1);
      arrive(offsetof(Plan, columns_empty), stage_of(tile_ - 1));
    }
    this->issue_dp(dp, stage);
    if (is_general(flags, rows)) [[unlikely]]
      generalize(flags, rows, terms, s);
    exponentiate(terms, s, codes);
    HalfDsTerms ds_terms;
    Scale scale = choose_scale(flags, rows, ds_terms);
    const bool columns_are_full = test(offsetof(Plan, columns_full), stage, phase_of(tile_));
    const std::uint32_t next_flags = kLast ? 0 : wait_for(tile_ + 1);
    if (!columns_are_full) wait(offsetof(Plan, columns_full), stage, phase_of(tile_));
    issue_tokens(dv, codes, word_at(offsetof(Plan, dout_t), stage, sizeof(smem_.dout_t[0])),
                 (flags & kFreshDv) == 0);
    ptx::wgmma_wait<1>();
    fence_registers(dp);
    arrive(offsetof(Plan, rows_empty), stage);
    if constexpr (kLast) {
      arrive(offsetof(Plan, key_empty), this->key_buffer());
      arrive(offsetof(Plan, v_empty), this->key_buffer());
    }
    if (flags & kMasked) [[unlikely]]
      hide(this->find_seen(), dp);
    const float amax = larger_magnitude(differentiate(ds_terms, s, dp));
    if constexpr (!kLast) {
      issue_s(s, stage_of(tile_ + 1));
      ptx::wgmma_wait<1>();  // dV's payload's registers are free
    }
    publish_amax(scale, amax);
    if (__any_sync(~0u, scale.varies || amax > kMostHalfDs)) [[unlikely]] {
      if (__any_sync(~0u, is_unsettled(scale, amax))) settle(scale, amax, dp, dk);
      encode_dk(scale, dp, ds_codes);
    } else {
      encode_tokens(dp, ds_codes);
    }
    issue_tokens(dk, ds_codes, word_at(offsetof(Plan, qt), stage, sizeof(smem_.qt[0])),
                 (flags & kFreshDk) == 0);
    const bool ds_is_empty = test(offsetof(Plan, ds_empty), ds_buffer(tile_), ds_empty_phase());
    encode_ds(scale, dp, transposed);
    if (!ds_is_empty) wait(offsetof(Plan, ds_empty), ds_buffer(tile_), ds_empty_phase());
    store_for_dq<Config::kPanel>(transposed, ds_address_ + ds_buffer(tile_) * sizeof(smem_.ds[0]));
    if (kLast) this->hand_over_ds(tile_);
    if (kLast || (flags & (kPromoteDv | kPromoteDk | kFoldDv))) {
      ptx::wgmma_wait<0>();
      fence_registers(dv);
      fence_registers(dk);
      finish<kLast>(flags, dv, dk);
    }
    ++tile_;
    return next_flags;
  }

  /// Of keys that do not exist, of which nothing is made. Returns whether there are more of theirs.
  __device__ bool pass_tile(std::uint32_t flags) {
    const int stage = stage_of(tile_);
    if (flags & kKeysBegin) this->wait_for_v();
    arrive(offsetof(Plan, rows_empty), stage);
    wait(offsetof(Plan, columns_full), stage, phase_of(tile_));
    arrive(offsetof(Plan, columns_empty), stage);
    const Payload zeros = {};
    this->tell_exponent(kNoExponent);
    wait(offsetof(Plan, ds_empty), ds_buffer(tile_), ds_empty_phase());
    store_for_dq<Config::kPanel>(
        zeros, this->ds_address(ptx::lane_now()) + ds_buffer(tile_) * sizeof(smem_.ds[0]));
    this->hand_over_ds(tile_);
    if (flags & kStore) {
      arrive(offsetof(Plan, key_empty), this->key_buffer());
      arrive(offsetof(Plan, v_empty), this->key_buffer());
    }
    ++tile_;
    return (flags & kStore) == 0;
  }

  /// What goes on with the sums after some tiles.
  template <bool kLast>
  __device__ void finish(std::uint32_t flags, Gradient& dv, Gradient& dk) {
    std::uint8_t* const fold = smem_.fold[part_][warp_];
    const std::uint32_t fold_address = shared_address(fold) + 16 * (fresh_thread() % 32);
    if (flags & kFoldDv) {
      fold_sums(fold_address, (flags & kFolded) != 0, dv);
      make_room(dk);
      return;
    }
    const FoldedSums<kDim / 8> folded(fold_address, (flags & kFolded) != 0);
    const auto dv_of = [&](int i) { return add(four_sums(dv, i), folded.four(i)); };
    const auto dk_of = [&](int i) { return four_sums(dk, i); };
    if constexpr (!kLast) {
      this->promote_sums(flags, dv_of, dk_of);
      return;
    }
    arrive(offsetof(Plan, columns_empty), stage_of(tile_));
    __syncwarp();  // all have read what was folded
    std::uint8_t* const staging[2] = {fold, fold};
    this->store_sums(flags, staging, dv_of, dk_of);
  }
  /// So that dK does not overflow before it is looked at again.
  __device__ void make_room(Gradient& dk) {
    std::uint32_t most = 0;
#pragma unroll
    for (const std::uint32_t pair : dk) most = ptx::half2_max_magnitude(most, pair);
    if (!__any_sync(~0u, larger_magnitude(most) > kMostHalfDk)) [[likely]]
      return;
    scale_sums(-kDkLowered, dk);
    exponent_ += kDkLowered;
  }

  __device__ Rows load_rows(HalfTerms& terms) const {
    Rows rows;
    rows.address = record();
    const std::uint32_t biases = thread_words(rows.address + offsetof(HalfRowRecord, bias));
    const float2 factors = ptx::load_shared_f32x2(rows.address + offsetof(HalfRowRecord, s_factor));
    rows.flags =
        __float_as_uint(ptx::load_shared_f32(rows.address + offsetof(HalfRowRecord, flags)));
    const float k = key_factor(offsetof(KeyRecord, k_factor));
    rows.s_factor[0] = factors.x * k;
    rows.s_factor[1] = factors.y * k;
#pragma unroll
    for (int g = 0; g < kQGroups; ++g) {
      load_words(biases + 16 * g, terms.bias[g]);
      terms.s_factor[g] = ptx::half2_pack(rows.s_factor[g], rows.s_factor[g]);
    }
    return rows;
  }
  __device__ std::uint32_t thread_words(std::uint32_t of_pairs) const {
    return of_pairs + sizeof(HalfRowRecord{}.bias[0]) * (lane_ % 4);
  }
  /// Whether scores do not go the usual way.
  __device__ bool is_general(std::uint32_t flags, const Rows& rows) const {
    return __any_sync(~0u, (rows.flags & kWide) != 0 || (flags & kMasked) != 0 ||
                               fmaxf(rows.s_factor[0], rows.s_factor[1]) > kMostHalfFactor);
  }
  __device__ void generalize(std::uint32_t flags, const Rows& rows, HalfTerms& terms,
                             HalfFragment& s) const {
    const Seen seen = flags & kMasked ? this->find_seen() : ~Seen{0};
    widen(rows.s_factor,
          rows.address + offsetof(HalfRowRecord, wide_bias) +
              sizeof(HalfRowRecord{}.wide_bias[0]) * (lane_ % 4),
          seen, s, terms);
  }

  __device__ std::uint32_t record() const {
    return at(offsetof(Plan, rows), this->record_of(tile_), sizeof(HalfRowRecord));
  }
  /// What bounds dS of a tile. Loaded anew where it is seldom used, to save registers.
  struct Bounds {
    int reference;       ///< the larger exponent of Q
    int dp_exponent;     ///< of dP^T
    int delta_exponent;  ///< of delta
    int most;            ///< the shift under which y is less than 65504 whatever dP^T is
  };
  __device__ Bounds bounds() const {
    const uint4 words = ptx::load_shared_u32x4(record() + offsetof(HalfRowRecord, reference));
    const int v_exponent = exponent_of(key_factor(offsetof(KeyRecord, v_factor)));
    Bounds bounds;
    bounds.reference = static_cast<int>(words.x);
    bounds.dp_exponent = static_cast<int>(words.y) + v_exponent;
    bounds.delta_exponent = static_cast<int>(words.z);
    // dP^T reaches kMostHalfDp * 2^-room, delta 2^14 * 2^delta_exponent: with these shifts their
    // sum, also times P', stays below 34304.
    const int p_exponent = static_cast<std::int16_t>(words.w);
    const int room = static_cast<int>(words.w) >> 16;
    bounds.most =
        min(min(room - bounds.dp_exponent, -bounds.delta_exponent) - p_exponent, kMostHalfShift);
    return bounds;
  }

  __device__ Scale choose_scale(std::uint32_t flags, const Rows& rows, HalfDsTerms& terms) {
    if (flags & kHeadBegins) [[unlikely]]
      exponent_ = kNoExponent;
    const Bounds bounds = this->bounds();
    const int wanted = bounds.reference - exponent_;  // much where there is none yet
    Scale scale;
    scale.shift = max(min(wanted, bounds.most), bounds.most - kMostHalfDrop);
    scale.dk_shift = wanted - scale.shift;
    scale.dq_shift = exponent_of(key_factor(offsetof(KeyRecord, k_relative))) - scale.shift;
    scale.varies = (rows.flags & kQVaries) != 0 || scale.dk_shift != 0;
    terms.dp_factor = half2_small_power_of_two(bounds.dp_exponent + scale.shift);
    terms.delta_factor = half2_small_power_of_two(bounds.delta_exponent + scale.shift);
    terms.minus_deltas = thread_words(rows.address + offsetof(HalfRowRecord, minus_delta));
    return scale;
  }
  /// dK's payload where it is not y.
  __device__ void encode_dk(const Scale& scale, const HalfFragment& y, Payload& codes) const {
    const float2 relative = ptx::load_shared_f32x2(record() + offsetof(HalfRowRecord, q_relative));
    const std::uint32_t factor = half2_power_of_two(scale.dk_shift);
    encode_tokens(y,
                  {ptx::half2_mul(__float_as_uint(relative.x), factor),
                   ptx::half2_mul(__float_as_uint(relative.y), factor)},
                  codes);
  }
  /// The amax of the warp's dS, K's exponents folded, that dQ's scale comes from.
  __device__ void publish_amax(const Scale& scale, float own) const {
    const float amax = own * power_of_two(scale.dq_shift);
    const std::uint32_t for_dq = __reduce_max_sync(~0u, __float_as_uint(amax));
    if (ptx::elect_one()) smem_.amax[tile_ % Config::kAmaxBuffers][part_][warp_] = for_dq;
  }

  /// Whether y under the exponent that the warp has is no payload for dK.
  __device__ bool is_unsettled(const Scale& scale, float own) const {
    return exponent_ == kNoExponent || scale.dk_shift > kMostHalfPower ||
           own * power_of_two(scale.dk_shift) > kMostHalfDs;
  }
  /// A larger exponent, or the first.
  __device__ void settle(Scale& scale, float own, HalfFragment& y, Gradient& dk) {
    const std::uint32_t bits = __reduce_max_sync(~0u, __float_as_uint(own));
    const Bounds bounds = this->bounds();
    const int old = exponent_;
    if (is_usable(__uint_as_float(bits))) {
      const int least =
          amax_exponent(__uint_as_float(bits), scale.shift) + kDkLowered + bounds.reference;
      // Up to kHalfSlack more where y then is dK's payload.
      exponent_ = max(old, max(least, min(bounds.reference - bounds.most, least + kHalfSlack)));
    }
    if (exponent_ == kNoExponent) {
      scale.dk_shift = 0;  // of zeros
      return;
    }
    exponent_ = max(exponent_, bounds.reference - scale.shift - kMostHalfPower);
    scale.dk_shift = bounds.reference - exponent_ - scale.shift;
    if (bits >= 0x7F800000u) {
#pragma unroll
      for (std::uint32_t& pair : y) pair = kHalfNans;
    }
    if (old == kNoExponent) return;
    fence_registers(dk);
    scale_sums(old - exponent_, dk);
  }

  /// dS for dQ, under the scale of this consumer's keys.
  __device__ void encode_ds(const Scale& scale, HalfFragment& y, Payload& codes) const {
    sync_threads(1 + part_, 128);
    const std::uint32_t bits = this->largest_amax(tile_, part_);
    const int ds_exponent = amax_exponent(__uint_as_float(bits)) + kDqLowered;
    const float reference =
        ptx::load_shared_f32(at(offsetof(Plan, keys), this->key_record(), sizeof(KeyRecord)) +
                             offsetof(KeyRecord, reference));
    this->tell_exponent(ds_exponent + __float_as_int(reference));
    int exponent = scale.dq_shift - ds_exponent;
    // Where dS is next to nothing to that of the warp's tiles before.
    for (; exponent > kMostHalfPower; exponent -= kMostHalfPower) {
      const std::uint32_t most = half2_power_of_two(kMostHalfPower);
#pragma unroll
      for (std::uint32_t& pair : y) pair = ptx::half2_mul(pair, most);
    }
    encode_for_dq(y, bits < 0x7F800000u ? half2_power_of_two(exponent) : kHalfNans, codes);
  }
};

}  // namespace mxfa::sm90::backward
