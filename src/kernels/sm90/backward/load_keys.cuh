#pragma once

#include <cuda/ptx>

#include "device/jagged.cuh"
#include "device/warp_fetch_add.cuh"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/common/mma.cuh"
#include "ptx/lane.cuh"
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
/// K^T. Waits on place_empty, key_empty, v_empty, kt_empty; signals place_full, key_full, v_full,
/// kt_full.
template <class Config>
class KeyProducer {
 public:
  using Plan = SmemPlan<Config>;
  static constexpr int kTileN = Config::kTileN, kKGroups = Config::kKGroups;

  __device__ KeyProducer(const BackwardParams& params, Plan& smem) : params_(params), smem_(smem) {}

  __device__ void run() {
    int sequence = 0;
    while (true) {
      if (params_.dq_turns != nullptr && keys_ > 0) wait_for_rows_before();
      ptx::mbarrier_wait(shared_address(&smem_.place_empty[buffer()]), empty_phase());
      // Also the first by the counter: a work's predecessors have then been taken by running CTAs.
      int work = device::WarpFetchAdd{params_.counter}();
      if (params_.streams != nullptr) {
        work = work_of_streams(work);
        if (work < 0) continue;
        sequence = 0;
      }
      const Taken taken = take(work, sequence);
      if (taken == Taken::kNothing) break;
      if (taken == Taken::kKeys) ++keys_;
    }
    __syncwarp();
    if (!leads()) return;
    smem_.place[buffer()].head = -1;
    ptx::mbarrier_arrive(shared_address(&smem_.place_full[buffer()]));
  }

 private:
  static __device__ bool leads() { return ptx::lane_now() == 0; }
  __device__ int buffer() const { return static_cast<int>(keys_ % Config::kKeyBuffers); }
  __device__ unsigned empty_phase() const { return (keys_ / Config::kKeyBuffers + 1) % 2; }
  /// Until the producer of rows has done with the keys before. In order, a CTA that took two key
  /// tiles at once would begin the second when it ends the first, and all that follow would wait.
  __device__ void wait_for_rows_before() const {
    const unsigned before = keys_ - 1;
    ptx::mbarrier_wait(shared_address(&smem_.place_empty[before % Config::kKeyBuffers]),
                       before / Config::kKeyBuffers % 2);
  }

  /// Where every token has a scale: a byte each of keys lane, lane + 32, ..; 0 where there is none.
  struct TokenScales {
    static constexpr int kCount = kTileN / 32;
    std::uint32_t k = 0, v = 0;

    __device__ TokenScales(const BackwardParams& params, const QueryPlace& place) {
      const int lane = ptx::lane_now();
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int token = 32 * i + lane;
        if (!exists(place, token)) continue;
        const auto scale = [&](const device::OperandScales& scales) {
          return std::uint32_t{__ldg(scales.data + (place.k_row + token) * scales.row_stride +
                                     place.head * scales.head_stride)};
        };
        k |= scale(params.k_scales) << 8 * i;
        v |= scale(params.v_scales) << 8 * i;
      }
    }
    static __device__ bool exists(const QueryPlace& place, int token) {
      return place.tile * kTileN + token < place.seqlen_k;
    }
    static __device__ int exponent(std::uint32_t scales, int i) {
      return scale_exponent(static_cast<std::uint8_t>(scales >> 8 * i));
    }
    __device__ int largest_k() const {
      return __reduce_max_sync(
          ~0u, max(max(exponent(k, 0), exponent(k, 1)), max(exponent(k, 2), exponent(k, 3))));
    }
    /// Of 16 lanes.
    static __device__ int largest_of_warp(int exponent) {
#pragma unroll
      for (int step = 1; step < 16; step *= 2) {
        exponent = max(exponent, __shfl_xor_sync(~0u, exponent, step));
      }
      return exponent;
    }
    /// `reference`: K's largest. A key that does not exist has its warp's.
    __device__ void store(KeyTokens& out, const QueryPlace& place, int reference) const {
#pragma unroll 1
      for (int i = 0; i < kCount; ++i) {
        const int lane = ptx::lane_now(), token = 32 * i + lane;
        const bool is_there = exists(place, token);
        const int below_k = exponent(k, i) - store_warp(out.k_factor, i, lane, exponent(k, i));
        const int below_v = exponent(v, i) - store_warp(out.v_factor, i, lane, exponent(v, i));
        out.k_within[token] = power_of_two(is_there ? below_k : 0);
        out.v_within[token] = power_of_two(is_there ? below_v : 0);
        const unsigned differ = __ballot_sync(~0u, is_there && (below_k | below_v) != 0);
        if (lane % 16 != 0) continue;
        out.k_relative[token / 16] = power_of_two(exponent(k, i) - below_k - reference);
        out.differ[token / 16] = differ >> lane & 0xFFFFu;
      }
    }
    /// Returns the largest of 16 keys.
    static __device__ int store_warp(float (&factors)[KeyTokens::kWarps], int i, int lane,
                                     int exponent) {
      const int largest = largest_of_warp(exponent);
      if (lane % 16 == 0) factors[2 * i + lane / 16] = power_of_two(largest);
      return largest;
    }
  };

  /// Streams by turns give theirs: a work, below 0 of a stream that has no more. All works behind
  /// the last.
  __device__ int work_of_streams(int next) const {
    const StreamTable& table = *params_.streams;
    const int heads = params_.sides.num_heads_kv, in_stream = next / table.count;
    const int stream = next - in_stream * table.count, begin = table.begin[stream];
    if (in_stream >= heads * table.most_tiles) return heads * table.begin[table.count];
    if (in_stream >= heads * (table.begin[stream + 1] - begin)) return -1;
    return heads * begin + in_stream;
  }

  enum class Taken : std::uint8_t { kKeys, kUnseen, kNothing };

  /// kUnseen where no query sees the keys, kNothing where there are no more. What is found goes to
  /// shared memory at once and is read from there, step by step: there are few registers.
  __device__ Taken take(int work, int& sequence) {
    const Sides& sides = params_.sides;
    sequence = device::find_sequence(sides.k, sequence, work / sides.num_heads_kv);
    const int first = tiles_before(sides.k, sequence);
    // As many works as tiles of 128 keys: there may be fewer.
    const int works = tiles_before(sides.k, sequence + 1) - first;
    const int here = work - first * sides.num_heads_kv;
    if (here >= works * sides.num_heads_kv) return Taken::kNothing;  // of the last sequence
    __syncwarp();
    QueryPlace& place = smem_.place[buffer()];
    if (leads()) find_sides(sequence, place);
    __syncwarp();
    const int count = tiles_of(place.seqlen_k);
    if (here >= count * sides.num_heads_kv) return Taken::kUnseen;
    if (leads()) find_tile(here, count, place);
    if (params_.dq_turns != nullptr && sides.broadcast_q) add_turns(sequence, place);
    __syncwarp();
    if (leads()) {
      place.k_row += place.tile * kTileN;
      place.k_column += place.tile * kTileN;
    }
    __syncwarp();
    if (leads()) find_rows(place);
    __syncwarp();
    if (place.m_begin >= place.m_end) {
      store_zeros(place);
      return Taken::kUnseen;
    }
    if (leads()) ptx::mbarrier_arrive(shared_address(&smem_.place_full[buffer()]));
    copy_keys(sequence, place);
    return Taken::kKeys;
  }

  /// Of `count` tiles of each head of a sequence. Tiles of a head side by side: they read the same
  /// Q and dO. In order heads alternate, so that fewer CTAs wait for each other, and the last
  /// tile comes first: under a causal mask those before it begin at earlier queries.
  __device__ void find_tile(int here, int count, QueryPlace& place) const {
    const int at_once = params_.heads_at_once, section = here / (at_once * count);
    const int in_section = here - section * at_once * count;
    const int heads = min(at_once, params_.sides.num_heads_kv - section * at_once);
    const int position = in_section / heads;
    place.head = section * at_once + in_section - position * heads;
    place.tile = params_.dq_turns == nullptr ? position : count - 1 - position;
    place.turn = -place.tile;
    place.number = keys_;
  }

  /// offsets.tiles(sequence), below 2^31.
  static __device__ int tiles_before(const device::JaggedOffsetsView& offsets, int sequence) {
    if (!offsets.dense()) return static_cast<int>(offsets.tile_begin[sequence]);
    const auto seqlen = static_cast<unsigned>(offsets.seqlen);
    return static_cast<int>((seqlen + (mx::kAtomRows - 1)) / mx::kAtomRows) * sequence;
  }

  static __device__ int tiles_of(int keys) { return (keys + (kTileN - 1)) / kTileN; }
  /// Where all sequences' key tiles add to the same queries, in order: those before.
  __device__ void add_turns(int sequence, QueryPlace& place) const {
    const device::JaggedOffsetsView& keys = params_.sides.k;
    int tiles = 0;
    for (int s = ptx::lane_now(); s < sequence; s += 32) {
      tiles += tiles_of(static_cast<int>(keys.tokens(s + 1) - keys.tokens(s)));
    }
    tiles = __reduce_add_sync(~0u, tiles);
    if (leads()) place.turn += tiles;
  }
  /// Of all of a sequence's keys.
  __device__ void find_sides(int sequence, QueryPlace& place) const {
    const Sides& sides = params_.sides;
    const int k_begin = static_cast<int>(sides.k.tokens(sequence));
    place.k_row = k_begin;
    place.k_column = tiles_before(sides.k, sequence) * static_cast<int>(mx::kAtomRows);
    place.seqlen_k = static_cast<int>(sides.k.tokens(sequence + 1)) - k_begin;
    place.o_row = static_cast<int>(sides.o.tokens(sequence));
    place.o_tile = 2 * tiles_before(sides.o, sequence);
    const int q_sequence = sides.broadcast_q ? 0 : sequence;
    const int q_row = static_cast<int>(sides.q.tokens(q_sequence));
    place.q_row = q_row;
    place.seqlen_q = static_cast<int>(sides.q.tokens(q_sequence + 1)) - q_row;
    place.q_tile = 2 * tiles_before(sides.q, q_sequence);
    place.members = sides.num_heads / sides.num_heads_kv;
  }

  /// Those that see some of the keys, or all; none does where keys end within the tile.
  __device__ void find_rows(QueryPlace& place) const {
    const int seqlen_q = place.seqlen_q, seqlen_k = place.seqlen_k, key0 = place.tile * kTileN;
    const Band rows = Band::of_keys(params_.mask, seqlen_q, seqlen_k, key0);
    const int last = min(kTileN, seqlen_k - key0) - 1;
    const int begin = rows.first(0), end = rows.end_of(last, seqlen_q);
    place.rows = rows;
    place.m_begin = begin / kTileM;
    place.m_end = begin < end ? (end + kTileM - 1) / kTileM : 0;
    place.full_begin = rows.first(last);
    place.full_end = last + 1 < kTileN ? 0 : rows.end_of(0, seqlen_q);
    place.row_of_last_key = params_.sides.broadcast_q ? 0 : rows.first(seqlen_k - 1 - key0);
  }

  __device__ void copy_keys(int sequence, const QueryPlace& place) {
    if constexpr (Config::kTokenScales) {
      const TokenScales scales(params_, place);
      const int largest = scales.largest_k();
      wait_for(smem_.key_empty);
      scales.store(smem_.tokens, place, largest);
      start_keys(place, largest);
    } else {
      start_keys(place, store_group_factors(sequence, place));
    }
  }
  __device__ void wait_for(const std::uint64_t (&empty)[Config::kKeyBuffers]) const {
    ptx::mbarrier_wait(shared_address(&empty[buffer()]), empty_phase());
  }
  __device__ KeyRecord& record() const { return smem_.keys[keys_ % Config::kKeyRecords]; }

  /// Lanes 0..3 take K's exponents, 4..7 V's (which BF16 has not). Returns K's largest.
  __device__ int store_group_factors(int sequence, const QueryPlace& place) const {
    const int lane = ptx::lane_now();
    const device::OperandScales& scales = lane < kKGroups ? params_.k_scales : params_.v_scales;
    const int group = place.tile * kKGroups + lane % kKGroups;
    int exponent = -127;
    constexpr int kLanes = Config::DpProduct::kBf16 ? kKGroups : 2 * kKGroups;
    if (lane < kLanes && group * kScaleGroup < place.seqlen_k) {
      exponent = scale_exponent(
          __ldg(scales.data + (params_.sides.k.groups(sequence) + group) * scales.row_stride +
                place.head * scales.head_stride));
    }
    int largest = lane < kKGroups ? exponent : -127;
    largest = __reduce_max_sync(~0u, largest);
    wait_for(smem_.key_empty);
    KeyRecord& out = record();
    if (lane < kKGroups) {
      out.k_factor[lane] = Config::SProduct::kBf16 ? 1.0f : power_of_two(exponent);
      out.k_relative[lane] = power_of_two(exponent - largest);
    } else if (lane < 2 * kKGroups) {
      out.v_factor[lane - kKGroups] = Config::DpProduct::kBf16 ? 1.0f : power_of_two(exponent);
    }
    return largest;
  }

  /// `reference`: of K's exponents.
  __device__ void start_keys(const QueryPlace& place, int reference) {
    std::uint64_t* const full = &smem_.key_full[buffer()];
    if (!leads()) {
      ptx::mbarrier_arrive(shared_address(full));
      return;
    }
    KeyRecord& out = record();
    const int head = place.head, row = place.k_row;
    out.out_row = row;
    out.rows = place.rows;
    out.seqlen_q = place.seqlen_q;
    out.count = min(kTileN, place.seqlen_k - place.tile * kTileN);
    out.head = head;
    out.reference = reference;
    using namespace cuda::ptx;
    mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, full, sizeof(smem_.k[0]));
    copy_parts<Config, typename Config::SProduct>(smem_.k[buffer()], params_.k_map, head, row,
                                                  full);
    std::uint64_t* const v_full = &smem_.v_full[buffer()];
    wait_for(smem_.v_empty);
    mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, v_full, sizeof(smem_.v[0]));
    copy_parts<Config, typename Config::DpProduct>(smem_.v[buffer()], params_.v_map, head, row,
                                                   v_full);
    std::uint64_t* const kt_full = &smem_.kt_full[buffer()];
    wait_for(smem_.kt_empty);
    mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, kt_full, sizeof(smem_.kt[0]));
#pragma unroll 1
    for (int panel = 0; panel < Config::kPanels; ++panel) {
      // No tile is at -1: zeros behind the sequence's end, where others' columns may be.
      constexpr int kTile = mx::kAtomRows;
      const int column = Config::kPanel * panel, at = place.k_column + column;
      const bool exists = Config::kPanels == 1 || column < out.count;
      const std::int32_t columns_at[3] = {at % kTile, head * Config::kHeadDim,
                                          exists ? at / kTile : -1};
      cp_async_bulk_tensor(space_cluster, space_global,
                           smem_.kt[buffer()] + column * Config::kHeadDim, &params_.kt_map,
                           columns_at, kt_full);
    }
  }

  /// No query sees these keys.
  __device__ void store_zeros(const QueryPlace& place) const {
    const int left = place.seqlen_k - place.tile * kTileN, rows = left < kTileN ? left : kTileN;
    const int pairs = params_.columns / 2;
#pragma unroll 1
    for (int i = ptx::lane_now(); i < rows * pairs; i += 32) {
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
  unsigned keys_ = 0;  ///< of all that it loads
};

}  // namespace mxfa::sm90::backward
