#include "device/rowwise.h"

#include "device/fp8.cuh"
#include "device/jagged.cuh"
#include "device/scaled_sums.cuh"

namespace mxfa::device {
namespace {

constexpr int kThreads = 256;
constexpr int kRowsAtOnce = 8;  // loads in flight

/// Four columns of rows of one group of 32 tokens and head.
struct RowReader {
  const RowsView& view;
  const TokenGroup& group;
  int column;

  __device__ std::int64_t element(int row) const {
    return (group.row0() + row) * view.row_stride + group.tile.head * view.head_stride + column;
  }
  __device__ uint4 load(int row) const {
    const std::int64_t at = element(row);
    if (view.dtype == DType::kF32) {
      return *reinterpret_cast<const uint4*>(static_cast<const float*>(view.data) + at);
    }
    if (view.dtype == DType::kBF16) {
      const auto pair =
          *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(view.data) + at);
      return make_uint4(pair.x, pair.y, 0, 0);
    }
    return make_uint4(
        *reinterpret_cast<const unsigned*>(static_cast<const std::uint8_t*>(view.data) + at),
        load_scales(row), 0, 0);
  }
  // The scales of the four columns: one byte, or four where columns have their own.
  __device__ unsigned load_scales(int row) const {
    const std::uint8_t* scales =
        view.scales + group.scale_row(view.block_shape, row) * view.scale_strides.row +
        group.tile.head * view.scale_strides.head + mx::scale_col(view.block_shape, column);
    if (view.block_shape != BlockShape::k32x1) return scales[0] * 0x01010101u;
    return scales[0] | scales[1] << 8 | scales[2] << 16 | unsigned{scales[3]} << 24;
  }
  __device__ void unpack(uint4 words, float (&value)[4]) const {
    if (view.dtype == DType::kF32) {
      value[0] = __uint_as_float(words.x);
      value[1] = __uint_as_float(words.y);
      value[2] = __uint_as_float(words.z);
      value[3] = __uint_as_float(words.w);
    } else if (view.dtype == DType::kBF16) {
      value[0] = bf16_low(words.x);
      value[1] = bf16_high(words.x);
      value[2] = bf16_low(words.y);
      value[3] = bf16_high(words.y);
    } else {
      decode_quad<mx::E4M3>(words.x, value);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        value[j] *= mx::decode_e8m0(static_cast<std::uint8_t>(words.y >> (8 * j)));
      }
    }
  }
};

__device__ inline void store_bf16(std::uint16_t* target, const float (&value)[4]) {
  const auto pack = [](float low, float high) {
    return mx::encode_bf16(low) | unsigned{mx::encode_bf16(high)} << 16;
  };
  __stcs(reinterpret_cast<uint2*>(target),
         make_uint2(pack(value[0], value[1]), pack(value[2], value[3])));
}

// Calls load(i, row) for kRowsAtOnce rows that exist, then use(i, row) for each.
template <class Load, class Use>
__device__ void for_rows(const TokenGroup& group, Load load, Use use) {
  for (int first = 0; first < group.rows; first += kRowsAtOnce) {
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (first + i < group.rows) load(i, first + i);
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (first + i < group.rows) use(i, first + i);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    delta(const __grid_constant__ DeltaParams params) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = lane * 4;
  const bool active = column < params.head_dim;
  for_each_group(params.offsets, params.num_heads, [&](const TokenGroup& group) {
    const RowReader dout{params.dout, group, column}, o{params.o, group, column};
    float shift[4] = {};
    if (params.shift_v != nullptr && active) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        shift[j] = params.shift_v[group.tile.sequence * params.shift_batch_stride +
                                  std::int64_t{group.tile.head} * params.head_dim + column + j];
      }
    }
    uint4 dout_words[kRowsAtOnce], o_words[kRowsAtOnce];
    for_rows(
        group,
        [&](int i, int row) {
          dout_words[i] = active ? dout.load(row) : make_uint4(0, 0, 0, 0);
          o_words[i] = active ? o.load(row) : make_uint4(0, 0, 0, 0);
        },
        [&](int i, int row) {
          float dout_value[4], o_value[4];
          dout.unpack(dout_words[i], dout_value);
          o.unpack(o_words[i], o_value);
          double sum = 0;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            if (params.dout.dtype == DType::kF32) dout_value[j] = round_bf16(dout_value[j]);
            const double centred = __dsub_rn(double{o_value[j]}, double{shift[j]});
            sum = __dadd_rn(sum, __dmul_rn(double{dout_value[j]}, centred));
          }
#pragma unroll
          for (int distance = 16; distance > 0; distance /= 2) {
            sum = __dadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, distance));
          }
          if (lane == 0) {
            params.delta[group.tile.head * params.delta_head_stride + group.row0() + row] =
                __double2float_rn(sum);
          }
        });
  });
}

extern "C" __global__ void __launch_bounds__(kThreads)
    dequantize_bf16(const __grid_constant__ DequantizeParams params) {
  const int column = static_cast<int>(threadIdx.x) % 32 * 4;
  const bool active = column < params.head_dim;
  for_each_group(params.offsets, params.num_heads, [&](const TokenGroup& group) {
    if (!active) return;
    const RowReader input{params.input, group, column};
    std::uint16_t* target = params.out + group.row0() * params.out_row_stride +
                            group.tile.head * params.out_head_stride + column;
    uint4 words[kRowsAtOnce];
    for_rows(
        group, [&](int i, int row) { words[i] = input.load(row); },
        [&](int i, int row) {
          float value[4];
          input.unpack(words[i], value);
          store_bf16(target + row * params.out_row_stride, value);
        });
  });
}

extern "C" __global__ void __launch_bounds__(kThreads)
    finish_sums_bf16(const __grid_constant__ FinishSumsParams params) {
  const int column = static_cast<int>(threadIdx.x) % 32 * 4;
  const bool active = column < params.head_dim;
  for_each_group(params.offsets, params.num_heads, [&](const TokenGroup& group) {
    const SumsOfHead sums(params.sums, group.tile.sequence, params.num_heads, group.tile.head);
    const bool scaled = params.dtype == DType::kF16;
    const std::int64_t source_row =
        params.padded_rows ? group.tile.index * mx::kAtomRows + group.index * kScaleBlock
                           : group.row0();
    const std::int64_t source =
        source_row * params.row_stride + group.tile.head * params.head_stride + column;
    std::uint16_t* target = params.out + group.row0() * params.out_row_stride +
                            group.tile.head * params.out_head_stride + column;
    unsigned overflows = 0;
    uint4 words[kRowsAtOnce];
    for_rows(
        group,
        [&](int i, int row) {
          const std::int64_t at = source + row * params.row_stride;
          if (!active) return;
          if (scaled) {
            const auto pair = *reinterpret_cast<const uint2*>(
                static_cast<const std::uint16_t*>(params.data) + at);
            words[i] = make_uint4(pair.x, pair.y, 0, 0);
          } else {
            words[i] = *reinterpret_cast<const uint4*>(static_cast<const float*>(params.data) + at);
          }
        },
        [&](int i, int row) {
          if (!active) return;
          float value[4] = {__uint_as_float(words[i].x), __uint_as_float(words[i].y),
                            __uint_as_float(words[i].z), __uint_as_float(words[i].w)};
          if (scaled) {
            value[0] = f16_low(words[i].x);
            value[1] = f16_high(words[i].x);
            value[2] = f16_low(words[i].y);
            value[3] = f16_high(words[i].y);
#pragma unroll
            for (float& sum : value) sum = sums.finish(sum, group.row0() + row, overflows);
          }
          store_bf16(target + row * params.out_row_stride, value);
        });
    if (scaled) sums.report(overflows);
  });
}

}  // namespace mxfa::device
