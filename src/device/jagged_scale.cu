#include "device/jagged.cuh"
#include "device/jagged_scale.h"

namespace mxfa::device {
namespace {

/// One warp moves one atom; lane l has the 16 bytes of rows l, l + 32, l + 64 and l + 96.
struct Atom {
  const TileScalesParams& params;
  const Tile& tile;
  int column0;  ///< of the 128 columns of head_dim
  int lane = static_cast<int>(threadIdx.x) % 32;

  __device__ uint4* words() const {
    const JaggedOffsetsView& offsets = params.offsets;
    const std::int64_t tile0 = offsets.tiles(tile.sequence);
    const std::int64_t column_atoms = mx::ceil_div(params.head_dim, mx::kAtomRows);
    const std::int64_t column_atom = column0 / mx::kAtomRows;
    const std::int64_t tile_atom = tile.index - tile0;
    // K atoms vary fastest: columns where rows are tokens, tiles where rows are columns.
    const std::int64_t atom =
        params.axis == ScaleAxis::kHeadDim
            ? tile_atom * column_atoms + column_atom
            : column_atom * (offsets.tiles(tile.sequence + 1) - tile0) + tile_atom;
    return reinterpret_cast<uint4*>(params.tiled + tile.head * params.head_bytes +
                                    (tile0 * column_atoms + atom) * mx::kAtomBytes) +
           lane;
  }

  // Calls body(byte 0..15, token, column) for the bytes of this lane that mean something.
  template <class Body>
  __device__ void for_each_byte(Body body) const {
#pragma unroll
    for (int byte = 0; byte < 16; ++byte) {
      const int row = lane + byte / mx::kAtomCols * 32;
      const int block = byte % mx::kAtomCols * kScaleBlock;
      const bool rows_are_tokens = params.axis == ScaleAxis::kHeadDim;
      const int token = rows_are_tokens ? row : block;
      const int column = column0 + (rows_are_tokens ? block : row);
      if (token < tile.rows && column < params.head_dim) body(byte, token, column);
    }
  }

  __device__ std::uint8_t& compact(int token, int column) const {
    const std::int64_t row = mx::block_rows(params.block_shape) == 1
                                 ? tile.row0 + token
                                 : tile.group + token / kScaleBlock;
    return params.compact[row * params.row_stride + tile.head * params.head_stride +
                          mx::scale_col(params.block_shape, column) * params.col_stride];
  }

  __device__ void write_tiled() const {
    unsigned packed[4] = {};
    for_each_byte([&](int byte, int token, int column) {
      packed[byte / 4] |= unsigned{compact(token, column)} << (byte % 4 * 8);
    });
    *words() = make_uint4(packed[0], packed[1], packed[2], packed[3]);
  }

  __device__ void write_compact() const {
    const uint4 packed = *words();
    const unsigned word[4] = {packed.x, packed.y, packed.z, packed.w};
    const int width = mx::block_cols(params.block_shape);
    for_each_byte([&](int byte, int token, int column) {
      const bool first_token = token % mx::block_rows(params.block_shape) == 0;
      const bool first_column = width == 0 ? column == 0 : column % width == 0;
      if (first_token && first_column) {
        compact(token, column) = static_cast<std::uint8_t>(word[byte / 4] >> (byte % 4 * 8));
      }
    });
  }
};

template <class Body>
__device__ void for_each_atom(const TileScalesParams& params, Body body) {
  const std::int64_t works = params.offsets.tiles(params.offsets.batch) * params.num_heads;
  const int warps = static_cast<int>(blockDim.x) / 32;
  int sequence = 0;
  for (std::int64_t work = std::int64_t{blockIdx.x} * warps + threadIdx.x / 32; work < works;
       work += std::int64_t{gridDim.x} * warps) {
    const Tile tile = locate_tile(params.offsets, params.num_heads, work, sequence);
    for (int column0 = 0; column0 < params.head_dim; column0 += mx::kAtomRows) {
      body(Atom{params, tile, column0});
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128)
    tile_scales(const __grid_constant__ TileScalesParams params) {
  for_each_atom(params, [](const Atom& atom) { atom.write_tiled(); });
}

extern "C" __global__ void __launch_bounds__(128)
    untile_scales(const __grid_constant__ TileScalesParams params) {
  for_each_atom(params, [](const Atom& atom) { atom.write_compact(); });
}

/// The atoms behind the last sequence's, up to `tiles` of a head: zeros. A warp takes one atom.
extern "C" __global__ void __launch_bounds__(128)
    clear_tiles_behind(const __grid_constant__ TileScalesParams params, std::int64_t tiles) {
  const std::int64_t column_atoms = mx::ceil_div(params.head_dim, mx::kAtomRows);
  const std::int64_t first = params.offsets.tiles(params.offsets.batch) * column_atoms;
  const std::int64_t atoms = tiles * column_atoms - first;
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (std::int64_t work = std::int64_t{blockIdx.x} * warps + threadIdx.x / 32;
       work < atoms * params.num_heads; work += std::int64_t{gridDim.x} * warps) {
    std::uint8_t* const atom =
        params.tiled + work / atoms * params.head_bytes + (first + work % atoms) * mx::kAtomBytes;
    reinterpret_cast<uint4*>(atom)[threadIdx.x % 32] = make_uint4(0, 0, 0, 0);
  }
}

/// One CTA: prefix sums of groups and tiles over the batch, chunk after chunk of its threads.
extern "C" __global__ void __launch_bounds__(1024)
    jagged_offsets(const std::int32_t* tokens, std::int32_t batch, std::int64_t* groups,
                   std::int64_t* tiles) {
  __shared__ std::int64_t warp_sums[2][32];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  std::int64_t carry[2] = {0, 0};
  if (thread == 0) groups[0] = tiles[0] = 0;
  for (std::int32_t first = 0; first < batch; first += 1024) {
    const std::int32_t s = first + thread;
    // A decreasing offset, which nobody could check, counts as an empty sequence.
    const std::int64_t seqlen = s < batch ? max(tokens[s + 1] - tokens[s], 0) : 0;
    std::int64_t sums[2] = {mx::ceil_div(seqlen, kScaleBlock), mx::ceil_div(seqlen, mx::kAtomRows)};
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      for (int distance = 1; distance < 32; distance *= 2) {
        const std::int64_t other = __shfl_up_sync(kAllLanes, sums[which], distance);
        if (lane >= distance) sums[which] += other;
      }
      if (lane == 31) warp_sums[which][warp] = sums[which];
    }
    __syncthreads();
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      std::int64_t before = carry[which];
      for (int w = 0; w < 32; ++w) {
        const std::int64_t sum = warp_sums[which][w];
        if (w < warp) before += sum;
        carry[which] += sum;
      }
      if (s < batch) (which == 0 ? groups : tiles)[s + 1] = before + sums[which];
    }
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(128)
    narrow_offsets(const std::int64_t* wide, std::int32_t* narrow, std::int32_t batch) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i <= batch) narrow[i] = static_cast<std::int32_t>(wide[i]);
}

}  // namespace mxfa::device
