#pragma once

#include <cuda/ptx>

#include "device/ragged_map.h"
#include "kernels/sm100/forward/roles.cuh"

/// The epilogue role.
namespace mxfa::sm100::forward {

/// One thread, which stores O in BF16 from shared memory, clipped at the sequence's end by the copy
/// engine. O in MXFP8 is stored by the correction.
/// Waits on tile_full, out_full; signals out_empty.
template <class Config>
class Epilogue {
 public:
  __device__ Epilogue(const ForwardParams& params, SmemPlan<Config>& smem)
      : params_(params), smem_(smem), tiles_(smem) {}

  __device__ void run() {
    TileRecord tile;
    while (tiles_.next(tile)) {
#pragma unroll
      for (int i = 0; i < kStreams; ++i) {
        if (tile.has_rows(i) && params_.o_mxfp8.codes == nullptr) store(tile, i);
      }
    }
  }

 private:
  __device__ void store(const TileRecord& tile, int stream) {
    using namespace cuda::ptx;
    wait(smem_.barriers.out_full[stream], turn_[stream].parity());
    ++turn_[stream].count;
    for (int box = 0; box < Config::kHeadDim / Config::kOutBox; ++box) {
      const device::RaggedCoords coords =
          device::ragged_coords(Config::kOutBox * box, tile.head, tile.o_begin, tile.seqlen_q,
                                tile.row0 + kTileM * stream);
      cp_async_bulk_tensor(space_global, space_shared, &params_.o_map, coords.at,
                           smem_.out[stream] + box * kTileM * 128);
    }
    cp_async_bulk_commit_group();
    cp_async_bulk_wait_group_read(n32_t<0>());
    arrive(smem_.barriers.out_empty[stream]);
  }

  const ForwardParams& params_;
  SmemPlan<Config>& smem_;
  TileReader<Config, false> tiles_;
  Turn turn_[kStreams];
};

}  // namespace mxfa::sm100::forward
