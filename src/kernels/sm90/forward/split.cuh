#pragma once

#include <type_traits>

#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/softmax.cuh"
#include "ptx/global.cuh"

/// Tiles whose keys are divided among CTAs: each part hands its rows over, and whoever comes last
/// puts them together, in the order of the parts, so that results do not depend on who that is.
namespace mxfa::sm90::forward {

/// Puts the parts of this warpgroup's rows together, where all have come. A thread holds the same
/// elements in every part, so no layout matters.
template <class Config>
class PartMerger {
 public:
  /// `thread`: of the warpgroup.
  __device__ PartMerger(const ForwardParams& params, const TileRecord& tile, int part, int thread)
      : params_(params), tile_(tile), part_(part), thread_(thread) {}

  /// False where another part is still to come: then nothing is left to do here.
  template <class State>
  __device__ bool run(State& rows, float (&o)[Config::kHeadDim / 2], std::int32_t& shared) {
    hand_over(rows, o);
    sync();
    if (thread_ == 0) {
      // By the thread of the atomic: what others wrote has come to it by the barrier.
      unsigned* const arrivals = params_.arrivals + tile_.slot * Config::kConsumers + part_;
      // The last one leaves 0, for the next launch.
      const unsigned last = static_cast<unsigned>(tile_.parts) - 1;
      shared = ptx::fetch_inc(arrivals, last) == last;
    }
    sync();
    if (shared == 0) return false;
    static_cast<RowState&>(rows) = RowState();
    for (int part = 0; part < tile_.parts; ++part) add(part, rows, o);
    if constexpr (std::is_same_v<State, PackedRowState>) rows.find_bases();
    return true;
  }

 private:
  static constexpr int kO = Config::kHeadDim / 2;

  __device__ void sync() const { sync_threads(1 + part_, 128); }
  __device__ float* values_of(int part) const {
    const std::int64_t segment = attention::segment_of(tile_.slot, part);
    return params_.partials + (segment * Config::kConsumers + part_) * (kPartValues<Config> * 128) +
           thread_;
  }

  __device__ void hand_over(const RowState& rows, const float (&o)[kO]) const {
    float* const out = values_of(tile_.part);
#pragma unroll
    for (int i = 0; i < kO; ++i) __stcg(out + 128 * i, o[i]);
    __stcg(out + 128 * kO, rows.sum[0]);
    __stcg(out + 128 * (kO + 1), rows.sum[1]);
    __stcg(out + 128 * (kO + 2), rows.base[0]);
    __stcg(out + 128 * (kO + 3), rows.base[1]);
    __stcg(out + 128 * (kO + 4), static_cast<float>(rows.anchor));
  }

  __device__ void add(int part, RowState& rows, float (&o)[kO]) const {
    const float* const in = values_of(part);
    const int anchor = static_cast<int>(__ldcg(in + 128 * (kO + 4)));
    const int most = anchor > rows.anchor ? anchor : rows.anchor;
    float keep[2], take[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float other = __ldcg(in + 128 * (kO + 2 + h));
      const float base = fminf(rows.base[h], other);
      keep[h] = ptx::exp2_approx(base - rows.base[h]);
      take[h] = ptx::exp2_approx(base - other);
      rows.base[h] = base;
      rows.sum[h] = fmaf(rows.sum[h], keep[h], __ldcg(in + 128 * (kO + h)) * take[h]);
      keep[h] *= ptx::exp2_approx(static_cast<float>(rows.anchor - most));
      take[h] *= ptx::exp2_approx(static_cast<float>(anchor - most));
    }
    rows.anchor = most;
#pragma unroll
    for (int i = 0; i < kO; ++i) {
      const int h = (i >> 1) & 1;
      const float old = part == 0 ? 0.0f : o[i];
      o[i] = fmaf(old, keep[h], __ldcg(in + 128 * i) * take[h]);
    }
  }

  const ForwardParams& params_;
  const TileRecord& tile_;
  int part_;
  int thread_;
};

}  // namespace mxfa::sm90::forward
