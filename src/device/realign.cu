#include "device/fp8.cuh"
#include "device/jagged.cuh"
#include "device/realign.h"
#include "device/transpose.cuh"
#include "mx/realign.h"

namespace mxfa::device {
namespace {

constexpr unsigned kMagnitudes = 0x7F7F7F7Fu;
// Beyond 64 binades every code of both formats is zero: the factor stays a normal number.
constexpr int kMaxShift = 64;

/// One warp's group of 32 tokens of one head. A lane has four columns of every row.
template <BlockShape kShape, class Format>
struct Realigner {
  static constexpr bool kByRow = mx::block_rows(kShape) == 1;
  static constexpr bool kWholeDim = mx::block_cols(kShape) == 0;
  static constexpr int kColumns = kShape == BlockShape::k32x1 ? 4 : 1;
  /// Blocks that a lane takes part in: one for each row, each column, or one.
  static constexpr int kBlocks = kByRow ? kScaleBlock : kColumns;

  const RealignParams& params;
  const TokenGroup& group;
  int lane = static_cast<int>(threadIdx.x) % 32;
  int column = lane * 4;
  bool active = column < params.head_dim;

  __device__ static constexpr int block_of(int row, int j) {
    return kByRow ? row : kColumns == 4 ? j : 0;
  }
  // One lane of each block counts it.
  __device__ bool counts() const {
    return active && (kColumns == 4 || lane % (kWholeDim ? 32 : 8) == 0);
  }
  __device__ static bool any_in_block(bool value) {
    const unsigned votes = __ballot_sync(kAllLanes, value);
    if constexpr (kWholeDim) return votes != 0;
    const int first = static_cast<int>(threadIdx.x) % 32 & ~7;
    return (votes >> first & 0xFFu) != 0;
  }

  __device__ void read(unsigned (&codes)[kScaleBlock]) const {
    const std::uint8_t* source = params.codes + group.row0() * params.row_stride +
                                 group.tile.head * params.head_stride + column;
#pragma unroll
    for (int row = 0; row < kScaleBlock; ++row) {
      codes[row] = active && row < group.rows
                       ? *reinterpret_cast<const unsigned*>(source + row * params.row_stride)
                       : 0u;
    }
  }

  __device__ void read_scales(int (&scales)[kBlocks]) const {
    const std::uint8_t* base =
        params.scales + group.tile.head * params.scale_strides.head + mx::scale_col(kShape, column);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int row = kByRow ? block : 0;
      const std::int64_t scale_row = group.scale_row(kShape, row);
      scales[block] = active && row < group.rows
                          ? base[scale_row * params.scale_strides.row + (kByRow ? 0 : block)]
                          : 0;
    }
  }

  __device__ static bool poisoned(unsigned codes) {
    return __vcmpgtu4(codes & kMagnitudes, Format::kMaxCode * 0x01010101u) != 0;
  }

  // Which of the lane's blocks hold a value other than zero, as bits.
  __device__ unsigned nonzero_blocks(const unsigned (&codes)[kScaleBlock]) const {
    unsigned blocks = 0;
    unsigned all = 0;
#pragma unroll
    for (int row = 0; row < kScaleBlock; ++row) {
      all |= codes[row] & kMagnitudes;
      if constexpr (kByRow) {
        blocks |= unsigned{any_in_block((codes[row] & kMagnitudes) != 0)} << row;
      }
    }
    if constexpr (!kByRow && kColumns == 1) blocks = any_in_block(all != 0);
    if constexpr (kColumns == 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) blocks |= unsigned{(all >> 8 * j & 0xFFu) != 0} << j;
    }
    return blocks;
  }

  __device__ bool group_poisoned(const unsigned (&codes)[kScaleBlock],
                                 const int (&scales)[kBlocks]) const {
    bool result = false;
#pragma unroll
    for (int row = 0; row < kScaleBlock; ++row) result = result || poisoned(codes[row]);
#pragma unroll
    for (const int scale : scales) result = result || scale == mx::kE8M0Nan;
    return __any_sync(kAllLanes, result);
  }

  __device__ static void add(unsigned long long& counter, unsigned lane_count) {
    const unsigned sum = __reduce_add_sync(kAllLanes, lane_count);
    if (threadIdx.x % 32 == 0 && sum != 0)
      atomicAdd(&counter, static_cast<unsigned long long>(sum));
  }

  // scales[b] becomes the shift of the lane's block b. Returns the warp's largest.
  __device__ int find_shifts(int scale, unsigned nonzero, int (&scales)[kBlocks]) const {
    unsigned shifted = 0, far = 0;
    int largest = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const bool zero = (nonzero >> block & 1u) == 0;
      const int shift = zero ? 0 : scale - scales[block];
      scales[block] = shift;
      shifted += shift > 0 ? 1u : 0u;
      far += shift > mx::kTolerableShift ? 1u : 0u;
      largest = max(largest, shift);
    }
    largest = __reduce_max_sync(kAllLanes, largest);
    if (params.counters != nullptr) {
      const bool counts = this->counts();
      add(params.counters->blocks, counts ? __popc(nonzero) : 0u);
      add(params.counters->blocks_shifted, counts ? shifted : 0u);
      add(params.counters->blocks_far, counts ? far : 0u);
      if (lane == 0 && largest > 0) {
        atomicMax(&params.counters->max_shift, static_cast<unsigned long long>(largest));
      }
    }
    return largest;
  }

  __device__ void shift(const int (&shifts)[kBlocks], unsigned (&codes)[kScaleBlock]) const {
    unsigned flushed = 0;
#pragma unroll
    for (int row = 0; row < kScaleBlock; ++row) {
      float value[4];
      decode_quad<Format>(codes[row], value);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int shift = min(shifts[block_of(row, j)], kMaxShift);
        value[j] *= __int_as_float((127 - shift) << 23);
      }
      const unsigned out = encode_quad<Format>(value);
      const unsigned lost =
          __vcmpne4(codes[row] & kMagnitudes, 0u) & __vcmpeq4(out & kMagnitudes, 0u) & 0x01010101u;
      flushed += __popc(lost);
      codes[row] = out;
    }
    if (params.counters != nullptr) add(params.counters->values_flushed, flushed);
  }

  __device__ std::uint8_t run(unsigned (&codes)[kScaleBlock]) const {
    int scales[kBlocks];
    read_scales(scales);
    if (group_poisoned(codes, scales)) {
      if (params.counters != nullptr) add(params.counters->groups_poisoned, lane == 0 ? 1u : 0u);
#pragma unroll
      for (int row = 0; row < kScaleBlock; ++row) {
        codes[row] = active && row < group.rows ? mx::E4M3::kNanCode * 0x01010101u : 0u;
      }
      return mx::kE8M0Nan;
    }
    const unsigned votes = nonzero_blocks(codes);
    const unsigned nonzero = active ? votes : 0u;
    int scale = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if ((nonzero >> block & 1u) != 0) scale = max(scale, scales[block]);
    }
    scale = __reduce_max_sync(kAllLanes, scale);
    if (find_shifts(scale, nonzero, scales) > 0) shift(scales, codes);
    return static_cast<std::uint8_t>(scale);
  }

  __device__ void store(const unsigned (&codes)[kScaleBlock], std::uint8_t scale) const {
    if (params.out != nullptr) {
      std::uint8_t* target = params.out + group.row0() * params.out_row_stride +
                             group.tile.head * params.out_head_stride + column;
#pragma unroll
      for (int row = 0; row < kScaleBlock; ++row) {
        if (active && row < group.rows) {
          *reinterpret_cast<unsigned*>(target + row * params.out_row_stride) = codes[row];
        }
      }
    }
    if (params.out_scales != nullptr && lane == 0 && group.rows > 0) {
      params.out_scales[(group.tile.group + group.index) * params.out_scale_strides.row +
                        group.tile.head * params.out_scale_strides.head] = scale;
    }
  }

  __device__ void store_transposed(const unsigned (&codes)[kScaleBlock]) const {
    if (column >= params.transposed_head_dim) return;
    const TransposedOrder order(params.order);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      unsigned words[8];
      transposed_column(codes, c, order, words);
      const std::int64_t dim_row =
          std::int64_t{group.tile.head} * params.transposed_head_dim + column + c;
      auto* target =
          reinterpret_cast<uint4*>(params.transposed + dim_row * params.transposed_pitch +
                                   group.tile.index * mx::kAtomRows + group.index * kScaleBlock);
      target[0] = make_uint4(words[0], words[1], words[2], words[3]);
      target[1] = make_uint4(words[4], words[5], words[6], words[7]);
    }
  }
};

template <BlockShape kShape, class Format>
__device__ void realign(const RealignParams& params) {
  for_each_group(params.offsets, params.num_heads, [&](const TokenGroup& group) {
    const Realigner<kShape, Format> realigner{params, group};
    unsigned codes[kScaleBlock];
    realigner.read(codes);
    const std::uint8_t scale = group.rows > 0 ? realigner.run(codes) : std::uint8_t{0};
    realigner.store(codes, scale);
    if (params.transposed != nullptr) realigner.store_transposed(codes);
  });
}

}  // namespace

#define MXFA_REALIGN(format_name, format, shape_name, shape)                               \
  extern "C" __global__ void __launch_bounds__(128)                                        \
      realign_##format_name##_##shape_name(const __grid_constant__ RealignParams params) { \
    realign<BlockShape::shape, mx::format>(params);                                        \
  }
MXFA_REALIGN(e4m3, E4M3, 1x32, k1x32)
MXFA_REALIGN(e4m3, E4M3, 32x1, k32x1)
MXFA_REALIGN(e4m3, E4M3, 32x32, k32x32)
MXFA_REALIGN(e4m3, E4M3, 32xD, k32xD)
MXFA_REALIGN(e4m3, E4M3, 1xD, k1xD)
MXFA_REALIGN(e5m2, E5M2, 1x32, k1x32)
MXFA_REALIGN(e5m2, E5M2, 32x1, k32x1)
MXFA_REALIGN(e5m2, E5M2, 32x32, k32x32)
MXFA_REALIGN(e5m2, E5M2, 32xD, k32xD)
MXFA_REALIGN(e5m2, E5M2, 1xD, k1xD)

}  // namespace mxfa::device
