#include <gtest/gtest.h>

#include "cpu/rmsnorm.h"
#include "cpu/rmsnorm_quantize.h"
#include "quantize_call.h"
#include "support/bf16.h"

/// Tensors of more than 2^32 elements: up to 30 GB a call, so on a GPU only.
namespace mxfa::device {
namespace {

constexpr std::int64_t kFarElements = std::int64_t{1} << 32;
/// Not a power of two, so that what wraps around at 2^31 or 2^32 elements or bytes meets another
/// value of the period.
constexpr std::int64_t kDim = 384;
constexpr std::int64_t kPeriod = 4096;  ///< rows after which every input begins again
/// A tile and a part of one behind kFarElements.
constexpr std::int64_t kRows = (kFarElements / kDim / mx::kAtomRows + 2) * mx::kAtomRows + 37;
constexpr std::int64_t kPeriods = kRows / kPeriod;
constexpr std::int64_t kTail = kRows % kPeriod;

using Bytes = std::vector<std::uint8_t>;

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto* first = reinterpret_cast<const std::uint8_t*>(values.data());
  return {first, first + values.size() * sizeof(T)};
}

/// Device memory of any size, poisoned, of which parts are copied.
class FarBuffer {
 public:
  explicit FarBuffer(std::int64_t size)
      : buffer_(testing::machine().device(), static_cast<std::size_t>(size)), size_(size) {
    buffer_.fill(0xFF);
  }
  CUdeviceptr address() const { return buffer_.address(); }
  std::int64_t size() const { return size_; }

  Bytes download(std::int64_t begin, std::int64_t count) const {
    const driver::Device& device = testing::machine().device();
    const driver::CurrentDevice current(device);
    Bytes result(static_cast<std::size_t>(count));
    device.driver().check(
        device.calls().cuMemcpyDtoHAsync(result.data(), address() + static_cast<CUdeviceptr>(begin),
                                         result.size(), nullptr),
        "cuMemcpyDtoHAsync");
    device.driver().check(device.calls().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
    return result;
  }
  /// Fills [begin, size) with `period` again and again.
  void repeat(const Bytes& period, std::int64_t begin) const {
    const driver::Device& device = testing::machine().device();
    const driver::CurrentDevice current(device);
    const CUdeviceptr first = address() + static_cast<CUdeviceptr>(begin);
    device.driver().check(
        device.calls().cuMemcpyHtoDAsync(first, period.data(), period.size(), nullptr),
        "cuMemcpyHtoDAsync");
    const auto wanted = static_cast<std::size_t>(size_ - begin);
    for (std::size_t filled = period.size(); filled < wanted; filled *= 2) {
      device.driver().check(device.calls().cuMemcpyDtoDAsync(
                                first + filled, first, std::min(filled, wanted - filled), nullptr),
                            "cuMemcpyDtoDAsync");
    }
    device.driver().check(device.calls().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  }

 private:
  driver::DeviceBuffer buffer_;
  std::int64_t size_;
};

/// kRows rows of which kPeriod are given, `begin` bytes behind the allocation's start.
class Input {
 public:
  explicit Input(const Bytes& period, std::int64_t begin = 0)
      : buffer_(begin + std::ssize(period) / kPeriod * kRows), begin_(begin) {
    buffer_.repeat(period, begin);
  }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(buffer_.address() + static_cast<CUdeviceptr>(begin_));
  }

 private:
  FarBuffer buffer_;
  std::int64_t begin_;
};

/// What a call writes, and what it has to be for a whole period and for the rows behind the last.
/// Both are [lines, bytes of the rows], as the output is for all rows.
class Output {
 public:
  Output(Bytes period, Bytes tail, std::int64_t lines = 1)
      : period_(std::move(period)),
        tail_(std::move(tail)),
        lines_(lines),
        size_(kPeriods * std::ssize(period_) + std::ssize(tail_)),
        buffer_(size_ + kGuardBytes) {}
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(buffer_.address());
  }
  std::int64_t line_bytes() const { return size_ / lines_; }

  /// The periods where elements 0, 2^29, 2^30 and 2^31 of the rows lie, which are bytes 2^31 and
  /// 2^32 of wider types, and the last, which ends behind element 2^32.
  void expect_same(const std::string& label) const {
    for (const std::int64_t element :
         {std::int64_t{0}, kFarElements / 8, kFarElements / 4, kFarElements / 2}) {
      expect_period(label, element / kDim / kPeriod, period_);
    }
    expect_period(label, kPeriods, tail_);
    EXPECT_EQ(buffer_.download(size_, kGuardBytes), Bytes(kGuardBytes, 0xFF))
        << label << ": wrote behind";
  }

 private:
  static constexpr std::int64_t kGuardBytes = 1024;

  void expect_period(const std::string& label, std::int64_t index, const Bytes& want) const {
    const std::int64_t width = std::ssize(want) / lines_;
    Bytes got;
    for (std::int64_t line = 0; line < lines_; ++line) {
      const std::int64_t begin = line * line_bytes() + index * (std::ssize(period_) / lines_);
      const Bytes part = buffer_.download(begin, width);
      got.insert(got.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(testing::bitwise_equal(
        got, want,
        {.label = fmt::format("{} from row {}", label, index * kPeriod), .cols = width}));
  }

  Bytes period_, tail_;
  std::int64_t lines_, size_;
  FarBuffer buffer_;
};

struct NormExpected {
  Bytes codes, dim_scales, row_scales;
  std::vector<float> rstd;

  NormExpected(std::span<const std::uint16_t> x, std::span<const std::uint16_t> weight,
               std::int64_t rows, float eps)
      : codes(static_cast<std::size_t>(rows * kDim)),
        dim_scales(mx::TiledScaleLayout{rows, kDim / 32}.size_bytes()),
        row_scales(mx::TiledScaleLayout{kDim, mx::ceil_div(rows, 32)}.size_bytes()),
        rstd(static_cast<std::size_t>(rows)) {
    cpu::rmsnorm_quantize(
        x.first(codes.size()), weight, eps,
        {.codes = codes, .scales_dim = dim_scales, .scales_rows = row_scales, .rstd = rstd});
  }
};

TEST(Far, RmsNormQuantizeEqualsTheCpu) {
  constexpr float kEps = 1e-6f;
  const auto x = testing::random_bf16(kPeriod * kDim, 1);
  const auto weight = testing::random_bf16(kDim, 2);
  const NormExpected period(x, weight, kPeriod, kEps), tail(x, weight, kTail, kEps);

  testing::Machine& machine = testing::machine();
  const Input x_d(bytes_of(x));
  const auto weight_d = machine.upload(std::span<const std::uint16_t>(weight));
  const Output codes(period.codes, tail.codes), dim(period.dim_scales, tail.dim_scales),
      rows(period.row_scales, tail.row_scales, kDim / mx::kAtomRows),
      rstd(bytes_of(period.rstd), bytes_of(tail.rstd));
  rmsnorm_quantize(machine.queue(), {.x = x_d.as<const void>(),
                                     .weight = weight_d.as<const std::uint16_t>(),
                                     .codes = codes.as<std::uint8_t>(),
                                     .scales_dim = dim.as<std::uint8_t>(),
                                     .scales_rows = rows.as<std::uint8_t>(),
                                     .rstd = rstd.as<float>(),
                                     .rows = kRows,
                                     .dim = kDim,
                                     .eps = kEps});
  machine.synchronize();
  codes.expect_same("codes");
  dim.expect_same("scales_dim");
  rows.expect_same("scales_rows");
  rstd.expect_same("rstd");
}

// Of the rows alone: dweight is a sum over all of them.
TEST(Far, RmsNormBackwardEqualsTheCpu) {
  auto x = testing::random_bf16(kPeriod * kDim, 1), dy = testing::random_bf16(kPeriod * kDim, 2);
  auto weight = testing::random_bf16(kDim, 3);
  std::vector<std::uint16_t> dx(x.size());
  std::vector<float> rstd;
  testing::Rng rng(4);
  for (std::int64_t row = 0; row < kPeriod; ++row) {
    rstd.push_back(static_cast<float>(rng.uniform(0.5, 2.0)));
  }
  cpu::rmsnorm_backward({.dy = make_tensor(dy.data(), DType::kBF16, {kPeriod, kDim}),
                         .x = make_tensor(x.data(), DType::kBF16, {kPeriod, kDim}),
                         .weight = make_tensor(weight.data(), DType::kBF16, {kDim}),
                         .rstd = make_tensor(rstd.data(), DType::kF32, {kPeriod}),
                         .rows = kPeriod,
                         .dx = make_tensor(dx.data(), DType::kBF16, {kPeriod, kDim})});

  testing::Machine& machine = testing::machine();
  const Input x_d(bytes_of(x)), dy_d(bytes_of(dy)), rstd_d(bytes_of(rstd));
  const auto weight_d = machine.upload(std::span<const std::uint16_t>(weight));
  const Bytes want = bytes_of(dx);
  const Output dx_d(want, {want.begin(), want.begin() + kTail * kDim * 2});
  rmsnorm_backward(machine.queue(), {.dy = {.data = dy_d.as<void>(), .row_stride = kDim},
                                     .x = {.data = x_d.as<void>(), .row_stride = kDim},
                                     .weight = {.data = weight_d.as<void>(), .row_stride = kDim},
                                     .rstd = rstd_d.as<const float>(),
                                     .dx = {.data = dx_d.as<void>(), .row_stride = kDim},
                                     .rows = kRows,
                                     .dim = kDim});
  machine.synchronize();
  dx_d.expect_same("dx");
}

/// One sequence of kRows tokens and three heads.
testing_quantize::Case quantize_case(std::int64_t tokens) {
  return {.name = "far",
          .cu_seqlens = {0, static_cast<std::int32_t>(tokens)},
          .num_heads = kDim / 128,
          .order = TokenOrder::kSigma};
}

struct QuantizeExpected {
  testing_quantize::Expected arrays;
  Bytes transposed;

  QuantizeExpected(BlockShape shape, std::vector<float> values, std::int64_t tokens)
      : arrays(quantize_case(tokens), shape, (values.resize(tokens * kDim), values)) {
    const testing_quantize::Case test = quantize_case(tokens);
    transposed = testing::transposed_copy(mx::make_jagged_offsets(test.cu_seqlens, tokens),
                                          arrays.codes, kDim, test.order);
  }
};

void check_quantize(BlockShape shape, DType dtype, std::int64_t misplaced = 0) {
  testing_quantize::Case test = quantize_case(kPeriod);
  test.dtype = dtype;
  const testing_quantize::Input input(test, mx::make_jagged_offsets(test.cu_seqlens, kPeriod));
  const QuantizeExpected period(shape, input.values, kPeriod), tail(shape, input.values, kTail);
  const auto element = static_cast<std::int64_t>(dtype_size(dtype));

  testing::Machine& machine = testing::machine();
  const testing::DeviceBatch batch(quantize_case(kRows).cu_seqlens);
  const Input x({input.bytes.begin(), input.bytes.begin() + kPeriod * kDim * element},
                misplaced * element);
  const Output codes(period.arrays.codes, tail.arrays.codes),
      compact(period.arrays.compact, tail.arrays.compact),
      dim(period.arrays.tiled_dim, tail.arrays.tiled_dim, test.num_heads),
      tokens(period.arrays.tiled_tokens, tail.arrays.tiled_tokens, test.num_heads),
      transposed(period.transposed, tail.transposed);
  const std::int64_t cols = mx::scale_cols(shape, test.head_dim);
  const bool along_tokens = mx::block_rows(shape) == kScaleBlock;
  quantize(machine.queue(),
           {.input = {.data = x.as<const void>(),
                      .dtype = dtype,
                      .row_stride = kDim,
                      .head_stride = test.head_dim,
                      .rows = kRows,
                      .head_dim = static_cast<std::int32_t>(test.head_dim)},
            .codes = codes.as<std::uint8_t>(),
            .codes_row_stride = kDim,
            .codes_head_stride = test.head_dim,
            .compact = compact.as<std::uint8_t>(),
            .compact_strides = {.row = test.num_heads * cols, .head = cols},
            .tiled_dim = dim.as<std::uint8_t>(),
            .dim_strides = {.head_bytes = dim.line_bytes()},
            .tiled_tokens = along_tokens ? tokens.as<std::uint8_t>() : nullptr,
            .token_strides = {.head_bytes = tokens.line_bytes()},
            .transposed = transposed.as<std::uint8_t>(),
            .offsets = batch.view,
            .num_heads = static_cast<std::int32_t>(test.num_heads),
            .head_dim = static_cast<std::int32_t>(test.head_dim),
            .block_shape = shape,
            .order = test.order},
           batch.max_tiles());
  machine.synchronize();
  codes.expect_same("codes");
  compact.expect_same("compact");
  dim.expect_same("tiled along head_dim");
  tokens.expect_same("tiled along tokens");
  transposed.expect_same("transposed");
}

TEST(Far, QuantizeInRowsEqualsTheCpu) { check_quantize(BlockShape::k1x32, DType::kBF16); }
TEST(Far, QuantizeInSquaresEqualsTheCpu) { check_quantize(BlockShape::k32x32, DType::kBF16); }
TEST(Far, QuantizeOfF32EqualsTheCpu) { check_quantize(BlockShape::k32x32, DType::kF32); }
// Without the copy engine.
TEST(Far, QuantizeOfOddAddressesEqualsTheCpu) {
  check_quantize(BlockShape::k32x32, DType::kBF16, 1);
}

}  // namespace
}  // namespace mxfa::device
