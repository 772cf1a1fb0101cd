#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "mxfa/types.h"

namespace mxfa {

/// Most dimensions that a TensorView has.
inline constexpr int kMaxRank = 5;

/// A non-owning view of a strided tensor. Strides count elements and may be 0 or negative (not on a
/// device, and not 0 in outputs). Calls refuse views of 2^56 elements or bytes and more, and on a
/// device strides of 2^40 bytes and more.
///
/// No element of a call's output lies on one of another output, an input or the workspace: calls
/// refuse it, naming both tensors. Views that interleave are apart: heads of q, k and v in one
/// [tokens, heads, head_dim] buffer, or dq, dk and dv in another. Where strides tell more than 256
/// pieces apart (of two different orders of dimensions), the answer is left to the caller.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  /// Number of elements (product of the shape; 1 for rank 0).
  std::int64_t num_elements() const;
  /// True where elements lie in row-major order without gaps.
  bool is_contiguous() const;
  std::span<const std::int64_t> dims() const { return {shape.data(), std::size_t(rank)}; }
  /// The same view, not the same elements.
  bool operator==(const TensorView&) const = default;
};

/// A tensor of values, or of MXFP8 payload with its scales.
struct Tensor {
  TensorView values = {};
  TensorView scales = {};  ///< kE4M3 values only

  bool given() const { return values.rank != 0; }
  bool operator==(const Tensor&) const = default;
};

/// A row-major view. Throws Error where rank exceeds kMaxRank or an extent is negative.
TensorView make_tensor(void* data, DType dtype, std::span<const std::int64_t> shape);
TensorView make_tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape);

/// "bf16 [2, 128, 4, 64]": dtype and shape for messages.
std::string describe(const TensorView& tensor);

}  // namespace mxfa
