#pragma once

#include "device/barrier.cuh"
#include "kernels/sm100/forward/roles.cuh"
#include "ptx/tcgen05.cuh"

/// The MMA role.
namespace mxfa::sm100::forward {

/// One thread, which issues for step g of all work tiles in one sequence
///   O(0) += P(0) V(g - 1), S(0) = Q(0) K(g), O(1) += P(1) V(g - 1), S(1) = Q(1) K(g):
/// a tile's last O GEMMs are interleaved with the next tile's first S GEMMs. Scales are copied to
/// tensor memory right before the GEMM that uses them.
/// Waits on tile_full, q_full, kv_full, pv_ready, s_read; signals q_empty, kv_empty, s_full,
/// o_full.
template <class Config>
class MmaIssuer {
 public:
  using Tmem = TmemPlan<Config::kHeadDim>;

  __device__ explicit MmaIssuer(SmemPlan<Config>& smem)
      : smem_(smem), barriers_(smem.barriers), tiles_(smem), tmem_(smem.tmem) {}

  __device__ void run() {
    TileRecord tile;
    Step before;  // no stream
    while (tiles_.next(tile)) {
      // Without keys there is no step to go with: and the correction waits for the last one, while
      // it holds back the records of tiles to come.
      if (tile.n_begin == tile.n_end) {
        finish<true>(before);
        before = {};
      }
      for (int n = tile.n_begin; n < tile.n_end; ++n) before = run_step(tile, n, before);
    }
    finish<false>(before);
  }

 private:
  /// What is left to do of a step when its S GEMMs have been issued.
  struct Step {
    bool active[kStreams] = {};  ///< none: nothing
    bool first[kStreams] = {};   ///< of the stream's tile
    bool last[kStreams] = {};
    int k_steps = 0;  ///< that hold keys of the sequence
    device::RingState<Config::kStages> v;
  };

  __device__ Step run_step(const TileRecord& tile, int n, const Step& before) {
    const device::RingState<Config::kStages> k = ring_;
    ring_.advance();
    Step now;
    now.v = ring_;
    ring_.advance();
    const int keys = tile.seqlen_k - n * kTileN;
    now.k_steps = keys >= kTileN ? kGroups : (keys + kScaleGroup - 1) / kScaleGroup;
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
      now.active[i] = n >= tile.begin[i] && n < tile.end[i];
      now.first[i] = n == tile.begin[i];
      now.last[i] = n + 1 == tile.end[i];
      finish<true>(i, before);
      if (now.active[i]) issue_scores(i, now, k);
    }
    commit(barriers_.kv_empty[k.stage]);
    return now;
  }

  template <bool kLoadsFollow>
  __device__ void finish(const Step& step) {
#pragma unroll
    for (int i = 0; i < kStreams; ++i) finish<kLoadsFollow>(i, step);
  }

  /// The CTA's last commit is an o_full, which the correction waits for: barriers must not be
  /// signalled after the block has exited. `kLoadsFollow`: V's stage may be filled again.
  template <bool kLoadsFollow>
  __device__ void finish(int stream, const Step& step) {
    if (!step.active[stream]) return;
    issue_values(stream, step);
    const bool last_reader = stream == kStreams - 1 || !step.active[kStreams - 1];
    if (kLoadsFollow && last_reader) commit(barriers_.kv_empty[step.v.stage]);
    if (step.last[stream]) commit(barriers_.o_full[stream]);
  }

  __device__ void issue_scores(int stream, const Step& step,
                               const device::RingState<Config::kStages>& k) {
    see_read(stream);
    // Nothing has been in this stream's O yet: room for scales without a wait for the other stream.
    const bool fresh = issued_[stream].count == 0;
    if (!fresh) see_read(1 - stream);
    if (step.first[stream]) wait(barriers_.q_full[stream], q_turn_[stream].parity());
    wait(barriers_.kv_full[k.stage], k.phase);
    ptx::tcgen05_fence_after();
    const std::uint32_t tmem = recomputed(tmem_);
    const int sf = (fresh ? Tmem::first_sf_qk(stream) : Tmem::sf_qk(stream)).column;
    const ptx::ScaleColumns scales{tmem + sf, tmem + sf + kScaleColumns};
    ptx::tcgen05_copy_scales(scales.a, shared_address(smem_.sf_q[stream]));
    ptx::tcgen05_copy_scales(scales.b, shared_address(smem_.sf_kv[k.stage]));
    const std::uint64_t a =
        ptx::swizzled_tile(recomputed(shared_address(smem_.q[stream])), Config::kHeadDim);
    const std::uint64_t b = ptx::swizzled_tile(shared_address(smem_.kv[k.stage]), Config::kHeadDim);
#pragma unroll
    for (int j = 0; j < Config::kHeadDim / 32; ++j) {
      ptx::tcgen05_mma_mxf8(tmem + Tmem::s(stream).column, a + 2 * j, b + 2 * j,
                            ptx::mxf8_instruction(kTileN, false, j), scales, j > 0);
    }
    commit(barriers_.s_full[stream]);
    ++issued_[stream].count;
    unread_[stream] = true;
    if (step.last[stream]) {
      commit(barriers_.q_empty[stream]);
      ++q_turn_[stream].count;
    }
  }

  /// Until the stream's last S is in registers.
  __device__ void see_read(int stream) {
    if (!unread_[stream]) return;
    wait(barriers_.s_read[stream], issued_[stream].last_parity());
    unread_[stream] = false;
  }

  __device__ void issue_values(int stream, const Step& step) {
    // Leak-free: the softmax has waited for V, whose exponents it reads, before it gives P.
    if constexpr (!Config::kLeakFree) wait(barriers_.kv_full[step.v.stage], step.v.phase);
    wait(barriers_.pv_ready[stream], values_[stream].parity());
    ++values_[stream].count;
    ptx::tcgen05_fence_after();
    const std::uint32_t tmem = recomputed(tmem_);
    const int sf = Tmem::sf_pv(stream).column;
    const ptx::ScaleColumns scales{tmem + sf, tmem + sf + kScaleColumns};
    const int atom = Config::kPScale == PScale::kConstant ? 0 : stream;
    ptx::tcgen05_copy_scales(scales.a, shared_address(smem_.sf_p[atom]));
    ptx::tcgen05_copy_scales(
        scales.b, shared_address(Config::kLeakFree ? smem_.sf_v : smem_.sf_kv[step.v.stage]));
    const std::uint64_t b =
        ptx::swizzled_tile(shared_address(smem_.kv[step.v.stage]), Config::kHeadDim);
    constexpr int kRows = kScaleGroup * Config::kHeadDim / 16;  // of V a step, 16-byte units
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (j >= step.k_steps) break;
      ptx::tcgen05_mma_mxf8_tmem(
          tmem + Tmem::o(stream).column, tmem + Tmem::p(stream).column + 8 * j, b + kRows * j,
          ptx::mxf8_instruction(Config::kHeadDim, true, j), scales, j > 0 || !step.first[stream]);
    }
  }

  __device__ static void commit(const std::uint64_t& barrier) {
    ptx::tcgen05_commit(shared_address(&barrier));
  }

  SmemPlan<Config>& smem_;
  Barriers<Config>& barriers_;
  TileReader<Config, false> tiles_;
  std::uint32_t tmem_;
  device::RingState<Config::kStages> ring_;
  Turn issued_[kStreams];  ///< S GEMMs
  bool unread_[kStreams] = {};
  Turn values_[kStreams];  ///< O GEMMs
  Turn q_turn_[kStreams];
};

}  // namespace mxfa::sm100::forward
