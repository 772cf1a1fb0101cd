#pragma once

#include "device/fp8.cuh"
#include "device/quantize_load.cuh"
#include "device/scaled_sums.cuh"
#include "device/transpose.cuh"
#include "mx/half_sums.h"

/// What one warp of a quantize kernel does with its 32 tokens of one head.
namespace mxfa::device::quantizer {

inline constexpr int kVector = 8;  // columns of a lane
inline constexpr int kLoads = 16;  // of a lane: two rows a load cover the group

/// Load i of a lane covers row 2 i + half, columns 8 * (lane % 16)...
template <BlockShape kShape, DType kInput, bool kShifted>
struct Group {
  static constexpr bool kSums = kInput == DType::kF16;

  const QuantizeParams& params;
  const Tile& tile;
  std::uint8_t* stage;
  int group = static_cast<int>(threadIdx.x) / 32 % kQuantizeTeamWarps;
  int lane = static_cast<int>(threadIdx.x) % 32;
  int half = lane / 16;
  int column = lane % 16 * kVector;
  int rows = min(kScaleBlock, max(0, tile.rows - group * kScaleBlock));
  bool active = column < params.head_dim;

  // Scales that a lane needs: one for each row it holds, each column, or one for all.
  static constexpr bool kByRow = kShape == BlockShape::k1x32 || kShape == BlockShape::k1xD;
  static constexpr bool kByColumn = kShape == BlockShape::k32x1;
  static constexpr bool kWholeDim = kShape == BlockShape::k1xD || kShape == BlockShape::k32xD;
  static constexpr int kScales = kByRow ? kLoads : kByColumn ? kVector : 1;
  __device__ static constexpr int scale_index(int load, int j) {
    return kByRow ? load : kByColumn ? j : 0;
  }

  __device__ std::int64_t row(int load) const {
    return tile.row0 + group * kScaleBlock + 2 * load + half;
  }
  __device__ bool exists(int load) const { return active && 2 * load + half < rows; }

  // Zeros where the row or column does not exist.
  __device__ void read(int load, float (&value)[kVector]) const {
    const int row_in_tile = group * kScaleBlock + 2 * load + half;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const auto* source = reinterpret_cast<const uint4*>(
        stage + (row_in_tile * params.head_dim + column) * SmemPlan<kInput>::kElementBytes);
    if constexpr (kInput == DType::kF32) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint4 words = exists(load) ? source[part] : zero;
        value[4 * part] = __uint_as_float(words.x);
        value[4 * part + 1] = __uint_as_float(words.y);
        value[4 * part + 2] = __uint_as_float(words.z);
        value[4 * part + 3] = __uint_as_float(words.w);
      }
    } else {
      const uint4 packed = exists(load) ? source[0] : zero;
      const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        value[2 * w] = kSums ? f16_low(words[w]) : bf16_low(words[w]);
        value[2 * w + 1] = kSums ? f16_high(words[w]) : bf16_high(words[w]);
      }
    }
  }

  __device__ void load_shift(float (&shift)[kVector]) const {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      // Columns that the input lacks are 0 whatever the shift.
      shift[j] =
          !kShifted || column >= params.input.head_dim
              ? 0.0f
              : params.input.shift[tile.sequence * params.input.shift_batch_stride +
                                   std::int64_t{tile.head} * params.input.head_dim + column + j];
    }
  }

  __device__ void values(int load, const float (&shift)[kVector], const SumsOfHead& sums,
                         unsigned& overflows, float (&value)[kVector]) const {
    read(load, value);
    if (!exists(load)) return;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (kInput == DType::kF32 && params.input.round_bf16) value[j] = round_bf16(value[j]);
      if constexpr (kShifted) value[j] = __fsub_rn(value[j], shift[j]);
    }
    if constexpr (kSums) finish_sums(load, sums, overflows, value);
  }

  __device__ void finish_sums(int load, const SumsOfHead& sums, unsigned& overflows,
                              float (&value)[kVector]) const {
    sums.finish<kSums>(
        value, [&](int) { return row(load); }, overflows);
  }

  __device__ static float reduce(float amax, int distance) {
    return max_nan(amax, __shfl_xor_sync(kAllLanes, amax, distance));
  }

  // Of FP32 sums, where one is not finite. FP16 sums are counted on the way.
  __device__ void count_overflows(const float (&shift)[kVector], const SumsOfHead& sums) const {
    unsigned overflows = 0;
    for (int i = 0; i < kLoads; ++i) {
      float value[kVector];
      values(i, shift, sums, overflows, value);
      finish_sums(i, sums, overflows, value);
    }
    sums.report(overflows);
  }

  __device__ void find_scales(const float (&shift)[kVector], const SumsOfHead& sums,
                              std::uint8_t (&scales)[kScales]) const {
    unsigned overflows = 0;
    float amax[kScales] = {};
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      float value[kVector];
      values(i, shift, sums, overflows, value);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        amax[scale_index(i, j)] = max_nan(amax[scale_index(i, j)], fabsf(value[j]));
      }
    }
    if constexpr (kSums) sums.report(overflows);
    if (kInput == DType::kF32 && params.input.sums.overflows != nullptr) {
      float largest = 0.0f;
#pragma unroll
      for (int s = 0; s < kScales; ++s) largest = max_nan(largest, amax[s]);
      if (__any_sync(kAllLanes, !mx::is_finite(largest))) count_overflows(shift, sums);
    }
    std::uint8_t least = 0;
    if constexpr (kShape == BlockShape::k32xD) {
      if (params.half_sums > 0) {
        least = mx::half_sums_scale(largest_column(shift, sums), params.half_sums);
      }
    }
#pragma unroll
    for (int s = 0; s < kScales; ++s) {
      if constexpr (!kByColumn) {
        amax[s] = reduce(reduce(amax[s], 1), 2);
        if constexpr (kWholeDim) amax[s] = reduce(reduce(amax[s], 4), 8);
      }
      if constexpr (!kByRow) amax[s] = reduce(amax[s], 16);
      const int scale =
          max(mx::scale_from_amax<mx::E4M3>(amax[s], ScaleRule::kRoundUp), params.min_scale);
      scales[s] = max(mx::raised_scale(scale, params.lowered), least);
      if (params.coarse) scales[s] = mx::coarse_scale(scales[s]);
    }
  }

  /// Largest of the columns' sums: rows 0, 2, .. and 1, 3, .. one after the other, then both.
  __device__ float largest_column(const float (&shift)[kVector], const SumsOfHead& sums) const {
    float column_sum[kVector] = {};
    unsigned counted_before = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      float value[kVector];
      values(i, shift, sums, counted_before, value);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        column_sum[j] = __fadd_rn(column_sum[j], mx::half_sums_part(value[j]));
      }
    }
    float most = 0.0f;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      most = fmaxf(most, column_sum[j] + __shfl_xor_sync(kAllLanes, column_sum[j], 16));
    }
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
    }
    return most;
  }

  __device__ uint2 encode(int load, const float (&shift)[kVector], const SumsOfHead& sums,
                          const float (&inverse)[kScales]) const {
    float value[kVector];
    unsigned counted_before = 0;
    values(load, shift, sums, counted_before, value);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      // A value that does not exist stays 0 also in a block that holds a NaN.
      value[j] = exists(load) ? value[j] * inverse[scale_index(load, j)] : 0.0f;
    }
    return make_uint2(encode_e4m3_quad(value[0], value[1], value[2], value[3]),
                      encode_e4m3_quad(value[4], value[5], value[6], value[7]));
  }

  __device__ void store_codes(const uint2 (&codes)[kLoads]) const {
    std::uint8_t* base = params.codes + tile.head * params.codes_head_stride + column;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (exists(i)) {
        __stcs(reinterpret_cast<uint2*>(base + row(i) * params.codes_row_stride), codes[i]);
      }
    }
  }

  __device__ void store_compact(const std::uint8_t (&scales)[kScales]) const {
    std::uint8_t* base =
        params.compact + tile.head * params.compact_strides.head + mx::scale_col(kShape, column);
    const bool first_of_block = active && lane % (kWholeDim ? 16 : 4) == 0;
    if constexpr (kByRow) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (first_of_block && exists(i)) base[row(i) * params.compact_strides.row] = scales[i];
      }
    } else if (rows > 0 && half == 0) {
      std::uint8_t* target = base + (tile.group + group) * params.compact_strides.row;
#pragma unroll
      for (int s = 0; s < kScales; ++s) {
        if (kByColumn ? active : first_of_block) target[s] = scales[s];
      }
    }
  }

  // Byte (row % 32) * 16 + row / 32 * 4 + k block: rows of the tile are tokens.
  __device__ void fill_atom_dim(const std::uint8_t (&scales)[kScales], uint4* words) const {
    auto* atom = reinterpret_cast<std::uint8_t*>(words);
    if (lane % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int token = 2 * i + half;
        atom[token * 16 + group * 4 + column / kScaleBlock] =
            exists(i) ? scales[scale_index(i, 0)] : std::uint8_t{0};
      }
    }
  }

  // Rows are columns of head_dim and the k block is this group.
  __device__ void fill_atom_tokens(const std::uint8_t (&scales)[kScales], uint4* words) const {
    auto* atom = reinterpret_cast<std::uint8_t*>(words);
    if (half == 0) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const int row_of_atom = column + j;
        atom[row_of_atom % 32 * 16 + row_of_atom / 32 * 4 + group] =
            active && rows > 0 ? scales[scale_index(0, j)] : std::uint8_t{0};
      }
    }
  }

  // Into the stage, as a tile [head_dim][128 tokens] in the 128-byte swizzle of the copy engine:
  // 16-byte piece p of row r lies at p ^ (r % 8). The halves of the warp hold tokens of even and
  // odd number; after the exchange each lane has all 32 tokens of four columns. Which four, and in
  // which order they are stored, differs between neighbours: 8 lanes write 8 different pieces.
  __device__ void fill_transposed(const uint2 (&codes)[kLoads]) const {
    const int upper = half ^ (lane >> 2 & 1);
    unsigned token[kScaleBlock];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const unsigned kept = upper == 0 ? codes[i].x : codes[i].y;
      const unsigned sent = upper == 0 ? codes[i].y : codes[i].x;
      const unsigned received = __shfl_xor_sync(kAllLanes, sent, 16);
      token[2 * i] = half == 0 ? kept : received;
      token[2 * i + 1] = half == 0 ? received : kept;
    }
    if (!active) return;
    const TransposedOrder order(params.order);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int c = (step + lane) % 4;
      unsigned words[8];
      transposed_column(token, c, order, words);
      const int row_of_tile = column + upper * 4 + c;
      auto* target = reinterpret_cast<uint4*>(stage + row_of_tile * mx::kAtomRows);
      target[(2 * group) ^ (row_of_tile % 8)] = make_uint4(words[0], words[1], words[2], words[3]);
      target[(2 * group + 1) ^ (row_of_tile % 8)] =
          make_uint4(words[4], words[5], words[6], words[7]);
    }
  }
};

}  // namespace mxfa::device::quantizer
