#include "bench.h"
#include "mx/scale_layout.h"

namespace mxfa::bench {
namespace {

struct Shape {
  std::int64_t rows;
  std::int32_t dim;
};
constexpr Shape kShapes[] = {{2097152, 384}, {1048576, 512}, {1048576, 256}, {524288, 1024},
                             {262144, 2048}, {131072, 4096}, {32768, 16384}};

io::Record finish(io::Record record, const Shape& shape, DType dtype) {
  record.extra = {{"rows", shape.rows}, {"dim", shape.dim}, {"dtype", dtype_name(dtype)}};
  print(record, fmt::format("[{}, {}] {}", shape.rows, shape.dim, dtype_name(dtype)));
  return record;
}

io::Record forward(Bench& bench, const Shape& shape, DType dtype) {
  const auto [rows, dim] = shape;
  const mx::TiledScaleLayout along_dim{rows, dim / 32}, along_rows{dim, (rows + 31) / 32};
  const auto x = noisy(bench, rows * dim, dtype), weight = noisy(bench, dim);
  const driver::DeviceBuffer codes(bench.device, rows * dim),
      dim_scales(bench.device, along_dim.size_bytes()),
      row_scales(bench.device, along_rows.size_bytes()), rstd(bench.device, rows * 4);
  const device::RmsNormQuantizeParams params{.x = pointer<const void>(x),
                                             .x_dtype = dtype,
                                             .weight = pointer<const std::uint16_t>(weight),
                                             .codes = pointer<std::uint8_t>(codes),
                                             .scales_dim = pointer<std::uint8_t>(dim_scales),
                                             .scales_rows = pointer<std::uint8_t>(row_scales),
                                             .rstd = pointer<float>(rstd),
                                             .rows = rows,
                                             .dim = dim,
                                             .eps = 1e-6f};
  const auto timing = bench.time([&] { device::rmsnorm_quantize(bench.queue(), params); });
  const double bytes = static_cast<double>(rows * dim) * (dtype_size(dtype) + 1) +
                       along_dim.size_bytes() + along_rows.size_bytes() + rows * 4.0 + dim * 2.0;
  io::Record record = bench.record("rmsnorm_quantize", bytes, timing);
  record.variant.block_shape = "32x32";
  return finish(record, shape, dtype);
}

/// x, dy and dx of one dtype, dweight in FP32.
io::Record backward(Bench& bench, const Shape& shape, DType dtype) {
  const auto [rows, dim] = shape;
  const std::int64_t element = static_cast<std::int64_t>(dtype_size(dtype));
  const auto x = noisy(bench, rows * dim, dtype), dy = noisy(bench, rows * dim, dtype),
             weight = noisy(bench, dim), rstd = noisy(bench, rows, DType::kF32);
  const driver::DeviceBuffer dx(bench.device, rows * dim * element), dweight(bench.device, dim * 4),
      partial(bench.device, device::rmsnorm_backward_scratch_bytes(rows, dim));
  const auto matrix = [&](const driver::DeviceBuffer& buffer) {
    return device::NormTensor{pointer<void>(buffer), dtype, dim};
  };
  const device::RmsNormBackwardParams params{.dy = matrix(dy),
                                             .x = matrix(x),
                                             .weight = {pointer<void>(weight), DType::kBF16, dim},
                                             .rstd = pointer<const float>(rstd),
                                             .dx = matrix(dx),
                                             .dweight = {pointer<void>(dweight), DType::kF32, dim},
                                             .partial = pointer<float>(partial),
                                             .rows = rows,
                                             .dim = dim};
  const auto timing = bench.time([&] { device::rmsnorm_backward(bench.queue(), params); });
  const double bytes = static_cast<double>(rows * dim * element) * 3 + rows * 4.0 + dim * 6.0;
  return finish(bench.record("rmsnorm_backward", bytes, timing), shape, dtype);
}

}  // namespace

void bench_norms(Bench& bench, std::vector<io::Record>& records) {
  for (const Shape& shape : kShapes) {
    records.push_back(forward(bench, shape, DType::kBF16));
    records.push_back(backward(bench, shape, DType::kBF16));
  }
  for (const Shape& shape : {kShapes[1], kShapes[3]}) {
    records.push_back(forward(bench, shape, DType::kF32));
    records.push_back(backward(bench, shape, DType::kF32));
  }
}

}  // namespace mxfa::bench
