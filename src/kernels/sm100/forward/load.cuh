#pragma once

#include <cuda/ptx>

#include "device/barrier.cuh"
#include "device/ragged_map.h"
#include "device/warp_fetch_add.cuh"
#include "kernels/sm100/forward/roles.cuh"

/// The load role.
namespace mxfa::sm100::forward {

/// One warp: takes work tiles, copies Q, K, V and their scale atoms.
/// Waits on tile_empty, q_empty, kv_empty; signals tile_full, q_full, kv_full; owns what it writes
/// until then.
template <class Config>
class Loader {
 public:
  __device__ Loader(const ForwardParams& params, SmemPlan<Config>& smem)
      : params_(params), smem_(smem), lane_(threadIdx.x % 32) {}

  __device__ void run() {
    using namespace attention;
    const std::int32_t cta = static_cast<std::int32_t>(blockIdx.x);
    const std::int32_t ctas = static_cast<std::int32_t>(gridDim.x);
    if (params_.plan.sequences != nullptr) {
      const JaggedOrder order(params_.shape, params_.seqlens, params_.batch, params_.plan);
      const device::WarpFetchAdd fetch_add{params_.counter, order.size()};
      run(TileScheduler(order, DynamicCounter(cta, ctas, fetch_add), true));
    } else {
      run(TileScheduler(
          DenseOrder{params_.shape, params_.batch, params_.seqlen_q, params_.seqlen_k},
          StaticCounter(cta, ctas), true));
    }
    publish({});
  }

 private:
  template <class Scheduler>
  __device__ void run(Scheduler scheduler) {
    for (attention::WorkTile tile = scheduler.next(); tile.valid(); tile = scheduler.next()) {
      load_tile(tile);
    }
  }

  __device__ attention::Sequence sequence_of(const attention::WorkTile& tile) const {
    if (params_.plan.sequences != nullptr) return params_.seqlens.at(tile.batch);
    const std::int64_t q_sequence = params_.broadcast_q ? 0 : tile.batch;
    return {.q_begin = q_sequence * params_.seqlen_q,
            .o_begin = tile.batch * params_.seqlen_q,
            .k_begin = tile.batch * params_.seqlen_k,
            .seqlen_q = params_.seqlen_q,
            .seqlen_k = params_.seqlen_k};
  }

  __device__ TileRecord record_of(const attention::WorkTile& tile,
                                  const attention::Sequence& sequence) const {
    TileRecord record;
    record.o_begin = sequence.o_begin;
    record.o_group = static_cast<std::int32_t>(
        params_.broadcast_q ? tile.batch * mx::ceil_div(sequence.seqlen_q, kScaleGroup)
                            : params_.q.offsets.groups(tile.batch));
    record.seqlen_q = static_cast<std::int32_t>(sequence.seqlen_q);
    record.seqlen_k = static_cast<std::int32_t>(sequence.seqlen_k);
    record.head = tile.head;
    record.row0 = tile.m_block * kStreams * kTileM;
    record.n_begin = tile.n_begin;
    record.n_end = tile.empty() ? tile.n_begin : tile.n_end;
    record.valid = 1;
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
      const std::int64_t row = record.row0 + kTileM * i;
      const attention::KeyRange keys = attention::visible_span(
          params_.shape.mask, sequence.seqlen_q, sequence.seqlen_k, row, row + kTileM);
      record.begin[i] = record.end[i] = record.n_end;
      if (keys.empty()) continue;
      record.begin[i] = static_cast<std::int32_t>(keys.begin / kTileN);
      record.end[i] = static_cast<std::int32_t>((keys.end + kTileN - 1) / kTileN);
    }
    return record;
  }

  __device__ void publish(const TileRecord& record) {
    wait(smem_.barriers.tile_empty[records_.stage], records_.phase ^ 1);
    if (lane_ == 0) {
      smem_.tile[records_.stage] = record;
      arrive(smem_.barriers.tile_full[records_.stage]);
    }
    records_.advance();
  }

  __device__ void load_tile(const attention::WorkTile& tile) {
    const attention::Sequence sequence = sequence_of(tile);
    const TileRecord record = record_of(tile, sequence);
    publish(record);
    const std::int32_t kv_head = tile.head / params_.shape.heads_per_kv();
    const std::int64_t q_tile =
        params_.q.offsets.tiles(params_.broadcast_q ? 0 : tile.batch) + record.row0 / kTileM;
    const std::int64_t k_tile = params_.k.offsets.tiles(tile.batch);
    const std::uint8_t* const k_atoms =
        params_.k.atoms + kv_head * params_.k.head_bytes + k_tile * mx::kAtomBytes;
    const std::uint8_t* const v_atoms =
        params_.v.atoms + kv_head * params_.v.head_bytes + k_tile * mx::kAtomBytes;
    for (std::int32_t n = record.n_begin; n < record.n_end; ++n) {
#pragma unroll
      for (int i = 0; i < kStreams; ++i) {
        if (n == record.begin[i] && record.end[i] > n) {
          load_q(i, tile.head, sequence, record.row0 + kTileM * i, q_tile + i);
        }
        if (i == 0) load_keys(params_.k_map, k_atoms, kv_head, sequence, n);
      }
      load_keys(params_.v_map, v_atoms, kv_head, sequence, n);
    }
  }

  __device__ void load_q(int stream, std::int32_t head, const attention::Sequence& sequence,
                         std::int32_t row, std::int64_t atom) {
    wait(smem_.barriers.q_empty[stream], q_turns_.last_parity(stream));
    q_turns_.advance(stream);
    if (lane_ != 0) return;
    copy(params_.q_map, smem_.q[stream],
         device::ragged_coords(0, head, sequence.q_begin, sequence.seqlen_q, row),
         params_.q.atoms + head * params_.q.head_bytes + atom * mx::kAtomBytes, smem_.sf_q[stream],
         &smem_.barriers.q_full[stream]);
  }

  __device__ void load_keys(const CUtensorMap& map, const std::uint8_t* atoms, std::int32_t head,
                            const attention::Sequence& sequence, std::int32_t n) {
    const int stage = ring_.stage;
    wait(smem_.barriers.kv_empty[stage], ring_.phase ^ 1);
    ring_.advance();
    if (lane_ != 0) return;
    copy(map, smem_.kv[stage],
         device::ragged_coords(0, head, sequence.k_begin, sequence.seqlen_k, n * kTileN),
         atoms + std::int64_t{n} * mx::kAtomBytes, smem_.sf_kv[stage],
         &smem_.barriers.kv_full[stage]);
  }

  __device__ static void copy(const CUtensorMap& map, std::uint8_t* tile,
                              const device::RaggedCoords& coords, const std::uint8_t* atom,
                              std::uint8_t* sf, std::uint64_t* full) {
    using namespace cuda::ptx;
    mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, full,
                              Config::kTileBytes + mx::kAtomBytes);
    cp_async_bulk_tensor(space_cluster, space_global, tile, &map, coords.at, full);
    cp_async_bulk(space_cluster, space_global, sf, atom, mx::kAtomBytes, full);
  }

  const ForwardParams& params_;
  SmemPlan<Config>& smem_;
  int lane_;
  device::RingState<Config::kStages> ring_;
  device::RingState<Config::kRecords> records_;
  StreamTurns q_turns_;
};

}  // namespace mxfa::sm100::forward
