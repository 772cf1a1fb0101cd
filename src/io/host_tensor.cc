#include "io/host_tensor.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "core/check.h"
#include "mx/bits.h"

namespace mxfa::io {
namespace {

template <class T>
T load(const HostTensor& tensor, std::size_t index) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(HostTensor& tensor, std::size_t index, T value) {
  std::memcpy(tensor.bytes.data() + index * sizeof(T), &value, sizeof(T));
}

}  // namespace

std::int64_t checked_size_bytes(std::span<const std::int64_t> shape, std::size_t element_bytes) {
  std::int64_t size = static_cast<std::int64_t>(element_bytes);
  bool overflow = false;
  bool empty = false;
  // Empty tensors are held to the same limit, because strides are products of extents too.
  for (const std::int64_t extent : shape) {
    empty = empty || extent == 0;
    if (extent != 0) overflow = __builtin_mul_overflow(size, extent, &size) || overflow;
  }
  if (overflow) return -1;
  return empty ? 0 : size;
}

HostTensor HostTensor::zeros(DType dtype, std::span<const std::int64_t> shape) {
  HostTensor tensor{.dtype = dtype, .shape = {shape.begin(), shape.end()}, .bytes = {}};
  core::expect(shape.size() <= kMaxRank, "shape", fmt::format("at most {} dimensions", kMaxRank),
               core::text(static_cast<std::int64_t>(shape.size())));
  for (const std::int64_t extent : shape) {
    core::expect(extent >= 0, "shape", "extents of at least 0", core::text(extent));
  }
  const std::int64_t size = checked_size_bytes(shape, dtype_size(dtype));
  core::expect(size >= 0, "shape", "fewer than 2^63 bytes",
               fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", ")));
  tensor.bytes.resize(static_cast<std::size_t>(size));
  return tensor;
}

std::int64_t HostTensor::num_elements() const {
  return static_cast<std::int64_t>(bytes.size() / dtype_size(dtype));
}

TensorView HostTensor::view() { return make_tensor(bytes.data(), dtype, shape); }

TensorView HostTensor::view() const {
  return make_tensor(const_cast<std::byte*>(bytes.data()), dtype, shape);
}

std::vector<float> to_f32(const HostTensor& tensor) {
  const std::size_t count = static_cast<std::size_t>(tensor.num_elements());
  std::vector<float> values(count);
  switch (tensor.dtype) {
    case DType::kF64:
      for (std::size_t i = 0; i < count; ++i)
        values[i] = static_cast<float>(load<double>(tensor, i));
      return values;
    case DType::kF32:
      if (count > 0) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
      return values;
    case DType::kF16:
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = mx::decode_f16(load<std::uint16_t>(tensor, i));
      }
      return values;
    case DType::kBF16:
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = mx::decode_bf16(load<std::uint16_t>(tensor, i));
      }
      return values;
    default:
      core::expect(false, "dtype", "f64, f32, f16 or bf16", std::string(dtype_name(tensor.dtype)));
      return values;
  }
}

HostTensor from_f32(std::span<const float> values, DType dtype,
                    std::span<const std::int64_t> shape) {
  core::expect(dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16, "dtype",
               "f32, f16 or bf16", std::string(dtype_name(dtype)));
  HostTensor tensor = HostTensor::zeros(dtype, shape);
  core::expect(tensor.num_elements() == static_cast<std::int64_t>(values.size()), "values",
               fmt::format("{} elements", tensor.num_elements()), fmt::format("{}", values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      store(tensor, i, values[i]);
    } else if (dtype == DType::kF16) {
      store(tensor, i, mx::encode_f16(values[i]));
    } else {
      store(tensor, i, mx::encode_bf16(values[i]));
    }
  }
  return tensor;
}

std::vector<std::int32_t> to_i32(const HostTensor& tensor, std::string_view argument) {
  core::expect(tensor.dtype == DType::kI32 || tensor.dtype == DType::kI64, argument,
               "dtype i32 or i64", std::string(dtype_name(tensor.dtype)));
  const std::size_t count = static_cast<std::size_t>(tensor.num_elements());
  std::vector<std::int32_t> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t value =
        tensor.dtype == DType::kI32 ? load<std::int32_t>(tensor, i) : load<std::int64_t>(tensor, i);
    using Limits = std::numeric_limits<std::int32_t>;
    core::expect(value >= Limits::min() && value <= Limits::max(), argument,
                 "values that fit 32 bits", fmt::format("{} at index {}", value, i));
    values[i] = static_cast<std::int32_t>(value);
  }
  return values;
}

}  // namespace mxfa::io
