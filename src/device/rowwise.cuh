#pragma once

#include "device/fp8.cuh"
#include "device/jagged.cuh"
#include "device/rowwise.h"
#include "mx/row_sum.h"

/// Rows of packed tensors by warps, and delta of them.
namespace mxfa::device {

inline constexpr int kLaneColumns = 8;   // columns of a lane
inline constexpr int kRowsInFlight = 4;  // rows of a lane whose loads are in flight together

/// kLanes lanes have one row of up to kLanes * kLaneColumns columns, so a warp has several rows at
/// once.
template <int kLanes>
struct RowMap {
  static constexpr int kRows = 32 / kLanes;  ///< of a warp at once
  int lane = static_cast<int>(threadIdx.x) % 32;
  int column = lane % kLanes * kLaneColumns;

  // For the rows of a group in batches: load(i, row) where row exists, then use(i, row, exists) by
  // all lanes.
  template <class Load, class Use>
  __device__ void for_rows(int rows, int head_dim, Load load, Use use) const {
    const bool active = column < head_dim;
    for (int first = lane / kLanes; first < kScaleBlock; first += kRowsInFlight * kRows) {
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        if (active && first + i * kRows < rows) load(i, first + i * kRows);
      }
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        use(i, first + i * kRows, active && first + i * kRows < rows);
      }
    }
  }
};

/// Eight columns of the rows of one group of 32 tokens and head, of one dtype. kMayByColumn:
/// whether each column may have a scale of its own.
template <DType kType, bool kMayByColumn = true>
struct RowReader {
  static constexpr bool kQuantized = kType == DType::kE4M3;
  static constexpr int kBytes = kType == DType::kF32 ? 4 : kQuantized ? 1 : 2;

  const std::uint8_t* data;    ///< of row 0
  std::int64_t pitch;          ///< bytes
  const std::uint8_t* scales;  ///< of row 0
  std::int64_t scale_pitch;    ///< bytes; 0 where rows share their scales
  bool by_column;              ///< each column has a scale

  __device__ RowReader(const RowsView& view, const TokenGroup& group, int column)
      : data(static_cast<const std::uint8_t*>(view.data) +
             (group.row0() * view.row_stride + group.tile.head * view.head_stride + column) *
                 kBytes),
        pitch(view.row_stride * kBytes),
        scales(nullptr),
        scale_pitch(mx::block_rows(view.block_shape) == 1 ? view.scale_strides.row : 0),
        by_column(kMayByColumn && view.block_shape == BlockShape::k32x1) {
    if constexpr (kQuantized) {
      scales = view.scales + group.scale_row(view.block_shape, 0) * view.scale_strides.row +
               group.tile.head * view.scale_strides.head + mx::scale_col(view.block_shape, column);
    }
  }

  struct Words {
    uint4 low;
    uint4 high;
    unsigned scales[2];
  };
  __device__ Words load(int row) const {
    Words words;
    const auto* source = data + row * pitch;
    if constexpr (kQuantized) {
      const auto codes = *reinterpret_cast<const uint2*>(source);
      words.low = make_uint4(codes.x, codes.y, 0, 0);
      const std::uint8_t* bytes = scales + row * scale_pitch;
      words.scales[0] = words.scales[1] = bytes[0];
      if (kMayByColumn && by_column) {
        words.scales[0] |= bytes[1] << 8 | bytes[2] << 16 | unsigned{bytes[3]} << 24;
        words.scales[1] = bytes[4] | bytes[5] << 8 | bytes[6] << 16 | unsigned{bytes[7]} << 24;
      }
    } else {
      words.low = *reinterpret_cast<const uint4*>(source);
      if constexpr (kType == DType::kF32) {
        words.high = *(reinterpret_cast<const uint4*>(source) + 1);
      }
    }
    return words;
  }

  __device__ void unpack(const Words& words, float (&value)[kLaneColumns]) const {
    if constexpr (kQuantized) {
      float half[4];
      decode_quad<mx::E4M3>(words.low.x, half);
#pragma unroll
      for (int j = 0; j < 4; ++j) value[j] = half[j];
      decode_quad<mx::E4M3>(words.low.y, half);
#pragma unroll
      for (int j = 0; j < 4; ++j) value[4 + j] = half[j];
      const float scale = mx::decode_e8m0(static_cast<std::uint8_t>(words.scales[0]));
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) {
        const auto own = static_cast<std::uint8_t>(words.scales[j / 4] >> (8 * (j % 4)));
        value[j] *= kMayByColumn && by_column ? mx::decode_e8m0(own) : scale;
      }
    } else {
      const unsigned word[8] = {words.low.x,  words.low.y,  words.low.z,  words.low.w,
                                words.high.x, words.high.y, words.high.z, words.high.w};
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) {
        if constexpr (kType == DType::kF32) {
          value[j] = __uint_as_float(word[j]);
        } else if constexpr (kType == DType::kF16) {
          value[j] = j % 2 == 0 ? f16_low(word[j / 2]) : f16_high(word[j / 2]);
        } else {
          value[j] = j % 2 == 0 ? bf16_low(word[j / 2]) : bf16_high(word[j / 2]);
        }
      }
    }
  }
};

/// The sum of a row in the order of mx::row_sum::row_delta from a lane's sums of its two groups of
/// four columns. The first exchange leaves the lower half of the row's lanes with the sums of even
/// groups, the upper half with those of odd groups.
template <int kLanes>
__device__ double reduce_row(double even, double odd) {
  const bool upper = (threadIdx.x & (kLanes / 2)) != 0;
  const double sent = __shfl_xor_sync(kAllLanes, upper ? even : odd, kLanes / 2);
  double sum = __dadd_rn(upper ? odd : even, sent);
#pragma unroll
  for (int distance = kLanes / 4; distance > 0; distance /= 2) {
    sum = __dadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, distance));
  }
  return __dadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, kLanes / 2));
}

/// The sum of a row from its lanes' sums, in all of them.
template <int kLanes>
__device__ float sum_of_lanes(float sum) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
  return sum;
}

/// kPlain: no shift, and no column has a scale of its own.
template <DType kDout, DType kO, int kLanes, bool kPlain>
__device__ void delta_rows(const DeltaParams& params) {
  static_assert(mx::row_sum::kVector * 2 == kLaneColumns && kLanes * 2 <= mx::row_sum::kLanes);
  const RowMap<kLanes> map;
  for_each_group(params.offsets, params.num_heads, [&](const TokenGroup& group) {
    using DoutReader = RowReader<kDout, !kPlain>;
    using OReader = RowReader<kO, !kPlain>;
    const DoutReader dout(params.dout, group, map.column);
    const OReader o(params.o, group, map.column);
    const float* shift = kPlain || params.shift_v == nullptr
                             ? nullptr
                             : params.shift_v + group.tile.sequence * params.shift_batch_stride +
                                   std::int64_t{group.tile.head} * params.head_dim + map.column;
    const std::int64_t first = group.tile.head * params.delta_head_stride + group.row0();
    typename DoutReader::Words dout_words[kRowsInFlight];
    typename OReader::Words o_words[kRowsInFlight];
    map.for_rows(
        group.rows, params.head_dim,
        [&](int i, int row) {
          dout_words[i] = dout.load(row);
          o_words[i] = o.load(row);
        },
        [&](int i, int row, bool exists) {
          double sums[2] = {0, 0};
          float magnitude = 0;
          if (exists) {
            float dout_value[kLaneColumns], o_value[kLaneColumns];
            dout.unpack(dout_words[i], dout_value);
            o.unpack(o_words[i], o_value);
#pragma unroll
            for (int j = 0; j < kLaneColumns; ++j) {
              if (kDout == DType::kF32) dout_value[j] = round_bf16(dout_value[j]);
              double centred = double{o_value[j]};
              if (shift != nullptr) centred = __dsub_rn(centred, double{shift[j]});
              sums[j / 4] = __dadd_rn(sums[j / 4], __dmul_rn(double{dout_value[j]}, centred));
              magnitude += fabsf(dout_value[j]);
            }
          }
          const double sum = reduce_row<kLanes>(sums[0], sums[1]);
          if (map.column == 0 && exists) params.delta[first + row] = __double2float_rn(sum);
          if (params.dout_sums == nullptr) return;
          magnitude = sum_of_lanes<kLanes>(magnitude);
          if (map.column == 0 && exists) params.dout_sums[first + row] = magnitude;
        });
  });
}

/// Rows of up to 64 columns have half the lanes.
template <DType kDout, DType kO>
__device__ void delta(const DeltaParams& params) {
  const bool plain = params.shift_v == nullptr && params.dout.block_shape != BlockShape::k32x1 &&
                     params.o.block_shape != BlockShape::k32x1;
  if (params.head_dim <= 64) {
    delta_rows<kDout, kO, 8, false>(params);
  } else if (plain) {
    delta_rows<kDout, kO, 16, true>(params);
  } else {
    delta_rows<kDout, kO, 16, false>(params);
  }
}

}  // namespace mxfa::device
