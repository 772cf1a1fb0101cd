#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "mxfa/tensor.h"

/// Rows of RMSNorm's inputs and outputs. Internal to the norms.
namespace mxfa::cpu {

enum class NormRole : std::uint8_t { kInput, kOutput };
/// Throws Error naming `name` where it is not [at least `rows`, dim] or [dim], of bf16, f32 or
/// (inputs) f16.
void check_norm_rows(const TensorView& tensor, std::string_view name, NormRole role,
                     std::int64_t rows, std::int64_t dim);
void check_norm_vector(const TensorView& tensor, std::string_view name, NormRole role,
                       std::int64_t dim);

/// Row `row` of a matrix, or the whole of a vector, in FP32: in place where it is stored so, else
/// through the buffer.
const float* read_norm_row(const TensorView& tensor, std::int64_t row, std::vector<float>& buffer);
/// Rounds to kBF16 or kF32.
void write_norm_row(const TensorView& tensor, std::int64_t row, const float* values);

}  // namespace mxfa::cpu
