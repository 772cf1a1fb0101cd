#pragma once

#include <cuda/ptx>

#include "kernels/sm90/common/mma.cuh"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/tiles.cuh"
#include "mx/permutation.h"
#include "ptx/global.cuh"
#include "ptx/half2.cuh"
#include "ptx/lane.cuh"
#include "ptx/mbarrier.cuh"

/// The role that brings keys and values.
namespace mxfa::sm90::forward {

/// Exponents of a key block's groups: a lane's is that of its group, kNoAnchor past the end.
template <class Config, bool kTokenScales = Config::kTokenScales>
struct BlockExponents {
  const ForwardParams& params;
  const Keys& keys;
  int k = kNoAnchor, v = kNoAnchor;

  __device__ BlockExponents(const ForwardParams& call, const Keys& of) : params(call), keys(of) {}

  __device__ void fetch(std::int32_t n_block, std::int32_t n_end) {
    const std::int32_t group = n_block * Config::kKGroups + ptx::lane_now() % Config::kKGroups;
    k = v = kNoAnchor;
    if (n_block >= n_end || group * kScaleGroup >= keys.count) return;
    k = Config::kBf16 ? 0 : exponent(params.k.scales, keys.group + group, keys.head);
    v = exponent(params.v_scales, keys.group + group, keys.head);
  }
  __device__ static int together(int exponent) { return exponent; }
  __device__ static bool has_nan(int v) { return v == kNanExponent; }
};

/// Scale codes of a key block's tokens: `i` of a lane is that of token 32 i + lane.
template <class Config>
struct BlockExponents<Config, true> {
  static constexpr int kWords = Config::kTileN / 32;
  static_assert(kWords == 4);
  const ForwardParams& params;
  const Keys& keys;
  std::uint32_t k[kWords], v[kWords];

  __device__ BlockExponents(const ForwardParams& call, const Keys& of) : params(call), keys(of) {}

  __device__ void fetch(std::int32_t n_block, std::int32_t n_end) {
    const std::int32_t first = n_block * Config::kTileN + ptx::lane_now();
    const std::int32_t count = n_block < n_end ? keys.count : 0;
    // Nobody sees tokens past the end: any exponent serves that is not odd.
    fetch(params.k.scales, first, count, mx::kE8M0Bias, k);
    fetch(params.v_scales, first, count, mx::kE8M0Bias + kTokenAnchor<Config>, v);
  }
  /// Byte i: code i.
  __device__ static std::uint32_t together(const std::uint32_t (&codes)[kWords]) {
    return __byte_perm(__byte_perm(codes[0], codes[1], 0x0040),
                       __byte_perm(codes[2], codes[3], 0x0040), 0x5410);
  }
  __device__ static bool has_nan(std::uint32_t v) {
    return __vcmpeq4(v, mx::kE8M0Nan * 0x01010101u) != 0;
  }

 private:
  /// Without a branch, so that no load waits for another one.
  __device__ void fetch(const device::OperandScales& scales, std::int32_t first, std::int32_t count,
                        std::uint32_t none, std::uint32_t (&codes)[kWords]) const {
    const std::uint8_t* code = scales.data +
                               (std::int64_t{keys.token} + first) * scales.row_stride +
                               keys.head * scales.head_stride;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      codes[i] = ptx::load_byte_if(first + 32 * i < count, code, none);
      code += 32 * scales.row_stride;
    }
  }
};

/// One warp: copies K and V^T of the tiles' key blocks, turns scales into factors.
/// Waits on tile_full, empty; signals q_empty, full; owns a stage until then.
template <class Config>
class KeyProducer {
 public:
  using Plan = SmemPlan<Config>;

  __device__ KeyProducer(const ForwardParams& params, Plan& smem) : params_(params), smem_(smem) {}

  __device__ void run() {
    while (true) {
      ptx::mbarrier_wait(shared_address(&smem_.tile_full[buffer_]), buffer_phase_);
      const TileRecord& record = smem_.tile[buffer_];
      if (record.parts == 0) return;
      __syncwarp();  // every lane has read the keys before
      if (ptx::lane_now() == 0) {
        smem_.keys = {.group = record.k_group,
                      .token = record.k_begin,
                      .v_tile = record.v_tile,
                      .count = record.seqlen_k,
                      .head = record.head_kv,
                      .n_begin = record.n_begin,
                      .n_end = record.n_end,
                      .full_begin = 0,
                      .full_end = record.n_end};
        if constexpr (Config::kTokenScales) find_full_blocks();
      }
      __syncwarp();
      int q_exponent = 0;
      if constexpr (Config::kProduct == Product::kGroupScales) {
        // The one that lanes 4 g .. 4 g + 3 need for group g of the tile.
        const int group = ptx::lane_now() / Config::kKGroups;
        q_exponent = smem_.q_exponent[buffer_][group < Config::kQGroups ? group : 0];
      }
      ptx::mbarrier_arrive(shared_address(&smem_.q_empty[buffer_]));
      if (++buffer_ == Config::kTileBuffers) {
        buffer_ = 0;
        buffer_phase_ ^= 1;
      }
      load_keys(smem_.keys, q_exponent);
    }
  }

 private:
  /// What all warpgroups that have rows see whole.
  __device__ void find_full_blocks() {
    for (const BlockRange& blocks : smem_.blocks[buffer_]) {
      if (blocks.begin >= blocks.end) continue;
      smem_.keys.full_begin = max(smem_.keys.full_begin, blocks.full_begin);
      smem_.keys.full_end = min(smem_.keys.full_end, blocks.full_end);
    }
  }

  __device__ void load_keys(const Keys& keys, int q_exponent) {
    BlockExponents<Config> exponents(params_, keys);
    int anchor = kNoAnchor;
    exponents.fetch(keys.n_begin, keys.n_end);
    auto of_k = exponents.together(exponents.k), of_v = exponents.together(exponents.v);
    for (std::int32_t n_block = keys.n_begin; n_block < keys.n_end; ++n_block) {
      // A block ahead, so that their latency hides behind the wait for a free stage.
      exponents.fetch(n_block + 1, keys.n_end);
      const bool has_nan = __any_sync(~0u, BlockExponents<Config>::has_nan(of_v));
      ptx::mbarrier_wait(shared_address(&smem_.empty[stage_]), phase_ ^ 1);
      // Ahead of the scales: the warpgroup that is ahead of the others waits for what a stage takes
      // from its last reader to its next keys, and each cycle of that is one of every block.
      if (!has_nan && ptx::lane_now() == 0) copy_keys(keys, n_block, &smem_.full[stage_]);
      const auto next_k = exponents.together(exponents.k);
      const auto next_v = exponents.together(exponents.v);
      if constexpr (Config::kTokenScales) {
        write_token_scales(of_k, of_v, n_block >= keys.full_begin && n_block < keys.full_end);
      } else {
        write_scales(q_exponent, of_k, of_v, anchor);
      }
      if (has_nan) copy_patched(keys, n_block);
      // Every lane hands over what it wrote.
      ptx::mbarrier_arrive(shared_address(&smem_.full[stage_]));
      of_k = next_k;
      of_v = next_v;
      if (++stage_ == Config::kStages) {
        stage_ = 0;
        phase_ ^= 1;
      }
    }
  }

  /// NaN in V would reach rows that do not see it, as 0 * NaN: zeros take its place, and the
  /// consumers make O of the rows that see it NaN.
  __device__ void copy_patched(const Keys& keys, std::int32_t n_block) {
    if (ptx::lane_now() == 0) {
      copy_keys(keys, n_block, &smem_.patched);
      ptx::mbarrier_arrive(shared_address(&smem_.patched));
    }
    __syncwarp();  // also: what the stage's scales say of NaN has been written
    ptx::mbarrier_wait(shared_address(&smem_.patched), patched_phase_);
    patched_phase_ ^= 1;
    if constexpr (Config::kTokenScales) {
      clear_nan_tokens();
    } else {
      clear_nan_groups();
    }
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
  }
  __device__ void clear_nan_groups() {
    const int anchor = smem_.scales[stage_].anchor;
    const int nan_groups = (anchor + kNanGroupUnit / 2) / kNanGroupUnit;
    constexpr int kChunks = Config::kTileN / 16;  // of a row of V^T, swizzled among themselves
    for (int i = ptx::lane_now(); i < Config::kHeadDim * kChunks; i += 32) {
      const int row = i / kChunks, chunk = i % kChunks ^ row % 8;
      if ((nan_groups >> chunk / 2 & 1) == 0) continue;
      reinterpret_cast<uint4*>(smem_.v[stage_])[i] = uint4{};
    }
  }
  __device__ void clear_nan_tokens() {
    for (int token = 0; token < Config::kTileN; ++token) {
      if ((smem_.scales[stage_].nan_tokens[token / 32] >> token % 32 & 1) == 0) continue;
      for (int row = ptx::lane_now(); row < Config::kHeadDim; row += 32) {
        const int chunk = token / 16 ^ row % 8;
        smem_.v[stage_][row * Config::kTileN + 16 * chunk + mx::pi_position(token % 16)] = 0;
      }
    }
  }

  /// `full` gets the bytes of K and V^T, and no arrival.
  __device__ void copy_keys(const Keys& keys, std::int32_t n_block, std::uint64_t* full) {
    using namespace cuda::ptx;
    const std::int32_t key0 = n_block * Config::kTileN;
    mbarrier_expect_tx(sem_relaxed, scope_cta, space_shared, full,
                       sizeof(smem_.k[0]) + sizeof(smem_.v[0]));
    for (int part = 0; part < Config::kQkParts; ++part) {
      const std::int32_t k_at[3] = {part * (Config::kHeadDim / Config::kQkParts), keys.head,
                                    keys.token + key0};
      cp_async_bulk_tensor(space_cluster, space_global,
                           &smem_.k[stage_][part * Config::kTileN * Config::kQkPartBytes],
                           &params_.k_map, k_at, full);
    }
    static_assert(Config::kTileN == mx::kAtomRows);
    const std::int32_t v_at[5] = {
        0, 0, 0, 0,
        ((keys.v_tile + n_block) * params_.shape.num_heads_kv + keys.head) * Config::kHeadDim / 32};
    cp_async_bulk_tensor(space_cluster, space_global, smem_.v[stage_], &params_.v_map, v_at, full);
  }

  /// As the softmax of this configuration takes a number.
  __device__ static std::uint32_t lane_value(float x) {
    if constexpr (Config::kScores == Scores::kF16) return ptx::half2_pack(x, x);
    return __float_as_uint(x);
  }

  /// Lane 4 i + g writes the factor of Q's group i and the block's group g.
  __device__ void write_scales(int q_exponent, int k_exponent, int v_exponent, int& anchor) {
    constexpr unsigned kAll = ~0u;
    constexpr int kGroups = Config::kKGroups;
    StageScales<Config>& out = smem_.scales[stage_];
    const unsigned nan_groups =
        __ballot_sync(kAll, v_exponent == kNanExponent) & ((1u << kGroups) - 1);
    int most = v_exponent;
    for (int step = 1; step < kGroups; step *= 2) {
      const int other = __shfl_xor_sync(kAll, most, step);
      most = other > most ? other : most;
    }
    anchor = most > anchor ? most : anchor;
    // Groups past the end have no codes but zeros.
    int fold = v_exponent == kNoAnchor ? 0 : v_exponent - anchor;
    fold = fold < kLeastFold ? kLeastFold : fold;
    const int first_k = __shfl_sync(kAll, k_exponent, 0);
    if (k_exponent == kNoAnchor) k_exponent = first_k;
    int sum = q_exponent + k_exponent;
    bool packable = fold >= kLeastPackedFold;
    if constexpr (Config::kScores == Scores::kF16) {
      // Factors must neither overflow in half nor, below the normal range, lose what counts.
      packable = packable && sum <= 12;
      sum = sum < -20 ? -20 : sum > 12 ? 12 : sum;
    }
    const int lane = ptx::lane_now(), lane_group = lane % kGroups;
    packable = __all_sync(kAll, packable);
    const bool uniform = __all_sync(kAll, k_exponent == first_k && fold == 0);
    if (lane < Config::kQGroups * kGroups) {
      out.factor[lane / kGroups][lane_group] = lane_value(params_.scale_log2 * power_of_two(sum));
    }
    if (lane < kGroups) {
      out.fold[lane_group] = lane_value(static_cast<float>(fold));
      const int safe = Config::kScores == Scores::kF16 && fold < kLeastPackedFold ? 0 : fold;
      out.unfold[lane_group] = lane_value(power_of_two(-safe));
    }
    if (ptx::lane_now() == 0) {
      out.anchor = anchor + static_cast<int>(nan_groups) * kNanGroupUnit;
      out.packing = !packable ? Packing::kNone : uniform ? Packing::kUniform : Packing::kGroups;
    }
  }

  /// Of scale codes as BlockExponents has them. `full`: no warpgroup masks the block.
  __device__ void write_token_scales(std::uint32_t k_codes, std::uint32_t v_codes, bool full) {
    StageScales<Config>& out = smem_.scales[stage_];
    const bool same_k = same_codes(k_codes), same_v = same_codes(v_codes);
    const bool same_numbers = __all_sync(~0u, same_k && same_v);
    if constexpr (Config::kScores == Scores::kF32) {
      if (same_numbers && full && (v_codes & 0xFF) != mx::kE8M0Nan) {
        if (ptx::lane_now() == 0) write_uniform(k_codes & 0xFF, v_codes & 0xFF);
        return;
      }
    }
    unsigned any_nan = 0, any_odd = 0;
#pragma unroll
    for (int word = 0; word < Config::kTileN / 32; ++word) {
      const int k = exponent_of(k_codes >> 8 * word & 0xFF);
      int v = exponent_of(v_codes >> 8 * word & 0xFF);
      const unsigned nan = __ballot_sync(~0u, v == kNanExponent);
      v = v < kLeastValue ? kLeastValue : v;
      any_odd |= write_token(32 * word + ptx::lane_now(), k, v);
      if (ptx::lane_now() == 0) out.nan_tokens[word] = nan;
      any_nan |= nan;
    }
    if (ptx::lane_now() == 0) {
      out.anchor = kTokenAnchor<Config> + (any_nan != 0 ? kNanGroupUnit : 0);
      const bool same = same_numbers && (any_nan | any_odd) == 0;
      if constexpr (Config::kScores == Scores::kF16) {
        out.has_odd = any_odd != 0;
        out.kind = same ? out.value_exponent[0] - kTokenAnchor<Config> : kByToken;
      } else {
        out.uniform = same;
      }
    }
  }

  /// All that is read of a block of one kind of tokens, of which no row sees a part.
  __device__ void write_uniform(int k_code, int v_code) {
    StageScales<Config>& out = smem_.scales[stage_];
    const int v = exponent_of(v_code);
    write_token(0, exponent_of(k_code), v < kLeastValue ? kLeastValue : v);
    out.anchor = kTokenAnchor<Config>;
    out.uniform = 1;
  }

  /// By all lanes: whether this one's four codes are those of the first token.
  __device__ static bool same_codes(std::uint32_t codes) {
    return codes == (__shfl_sync(~0u, codes, 0) & 0xFF) * 0x01010101u;
  }

  /// Which of the 32 tokens are odd.
  __device__ unsigned write_token(int token, int k, int v) {
    StageScales<Config>& out = smem_.scales[stage_];
    const int value = v - kTokenAnchor<Config>;
    if constexpr (Config::kScores == Scores::kF32) {
      auto& pair = out.pair[token / 2];
      pair.key[token % 2] = power_of_two(k);
      pair.value[token % 2] = static_cast<float>(value);
      out.unfold[token] = power_of_two(-value);
      return 0;
    } else {
      const bool odd = k < kLeastPackedKey || k > kKeyShift || value < kLeastPackedValue ||
                       value > kMostPackedValue;
      const unsigned odd_tokens = __ballot_sync(~0u, odd);
      // Of odd tokens any numbers that leave a hidden score -infinity.
      const int key = k < kLeastPackedKey ? kLeastPackedKey : k > kKeyShift ? kKeyShift : k;
      const int at = 2 * token_word(token / 8, token % 8 / 2) + token % 2;
      half_at(out.key, at) = to_half(power_of_two(key - kKeyShift));
      half_at(out.value, at) = to_half(static_cast<float>(value));
      half_at(out.unfold, at) = odd ? std::uint16_t{0} : to_half(power_of_two(-value));
      out.key_exponent[token] = static_cast<std::int8_t>(k);
      out.value_exponent[token] = static_cast<std::int8_t>(v);
      if (ptx::lane_now() == 0) out.odd_tokens[token / 32] = odd_tokens;
      return odd_tokens;
    }
  }
  template <int kCount>
  __device__ static std::uint16_t& half_at(std::uint32_t (&pairs)[kCount], int at) {
    return reinterpret_cast<std::uint16_t*>(pairs)[at];
  }
  __device__ static std::uint16_t to_half(float x) {
    return static_cast<std::uint16_t>(ptx::half2_pack(x, x));
  }

  const ForwardParams& params_;
  Plan& smem_;
  int stage_ = 0;
  unsigned phase_ = 0;
  int buffer_ = 0;
  unsigned buffer_phase_ = 0;
  unsigned patched_phase_ = 0;
};

}  // namespace mxfa::sm90::forward
