#pragma once

#include <cuda/ptx>

#include "device/jagged.cuh"
#include "device/warp_fetch_add.cuh"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/common/mma.cuh"
#include "ptx/mbarrier.cuh"

/// The role that takes key tiles.
namespace mxfa::sm90::backward {

/// Rows of a head from `row` on, part by part.
template <class Config, class Rows, std::size_t kBytes>
__device__ inline void copy_parts(std::uint8_t (&to)[kBytes], const CUtensorMap& map, int head,
                                  int row, std::uint64_t* full) {
  constexpr int kColumns = Config::kHeadDim / Rows::kParts;
#pragma unroll
  for (int part = 0; part < Rows::kParts; ++part) {
    const std::int32_t from[3] = {part * kColumns, head, row};
    cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_cluster, cuda::ptx::space_global,
                                    to + part * (kBytes / Rows::kParts), &map, from, full);
  }
}

/// One warp: takes key tiles, tells the producer of rows where their queries are, and copies K, V,
/// K^T. Waits on place_empty, key_empty; signals place_full, key_full.
template <class Config>
class KeyProducer {
 public:
  using Plan = SmemPlan<Config>;

  __device__ KeyProducer(const BackwardParams& params, Plan& smem)
      : params_(params), smem_(smem), lane_(threadIdx.x & 31) {}

  __device__ void run() {
    int sequence = 0;
    while (true) {
      if (params_.dq_turns != nullptr && keys_ > 0) wait_for_rows_before();
      ptx::mbarrier_wait(shared_address(&smem_.place_empty[buffer()]), empty_phase());
      // Also the first by the counter: a work's predecessors have then been taken by running CTAs.
      const Taken taken = take(device::WarpFetchAdd{params_.counter}(), sequence);
      if (taken == Taken::kNothing) break;
      if (taken == Taken::kKeys) ++keys_;
    }
    __syncwarp();
    if (lane_ != 0) return;
    smem_.place[buffer()].head = -1;
    ptx::mbarrier_arrive(shared_address(&smem_.place_full[buffer()]));
  }

 private:
  __device__ int buffer() const { return static_cast<int>(keys_ % Config::kKeyBuffers); }
  __device__ unsigned empty_phase() const { return (keys_ / Config::kKeyBuffers + 1) % 2; }
  /// Until the producer of rows has done with the keys before. In order, a CTA that took two key
  /// tiles at once would begin the second when it ends the first, and all that follow would wait.
  __device__ void wait_for_rows_before() const {
    const unsigned before = keys_ - 1;
    ptx::mbarrier_wait(shared_address(&smem_.place_empty[before % Config::kKeyBuffers]),
                       before / Config::kKeyBuffers % 2);
  }

  /// Where every token has a scale: of keys lane, lane + 32, ..; a key that does not exist has its
  /// warp's.
  struct TokenExponents {
    static constexpr int kCount = kTileN / 32;
    int k[kCount], v[kCount];
    bool exists[kCount];

    __device__ TokenExponents(const BackwardParams& params, const QueryPlace& place, int lane) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int token = 32 * i + lane;
        const auto exponent = [&](const device::OperandScales& scales) {
          return scale_exponent(__ldg(scales.data + (place.k_row + token) * scales.row_stride +
                                      place.head * scales.head_stride));
        };
        exists[i] = place.tile * kTileN + token < place.seqlen_k;
        k[i] = exists[i] ? exponent(params.k_scales) : -127;
        v[i] = exists[i] ? exponent(params.v_scales) : -127;
      }
    }
    __device__ int largest_k() const { return max(max(k[0], k[1]), max(k[2], k[3])); }
    /// Of 16 lanes.
    static __device__ int largest_of_warp(int exponent) {
#pragma unroll
      for (int step = 1; step < 16; step *= 2) {
        exponent = max(exponent, __shfl_xor_sync(~0u, exponent, step));
      }
      return exponent;
    }
    /// `reference`: K's largest.
    __device__ void store(KeyTokens& out, int reference, int lane) const {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int of_k = largest_of_warp(k[i]), of_v = largest_of_warp(v[i]);
        const unsigned differ = __ballot_sync(~0u, exists[i] && (k[i] != of_k || v[i] != of_v));
        out.k_within[32 * i + lane] = power_of_two(exists[i] ? k[i] - of_k : 0);
        out.v_within[32 * i + lane] = power_of_two(exists[i] ? v[i] - of_v : 0);
        if (lane % 16 != 0) continue;
        const int warp = 2 * i + lane / 16;
        out.k_factor[warp] = power_of_two(of_k);
        out.k_relative[warp] = power_of_two(of_k - reference);
        out.v_factor[warp] = power_of_two(of_v);
        out.differ[warp] = differ >> lane & 0xFFFFu;
      }
    }
  };

  enum class Taken : std::uint8_t { kKeys, kUnseen, kNothing };

  /// kUnseen where no query sees the keys, kNothing where there are no more. What is found goes to
  /// shared memory at once and is read from there: there are few registers.
  __device__ Taken take(int work, int& sequence) {
    const Sides& sides = params_.sides;
    QueryPlace& place = smem_.place[buffer()];
    sequence = device::find_sequence(sides.k, sequence, work / sides.num_heads_kv);
    // Tiles of a head side by side: they read the same Q and dO.
    const int first = static_cast<int>(sides.k.tiles(sequence));
    const int count = static_cast<int>(sides.k.tiles(sequence + 1)) - first;
    const int here = work - first * sides.num_heads_kv;
    if (here >= count * sides.num_heads_kv) return Taken::kNothing;  // of the last sequence
    __syncwarp();
    if (lane_ == 0) {
      place.members = sides.num_heads / sides.num_heads_kv;
      const int tile = here % count, q_sequence = sides.broadcast_q ? 0 : sequence;
      place.head = here / count;
      place.tile = tile;
      place.turn = tile + (sides.broadcast_q ? first : 0);
      place.k_tile = first + tile;
      const int k_begin = static_cast<int>(sides.k.tokens(sequence));
      place.k_row = k_begin + tile * kTileN;
      place.seqlen_k = static_cast<int>(sides.k.tokens(sequence + 1)) - k_begin;
      const int q_row = static_cast<int>(sides.q.tokens(q_sequence));
      place.q_row = q_row;
      place.seqlen_q = static_cast<int>(sides.q.tokens(q_sequence + 1)) - q_row;
      place.q_tile = 2 * static_cast<int>(sides.q.tiles(q_sequence));
      place.o_row = static_cast<int>(sides.o.tokens(sequence));
      place.o_tile = 2 * static_cast<int>(sides.o.tiles(sequence));
    }
    __syncwarp();
    if (!find_rows(place)) {
      store_zeros(place);
      return Taken::kUnseen;
    }
    copy_keys(sequence, place);
    return Taken::kKeys;
  }

  /// Those that see some of the keys, or all; none does where keys end within the tile. Lane 0
  /// looks for the former, 1 and 2 for those that see the last and the first key. False: there are
  /// none.
  __device__ bool find_rows(QueryPlace& place) const {
    const int key0 = place.tile * kTileN, end = key0 + kTileN, from = lane_ == 1 ? end - 1 : key0;
    const attention::KeyRange rows = attention::seeing_rows(
        params_.mask, place.seqlen_q, place.seqlen_k, from, lane_ == 0 ? end : from + 1);
    const int row_begin = static_cast<int>(rows.begin), row_end = static_cast<int>(rows.end);
    const auto of_lane = [](int value, int lane) { return __shfl_sync(~0u, value, lane); };
    const int full_begin = max(of_lane(row_begin, 1), of_lane(row_begin, 2));
    const int full_end = min(of_lane(row_end, 1), of_lane(row_end, 2));
    if (of_lane(row_begin, 0) >= of_lane(row_end, 0)) return false;
    if (lane_ == 0) {
      place.m_begin = row_begin / kTileM;
      place.m_end = (row_end + kTileM - 1) / kTileM;
      place.full_begin = full_begin;
      place.full_end = end > place.seqlen_k ? 0 : full_end;
      ptx::mbarrier_arrive(shared_address(&smem_.place_full[buffer()]));
    }
    return true;
  }

  __device__ void copy_keys(int sequence, const QueryPlace& place) {
    if constexpr (Config::kTokenScales) {
      const TokenExponents exponents(params_, place, lane_);
      const int largest = __reduce_max_sync(~0u, exponents.largest_k());
      wait_for_keys();
      exponents.store(smem_.tokens, largest, lane_);
      start_keys(place, largest);
    } else {
      start_keys(place, store_group_factors(sequence, place));
    }
  }
  __device__ void wait_for_keys() const {
    ptx::mbarrier_wait(shared_address(&smem_.key_empty[buffer()]), empty_phase());
  }

  /// Lanes 0..3 take K's exponents, 4..7 V's (which BF16 has not). Returns K's largest.
  __device__ int store_group_factors(int sequence, const QueryPlace& place) const {
    const device::OperandScales& scales = lane_ < kKGroups ? params_.k_scales : params_.v_scales;
    const int group = place.tile * kKGroups + lane_ % kKGroups;
    int exponent = -127;
    constexpr int kLanes = Config::DpProduct::kBf16 ? kKGroups : 2 * kKGroups;
    if (lane_ < kLanes && group * kScaleGroup < place.seqlen_k) {
      exponent = scale_exponent(
          __ldg(scales.data + (params_.sides.k.groups(sequence) + group) * scales.row_stride +
                place.head * scales.head_stride));
    }
    int largest = lane_ < kKGroups ? exponent : -127;
    largest = __reduce_max_sync(~0u, largest);
    wait_for_keys();
    KeyRecord& out = smem_.keys[buffer()];
    if (lane_ < kKGroups) {
      out.k_factor[lane_] = Config::SProduct::kBf16 ? 1.0f : power_of_two(exponent);
      out.k_relative[lane_] = power_of_two(exponent - largest);
    } else if (lane_ < 2 * kKGroups) {
      out.v_factor[lane_ - kKGroups] = Config::DpProduct::kBf16 ? 1.0f : power_of_two(exponent);
    }
    return largest;
  }

  /// `reference`: of K's exponents.
  __device__ void start_keys(const QueryPlace& place, int reference) {
    std::uint64_t* const full = &smem_.key_full[buffer()];
    if (lane_ != 0) {
      ptx::mbarrier_arrive(shared_address(full));
      return;
    }
    KeyRecord& out = smem_.keys[buffer()];
    const int head = place.head, row = place.k_row;
    out.out_row = row;
    out.key0 = place.tile * kTileN;
    out.seqlen_q = place.seqlen_q;
    out.seqlen_k = place.seqlen_k;
    out.head = head;
    out.reference = reference;
    using namespace cuda::ptx;
    mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, full,
                              sizeof(smem_.k[0]) + sizeof(smem_.v[0]) + sizeof(smem_.kt[0]));
    copy_parts<Config, typename Config::SProduct>(smem_.k[buffer()], params_.k_map, head, row,
                                                  full);
    copy_parts<Config, typename Config::DpProduct>(smem_.v[buffer()], params_.v_map, head, row,
                                                   full);
    const std::int32_t columns_at[2] = {place.k_tile * static_cast<int>(mx::kAtomRows),
                                        head * Config::kHeadDim};
    cp_async_bulk_tensor(space_cluster, space_global, smem_.kt[buffer()], &params_.kt_map,
                         columns_at, full);
  }

  /// No query sees these keys.
  __device__ void store_zeros(const QueryPlace& place) const {
    const int left = place.seqlen_k - place.tile * kTileN, rows = left < kTileN ? left : kTileN;
    const int pairs = params_.columns / 2;
#pragma unroll 1
    for (int i = lane_; i < rows * pairs; i += 32) {
      const std::int64_t row = place.k_row + i / pairs;
      for (const GradientOut& out : {params_.dk, params_.dv}) {
        if (out.data == nullptr) continue;
        auto* const target = out.data + row * out.token_stride + place.head * out.head_stride;
        reinterpret_cast<std::uint32_t*>(target)[i % pairs] = 0;
      }
    }
  }

  const BackwardParams& params_;
  Plan& smem_;
  int lane_;
  unsigned keys_ = 0;  ///< of all that it loads
};

}  // namespace mxfa::sm90::backward
