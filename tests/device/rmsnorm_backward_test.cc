#include <gtest/gtest.h>

#include <limits>

#include "cpu/rmsnorm.h"
#include "mx/bits.h"
#include "support/device_batch.h"
#include "support/rng.h"

namespace mxfa::device {
namespace {

struct Case {
  const char* name;
  std::int64_t rows;
  std::int64_t dim;
  DType x = DType::kBF16, dy = DType::kBF16, dx = DType::kBF16, weight = DType::kBF16;
  std::int64_t gap = 0;  ///< elements between rows of x, dy and dx
  float corner = 0.0f;   ///< planted in x and dy
};

class RmsNormBackward : public ::testing::TestWithParam<Case> {};

/// A matrix or vector of one dtype with gaps of NaN between rows.
struct Values {
  std::vector<std::uint8_t> bytes;
  DType dtype;
  std::int64_t rows, dim, stride;

  Values(DType type, std::int64_t row_count, std::int64_t columns, std::int64_t gap)
      : bytes(static_cast<std::size_t>(row_count * (columns + gap)) * dtype_size(type), 0xFF),
        dtype(type),
        rows(row_count),
        dim(columns),
        stride(columns + gap) {}
  void set(std::int64_t row, std::int64_t column, float value) {
    const auto at = static_cast<std::size_t>(row * stride + column);
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + at * 4, &value, 4);
    } else {
      const std::uint16_t code = mx::encode_bf16(value);
      std::memcpy(bytes.data() + at * 2, &code, 2);
    }
  }
  static Values random(DType type, std::int64_t rows, std::int64_t dim, std::int64_t gap,
                       std::uint64_t seed, float corner) {
    Values result(type, rows, dim, gap);
    testing::Rng rng(seed);
    for (std::int64_t i = 0; i < rows * dim; ++i) {
      result.set(i / dim, i % dim, static_cast<float>(rng.normal()));
    }
    if (corner != 0.0f && rows > 0) result.set(rows - 1, 0, corner);
    return result;
  }
  TensorView matrix() {
    return {.data = bytes.data(),
            .dtype = dtype,
            .rank = 2,
            .shape = {rows, dim},
            .strides = {stride, 1}};
  }
  TensorView vector() {
    return {.data = bytes.data(), .dtype = dtype, .rank = 1, .shape = {dim}, .strides = {1}};
  }
  testing::Guarded upload() const {
    return testing::machine().upload(std::span<const std::uint8_t>(bytes));
  }
  NormTensor on(const testing::Guarded& buffer) const {
    return {.data = buffer.as<void>(), .dtype = dtype, .row_stride = stride};
  }
  /// As compared: NaNs alike.
  static void expect_same(const testing::Guarded& got, const Values& want, const char* label) {
    EXPECT_TRUE(got.guards_intact()) << label << ": wrote outside";
    if (want.dtype == DType::kF32) {
      std::vector<float> values(want.bytes.size() / 4);
      if (!values.empty()) std::memcpy(values.data(), want.bytes.data(), want.bytes.size());
      EXPECT_TRUE(testing::bitwise_equal(testing::canonical(got.download<float>()),
                                         testing::canonical(values),
                                         {.label = label, .cols = want.stride}));
    } else {
      std::vector<std::uint16_t> codes(want.bytes.size() / 2);
      if (!codes.empty()) std::memcpy(codes.data(), want.bytes.data(), want.bytes.size());
      EXPECT_TRUE(testing::bitwise_equal(testing::canonical_bf16(got.download<std::uint16_t>()),
                                         testing::canonical_bf16(codes),
                                         {.label = label, .cols = want.stride}));
    }
  }
};

TEST_P(RmsNormBackward, BitEqualToTheCpu) {
  const Case& test = GetParam();
  Values x = Values::random(test.x, test.rows, test.dim, test.gap, 1, test.corner);
  Values dy = Values::random(test.dy, test.rows, test.dim, test.gap, 2, test.corner);
  Values weight = Values::random(test.weight, 1, test.dim, 0, 3, 0.0f);
  Values dx(test.dx, test.rows, test.dim, test.gap);
  Values dweight(test.weight, 1, test.dim, 0);
  std::vector<float> rstd(static_cast<std::size_t>(test.rows));
  testing::Rng rng(4);
  for (float& value : rstd) value = static_cast<float>(rng.uniform(0.5, 2.0));
  const TensorView rstd_view = make_tensor(rstd.data(), DType::kF32, {test.rows});
  cpu::rmsnorm_backward({.dy = dy.matrix(),
                         .x = x.matrix(),
                         .weight = weight.vector(),
                         .rstd = rstd_view,
                         .rows = test.rows,
                         .dx = dx.matrix(),
                         .dweight = dweight.vector()});

  testing::Machine& machine = testing::machine();
  const auto x_d = x.upload(), dy_d = dy.upload(), weight_d = weight.upload();
  const auto rstd_d = machine.upload(std::span<const float>(rstd));
  const auto partial = machine.poisoned(static_cast<std::size_t>(
      rmsnorm_backward_scratch_bytes(test.rows, static_cast<std::int32_t>(test.dim))));
  // Both together, and each alone.
  for (const int outputs : {3, 1, 2}) {
    const auto dx_d = machine.poisoned(dx.bytes.size());
    const auto dweight_d = machine.poisoned(dweight.bytes.size());
    rmsnorm_backward(machine.queue(),
                     {.dy = dy.on(dy_d),
                      .x = x.on(x_d),
                      .weight = weight.on(weight_d),
                      .rstd = rstd_d.as<const float>(),
                      .dx = (outputs & 1) != 0 ? dx.on(dx_d) : NormTensor{},
                      .dweight = (outputs & 2) != 0 ? dweight.on(dweight_d) : NormTensor{},
                      .partial = partial.as<float>(),
                      .rows = test.rows,
                      .dim = static_cast<std::int32_t>(test.dim)});
    machine.synchronize();
    if ((outputs & 1) != 0) Values::expect_same(dx_d, dx, "dx");
    if ((outputs & 2) != 0) Values::expect_same(dweight_d, dweight, "dweight");
    EXPECT_TRUE(partial.guards_intact());
  }
}

constexpr DType kBF16 = DType::kBF16, kF32 = DType::kF32;

INSTANTIATE_TEST_SUITE_P(
    Shapes, RmsNormBackward,
    ::testing::Values(Case{"empty", 0, 128}, Case{"one_row", 1, 32}, Case{"tail", 33, 96},
                      Case{"chunk", 256, 128}, Case{"two_chunks", 300, 256},
                      Case{"d384", 1000, 384}, Case{"d512", 2100, 512}, Case{"d672", 70, 672},
                      Case{"d1024", 300, 1024}, Case{"d1152", 280, 1152}, Case{"d2080", 40, 2080},
                      Case{"d4096", 130, 4096}, Case{"d5120", 20, 5120}, Case{"d16384", 9, 16384},
                      Case{"many_chunks", 40000, 32}, Case{"f32", 70, 384, kF32, kF32, kF32, kF32},
                      Case{"f32_wide", 9, 16384, kF32, kF32, kF32, kF32},
                      Case{"f32_8192", 9, 8192, kF32, kF32, kF32, kF32},
                      Case{"f32_x", 70, 512, kF32, kBF16, kBF16, kF32},
                      Case{"f32_dy", 70, 512, kBF16, kF32, kF32, kBF16},
                      Case{"gaps", 70, 384, kBF16, kF32, kBF16, kBF16, 8},
                      Case{"infinite", 40, 256, kBF16, kBF16, kF32, kF32, 0,
                           std::numeric_limits<float>::infinity()}),
    [](const auto& spec) { return spec.param.name; });

}  // namespace
}  // namespace mxfa::device
