#pragma once

#include <cuda/ptx>

#include "kernels/sm90/backward/epilogue.cuh"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/scores.cuh"
#include "kernels/sm90/backward/warpgroup.cuh"
#include "ptx/lane.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

/// What consumers of either kind of scores share.
namespace mxfa::sm90::backward {

/// One warpgroup, 64 keys. Of each query tile: S^T and dP^T with keys as rows, so that P^T and dS^T
/// are A operands in registers and a warp owns the keys whose dK rows it accumulates; a second
/// payload of dS, transposed, to shared memory, for the role that makes dQ. Waits on rows_full,
/// columns_full, key_full, v_full, ds_empty; signals rows_empty, columns_empty, key_empty,
/// v_empty, ds_full.
template <class Config>
class ConsumerBase : protected Warpgroup<Config> {
 public:
  using Base = Warpgroup<Config>;
  using Plan = typename Base::Plan;
  static constexpr int kDim = Config::kHeadDim;
  using Gradient = std::conditional_t<Config::kHalfSums, std::uint32_t[kDim / 4], float[kDim / 2]>;

  __device__ ConsumerBase(const BackwardParams& params, Plan& smem, int part)
      : Base(smem), params_(params), part_(uniform(part)), lane_(threadIdx.x % 32) {
    ds_address_ = ds_address(lane_);
  }

 protected:
  using Base::arrive;
  using Base::at;
  using Base::barrier;
  using Base::base_;
  using Base::smem_;
  using Base::warp_;
  using Base::word_at;

  // The GEMMs.
  template <class Rows, class Sums>
  __device__ void issue_rows(Sums& out, std::uint32_t key_word, std::uint32_t query_word) const {
    constexpr int kRowBytes = Rows::kPartBytes, kSteps = kRowBytes / 32;
    constexpr auto kDescriptor = tile_descriptor_of<kRowBytes>;
    const std::uint32_t a = key_word + part_ * (64 * kRowBytes / 16);
    const std::uint64_t b = kDescriptor(query_word);
    ptx::wgmma_fence();
    using Product = std::conditional_t<Rows::kBf16, ptx::WgmmaBf16Ss<kTileM>, ptx::WgmmaSs<kTileM>>;
    if constexpr (Config::kScores == Scores::kF32) {
      Product::restart(out, kDescriptor(a), b);
    } else {
      Product::start(out, kDescriptor(a), b);
    }
#pragma unroll
    for (int step = 1; step < Rows::kBytes / 32; ++step) {
      const int part = step / kSteps, in_part = 2 * (step % kSteps);
      const std::uint64_t a_step =
          kDescriptor(a + part * (Config::kTileN * kRowBytes / 16) + in_part);
      const std::uint64_t b_step = b + part * (kTileM * kRowBytes / 16) + in_part;
      if constexpr (Rows::kBf16) {
        ptx::WgmmaBf16Ss<kTileM>::run(out, a_step, b_step);
      } else {
        ptx::WgmmaSs<kTileM>::run(out, a_step, b_step, true);
      }
    }
    ptx::wgmma_commit();
  }
  template <class Scores>
  __device__ void issue_s(Scores& s, int stage) const {
    issue_rows<typename Config::SProduct>(
        s, word_at(offsetof(Plan, k), key_buffer(), sizeof(smem_.k[0])),
        word_at(offsetof(Plan, q), stage, sizeof(smem_.q[0])));
  }
  template <class Scores>
  __device__ void issue_dp(Scores& dp, int stage) const {
    issue_rows<typename Config::DpProduct>(
        dp, word_at(offsetof(Plan, v), key_buffer(), sizeof(smem_.v[0])),
        word_at(offsetof(Plan, dout), stage, sizeof(smem_.dout[0])));
  }
  __device__ void issue_tokens(Gradient& out, const Payload& a, std::uint32_t query_word,
                               bool accumulate) const {
    const std::uint64_t b = tile_descriptor_of<kTileM>(query_word);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileM / 32; ++step) {
      ptx::WgmmaRs<kDim>::run(out, a + 4 * step, b + 2 * step, step != 0 || accumulate);
    }
    ptx::wgmma_commit();
  }

  // Where a tile's operands are.
  __device__ int stage_of(unsigned tile) const { return static_cast<int>(tile % Config::kStages); }
  __device__ unsigned phase_of(unsigned tile) const { return tile / Config::kStages % 2; }
  __device__ int record_of(unsigned tile) const {
    return static_cast<int>(tile % Config::kRecords);
  }
  __device__ int key_buffer() const { return static_cast<int>(key_tile_ % Config::kKeyBuffers); }
  __device__ unsigned key_phase() const { return key_tile_ / Config::kKeyBuffers % 2; }
  __device__ int key_record() const { return static_cast<int>(key_tile_ % Config::kKeyRecords); }
  __device__ const KeyRecord& keys() const { return smem_.keys[key_record()]; }

  /// Returns a tile's flags.
  __device__ std::uint32_t wait_for(unsigned tile) const {
    ptx::mbarrier_wait(barrier(offsetof(Plan, rows_full), stage_of(tile)), phase_of(tile));
    return uniform(this->stage_record(tile).flags);
  }
  /// V comes later, for whom it is waited apart.
  __device__ void next_keys() {
    ++key_tile_;
    wait(offsetof(Plan, key_full), key_buffer(), key_phase());
  }

  __device__ void wait_for_v() const { wait(offsetof(Plan, v_full), key_buffer(), key_phase()); }

  __device__ bool test(std::size_t member, int index, unsigned phase) const {
    return ptx::mbarrier_test_wait(barrier(member, index), phase);
  }
  __device__ void wait(std::size_t member, int index, unsigned phase) const {
    ptx::mbarrier_wait(barrier(member, index), phase);
  }

  /// Of this warp's keys.
  __device__ float key_factor(std::size_t member) const {
    return ptx::load_shared_f32(at(offsetof(Plan, keys), key_record(), sizeof(KeyRecord)) + member +
                                4 * (2 * part_ + warp_ / 2));
  }
  __device__ Seen find_seen() const {
    const KeyRecord& keys = this->keys();
    const int lane = ptx::lane_now();  // nothing of this is kept
    const int first = this->stage_record(tile_).row0 + 2 * (lane % 4);
    Seen seen = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int key = 64 * part_ + 16 * warp_ + 8 * h + lane / 4;
      if (key >= keys.count) continue;
      seen |= (queries_before(keys.rows.end_of(key, keys.seqlen_q) - first) &
               ~queries_before(keys.rows.first(key) - first))
              << 16 * h;
    }
    return seen;
  }

  /// Where a lane's rows of its warp's keys begin in ds[0].
  __device__ std::uint32_t ds_address(int lane) const {
    const int key = 64 * part_ + 16 * warp_, turn = Config::kPanel == 128 ? lane : lane / 2;
    const int piece = (key % Config::kPanel / 16) ^ (turn & (Config::kPanel / 16 - 1));
    return base_ + offsetof(Plan, ds) + key / Config::kPanel * (kTileM * Config::kPanel) +
           lane * Config::kPanel + 16 * piece;
  }
  /// To the dQ role, with dS.
  __device__ void tell_exponent(int exponent) const {
    if (this->leads()) smem_.ds_exponent[tile_ % Config::kAmaxBuffers][part_] = exponent;
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

  /// No tile follows; the dQ role reads the same flags.
  __device__ void end_ds() const {
    if constexpr (Config::kTellsExponents) tell_exponent(kNoExponent);
    wait(offsetof(Plan, ds_empty), ds_buffer(tile_), ds_empty_phase());
    arrive(offsetof(Plan, ds_full), ds_buffer(tile_));
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

  /// Both gradients to the scratch, where flags say so.
  template <class Dv, class Dk>
  __device__ void promote_sums(std::uint32_t flags, const Dv& dv, const Dk& dk) const {
    if (flags & kPromoteDv) promote<Config>(params_, 0, (flags & kScratchDv) == 0, anchor(), dv);
    if (flags & kPromoteDk) {
      promote<Config>(params_, 1, (flags & kScratchDk) == 0, dk_exponent(), dk);
    }
  }
  /// To memory.
  template <class Dv, class Dk>
  __device__ void store_sums(std::uint32_t flags, Staging staging, const Dv& dv,
                             const Dk& dk) const {
    const int first_row = 64 * part_ + 16 * warp_;
    store_gradient<Config>(params_, params_.dv, keys(),
                           {0, (flags & kScratchDv) != 0, anchor(), 1.0f}, first_row, staging, dv);
    store_gradient<Config>(params_, params_.dk, keys(),
                           {1, (flags & kScratchDk) != 0, dk_exponent(), params_.softmax_scale},
                           first_row, staging, dk);
  }
  __device__ int anchor() const { return smem_.rows[record_of(tile_)].anchor; }
  __device__ int dk_exponent() const { return exponent_ == kNoExponent ? 0 : exponent_; }

  /// Of FP32 sums.
  template <bool kLast>
  __device__ void finish(std::uint32_t flags, Gradient& dv, const Gradient& dk) {
    if constexpr (Config::kFolds) {
      if (flags & kFoldDv) {
        fold((flags & kFolded) != 0, dv);
      } else if ((flags & kFolded) && (flags & (kPromoteDv | kStore))) {
        unfold(dv);
      }
    }
    const auto four_of = [](const Gradient& sums) {
      return [&](int i) {
        return make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
      };
    };
    if constexpr (!kLast) {
      promote_sums(flags, four_of(dv), four_of(dk));
      return;
    }
    const int first_row = 64 * part_ + 16 * warp_;
    // Nobody multiplies by this consumer's rows of K and V any more.
    std::uint8_t* const staging[2] = {
        smem_.k[key_buffer()] + first_row * Config::SProduct::kPartBytes,
        smem_.v[key_buffer()] + first_row * Config::DpProduct::kPartBytes};
    store_sums(flags, staging, four_of(dv), four_of(dk));
    arrive(offsetof(Plan, columns_empty), stage_of(tile_));
    // The copy engine writes next where gradients were staged.
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    arrive(offsetof(Plan, key_empty), key_buffer());
    arrive(offsetof(Plan, v_empty), key_buffer());
  }

  const BackwardParams& params_;
  int part_;
  int lane_;
  std::uint32_t ds_address_;  ///< this lane's
  unsigned tile_ = 0;
  unsigned key_tile_ = ~0u;
  int exponent_ = kNoExponent;  ///< of dS for dK
};

}  // namespace mxfa::sm90::backward
