#include "io/host_tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "mxfa/error.h"

namespace mxfa::io {
namespace {

template <class T>
HostTensor tensor_of(DType dtype, const std::vector<T>& values) {
  HostTensor tensor = HostTensor::zeros(dtype, std::vector{std::int64_t(values.size())});
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

TEST(HostTensor, FloatsConvertToF32) {
  EXPECT_EQ(to_f32(tensor_of<double>(DType::kF64, {1.5, 0.1, -1e300})),
            (std::vector<float>{1.5F, 0.1F, -std::numeric_limits<float>::infinity()}));
  EXPECT_EQ(to_f32(tensor_of<float>(DType::kF32, {1.5F, -0.0F})), (std::vector<float>{1.5F, 0.0F}));
  EXPECT_EQ(
      to_f32(tensor_of<std::uint16_t>(DType::kF16, {0x3C00, 0x0001, 0xFC00})),
      (std::vector<float>{1.0F, std::ldexp(1.0F, -24), -std::numeric_limits<float>::infinity()}));
  EXPECT_EQ(to_f32(tensor_of<std::uint16_t>(DType::kBF16, {0x3F80, 0xC000})),
            (std::vector<float>{1.0F, -2.0F}));
  EXPECT_THROW(to_f32(tensor_of<std::uint8_t>(DType::kE4M3, {1})), Error);
}

TEST(HostTensor, F32ConvertsBack) {
  const std::vector<float> values = {1.0F, -2.5F, 0.0F, 3e-8F};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const HostTensor tensor = from_f32(values, dtype, std::vector<std::int64_t>{2, 2});
    EXPECT_EQ(to_f32(from_f32(to_f32(tensor), dtype, tensor.shape)), to_f32(tensor));
    EXPECT_EQ(to_f32(tensor)[1], -2.5F);
  }
  EXPECT_THROW(from_f32(values, DType::kF32, std::vector<std::int64_t>{3}), Error);
  EXPECT_THROW(from_f32(values, DType::kI32, std::vector<std::int64_t>{4}), Error);
}

TEST(HostTensor, IntegersNarrowOrAreRefused) {
  EXPECT_EQ(to_i32(tensor_of<std::int64_t>(DType::kI64, {0, 7, -1}), "cu"),
            (std::vector<std::int32_t>{0, 7, -1}));
  try {
    to_i32(tensor_of<std::int64_t>(DType::kI64, {0, std::int64_t{1} << 32}), "cu_seqlens_q");
    FAIL() << "2^32 was narrowed";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "cu_seqlens_q: expected values that fit 32 bits, got 4294967296 at index 1");
  }
  EXPECT_THROW(to_i32(tensor_of<float>(DType::kF32, {0.0F}), "cu"), Error);
}

TEST(HostTensor, SizesAreChecked) {
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(checked_size_bytes(Shape{2, 3}, 4), 24);
  EXPECT_EQ(checked_size_bytes(Shape{}, 4), 4);
  EXPECT_EQ(checked_size_bytes(Shape{2, 0}, 4), 0);
  EXPECT_EQ(checked_size_bytes(Shape{std::int64_t{1} << 61, 1}, 4), -1);
  EXPECT_EQ(checked_size_bytes(Shape{0, std::int64_t{1} << 61, 4}, 1), -1);
  EXPECT_THROW(HostTensor::zeros(DType::kU8, Shape{-1}), Error);
  EXPECT_THROW(HostTensor::zeros(DType::kU8, Shape{1, 1, 1, 1, 1, 1}), Error);
  EXPECT_THROW(HostTensor::zeros(DType::kU8, Shape{std::int64_t{1} << 62, 2}), Error);
}

}  // namespace
}  // namespace mxfa::io
