#pragma once

#include <cuda/ptx>

#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/load_keys.cuh"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/common/mma.cuh"
#include "ptx/lane.cuh"
#include "ptx/mbarrier.cuh"

/// The roles that load queries.
namespace mxfa::sm90::backward {

/// One warp: for each query tile that sees a key tile copies Q, dO and the rows' constants. Waits
/// on place_full, rows_empty; signals place_empty, rows_full.
template <class Config>
class RowProducer {
 public:
  using Plan = SmemPlan<Config>;
  using Record = typename Config::Record;

  __device__ RowProducer(const BackwardParams& params, Plan& smem) : params_(params), smem_(smem) {}

  __device__ void run() {
    unsigned keys = 0;
    while (true) {
      const unsigned buffer = keys % Config::kKeyBuffers;
      ptx::mbarrier_wait(shared_address(&smem_.place_full[buffer]), keys / Config::kKeyBuffers % 2);
      const QueryPlace& place = smem_.place[buffer];
      if (place.head < 0) break;
      load_rows(place);
      keys = place.number;  // not kept meanwhile
      // By every lane, as each has read it: racecheck does not follow one that arrives for all.
      ptx::mbarrier_arrive(shared_address(&smem_.place_empty[keys % Config::kKeyBuffers]));
      ++keys;
    }
    wait_for_stage();
    if (!leads()) return;
    record().flags = 0;
    ptx::mbarrier_arrive(shared_address(&smem_.rows_full[stage()]));
  }

 private:
  static __device__ bool leads() { return ptx::lane_now() == 0; }
  __device__ int stage() const { return static_cast<int>(tile_ % Config::kStages); }
  __device__ StageRecord& record() const { return smem_.stage[tile_ % Config::kTileRecords]; }
  __device__ void wait_for_stage() const {
    ptx::mbarrier_wait(shared_address(&smem_.rows_empty[stage()]),
                       (tile_ / Config::kStages + 1) % 2);
  }

  __device__ void load_rows(const QueryPlace& place) {
    for (int member = 0; member < place.members; ++member) {
      // Each lane prepares a tile: a lone thread would take longer than consumers do.
      for (int first = place.m_begin; first < place.m_end; first += 32) {
        const int m = first + ptx::lane_now();
        const std::uint32_t flags = flags_of(place, m, member == 0, member + 1 == place.members,
                                             place.tile % kPromotePhases) |
                                    (is_masked(place, m) ? kMasked : 0u);
        const int count = min(32, place.m_end - first);
        for (int i = 0; i < count; ++i) {
          copy_rows(place, place.head * place.members + member, first + i,
                    __shfl_sync(~0u, flags, i));
        }
      }
    }
  }

  /// Of a tile but for kMasked. `phase`: of these keys' promotions.
  __device__ std::uint32_t flags_of(const QueryPlace& place, int m, bool first_head, bool last_head,
                                    int phase) const {
    // To the scratch.
    constexpr int kDvTiles = Config::kHalfSums ? kPromoteDkTiles : kPromoteDvTiles;
    const bool begins = m == place.m_begin, ends = m + 1 == place.m_end;
    const bool promotes_dv =
        Config::kHalfSums || (!Config::kFolds && place.m_end - place.m_begin > kPromoteDvTiles);
    const int tiles = m + phase, begin = place.m_begin + phase;
    std::uint32_t flags = kValid;
    const auto set = [&](bool condition, std::uint32_t flag) {
      if (condition) flags |= flag;
    };
    set(begins && first_head, kKeysBegin);
    set(begins, kHeadBegins);
    set(begins || (promotes_dv && tiles % kDvTiles == 0), kFreshDv);
    set(begins || tiles % kPromoteDkTiles == 0, kFreshDk);
    set(ends && last_head, kStore);
    const bool more = !(ends && last_head);
    set(more && (ends || (promotes_dv && (tiles + 1) % kDvTiles == 0)), kPromoteDv);
    set(more && (ends || (tiles + 1) % kPromoteDkTiles == 0), kPromoteDk);
    set(!first_head || (promotes_dv && tiles / kDvTiles > begin / kDvTiles), kScratchDv);
    set(!first_head || tiles / kPromoteDkTiles > begin / kPromoteDkTiles, kScratchDk);
    const int fresh = promotes_dv ? max(place.m_begin, m - tiles % kDvTiles) : place.m_begin;
    set(Config::kFolds && !ends && !(flags & kPromoteDv) && (m + 1) % kPromoteDvTiles == 0,
        kFoldDv);
    set(Config::kFolds && m / kPromoteDvTiles > fresh / kPromoteDvTiles, kFolded);
    return flags;
  }

  __device__ bool is_masked(const QueryPlace& place, int m) const {
    return m * kTileM < place.full_begin || (m + 1) * kTileM > place.full_end;
  }

  /// How many key tiles add to a query tile's dQ before this one: those that it sees lie side by
  /// side, and the last comes first.
  __device__ int turn_of(const QueryPlace& place, int m) const {
    const int last_row = min(m * kTileM + kTileM, place.seqlen_q) - 1;
    const int last_key = place.seqlen_k - 1 - max(0, place.row_of_last_key - last_row);
    return place.turn + last_key / Config::kTileN;
  }

  __device__ void copy_rows(const QueryPlace& place, int head, int m, std::uint32_t flags) {
    wait_for_stage();
    if (leads()) start_rows(place, head, m, flags);
    __syncwarp();
    ++tile_;
  }

  __device__ void start_rows(const QueryPlace& place, int head, int m, std::uint32_t flags) {
    using namespace cuda::ptx;
    const int q_tile = place.q_tile + m, o_tile = place.o_tile + m;
    record() = {.flags = flags,
                .row0 = m * kTileM,
                .q_tile = q_tile,
                .o_tile = o_tile,
                .head = head,
                .dq = {.tile = static_cast<std::int32_t>(head * params_.dq_head_stride) + q_tile,
                       .turn = turn_of(place, m),
                       .last = 0}};
    std::uint64_t* const full = &smem_.rows_full[stage()];
    mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, full,
                              sizeof(smem_.q[0]) + sizeof(smem_.dout[0]) + sizeof(Record));
    copy_parts<Config, typename Config::SProduct>(smem_.q[stage()], params_.q_map, head,
                                                  place.q_row + m * kTileM, full);
    cp_async_bulk(
        space_cluster, space_global, &smem_.rows[tile_ % Config::kRecords],
        static_cast<const Record*>(params_.records) + head * params_.records_head_stride + o_tile,
        sizeof(Record), full);
    copy_parts<Config, typename Config::DpProduct>(smem_.dout[stage()], params_.dout_map, head,
                                                   place.o_row + m * kTileM, full);
  }

  const BackwardParams& params_;
  Plan& smem_;
  unsigned tile_ = 0;  ///< of all that it loads
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
    const std::int32_t ot_at[3] = {record.o_tile % 2 * kTileM, row, record.o_tile / 2};
    const std::int32_t qt_at[3] = {record.q_tile % 2 * kTileM, row, record.q_tile / 2};
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
