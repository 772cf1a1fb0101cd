#pragma once

#include <span>
#include <vector>

#include "dispatch/gpu/device_call.h"
#include "mxfa/quantize.h"

namespace mxfa::testing {

/// Payload and scales of a packed BF16 tensor, made on the host and put on the device.
struct Payload {
  Payload(const std::vector<std::uint16_t>& bf16, std::vector<std::int64_t> shape,
          std::vector<std::int32_t> cu)
      : Payload(bf16, shape, cu, scale_shape_of(shape, cu)) {}
  Tensor tensor(std::span<const std::int64_t> dims) const {
    return {make_tensor(codes_.data(), DType::kE4M3, dims),
            make_tensor(scales_.data(), DType::kE8M0, scale_dims_)};
  }

 private:
  static std::vector<std::int64_t> scale_shape_of(const std::vector<std::int64_t>& shape,
                                                  std::vector<std::int32_t>& cu) {
    return max_scale_shape(shape, std::ssize(cu) - 1, {.block_shape = BlockShape::k32xD});
  }
  static std::vector<std::uint8_t> quantized(const std::vector<std::uint16_t>& bf16,
                                             const std::vector<std::int64_t>& shape,
                                             std::vector<std::int32_t>& cu,
                                             std::vector<std::int64_t> scale_dims, bool codes) {
    std::vector<std::uint8_t> payload(bf16.size());
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(scale_dims[0] * scale_dims[1]));
    std::vector<std::uint16_t> input = bf16;
    quantize(make_tensor(input.data(), DType::kBF16, shape),
             make_tensor(payload.data(), DType::kE4M3, shape),
             make_tensor(scales.data(), DType::kE8M0, scale_dims),
             {.block_shape = BlockShape::k32xD,
              .cu_seqlens = make_tensor(cu.data(), DType::kI32, {std::ssize(cu)})});
    return codes ? payload : scales;
  }
  Payload(const std::vector<std::uint16_t>& bf16, const std::vector<std::int64_t>& shape,
          std::vector<std::int32_t> cu, std::vector<std::int64_t> scale_dims)
      : scale_dims_(scale_dims),
        codes_(quantized(bf16, shape, cu, scale_dims, true)),
        scales_(quantized(bf16, shape, cu, scale_dims, false)) {}

  std::vector<std::int64_t> scale_dims_;
  DeviceArray<std::uint8_t> codes_, scales_;
};

}  // namespace mxfa::testing
