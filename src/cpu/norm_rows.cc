#include "cpu/norm_rows.h"

#include "core/check.h"
#include "cpu/kernels.h"
#include "mx/bits.h"
#include "mx/convert.h"

namespace mxfa::cpu {
namespace {

void check_dtype(const TensorView& tensor, std::string_view name, NormRole role) {
  const bool half = tensor.dtype == DType::kF16 && role == NormRole::kInput;
  core::expect(half || tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF32, name,
               role == NormRole::kInput ? "bf16, f16 or f32" : "bf16 or f32", tensor);
}

struct Row {
  std::int64_t offset;
  std::int64_t stride;
  std::int64_t count;
};
Row row_of(const TensorView& tensor, std::int64_t row) {
  const int last = tensor.rank - 1;
  return {tensor.rank == 2 ? row * tensor.strides[0] : 0, tensor.strides[last], tensor.shape[last]};
}

}  // namespace

void check_norm_rows(const TensorView& tensor, std::string_view name, NormRole role,
                     std::int64_t rows, std::int64_t dim) {
  check_dtype(tensor, name, role);
  core::expect(tensor.rank == 2 && tensor.shape[0] >= rows && tensor.shape[1] == dim, name,
               core::later("[{}, {}]", rows, dim), tensor);
}
void check_norm_vector(const TensorView& tensor, std::string_view name, NormRole role,
                       std::int64_t dim) {
  check_dtype(tensor, name, role);
  core::expect(tensor.rank == 1 && tensor.shape[0] == dim, name, core::later("[{}]", dim), tensor);
}

const float* read_norm_row(const TensorView& tensor, std::int64_t row, std::vector<float>& buffer) {
  const auto [offset, stride, count] = row_of(tensor, row);
  if (tensor.dtype == DType::kF32) {
    const float* const from = static_cast<const float*>(tensor.data) + offset;
    if (stride == 1) return from;
    buffer.resize(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) buffer[i] = from[i * stride];
    return buffer.data();
  }
  buffer.resize(static_cast<std::size_t>(count));
  const auto* const from = static_cast<const std::uint16_t*>(tensor.data) + offset;
  const auto decode = tensor.dtype == DType::kF16 ? mx::decode_f16_row : mx::decode_bf16_row;
  if (stride == 1) {
    decode(from, buffer.data(), count);
  } else {
    for (std::int64_t i = 0; i < count; ++i) decode(from + i * stride, buffer.data() + i, 1);
  }
  return buffer.data();
}

void write_norm_row(const TensorView& tensor, std::int64_t row, const float* values) {
  const auto [offset, stride, count] = row_of(tensor, row);
  if (tensor.dtype == DType::kF32) {
    float* const to = static_cast<float*>(tensor.data) + offset;
    for (std::int64_t i = 0; i < count; ++i) to[i * stride] = values[i];
    return;
  }
  auto* const to = static_cast<std::uint16_t*>(tensor.data) + offset;
  if (stride == 1) return kernels().round_bf16(values, to, count);
  for (std::int64_t i = 0; i < count; ++i) to[i * stride] = mx::encode_bf16(values[i]);
}

}  // namespace mxfa::cpu
