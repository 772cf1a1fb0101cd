#pragma once

#include <optional>
#include <span>
#include <vector>

#include "dispatch/gpu/device_call.h"
#include "mxfa/quantize.h"

namespace mxfa::testing {

/// Payload and scales of a packed BF16 tensor, made on the host and put on the device.
class Payload {
 public:
  Payload(const std::vector<std::uint16_t>& bf16, const std::vector<std::int64_t>& shape,
          std::vector<std::int32_t> cu, BlockShape block_shape = BlockShape::k32xD)
      : scale_dims_(max_scale_shape(shape, std::ssize(cu) - 1, {.block_shape = block_shape})) {
    std::int64_t count = 1;
    for (const std::int64_t extent : scale_dims_) count *= extent;
    std::vector<std::uint8_t> codes(bf16.size()), scales(static_cast<std::size_t>(count));
    std::vector<std::uint16_t> input = bf16;
    quantize(make_tensor(input.data(), DType::kBF16, shape),
             make_tensor(codes.data(), DType::kE4M3, shape),
             make_tensor(scales.data(), DType::kE8M0, scale_dims_),
             {.block_shape = block_shape,
              .cu_seqlens = make_tensor(cu.data(), DType::kI32, {std::ssize(cu)})});
    codes_.emplace(codes);
    scales_.emplace(scales);
  }
  Tensor tensor(std::span<const std::int64_t> dims) const {
    return {make_tensor(codes_->data(), DType::kE4M3, dims),
            make_tensor(scales_->data(), DType::kE8M0, scale_dims_)};
  }
  std::vector<std::uint8_t> codes() const { return codes_->download(); }
  std::vector<std::uint8_t> scales() const { return scales_->download(); }

 private:
  std::vector<std::int64_t> scale_dims_;
  std::optional<DeviceArray<std::uint8_t>> codes_, scales_;
};

/// Payload and scales that a call on the device writes, of a packed tensor; poisoned.
class Mxfp8Output {
 public:
  Mxfp8Output(const std::vector<std::int64_t>& shape, std::int64_t batch, BlockShape block_shape)
      : shape_(shape),
        scale_dims_(max_scale_shape(shape, batch, {.block_shape = block_shape})),
        codes_(product(shape)),
        scales_(product(scale_dims_)) {}
  Tensor tensor() const { return tensor(shape_); }
  /// Of other dimensions: dense.
  Tensor tensor(std::span<const std::int64_t> dims) const {
    return {make_tensor(codes_.data(), DType::kE4M3, dims),
            make_tensor(scales_.data(), DType::kE8M0, scale_dims_)};
  }
  std::vector<std::uint8_t> codes() const { return codes_.download(); }
  std::vector<std::uint8_t> scales() const { return scales_.download(); }

 private:
  static std::int64_t product(const std::vector<std::int64_t>& extents) {
    std::int64_t count = 1;
    for (const std::int64_t extent : extents) count *= extent;
    return count;
  }

  std::vector<std::int64_t> shape_, scale_dims_;
  DeviceArray<std::uint8_t> codes_, scales_;
};

/// A tiled copy of scales that a call on the device writes, of a packed tensor, with a tile more
/// than needed; poisoned.
class TiledOutput {
 public:
  TiledOutput(const std::vector<std::int64_t>& shape, std::int64_t batch,
              const QuantizeOptions& options)
      : shape_(shape), options_(options), dims_(dims_of(shape, batch, options)), bytes_(count()) {}
  TensorView view() const { return make_tensor(bytes_.data(), DType::kE8M0, dims_); }
  std::vector<std::uint8_t> bytes() const { return bytes_.download(); }
  /// What the host makes of row-major scales.
  std::vector<std::uint8_t> tiled(const Payload& payload) const {
    std::vector<std::uint8_t> scales = payload.scales(), result(count(), 0xFF);
    TensorView compact = payload.tensor(shape_).scales;
    compact.data = scales.data();
    tile_scales(shape_, compact, make_tensor(result.data(), DType::kE8M0, dims_), options_);
    return result;
  }

 private:
  static std::vector<std::int64_t> dims_of(const std::vector<std::int64_t>& shape,
                                           std::int64_t batch, QuantizeOptions options) {
    options.layout = ScaleLayout::kTiled128x4;
    std::vector<std::int64_t> dims = max_scale_shape(shape, batch, options);
    ++dims[1];
    return dims;
  }
  std::size_t count() const {
    return static_cast<std::size_t>(dims_[0] * dims_[1] * dims_[2] * dims_[3]);
  }

  std::vector<std::int64_t> shape_;
  QuantizeOptions options_;
  std::vector<std::int64_t> dims_;
  DeviceArray<std::uint8_t> bytes_;
};

}  // namespace mxfa::testing
