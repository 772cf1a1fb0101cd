#pragma once

#include <cuda/ptx>

#include "device/jagged.cuh"
#include "device/warp_fetch_add.cuh"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/common/mma.cuh"
#include "ptx/mbarrier.cuh"

/// The producers' roles.
namespace mxfa::sm90::backward {

/// One warp: takes key tiles, copies K, V, K^T, and for each query tile that sees them Q, dO and
/// the rows' constants. Waits on key_empty, rows_empty; signals key_full, rows_full.
template <class Config>
class Producer {
 public:
  using Plan = SmemPlan<Config>;
  using Record = typename Config::Record;

  __device__ Producer(const BackwardParams& params, Plan& smem)
      : params_(params), smem_(smem), lane_(threadIdx.x & 31) {}

  __device__ void run() {
    const Sides& sides = params_.sides;
    const std::int64_t works = sides.k.tiles(sides.k.batch) * sides.num_heads_kv;
    int sequence = 0;
    // Also the first by the counter: a work's predecessors have then been taken by running CTAs.
    for (std::int64_t work = next(); work < works; work = next()) {
      const std::int64_t tile = work / sides.num_heads_kv;
      sequence = device::find_sequence(sides.k, sequence, tile);
      // Tiles of a head side by side: they read the same Q and dO.
      const std::int64_t first = sides.k.tiles(sequence);
      const std::int64_t count = sides.k.tiles(sequence + 1) - first;
      const std::int64_t here = work - first * sides.num_heads_kv;
      load_keys(sequence, static_cast<int>(here / count), static_cast<int>(here % count));
    }
    wait_for(smem_.rows_empty);
    if (lane_ != 0) return;
    smem_.stage[tile_record_].flags = 0;
    ptx::mbarrier_arrive(shared_address(&smem_.rows_full[stage_]));
  }

 private:
  /// Where the queries of a key tile begin, and their tiles that see it.
  struct QueryPlace {
    int q_row, o_row;    ///< packed
    int q_tile, o_tile;  ///< of 64 rows
    int m_begin, m_end;
    int seqlen_q, seqlen_k;
    int turn;  ///< key tiles before this one; of the batch, where they share queries
  };

  /// Where every token has a scale: of keys lane, lane + 32, ..; a key that does not exist has its
  /// warp's.
  struct TokenExponents {
    static constexpr int kCount = kTileN / 32;
    int k[kCount], v[kCount];
    bool exists[kCount];

    __device__ TokenExponents(const BackwardParams& params, const KeyRecord& keys, int lane) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int token = 32 * i + lane;
        const auto exponent = [&](const device::OperandScales& scales) {
          return scale_exponent(__ldg(scales.data + (keys.out_row + token) * scales.row_stride +
                                      keys.head * scales.head_stride));
        };
        exists[i] = keys.key0 + token < keys.seqlen_k;
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

  __device__ std::int32_t next() const { return device::WarpFetchAdd{params_.counter}(); }
  __device__ void wait_for(const std::uint64_t (&empty)[Config::kStages]) const {
    ptx::mbarrier_wait(shared_address(&empty[stage_]), phase_ ^ 1);
  }

  __device__ void load_keys(int sequence, int head, int tile) {
    const Sides& sides = params_.sides;
    const int q_sequence = sides.broadcast_q ? 0 : sequence;
    const std::int64_t k_begin = sides.k.tokens(sequence);
    KeyRecord keys;
    keys.key0 = tile * kTileN;
    keys.out_row = k_begin + keys.key0;
    keys.seqlen_q = static_cast<int>(sides.q.tokens(q_sequence + 1) - sides.q.tokens(q_sequence));
    keys.seqlen_k = static_cast<int>(sides.k.tokens(sequence + 1) - k_begin);
    keys.head = head;
    const attention::KeyRange rows = attention::seeing_rows(
        params_.mask, keys.seqlen_q, keys.seqlen_k, keys.key0, keys.key0 + kTileN);
    if (rows.empty()) {
      store_zeros(keys);
      return;
    }
    copy_keys(sequence, keys, tile);
    const QueryPlace place{
        .q_row = static_cast<int>(sides.q.tokens(q_sequence)),
        .o_row = static_cast<int>(sides.o.tokens(sequence)),
        .q_tile = 2 * static_cast<int>(sides.q.tiles(q_sequence)),
        .o_tile = 2 * static_cast<int>(sides.o.tiles(sequence)),
        .m_begin = static_cast<int>(rows.begin / kTileM),
        .m_end = static_cast<int>((rows.end + kTileM - 1) / kTileM),
        .seqlen_q = keys.seqlen_q,
        .seqlen_k = keys.seqlen_k,
        .turn = tile + (sides.broadcast_q ? static_cast<int>(sides.k.tiles(sequence)) : 0)};
    const int heads = sides.num_heads / sides.num_heads_kv;
    for (int member = 0; member < heads; ++member) {
      // Each lane prepares a tile: a lone thread would take longer than consumers do.
      for (int first = place.m_begin; first < place.m_end; first += 32) {
        const int m = first + lane_;
        const std::uint32_t flags =
            flags_of(place, m, member == 0, member + 1 == heads, tile % kPromotePhases) |
            (is_masked(keys, m) ? kMasked : 0u);
        const int turn = place.turn - first_turn(place, m);
        const int count = min(32, place.m_end - first);
        for (int i = 0; i < count; ++i) {
          copy_rows(place, head * heads + member, first + i, __shfl_sync(~0u, flags, i),
                    __shfl_sync(~0u, turn, i));
        }
      }
    }
    if (++key_buffer_ == Config::kKeyBuffers) {
      key_buffer_ = 0;
      key_phase_ ^= 1;
    }
  }

  /// Of a tile but for kMasked. `phase`: of these keys' promotions.
  __device__ std::uint32_t flags_of(const QueryPlace& place, int m, bool first_head, bool last_head,
                                    int phase) const {
    const bool begins = m == place.m_begin, ends = m + 1 == place.m_end;
    const bool promotes_dv = !Config::kFolds && place.m_end - place.m_begin > kPromoteDvTiles;
    const int tiles = m + phase, begin = place.m_begin + phase;
    std::uint32_t flags = kValid;
    const auto set = [&](bool condition, std::uint32_t flag) {
      if (condition) flags |= flag;
    };
    set(begins && first_head, kKeysBegin);
    set(begins, kHeadBegins);
    set(begins || (promotes_dv && tiles % kPromoteDvTiles == 0), kFreshDv);
    set(begins || tiles % kPromoteDkTiles == 0, kFreshDk);
    set(ends && last_head, kStore);
    const bool more = !(ends && last_head);
    set(more && (ends || (promotes_dv && (tiles + 1) % kPromoteDvTiles == 0)), kPromoteDv);
    set(more && (ends || (tiles + 1) % kPromoteDkTiles == 0), kPromoteDk);
    set(!first_head || (promotes_dv && tiles / kPromoteDvTiles > begin / kPromoteDvTiles),
        kScratchDv);
    set(!first_head || tiles / kPromoteDkTiles > begin / kPromoteDkTiles, kScratchDk);
    set(Config::kFolds && !ends && (m + 1) % kPromoteDvTiles == 0, kFoldDv);
    set(Config::kFolds && m / kPromoteDvTiles > place.m_begin / kPromoteDvTiles, kFolded);
    return flags;
  }

  __device__ bool is_masked(const KeyRecord& keys, int m) const {
    const attention::Tile tile{m * kTileM, m * kTileM + kTileM, keys.key0, keys.key0 + kTileN};
    return tile.row_end > keys.seqlen_q ||
           attention::classify(params_.mask, keys.seqlen_q, keys.seqlen_k, tile) !=
               attention::TileKind::kFull;
  }

  __device__ void copy_keys(int sequence, const KeyRecord& keys, int tile) {
    if constexpr (Config::kTokenScales) {
      const TokenExponents exponents(params_, keys, lane_);
      const int largest = __reduce_max_sync(~0u, exponents.largest_k());
      wait_for_keys();
      exponents.store(smem_.tokens, largest, lane_);
      copy_keys(sequence, keys, tile, largest);
    } else {
      copy_keys(sequence, keys, tile, store_group_factors(sequence, keys));
    }
  }
  __device__ void wait_for_keys() const {
    ptx::mbarrier_wait(shared_address(&smem_.key_empty[key_buffer_]), key_phase_ ^ 1);
  }

  /// Lanes 0..3 take K's exponents, 4..7 V's (which BF16 has not). Returns K's largest.
  __device__ int store_group_factors(int sequence, const KeyRecord& keys) const {
    const device::OperandScales& scales = lane_ < kKGroups ? params_.k_scales : params_.v_scales;
    const int group = keys.key0 / kScaleGroup + lane_ % kKGroups;
    int exponent = -127;
    constexpr int kLanes = Config::DpProduct::kBf16 ? kKGroups : 2 * kKGroups;
    if (lane_ < kLanes && group * kScaleGroup < keys.seqlen_k) {
      exponent = scale_exponent(
          __ldg(scales.data + (params_.sides.k.groups(sequence) + group) * scales.row_stride +
                keys.head * scales.head_stride));
    }
    int largest = lane_ < kKGroups ? exponent : -127;
    largest = __reduce_max_sync(~0u, largest);
    wait_for_keys();
    KeyRecord& out = smem_.keys[key_buffer_];
    if (lane_ < kKGroups) {
      out.k_factor[lane_] = Config::SProduct::kBf16 ? 1.0f : power_of_two(exponent);
      out.k_relative[lane_] = power_of_two(exponent - largest);
    } else if (lane_ < 2 * kKGroups) {
      out.v_factor[lane_ - kKGroups] = Config::DpProduct::kBf16 ? 1.0f : power_of_two(exponent);
    }
    return largest;
  }

  /// `reference`: of K's exponents.
  __device__ void copy_keys(int sequence, const KeyRecord& keys, int tile, int reference) {
    KeyRecord& out = smem_.keys[key_buffer_];
    std::uint64_t* const full = &smem_.key_full[key_buffer_];
    if (lane_ != 0) {
      ptx::mbarrier_arrive(shared_address(full));
      return;
    }
    out.out_row = keys.out_row;
    out.key0 = keys.key0;
    out.seqlen_q = keys.seqlen_q;
    out.seqlen_k = keys.seqlen_k;
    out.head = keys.head;
    out.reference = reference;
    using namespace cuda::ptx;
    mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, full,
                              sizeof(smem_.k[0]) + sizeof(smem_.v[0]) + sizeof(smem_.kt[0]));
    const int row = static_cast<int>(keys.out_row);
    copy_parts<typename Config::SProduct>(smem_.k[key_buffer_], params_.k_map, keys.head, row,
                                          full);
    copy_parts<typename Config::DpProduct>(smem_.v[key_buffer_], params_.v_map, keys.head, row,
                                           full);
    const std::int32_t column =
        static_cast<std::int32_t>((params_.sides.k.tiles(sequence) + tile) * mx::kAtomRows);
    const std::int32_t columns_at[2] = {column, keys.head * Config::kHeadDim};
    cp_async_bulk_tensor(space_cluster, space_global, smem_.kt[key_buffer_], &params_.kt_map,
                         columns_at, full);
  }

  /// The first key tile that a query tile sees; those that it sees lie side by side.
  __device__ int first_turn(const QueryPlace& place, int m) const {
    if (params_.dq_turns == nullptr || params_.sides.broadcast_q) return 0;
    const attention::KeyRange keys =
        attention::visible_span(params_.mask, place.seqlen_q, place.seqlen_k,
                                std::int64_t{m} * kTileM, std::int64_t{m} * kTileM + kTileM);
    return static_cast<int>(keys.begin / kTileN);
  }

  __device__ void copy_rows(const QueryPlace& place, int head, int m, std::uint32_t flags,
                            int turn) {
    wait_for(smem_.rows_empty);
    if (lane_ == 0) start_rows(place, head, m, flags, turn);
    __syncwarp();
    if (++record_ == Config::kRecords) record_ = 0;
    if (++tile_record_ == Config::kTileRecords) tile_record_ = 0;
    if (++stage_ == Config::kStages) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }

  __device__ void start_rows(const QueryPlace& place, int head, int m, std::uint32_t flags,
                             int turn) {
    using namespace cuda::ptx;
    const int q_tile = place.q_tile + m, o_tile = place.o_tile + m;
    smem_.stage[tile_record_] = {
        .flags = flags,
        .row0 = m * kTileM,
        .q_column = q_tile * kTileM,
        .o_column = o_tile * kTileM,
        .head = head,
        .dq = {.tile = static_cast<std::int32_t>(head * params_.dq_head_stride) + q_tile,
               .turn = turn,
               .last = 0}};
    std::uint64_t* const full = &smem_.rows_full[stage_];
    mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, full,
                              sizeof(smem_.q[0]) + sizeof(smem_.dout[0]) + sizeof(Record));
    copy_parts<typename Config::SProduct>(smem_.q[stage_], params_.q_map, head,
                                          place.q_row + m * kTileM, full);
    cp_async_bulk(
        space_cluster, space_global, &smem_.rows[record_],
        static_cast<const Record*>(params_.records) + head * params_.records_head_stride + o_tile,
        sizeof(Record), full);
    copy_parts<typename Config::DpProduct>(smem_.dout[stage_], params_.dout_map, head,
                                           place.o_row + m * kTileM, full);
  }

  /// Rows of a head from `row` on, part by part.
  template <class Rows, std::size_t kBytes>
  __device__ void copy_parts(std::uint8_t (&to)[kBytes], const CUtensorMap& map, int head, int row,
                             std::uint64_t* full) const {
    constexpr int kColumns = Config::kHeadDim / Rows::kParts;
#pragma unroll
    for (int part = 0; part < Rows::kParts; ++part) {
      const std::int32_t from[3] = {part * kColumns, head, row};
      cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_cluster, cuda::ptx::space_global,
                                      to + part * (kBytes / Rows::kParts), &map, from, full);
    }
  }

  /// No query sees these keys.
  __device__ void store_zeros(const KeyRecord& keys) const {
    const int rows = keys.seqlen_k - keys.key0 < kTileN ? keys.seqlen_k - keys.key0 : kTileN;
    const int pairs = params_.columns / 2;
    for (int i = lane_; i < rows * pairs; i += 32) {
      const std::int64_t row = keys.out_row + i / pairs;
      for (const GradientOut& out : {params_.dk, params_.dv}) {
        if (out.data == nullptr) continue;
        auto* const target = out.data + row * out.token_stride + keys.head * out.head_stride;
        reinterpret_cast<std::uint32_t*>(target)[i % pairs] = 0;
      }
    }
  }

  const BackwardParams& params_;
  Plan& smem_;
  int lane_;
  int stage_ = 0;
  unsigned phase_ = 0;
  int record_ = 0;
  int tile_record_ = 0;
  int key_buffer_ = 0;
  unsigned key_phase_ = 0;
};

/// One thread: copies Q^T and dO^T of the tiles whose rows have come. Waits on rows_full,
/// columns_empty; signals columns_full, and rows_empty, as consumers give rows back before they
/// need columns: rows_full could else complete twice before this thread looks, hidden by parity.
template <class Config>
__device__ inline void load_columns(const BackwardParams& params, SmemPlan<Config>& smem) {
  using namespace cuda::ptx;
  for (unsigned tile = 0;; ++tile) {
    const unsigned stage = tile % Config::kStages, phase = tile / Config::kStages % 2;
    ptx::mbarrier_wait(shared_address(&smem.rows_full[stage]), phase);
    const StageRecord& record = smem.stage[tile % Config::kTileRecords];
    if ((record.flags & kValid) == 0) break;
    const std::int32_t row = record.head * Config::kHeadDim;
    const std::int32_t ot_at[2] = {record.o_column, row}, qt_at[2] = {record.q_column, row};
    ptx::mbarrier_arrive(shared_address(&smem.rows_empty[stage]));
    ptx::mbarrier_wait(shared_address(&smem.columns_empty[stage]), phase ^ 1);
    std::uint64_t* const full = &smem.columns_full[stage];
    mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, full, 2 * sizeof(smem.qt[0]));
    cp_async_bulk_tensor(space_cluster, space_global, smem.dout_t[stage], &params.dout_t_map, ot_at,
                         full);
    cp_async_bulk_tensor(space_cluster, space_global, smem.qt[stage], &params.qt_map, qt_at, full);
  }
}

}  // namespace mxfa::sm90::backward
