#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mxfa/tensor.h"

namespace mxfa::io {

/// A row-major tensor that owns its elements; what files are read into and written from.
struct HostTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  /// All bytes zero. Throws Error where the shape is
  /// negative, has more than kMaxRank dimensions or overflows 63 bits of bytes.
  static HostTensor zeros(DType dtype, std::span<const std::int64_t> shape);

  std::int64_t num_elements() const;
  TensorView view();
  /// A view for readers; TensorView has no const form.
  TensorView view() const;
};

/// f32, f16 and bf16 exactly, f64 rounded to nearest. Any other dtype throws Error.
std::vector<float> to_f32(const HostTensor& tensor);

/// f32, f16 or bf16 by round to nearest even. Throws Error where `values` does not fill the shape
/// or the dtype is another one.
HostTensor from_f32(std::span<const float> values, DType dtype,
                    std::span<const std::int64_t> shape);

/// i32 and i64, the latter checked to fit 32 bits. Throws Error naming `argument` otherwise.
std::vector<std::int32_t> to_i32(const HostTensor& tensor, std::string_view argument);

/// Bytes of a tensor, or -1 where the size overflows 63 bits, zero extents left out of the product.
/// Extents must not be negative.
std::int64_t checked_size_bytes(std::span<const std::int64_t> shape, std::size_t element_bytes);

}  // namespace mxfa::io
