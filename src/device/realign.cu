#include "device/fp8.cuh"
#include "device/jagged.cuh"
#include "device/realign.h"
#include "device/transpose.cuh"
#include "mx/realign.h"

namespace mxfa::device {
namespace {

constexpr unsigned kMagnitudes = 0x7F7F7F7Fu;
constexpr unsigned kTops = 0x80808080u;

/// A lane's part of RealignCounters, added up once: all warps add to the same few addresses.
struct LaneCounters {
  unsigned blocks = 0, shifted = 0, far = 0, flushed = 0, poisoned = 0;
  int max_shift = 0;

  __device__ static void add(unsigned long long& total, unsigned lane_count) {
    const unsigned sum = __reduce_add_sync(kAllLanes, lane_count);
    if (threadIdx.x % 32 == 0 && sum != 0) atomicAdd(&total, static_cast<unsigned long long>(sum));
  }
  __device__ void report(RealignCounters* totals) const {
    if (totals == nullptr) return;
    add(totals->blocks, blocks);
    add(totals->blocks_shifted, shifted);
    add(totals->blocks_far, far);
    add(totals->values_flushed, flushed);
    add(totals->groups_poisoned, poisoned);
    const int largest = __reduce_max_sync(kAllLanes, max_shift);
    if (threadIdx.x % 32 == 0 && largest > 0) {
      atomicMax(&totals->max_shift, static_cast<unsigned long long>(largest));
    }
  }
};

/// One warp's group of 32 tokens of one head. A lane has four columns of every row; where rows have
/// scales of their own, lane i also looks after the scales of row i. kWhole: every row and column
/// exists, so that loops have no branches.
template <BlockShape kShape, class Format, bool kWhole>
struct Realigner {
  static constexpr bool kByRow = mx::block_rows(kShape) == 1;
  static constexpr bool kWholeDim = mx::block_cols(kShape) == 0;
  static constexpr bool kByColumn = kShape == BlockShape::k32x1;
  /// Of a lane: those of its row, or those of its columns.
  static constexpr int kBlocks = kByRow ? (kWholeDim ? 1 : mx::kAtomCols) : kByColumn ? 4 : 1;
  /// Beyond, every code becomes zero. Products are taken in FP16: one that it cannot hold is below
  /// half of the format's smallest value either way. Factors of E5M2 are the product of two.
  static constexpr bool kTwoFactors = Format::kMantissaBits != mx::E4M3::kMantissaBits;
  static constexpr int kMaxShift = kTwoFactors ? 36 : 20;

  const RealignParams& params;
  const TokenGroup& group;
  LaneCounters& counters;
  int lane = static_cast<int>(threadIdx.x) % 32;
  int column = lane * 4;

  __device__ bool active() const { return kWhole || column < params.head_dim; }
  __device__ bool exists(int row) const { return kWhole || row < group.rows; }

  __device__ void read(unsigned (&codes)[kScaleBlock]) const {
    const std::uint8_t* source = params.codes + group.row0() * params.row_stride +
                                 group.tile.head * params.head_stride + column;
#pragma unroll
    for (int row = 0; row < kScaleBlock; ++row, source += params.row_stride) {
      codes[row] = active() && exists(row) ? *reinterpret_cast<const unsigned*>(source) : 0u;
    }
  }

  // 0 where a block does not exist.
  __device__ void read_scales(int (&scales)[kBlocks]) const {
    const std::int64_t row = group.scale_row(kShape, kByRow ? lane : 0);
    const std::uint8_t* base = params.scales + row * params.scale_strides.row +
                               group.tile.head * params.scale_strides.head +
                               (kByRow ? 0 : mx::scale_col(kShape, column));
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const bool there = kByRow ? exists(lane) && (kWhole || block * kScaleBlock < params.head_dim)
                                : active() && exists(0);
      scales[block] = there ? base[block] : 0;
    }
  }

  // Which of the lane's blocks hold a value other than zero, as bits.
  __device__ unsigned nonzero_blocks(const unsigned (&codes)[kScaleBlock]) const {
    unsigned rows = 0;  // in which the lane's columns hold one
    unsigned all = 0;
#pragma unroll
    for (int row = 0; row < kScaleBlock; ++row) {
      const unsigned magnitudes = codes[row] & kMagnitudes;
      all |= magnitudes;
      if (kByRow && magnitudes != 0) rows |= 1u << row;
    }
    unsigned blocks = 0;
    if constexpr (kByColumn) {
#pragma unroll
      for (int j = 0; j < 4; ++j) blocks |= unsigned{(all >> 8 * j & 0xFFu) != 0} << j;
    } else if constexpr (kByRow) {
      rows = any_of_block(rows);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        blocks |= (__shfl_sync(kAllLanes, rows, block * 8) >> lane & 1u) << block;
      }
    } else {
      blocks = any_of_block(all) != 0 ? 1u : 0u;
    }
    return blocks;
  }
  // Bits that any lane of the block has.
  __device__ static unsigned any_of_block(unsigned bits) {
    if constexpr (kWholeDim) return __reduce_or_sync(kAllLanes, bits);
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) {
      bits |= __shfl_xor_sync(kAllLanes, bits, distance);
    }
    return bits;
  }

  __device__ bool group_poisoned(const unsigned (&codes)[kScaleBlock],
                                 const int (&scales)[kBlocks]) const {
    unsigned above = 0;  // the top bit of each byte: a magnitude beyond the largest finite one
#pragma unroll
    for (int row = 0; row < kScaleBlock; ++row) {
      above |= (codes[row] & kMagnitudes) + (0x7Fu - Format::kMaxCode) * 0x01010101u;
    }
    bool result = (above & kTops) != 0;
#pragma unroll
    for (const int scale : scales) result = result || scale == mx::kE8M0Nan;
    return __any_sync(kAllLanes, result);
  }

  // One lane of each block counts it.
  __device__ bool counts() const { return kByRow || kByColumn || lane % (kWholeDim ? 32 : 8) == 0; }

  // scales[b] becomes the shift of the lane's block b. Whether any of the warp is above 0.
  __device__ bool find_shifts(int scale, unsigned nonzero, int (&scales)[kBlocks]) const {
    const bool counts = this->counts();
    int largest = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const bool zero = (nonzero >> block & 1u) == 0;
      const int shift = zero ? 0 : scale - scales[block];
      scales[block] = shift;
      counters.shifted += counts && shift > 0 ? 1u : 0u;
      counters.far += counts && shift > mx::kTolerableShift ? 1u : 0u;
      largest = max(largest, shift);
    }
    counters.blocks += counts ? __popc(nonzero) : 0u;
    counters.max_shift = max(counters.max_shift, largest);
    return __any_sync(kAllLanes, largest > 0);
  }

  __device__ static float power(int exponent) { return __int_as_float((127 + exponent) << 23); }

  // Multiplies a pair of FP16 values by 2^-low and 2^-high.
  struct Factors {
    unsigned first, second;
    __device__ Factors(int low, int high)
        : first(encode_f16_pair(power(kTwoFactors ? -(low / 2) : -low),
                                power(kTwoFactors ? -(high / 2) : -high))),
          second(kTwoFactors ? encode_f16_pair(power(low / 2 - low), power(high / 2 - high)) : 0u) {
    }
    __device__ unsigned apply(unsigned codes) const {
      unsigned halves = multiply_half_pairs(decode_half_pair<Format>(codes), first);
      if constexpr (kTwoFactors) halves = multiply_half_pairs(halves, second);
      return encode_half_pair<Format>(halves);
    }
  };

  __device__ void shift(const int (&shifts)[kBlocks], unsigned (&codes)[kScaleBlock]) const {
    unsigned packed = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      packed |= static_cast<unsigned>(min(shifts[block], kMaxShift)) << (8 * block);
    }
    const auto own = [](unsigned word, int block) {
      return static_cast<int>(word >> (8 * block) & 0xFFu);
    };
    unsigned lost = 0;  // values that became zero, a byte for each column
    Factors low(own(packed, 0), own(packed, kByColumn ? 1 : 0));
    Factors high(own(packed, kByColumn ? 2 : 0), own(packed, kByColumn ? 3 : 0));
#pragma unroll
    for (int row = 0; row < kScaleBlock; ++row) {
      if constexpr (kByRow) {
        const int k = own(__shfl_sync(kAllLanes, packed, row), kWholeDim ? 0 : lane / 8);
        low = high = Factors(k, k);
      }
      const unsigned out = low.apply(codes[row]) | high.apply(codes[row] >> 16) << 16;
      const unsigned was = (codes[row] & kMagnitudes) + kMagnitudes;
      const unsigned is = (out & kMagnitudes) + kMagnitudes;
      lost += (was & ~is & kTops) >> 7;
      codes[row] = out;
    }
    counters.flushed += __dp4a(lost, 0x01010101u, 0u);
  }

  __device__ std::uint8_t run(unsigned (&codes)[kScaleBlock]) const {
    int scales[kBlocks];
    read_scales(scales);
    if (group_poisoned(codes, scales)) {
      counters.poisoned += lane == 0 ? 1u : 0u;
#pragma unroll
      for (int row = 0; row < kScaleBlock; ++row) {
        codes[row] = active() && exists(row) ? mx::E4M3::kNanCode * 0x01010101u : 0u;
      }
      return mx::kE8M0Nan;
    }
    const unsigned votes = nonzero_blocks(codes);
    const unsigned nonzero = kByRow || active() ? votes : 0u;
    int scale = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if ((nonzero >> block & 1u) != 0) scale = max(scale, scales[block]);
    }
    scale = __reduce_max_sync(kAllLanes, scale);
    if (find_shifts(scale, nonzero, scales)) shift(scales, codes);
    return static_cast<std::uint8_t>(scale);
  }

  __device__ void store(const unsigned (&codes)[kScaleBlock], std::uint8_t scale) const {
    if (params.out != nullptr) {
      std::uint8_t* target = params.out + group.row0() * params.out_row_stride +
                             group.tile.head * params.out_head_stride + column;
#pragma unroll
      for (int row = 0; row < kScaleBlock; ++row, target += params.out_row_stride) {
        if (active() && exists(row)) __stcs(reinterpret_cast<unsigned*>(target), codes[row]);
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
    const TransposedTiles tiles{params.num_heads, params.transposed_head_dim};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      unsigned words[8];
      transposed_column(codes, c, order, words);
      auto* target = reinterpret_cast<uint4*>(
          params.transposed + tiles.at(group.tile.index, group.tile.head, column + c) +
          group.index * kScaleBlock);
      target[0] = make_uint4(words[0], words[1], words[2], words[3]);
      target[1] = make_uint4(words[4], words[5], words[6], words[7]);
    }
  }
};

template <BlockShape kShape, class Format, bool kWhole>
__device__ void realign_group(const RealignParams& params, const TokenGroup& group,
                              LaneCounters& counters) {
  const Realigner<kShape, Format, kWhole> realigner{params, group, counters};
  unsigned codes[kScaleBlock];
  realigner.read(codes);
  const std::uint8_t scale = kWhole || group.rows > 0 ? realigner.run(codes) : std::uint8_t{0};
  realigner.store(codes, scale);
  if (params.transposed != nullptr) realigner.store_transposed(codes);
}

template <BlockShape kShape, class Format>
__device__ void realign(const RealignParams& params) {
  LaneCounters counters;
  for_each_group(params.offsets, params.num_heads, [&](const TokenGroup& group) {
    if (params.head_dim == mx::kAtomRows && group.rows == kScaleBlock) {
      realign_group<kShape, Format, true>(params, group, counters);
    } else {
      realign_group<kShape, Format, false>(params, group, counters);
    }
  });
  counters.report(params.counters);
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
