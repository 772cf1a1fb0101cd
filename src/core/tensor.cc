#include "mxfa/tensor.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"

namespace mxfa {

std::int64_t TensorView::num_elements() const {
  std::int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= shape[i];
  return count;
}

bool TensorView::is_contiguous() const {
  std::int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != expected) return num_elements() == 0;
    expected *= shape[i];
  }
  return true;
}

TensorView make_tensor(void* data, DType dtype, std::span<const std::int64_t> shape) {
  core::expect(shape.size() <= kMaxRank, "shape", core::later("at most {} dimensions", kMaxRank),
               static_cast<std::int64_t>(shape.size()));
  TensorView view{.data = data, .dtype = dtype, .rank = static_cast<int>(shape.size())};
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    core::expect(shape[i] >= 0, "shape", "extents of at least 0", shape[i]);
    view.shape[i] = shape[i];
    view.strides[i] = stride;
    core::expect(!__builtin_mul_overflow(stride, shape[i], &stride), "shape",
                 "fewer than 2^63 elements", core::later("[{}]", fmt::join(shape, ", ")));
  }
  return view;
}

TensorView make_tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  return make_tensor(data, dtype, std::span(shape.begin(), shape.size()));
}

std::string describe(const TensorView& tensor) {
  // A view with a wrong rank is described by whoever refuses it.
  const auto rank = static_cast<std::size_t>(std::clamp(tensor.rank, 0, kMaxRank));
  const std::span dims(tensor.shape.data(), rank);
  return fmt::format("{} [{}]{}", dtype_name(tensor.dtype), fmt::join(dims, ", "),
                     tensor.rank == int(rank) ? "" : fmt::format(" of rank {}", tensor.rank));
}

}  // namespace mxfa
