#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "mx/bits.h"
#include "mxfa/tensor.h"

/// Host tensors with poison and guards, for tests of the public API.
namespace mxfa::testing {

/// Owns a contiguous tensor between two guard zones; the elements start as 0xFF bytes, which are
/// NaN in every float format.
class OwnedTensor {
 public:
  OwnedTensor(DType dtype, std::span<const std::int64_t> shape)
      : view_(make_tensor(nullptr, dtype, shape)) {
    const auto size = static_cast<std::size_t>(view_.num_elements()) * dtype_size(dtype);
    bytes_.assign(size + 2 * kGuard, 0xA5);
    std::memset(bytes_.data() + kGuard, 0xFF, size);
    view_.data = bytes_.data() + kGuard;
  }
  OwnedTensor(DType dtype, std::initializer_list<std::int64_t> shape)
      : OwnedTensor(dtype, std::span(shape.begin(), shape.size())) {}
  OwnedTensor(const OwnedTensor&) = delete;
  OwnedTensor& operator=(const OwnedTensor&) = delete;

  const TensorView& view() const { return view_; }
  std::span<std::uint8_t> bytes() { return {bytes_.data() + kGuard, bytes_.size() - 2 * kGuard}; }
  template <class T>
  std::span<T> as() {
    return {static_cast<T*>(view_.data), static_cast<std::size_t>(view_.num_elements())};
  }
  bool guards_intact() const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (bytes_[i] != 0xA5 || bytes_[bytes_.size() - 1 - i] != 0xA5) return false;
    }
    return true;
  }
  /// Element i of a float tensor becomes values[i], rounded to its dtype.
  void fill(std::span<const float> values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (view_.dtype == DType::kF32) as<float>()[i] = values[i];
      if (view_.dtype == DType::kBF16) as<std::uint16_t>()[i] = mx::encode_bf16(values[i]);
      if (view_.dtype == DType::kF16) as<std::uint16_t>()[i] = mx::encode_f16(values[i]);
    }
  }

 private:
  static constexpr std::size_t kGuard = 64;
  TensorView view_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace mxfa::testing
