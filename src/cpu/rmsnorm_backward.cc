#include <algorithm>
#include <vector>

#include "core/check.h"
#include "core/simd_clones.h"
#include "cpu/attention_tiles.h"
#include "cpu/norm_rows.h"
#include "cpu/packed_product.h"
#include "cpu/rmsnorm.h"
#include "mx/row_sum.h"

namespace mxfa::cpu {
namespace {

namespace row_sum = mx::row_sum;

constexpr std::int64_t kChunkRows = row_sum::kWeightRows;

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
MXFA_SIMD_CLONES void add_scaled(const float* values, float scale, float* sums,
                                 std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sums[i] += values[i] * scale;
}
MXFA_SIMD_CLONES void add_row(const float* values, float* sums, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sums[i] += values[i];
}

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

/// One of the products that dy is the sum of, its right operand packed.
class PackedTerm {
 public:
  explicit PackedTerm(const Product& product)
      : left_(product.a, "a"),
        right_(product.b, "b"),
        size_(extents(left_, right_)),
        scale_(folded(1.0f, left_.anchor() + right_.anchor())),
        packed_(right_, size_.n, size_.k) {}

  const Extents& size() const { return size_; }
  /// sums[rows, size().n] += the product's rows.
  void add(Part rows, GemmScratch& scratch, float* sums) {
    packed_.multiply(left_, rows, scratch);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      add_scaled(scratch.sums.data() + r * packed_.n_padded(), scale_, sums + r * size_.n, size_.n);
    }
  }

 private:
  MatrixReader left_, right_;
  Extents size_;
  float scale_;
  PackedRight packed_;
};

struct Scratch {
  GemmScratch gemm;
  std::vector<float> sums, dy, x, dx;
  std::vector<float> strands;  ///< [weight_strands, dim]
};

class Gradients {
 public:
  explicit Gradients(const RmsNormBackward& call)
      : call_(call), dim_(call.x.rank == 2 ? call.x.shape[1] : 0) {
    check_norm_rows(call.x, "x", NormRole::kInput, call.rows, dim_);
    check_norm_vector(call.weight, "weight", NormRole::kInput, dim_);
    const bool has_rstd =
        call.rstd.dtype == DType::kF32 && call.rstd.rank == 1 && call.rstd.shape[0] >= call.rows;
    core::expect(has_rstd, "rstd", core::later("f32 [{}]", call.rows), call.rstd);
    if (call.dy.rank > 0) check_norm_rows(call.dy, "dy", NormRole::kInput, call.rows, dim_);
    if (call.dy_sum.rank > 0)
      check_norm_rows(call.dy_sum, "dy_sum", NormRole::kOutput, call.rows, dim_);
    if (call.dx.rank > 0) check_norm_rows(call.dx, "dx", NormRole::kOutput, call.rows, dim_);
    if (call.dweight.rank > 0) check_norm_vector(call.dweight, "dweight", NormRole::kOutput, dim_);
    weight_ = read_norm_row(call.weight, 0, weight_buffer_);
    terms_.reserve(call.products.size());
    for (const Product& product : call.products) {
      const Extents& size = terms_.emplace_back(product).size();
      core::expect(size.m >= call.rows && size.n == dim_, "products",
                   core::later("[{}, {}]", call.rows, dim_),
                   core::later("[{}, {}]", size.m, size.n));
    }
    chunks_ = row_sum::weight_chunks(call.rows);
    partial_.resize(static_cast<std::size_t>(wants_weight() ? chunks_ * dim_ : 0));
  }

  void run() {
    for_each_unit<Scratch>(chunks_, [&](Scratch& scratch, std::int64_t chunk) {
      const std::int64_t end = std::min(call_.rows, (chunk + 1) * kChunkRows);
      const std::int64_t strands = wants_weight() ? row_sum::weight_strands(dim_) : 0;
      scratch.strands.assign(static_cast<std::size_t>(strands * dim_), 0.0f);
      for (std::int64_t row = chunk * kChunkRows; row < end; row += kGemmRows) {
        run_rows({row, std::min(kGemmRows, end - row)}, scratch);
      }
      if (wants_weight()) add_strands(scratch.strands, partial_.data() + chunk * dim_, dim_);
    });
    if (!wants_weight()) return;
    write_norm_row(call_.dweight, 0, add_chunks(partial_, chunks_, dim_).data());
  }

 private:
  bool wants_weight() const { return call_.dweight.rank > 0; }

  void run_rows(Part rows, Scratch& scratch) {
    scratch.sums.assign(static_cast<std::size_t>(terms_.empty() ? 0 : rows.count * dim_), 0.0f);
    for (PackedTerm& term : terms_) term.add(rows, scratch.gemm, scratch.sums.data());
    scratch.dx.resize(static_cast<std::size_t>(dim_));
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const std::int64_t row = rows.first + r;
      RowGradient gradient{
          .dy = call_.dy.rank > 0 ? read_norm_row(call_.dy, row, scratch.dy)
                                  : scratch.sums.data() + r * dim_,
          .x = read_norm_row(call_.x, row, scratch.x),
          .weight = weight_,
          .rstd = static_cast<const float*>(call_.rstd.data)[row * call_.rstd.strides[0]],
          .mean = 0};
      if (call_.dy_sum.rank > 0) write_norm_row(call_.dy_sum, row, gradient.dy);
      if (wants_weight()) {
        const std::int64_t strand = row % kChunkRows % row_sum::weight_strands(dim_);
        add_weight_gradient(gradient, scratch.strands.data() + strand * dim_, dim_);
      }
      if (call_.dx.rank == 0) continue;
      gradient.mean =
          dot(gradient.dy, weight_, gradient.x, gradient.rstd, dim_) / static_cast<float>(dim_);
      gradient_row(gradient, scratch.dx.data(), dim_);
      write_norm_row(call_.dx, row, scratch.dx.data());
    }
  }

  const RmsNormBackward& call_;
  std::int64_t dim_;
  std::vector<float> weight_buffer_;
  const float* weight_ = nullptr;
  std::vector<PackedTerm> terms_;
  std::int64_t chunks_ = 0;
  std::vector<float> partial_;  ///< [chunks, dim]
};

}  // namespace

void rmsnorm_backward(const RmsNormBackward& call) { Gradients(call).run(); }

}  // namespace mxfa::cpu
