#include "device/rowwise.cuh"
#include "device/scaled_sums.cuh"

namespace mxfa::device {
namespace {

constexpr int kThreads = 256;

__device__ inline void store_bf16(std::uint16_t* target, const float (&value)[kLaneColumns]) {
  unsigned words[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) words[w] = encode_bf16_pair(value[2 * w], value[2 * w + 1]);
  __stcs(reinterpret_cast<uint4*>(target), make_uint4(words[0], words[1], words[2], words[3]));
}

template <int kLanes>
__device__ void dequantize_rows(const DequantizeParams& params) {
  const RowMap<kLanes> map;
  for_each_group(params.offsets, params.num_heads, [&](const TokenGroup& group) {
    const RowReader<DType::kE4M3> input(params.input, group, map.column);
    std::uint16_t* target = params.out + group.row0() * params.out_row_stride +
                            group.tile.head * params.out_head_stride + map.column;
    RowReader<DType::kE4M3>::Words words[kRowsInFlight];
    map.for_rows(
        group.rows, params.head_dim, [&](int i, int row) { words[i] = input.load(row); },
        [&](int i, int row, bool exists) {
          if (!exists) return;
          float value[kLaneColumns];
          input.unpack(words[i], value);
          store_bf16(target + row * params.out_row_stride, value);
        });
  });
}

template <DType kType, int kLanes>
__device__ void finish_rows(const FinishSumsParams& params) {
  const RowMap<kLanes> map;
  for_each_group(params.offsets, params.num_heads, [&](const TokenGroup& group) {
    const SumsOfHead sums(params.sums, group.tile.sequence, params.num_heads, group.tile.head);
    RowsView view{.data = params.data,
                  .dtype = kType,
                  .row_stride = params.row_stride,
                  .head_stride = params.head_stride};
    TokenGroup source = group;
    if (params.padded_rows) source.tile.row0 = group.tile.index * mx::kAtomRows;
    const RowReader<kType> input(view, source, map.column);
    std::uint16_t* target = params.out + group.row0() * params.out_row_stride +
                            group.tile.head * params.out_head_stride + map.column;
    unsigned overflows = 0;
    typename RowReader<kType>::Words words[kRowsInFlight];
    map.for_rows(
        group.rows, params.head_dim, [&](int i, int row) { words[i] = input.load(row); },
        [&](int i, int row, bool exists) {
          if (!exists) return;
          float value[kLaneColumns];
          input.unpack(words[i], value);
          sums.finish<kType == DType::kF16>(
              value, [&](int) { return group.row0() + row; }, overflows);
          store_bf16(target + row * params.out_row_stride, value);
        });
    sums.report(overflows);
  });
}

}  // namespace

// Blocks that a multiprocessor is to hold: FP32 rows want more registers.
#define MXFA_DELTA(dout_name, dout, o_name, o, blocks)                           \
  extern "C" __global__ void __launch_bounds__(kThreads, blocks)                 \
      delta_##dout_name##_##o_name(const __grid_constant__ DeltaParams params) { \
    delta<DType::dout, DType::o>(params);                                        \
  }
MXFA_DELTA(e4m3, kE4M3, e4m3, kE4M3, 3)
MXFA_DELTA(e4m3, kE4M3, bf16, kBF16, 3)
MXFA_DELTA(e4m3, kE4M3, f32, kF32, 2)
MXFA_DELTA(bf16, kBF16, e4m3, kE4M3, 3)
MXFA_DELTA(bf16, kBF16, bf16, kBF16, 3)
MXFA_DELTA(bf16, kBF16, f32, kF32, 2)
MXFA_DELTA(f32, kF32, e4m3, kE4M3, 2)
MXFA_DELTA(f32, kF32, bf16, kBF16, 2)
MXFA_DELTA(f32, kF32, f32, kF32, 2)

extern "C" __global__ void __launch_bounds__(kThreads)
    dequantize_bf16(const __grid_constant__ DequantizeParams params) {
  if (params.head_dim > 64) {
    dequantize_rows<16>(params);
  } else {
    dequantize_rows<8>(params);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    finish_sums_f32(const __grid_constant__ FinishSumsParams params) {
  if (params.head_dim > 64) {
    finish_rows<DType::kF32, 16>(params);
  } else {
    finish_rows<DType::kF32, 8>(params);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    finish_sums_f16(const __grid_constant__ FinishSumsParams params) {
  if (params.head_dim > 64) {
    finish_rows<DType::kF16, 16>(params);
  } else {
    finish_rows<DType::kF16, 8>(params);
  }
}

}  // namespace mxfa::device
