#include "cpu/rmsnorm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/check.h"
#include "core/simd_clones.h"
#include "cpu/kernels.h"
#include "cpu/units.h"
#include "mx/convert.h"
#include "mx/row_sum.h"

namespace mxfa::cpu {
namespace {

namespace row_sum = mx::row_sum;

constexpr std::int64_t kChunkRows = row_sum::kWeightRows;

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

/// acc[i] += dy * weight * (x * rstd): one step of row_sum::kStep accumulators.
MXFA_SIMD_CLONES void add_products(const float* dy, const float* weight, const float* x, float rstd,
                                   std::int64_t count, float* acc) {
  for (std::int64_t i = 0; i < count; ++i) acc[i] += dy[i] * weight[i] * (x[i] * rstd);
}

/// sum of dy * weight * x * rstd in the order of mx/row_sum.h.
float dot(const float* dy, const float* weight, const float* x, float rstd, std::int64_t dim) {
  float total = 0;
  for (std::int64_t chunk = 0; chunk < dim; chunk += row_sum::kChunk) {
    const std::int64_t end = std::min(dim, chunk + row_sum::kChunk);
    float acc[row_sum::kStep] = {};
    for (std::int64_t i = chunk; i < end; i += row_sum::kStep) {
      add_products(dy + i, weight + i, x + i, rstd, std::min<std::int64_t>(row_sum::kStep, end - i),
                   acc);
    }
    float lanes[row_sum::kLanes];
    for (int lane = 0; lane < row_sum::kLanes; ++lane) {
      const float* a = acc + lane * row_sum::kVector;
      lanes[lane] = (a[0] + a[1]) + (a[2] + a[3]);
    }
    for (int distance = row_sum::kLanes / 2; distance > 0; distance /= 2) {
      for (int lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
    }
    total += lanes[0];
  }
  return total;
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

MXFA_SIMD_CLONES void add_row(const float* values, float* sums, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sums[i] += values[i];
}

struct Scratch {
  std::vector<float> x, dy, y;
  std::vector<float> strands;  ///< [weight_strands, dim]
};

/// sums[dim] = the strands, added in ascending order.
void add_strands(const std::vector<float>& strands, float* sums, std::int64_t dim) {
  std::fill_n(sums, dim, 0.0f);
  for (std::size_t at = 0; at < strands.size(); at += static_cast<std::size_t>(dim)) {
    add_row(strands.data() + at, sums, dim);
  }
}

/// The gradient of the weight from those of its chunks of rows [chunks, dim].
std::vector<float> add_chunks(const std::vector<float>& partial, std::int64_t chunks,
                              std::int64_t dim) {
  std::vector<float> strands(static_cast<std::size_t>(row_sum::kChunkStrands * dim));
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    add_row(partial.data() + chunk * dim, strands.data() + chunk % row_sum::kChunkStrands * dim,
            dim);
  }
  for (std::int64_t distance = row_sum::kChunkStrands / 2; distance > 0; distance /= 2) {
    add_row(strands.data() + distance * dim, strands.data(), distance * dim);
  }
  return strands;
}

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
    if (dweight.rank > 0) {
      scratch.strands.assign(static_cast<std::size_t>(row_sum::weight_strands(dim) * dim), 0.0f);
    }
    for (std::int64_t row = chunk * kChunkRows; row < end; ++row) {
      RowGradient gradient{.dy = read_row(dy, row, dim, scratch.dy),
                           .x = read_row(x, row, dim, scratch.x),
                           .weight = weights,
                           .rstd = static_cast<const float*>(rstd.data)[row],
                           .mean = 0};
      if (dweight.rank > 0) {
        const std::int64_t strand = row % kChunkRows % row_sum::weight_strands(dim);
        add_weight_gradient(gradient, scratch.strands.data() + strand * dim, dim);
      }
      if (dx.rank == 0) continue;
      gradient.mean =
          dot(gradient.dy, weights, gradient.x, gradient.rstd, dim) / static_cast<float>(dim);
      gradient_row(gradient, scratch.y.data(), dim);
      write_row(dx, row, scratch.y.data(), dim);
    }
    if (dweight.rank > 0) add_strands(scratch.strands, partial.data() + chunk * dim, dim);
  });
  if (dweight.rank > 0) write_row(dweight, 0, add_chunks(partial, chunks, dim).data(), dim);
}

}  // namespace mxfa::cpu
