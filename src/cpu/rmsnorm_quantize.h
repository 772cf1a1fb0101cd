#pragma once

#include <cstdint>
#include <span>

namespace mxfa::cpu {

struct RmsNormQuantizeOutputs {
  std::span<std::uint8_t> codes;        ///< E4M3 [rows, dim]
  std::span<std::uint8_t> scales_dim;   ///< tiled 128x4, rows = rows, k blocks = dim / 32
  std::span<std::uint8_t> scales_rows;  ///< tiled 128x4, rows = dim, k blocks = ceil(rows / 32)
  std::span<float> rstd;                ///< [rows]
};

/// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), in FP32 with the sum in the order of
/// mx/row_sum.h; quantized in 32x32 squares counted from row 0. x BF16 [rows, dim], weight BF16
/// [dim]. Bit-equal to the GPU's kernel. Throws Error where a size does not fit.
void rmsnorm_quantize(std::span<const std::uint16_t> x, std::span<const std::uint16_t> weight,
                      float eps, const RmsNormQuantizeOutputs& outputs);

}  // namespace mxfa::cpu
