#include "cpu/rmsnorm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/check.h"
#include "core/simd_clones.h"
#include "cpu/kernels.h"
#include "cpu/units.h"
#include "mx/convert.h"

namespace mxfa::cpu {
namespace {

constexpr std::int64_t kChunkRows = 256;

void check_rows(const TensorView& tensor, std::string_view name, std::int64_t rows,
                std::int64_t dim) {
  const bool dtype_ok = tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF32;
  const bool shape_ok = tensor.rank == 2 && tensor.shape[0] == rows && tensor.shape[1] == dim;
  core::expect(dtype_ok && shape_ok && (dim <= 1 || tensor.strides[1] == 1), name,
               fmt::format("bf16 or f32 [{}, {}] with contiguous columns", rows, dim),
               core::text(tensor));
}
void check_vector(const TensorView& tensor, std::string_view name, std::int64_t size) {
  const bool dtype_ok = tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF32;
  core::expect(dtype_ok && tensor.rank == 1 && tensor.shape[0] == size &&
                   (size <= 1 || tensor.strides[0] == 1),
               name, fmt::format("contiguous bf16 or f32 [{}]", size), core::text(tensor));
}
void check_rstd(const TensorView& tensor, std::int64_t rows) {
  core::expect(tensor.dtype == DType::kF32, "rstd", "f32", core::text(tensor));
  check_vector(tensor, "rstd", rows);
}

/// Row `row` of a matrix (or the whole of a vector, row 0) as FP32, through `buffer` if need be.
const float* read_row(const TensorView& tensor, std::int64_t row, std::int64_t dim,
                      std::vector<float>& buffer) {
  const std::int64_t at = tensor.rank == 2 ? row * tensor.strides[0] : 0;
  if (tensor.dtype == DType::kF32) return static_cast<const float*>(tensor.data) + at;
  buffer.resize(static_cast<std::size_t>(dim));
  mx::decode_bf16_row(static_cast<const std::uint16_t*>(tensor.data) + at, buffer.data(), dim);
  return buffer.data();
}

void write_row(const TensorView& tensor, std::int64_t row, const float* values, std::int64_t dim) {
  const std::int64_t at = tensor.rank == 2 ? row * tensor.strides[0] : 0;
  if (tensor.dtype == DType::kF32) {
    std::copy_n(values, dim, static_cast<float*>(tensor.data) + at);
  } else {
    kernels().round_bf16(values, static_cast<std::uint16_t*>(tensor.data) + at, dim);
  }
}

/// sum of dy * weight * x * rstd, in 16 lanes that are added in ascending order.
MXFA_SIMD_CLONES float dot(const float* dy, const float* weight, const float* x, float rstd,
                           std::int64_t dim) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += dy[i + l] * weight[i + l] * (x[i + l] * rstd);
  }
  for (int l = 0; i < dim; ++i, ++l) lanes[l] += dy[i] * weight[i] * (x[i] * rstd);
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

struct RowGradient {
  const float* dy;
  const float* x;
  const float* weight;
  float rstd;
  float mean;  ///< of g * xhat
};
MXFA_SIMD_CLONES void gradient_row(const RowGradient& row, float* dx, std::int64_t dim) {
  for (std::int64_t i = 0; i < dim; ++i) {
    dx[i] = row.rstd * (row.dy[i] * row.weight[i] - row.x[i] * row.rstd * row.mean);
  }
}
MXFA_SIMD_CLONES void add_weight_gradient(const RowGradient& row, float* dweight,
                                          std::int64_t dim) {
  for (std::int64_t i = 0; i < dim; ++i) dweight[i] += row.dy[i] * (row.x[i] * row.rstd);
}

struct Scratch {
  std::vector<float> x, dy, y;
};

}  // namespace

void rmsnorm_forward(const TensorView& x, const TensorView& weight, float eps, const TensorView& y,
                     const TensorView& rstd) {
  core::expect(x.rank == 2, "x", "[rows, dim]", core::text(x));
  const std::int64_t rows = x.shape[0];
  const std::int64_t dim = x.shape[1];
  check_rows(x, "x", rows, dim);
  check_vector(weight, "weight", dim);
  check_rows(y, "y", rows, dim);
  check_rstd(rstd, rows);
  std::vector<float> weight_buffer;
  const float* const weights = read_row(weight, 0, dim, weight_buffer);
  for_each_unit<Scratch>(
      (rows + kChunkRows - 1) / kChunkRows, [&](Scratch& scratch, std::int64_t chunk) {
        const std::int64_t end = std::min(rows, (chunk + 1) * kChunkRows);
        scratch.y.resize(static_cast<std::size_t>(dim));
        for (std::int64_t row = chunk * kChunkRows; row < end; ++row) {
          const float* values = read_row(x, row, dim, scratch.x);
          const float mean = kernels().sum_squares(values, dim) / static_cast<float>(dim);
          const float factor = 1.0f / std::sqrt(mean + eps);
          static_cast<float*>(rstd.data)[row] = factor;
          kernels().normalize(values, factor, weights, scratch.y.data(), dim);
          write_row(y, row, scratch.y.data(), dim);
        }
      });
}

void rmsnorm_backward(const TensorView& dy, const TensorView& x, const TensorView& weight,
                      const TensorView& rstd, const TensorView& dx, const TensorView& dweight) {
  core::expect(x.rank == 2, "x", "[rows, dim]", core::text(x));
  const std::int64_t rows = x.shape[0];
  const std::int64_t dim = x.shape[1];
  check_rows(x, "x", rows, dim);
  check_rows(dy, "dy", rows, dim);
  check_vector(weight, "weight", dim);
  check_rstd(rstd, rows);
  if (dx.rank > 0) check_rows(dx, "dx", rows, dim);
  if (dweight.rank > 0) check_vector(dweight, "dweight", dim);
  std::vector<float> weight_buffer;
  const float* const weights = read_row(weight, 0, dim, weight_buffer);
  const std::int64_t chunks = (rows + kChunkRows - 1) / kChunkRows;
  std::vector<float> partial(static_cast<std::size_t>(dweight.rank > 0 ? chunks * dim : 0));
  for_each_unit<Scratch>(chunks, [&](Scratch& scratch, std::int64_t chunk) {
    const std::int64_t end = std::min(rows, (chunk + 1) * kChunkRows);
    scratch.y.resize(static_cast<std::size_t>(dim));
    for (std::int64_t row = chunk * kChunkRows; row < end; ++row) {
      RowGradient gradient{.dy = read_row(dy, row, dim, scratch.dy),
                           .x = read_row(x, row, dim, scratch.x),
                           .weight = weights,
                           .rstd = static_cast<const float*>(rstd.data)[row],
                           .mean = 0};
      if (dweight.rank > 0) add_weight_gradient(gradient, partial.data() + chunk * dim, dim);
      if (dx.rank == 0) continue;
      gradient.mean =
          dot(gradient.dy, weights, gradient.x, gradient.rstd, dim) / static_cast<float>(dim);
      gradient_row(gradient, scratch.y.data(), dim);
      write_row(dx, row, scratch.y.data(), dim);
    }
  });
  if (dweight.rank == 0) return;
  std::vector<float> sums(static_cast<std::size_t>(dim));
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (std::int64_t i = 0; i < dim; ++i) sums[i] += partial[chunk * dim + i];
  }
  write_row(dweight, 0, sums.data(), dim);
}

}  // namespace mxfa::cpu
