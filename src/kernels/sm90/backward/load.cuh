#pragma once

#include <cuda/ptx>

#include "device/jagged.cuh"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/common/mma.cuh"
#include "ptx/mbarrier.cuh"

/// The producer role.
namespace mxfa::sm90::backward {

/// One warp: takes key tiles, copies K, V, K^T, and for each query tile that sees them Q, dO, Q^T,
/// dO^T and the rows' constants. Waits on key_empty, empty; signals key_full, full.
template <class Config>
class Producer {
 public:
  using Plan = SmemPlan<Config>;

  __device__ Producer(const BackwardParams& params, Plan& smem)
      : params_(params), smem_(smem), lane_(threadIdx.x & 31) {}

  __device__ void run() {
    const Sides& sides = params_.sides;
    const std::int64_t works = sides.k.tiles(sides.k.batch) * sides.num_heads_kv;
    int sequence = 0;
    std::int64_t work = blockIdx.x;
    while (work < works) {
      const std::int64_t tile = work / sides.num_heads_kv;
      sequence = device::find_sequence(sides.k, sequence, tile);
      // Tiles of a head side by side: they read the same Q and dO.
      const std::int64_t first = sides.k.tiles(sequence);
      const std::int64_t count = sides.k.tiles(sequence + 1) - first;
      const std::int64_t here = work - first * sides.num_heads_kv;
      load_keys(sequence, static_cast<int>(here / count), static_cast<int>(here % count));
      work = gridDim.x + next();
    }
    wait_for_stage();
    if (lane_ != 0) return;
    smem_.stage[stage_].flags = 0;
    ptx::mbarrier_arrive(shared_address(&smem_.full[stage_]));
  }

 private:
  __device__ std::int32_t next() const {
    std::int32_t held = 0;
    if (lane_ == 0) held = atomicAdd(params_.counter, 1);
    return __shfl_sync(~0u, held, 0);
  }
  __device__ void wait_for_stage() const {
    ptx::mbarrier_wait(shared_address(&smem_.empty[stage_]), phase_ ^ 1);
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
    const int m_begin = static_cast<int>(rows.begin / kTileM);
    const int m_end = static_cast<int>((rows.end + kTileM - 1) / kTileM);
    const int heads = sides.num_heads / sides.num_heads_kv;
    bool scratch_has = false;
    for (int member = 0; member < heads; ++member) {
      for (int m = m_begin; m < m_end; ++m) {
        std::uint32_t flags = kValid;
        if (m == m_begin) flags |= kHeadBegins;
        if (m == m_begin && member == 0) flags |= kNewKeys;
        if (m == m_begin || m % kPromoteTiles == 0) flags |= kFresh;
        const bool last_of_head = m + 1 == m_end;
        if (scratch_has) flags |= kScratchHas;
        if (last_of_head && member + 1 == heads) {
          flags |= kStore;
        } else if (last_of_head || (m + 1) % kPromoteTiles == 0) {
          flags |= kPromote;
          scratch_has = true;
        }
        if (is_masked(keys, m)) flags |= kMasked;
        copy_queries(sequence, q_sequence, head * heads + member, m, flags);
      }
    }
    if (++key_buffer_ == Config::kKeyBuffers) {
      key_buffer_ = 0;
      key_phase_ ^= 1;
    }
  }

  __device__ bool is_masked(const KeyRecord& keys, int m) const {
    const attention::Tile tile{m * kTileM, m * kTileM + kTileM, keys.key0, keys.key0 + kTileN};
    return tile.row_end > keys.seqlen_q ||
           attention::classify(params_.mask, keys.seqlen_q, keys.seqlen_k, tile) !=
               attention::TileKind::kFull;
  }

  /// Lanes 0..3 take K's exponents, 4..7 V's.
  __device__ void copy_keys(int sequence, const KeyRecord& keys, int tile) {
    const device::OperandScales& scales = lane_ < kKGroups ? params_.k_scales : params_.v_scales;
    const int group = keys.key0 / kScaleGroup + lane_ % kKGroups;
    int exponent = -127;
    if (lane_ < 2 * kKGroups && group * kScaleGroup < keys.seqlen_k) {
      exponent = scale_exponent(
          __ldg(scales.data + (params_.sides.k.groups(sequence) + group) * scales.row_stride +
                keys.head * scales.head_stride));
    }
    int largest = lane_ < kKGroups ? exponent : -127;
    largest = __reduce_max_sync(~0u, largest);
    ptx::mbarrier_wait(shared_address(&smem_.key_empty[key_buffer_]), key_phase_ ^ 1);
    KeyRecord& out = smem_.keys[key_buffer_];
    if (lane_ < kKGroups) {
      out.k_exponent[lane_] = exponent;
    } else if (lane_ < 2 * kKGroups) {
      out.v_exponent[lane_ - kKGroups] = exponent;
    }
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
    out.reference = largest;
    using namespace cuda::ptx;
    mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, full, 3 * sizeof(smem_.k[0]));
    const std::int32_t rows_at[3] = {0, keys.head, static_cast<std::int32_t>(keys.out_row)};
    cp_async_bulk_tensor(space_cluster, space_global, smem_.k[key_buffer_], &params_.k_map, rows_at,
                         full);
    cp_async_bulk_tensor(space_cluster, space_global, smem_.v[key_buffer_], &params_.v_map, rows_at,
                         full);
    const std::int32_t column =
        static_cast<std::int32_t>((params_.sides.k.tiles(sequence) + tile) * mx::kAtomRows);
    const std::int32_t columns_at[2] = {column, keys.head * Config::kHeadDim};
    cp_async_bulk_tensor(space_cluster, space_global, smem_.kt[key_buffer_], &params_.kt_map,
                         columns_at, full);
  }

  __device__ void copy_queries(int sequence, int q_sequence, int head, int m, std::uint32_t flags) {
    wait_for_stage();
    if (lane_ == 0) issue_queries(sequence, q_sequence, head, m, flags);
    __syncwarp();
    if (++stage_ == Config::kStages) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }

  __device__ void issue_queries(int sequence, int q_sequence, int head, int m,
                                std::uint32_t flags) {
    using namespace cuda::ptx;
    const Sides& sides = params_.sides;
    const std::int64_t q_tile = 2 * sides.q.tiles(q_sequence) + m;
    const std::int64_t o_tile = 2 * sides.o.tiles(sequence) + m;
    smem_.stage[stage_] = {
        .flags = flags, .row0 = m * kTileM, .dq_tile = head * params_.dq_head_stride + q_tile};
    std::uint64_t* const full = &smem_.full[stage_];
    mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, full,
                              4 * sizeof(smem_.q[0]) + sizeof(RowRecord));
    const std::int32_t q_at[3] = {
        0, head, static_cast<std::int32_t>(sides.q.tokens(q_sequence)) + m * kTileM};
    const std::int32_t o_at[3] = {0, head,
                                  static_cast<std::int32_t>(sides.o.tokens(sequence)) + m * kTileM};
    cp_async_bulk_tensor(space_cluster, space_global, smem_.q[stage_], &params_.q_map, q_at, full);
    cp_async_bulk(space_cluster, space_global, &smem_.rows[stage_],
                  params_.records + head * params_.records_head_stride + o_tile, sizeof(RowRecord),
                  full);
    cp_async_bulk_tensor(space_cluster, space_global, smem_.dout[stage_], &params_.dout_map, o_at,
                         full);
    const std::int32_t ot_at[2] = {static_cast<std::int32_t>(o_tile * kTileM),
                                   head * Config::kHeadDim};
    cp_async_bulk_tensor(space_cluster, space_global, smem_.dout_t[stage_], &params_.dout_t_map,
                         ot_at, full);
    const std::int32_t qt_at[2] = {static_cast<std::int32_t>(q_tile * kTileM),
                                   head * Config::kHeadDim};
    cp_async_bulk_tensor(space_cluster, space_global, smem_.qt[stage_], &params_.qt_map, qt_at,
                         full);
  }

  /// No query sees these keys.
  __device__ void store_zeros(const KeyRecord& keys) const {
    const int rows = keys.seqlen_k - keys.key0 < kTileN ? keys.seqlen_k - keys.key0 : kTileN;
    const int pairs = params_.columns / 2;
    for (int i = lane_; i < rows * pairs; i += 32) {
      const std::int64_t row = keys.out_row + i / pairs;
      for (const GradientOut& out : {params_.dk, params_.dv}) {
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
  int key_buffer_ = 0;
  unsigned key_phase_ = 0;
};

}  // namespace mxfa::sm90::backward
