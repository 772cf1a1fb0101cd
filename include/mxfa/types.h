#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mxfa {

/// Element types of tensors.
enum class DType : std::uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kE4M3,  ///< 8-bit float: 1 sign, 4 exponent, 3 mantissa bits; maximum 448, NaN 0x7F, no infinity
  kE5M2,  ///< 8-bit float: 1 sign, 5 exponent, 2 mantissa bits; maximum 57344
  kE8M0,  ///< power-of-two scale: byte b is 2^(b-127), 255 is NaN, there is no zero
  kI64,
  kI32,
  kU8,
};

/// The machine that an operation runs on, and whose memory its tensors are in.
enum class Backend : std::uint8_t {
  kCpu,        ///< host memory, all cores
  kHopper,     ///< refused with Error(kUnsupported) by builds without its kernels
  kBlackwell,  ///< likewise
};

/// Size of one element in bytes.
std::size_t dtype_size(DType dtype);
/// Short lower-case name, as in messages ("bf16", "e4m3").
std::string_view dtype_name(DType dtype);

/// How a block's scale follows from its largest magnitude (OCP MX v1.0 section 6.3 for kFloor).
enum class ScaleRule : std::uint8_t {
  kRoundUp,  ///< the smallest power of two >= amax / (largest payload): never saturates; default
  kFloor,    ///< 2^(floor(log2 amax) - emax): the largest value of a block may saturate
};

/// Which values share one scale, as rows (tokens) x columns (head_dim) of a [tokens, D] matrix.
enum class BlockShape : std::uint8_t {
  k1x32,   ///< 32 consecutive columns of one token: scales along D
  k32x1,   ///< 32 consecutive tokens of one column: scales along the sequence
  k32x32,  ///< square: one payload serves both orientations
  k32xD,   ///< 32 tokens x the whole head_dim: an MXFP8 tensor whose D/32 scales are equal
  k1xD,    ///< one token x the whole head_dim: no scale is shared by two tokens
};
std::string_view block_shape_name(BlockShape shape);

/// How the scales of a matrix lie in memory.
enum class ScaleLayout : std::uint8_t {
  kRowMajor,    ///< compact: [rows, column blocks]
  kTiled128x4,  ///< 512-byte atoms of 128 rows x 4 scales, as block-scaled tensor cores read them
};

/// The GEMM K dimension that scales of a [tokens, head_dim] matrix lie along, in the tiled layout.
enum class ScaleAxis : std::uint8_t {
  kHeadDim,  ///< rows are tokens, K blocks are 32 columns: operands of S = Q K^T and dP = dO V^T
  kTokens,   ///< rows are columns of head_dim, K blocks are 32 tokens: operands of P V, dS K, ...
};
std::string_view scale_axis_name(ScaleAxis axis);

/// Where the causal diagonal ends when seqlen_q != seqlen_k.
enum class CausalAlignment : std::uint8_t {
  kBottomRight,  ///< query i sees keys j <= i + seqlen_k - seqlen_q; default
  kTopLeft,      ///< query i sees keys j <= i
};

/// Values that share one scale.
inline constexpr int kScaleBlock = 32;

}  // namespace mxfa
