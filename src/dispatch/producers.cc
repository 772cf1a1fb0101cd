#include "mxfa/producers.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "cpu/gemm.h"
#include "cpu/rmsnorm.h"
#include "dispatch/members.h"
#include "dispatch/overlap.h"
#include "dispatch/packed.h"
#include "dispatch/quantize_groups.h"
#include "dispatch/validate.h"
#include "mx/row_sum.h"

namespace mxfa::producers {
namespace {

using dispatch::Plan;

const std::initializer_list<DType> kFloats = {DType::kBF16, DType::kF16, DType::kF32};

/// Offsets of a tensor's rows; one sequence of all where there are none.
std::vector<std::int32_t> read_offsets(const TensorView& cu_seqlens, std::string_view name,
                                       std::int64_t tokens) {
  core::expect(tokens <= INT32_MAX, name, "fewer than 2^31 tokens", tokens);
  if (cu_seqlens.rank == 0) return {0, static_cast<std::int32_t>(tokens)};
  return dispatch::read_cu_seqlens(cu_seqlens, name, {.total = tokens});
}

Plan plan_of(const TensorView& values, BlockShape block_shape, std::vector<std::int32_t>& offsets) {
  QuantizeOptions options{.block_shape = block_shape};
  options.cu_seqlens = make_tensor(offsets.data(), DType::kI32, {std::ssize(offsets)});
  return dispatch::make_plan(values.dims(), options);
}

/// Payload has scales, values have none.
void check_scales_of(const Tensor& tensor, std::string_view name, BlockShape block_shape,
                     std::vector<std::int32_t>& offsets) {
  const std::string scales = fmt::format("{}.scales", name);
  if (tensor.values.dtype != DType::kE4M3) {
    core::expect(tensor.scales.rank == 0, scales, "none without e4m3 payload", tensor.scales);
    return;
  }
  core::expect(tensor.scales.rank != 0, scales,
               core::later("the scales of {} blocks", block_shape_name(block_shape)), "none");
  dispatch::check_scales(tensor.scales, scales, plan_of(tensor.values, block_shape, offsets),
                         block_shape, ScaleLayout::kRowMajor);
}

/// A checked operand; what it points at moves with it.
class Operand {
 public:
  Operand(const Matrix& matrix, const std::string& name) {
    const TensorView& values = matrix.tensor.values;
    dispatch::check_tensor(values, name);
    dispatch::check_dtype(values, name, {DType::kBF16, DType::kF16, DType::kF32, DType::kE4M3});
    core::expect(values.rank == 2 || values.rank == 3, name,
                 "[rows, cols] or [tokens, num_heads, head_dim]", values);
    offsets_ = read_offsets(matrix.cu_seqlens, name + ".cu_seqlens", values.shape[0]);
    check_scales_of(matrix.tensor, name, matrix.block_shape, offsets_);
    rows_ = values.shape[0];
    cols_ = values.num_elements() / std::max<std::int64_t>(1, rows_);
    if (rows_ == 0) cols_ = values.rank == 3 ? values.shape[1] * values.shape[2] : values.shape[1];
    if (matrix.transposed) std::swap(rows_, cols_);
    operand_ = {.values = values,
                .scales = matrix.tensor.scales,
                .block_shape = matrix.block_shape,
                .cu_seqlens = offsets_,
                .transposed = matrix.transposed};
  }
  Operand(Operand&&) = default;
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;
  Operand& operator=(Operand&&) = delete;
  ~Operand() = default;

  /// After the transposition.
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  const cpu::MatrixOperand& get() const { return operand_; }

 private:
  std::vector<std::int32_t> offsets_;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  cpu::MatrixOperand operand_;
};

void check_inner(const Operand& a, const Operand& b, const std::string& name) {
  core::expect(a.cols() == b.rows(), name, core::later("{} rows, the columns of a", a.cols()),
               b.rows());
}

void check_floats(const TensorView& tensor, std::string_view name,
                  std::vector<std::int64_t> shape) {
  dispatch::check_tensor(tensor, name);
  dispatch::check_dtype(tensor, name, kFloats);
  dispatch::check_shape(tensor, name, shape);
}

void check_result(const TensorView& tensor, std::string_view name, std::vector<std::int64_t> shape,
                  std::initializer_list<DType> dtypes = {DType::kF32, DType::kBF16}) {
  dispatch::check_output(tensor, name);
  dispatch::check_dtype(tensor, name, dtypes);
  dispatch::check_shape(tensor, name, shape);
}

/// [tokens, dim] and its norm's weight.
void check_norm_inputs(const TensorView& x, const TensorView& weight) {
  dispatch::check_tensor(x, "x");
  core::expect(x.rank == 2, "x", "[tokens, dim]", x);
  dispatch::check_dtype(x, "x", kFloats);
  const std::int64_t dim = x.shape[1];
  core::expect(dim >= 1 && dim <= mx::row_sum::kMaxColumns, "x",
               core::later("1 to {} columns", mx::row_sum::kMaxColumns), x);
  check_floats(weight, "weight", {dim});
}

/// Zeros in a [tokens, ...] tensor behind the last sequence.
void clear_rows(const TensorView& tensor, std::int64_t first) {
  if (tensor.rank == 0) return;
  TensorView matrix = tensor;
  if (matrix.rank == 1) {
    matrix.rank = 2;
    matrix.shape[1] = 1;
    matrix.strides[1] = 1;
  }
  std::vector<std::int32_t> offsets{0, static_cast<std::int32_t>(first)};
  dispatch::clear_tokens(plan_of(matrix, BlockShape::k1x32, offsets), matrix);
}

void add_operand(dispatch::Overlaps& tensors, const Matrix& matrix, std::string_view name,
                 std::string_view offsets) {
  tensors.input(matrix.tensor, name);
  tensors.input(matrix.cu_seqlens, offsets);
}

void check_overlaps(const RmsNormBackwardArgs& args) {
  dispatch::Overlaps tensors;
  for (const Product& product : args.products) {
    add_operand(tensors, product.a, "products.a", "products.a.cu_seqlens");
    add_operand(tensors, product.b, "products.b", "products.b.cu_seqlens");
  }
  tensors.input(args.x, "x");
  tensors.input(args.weight, "weight");
  tensors.input(args.rstd, "rstd");
  tensors.input(args.cu_seqlens, "cu_seqlens");
  tensors.output(args.dy, "dy");
  tensors.output(args.dx, "dx");
  tensors.output(args.dweight, "dweight");
  tensors.check();
}

cpu::Target target_of(const TensorView& y, const Plan& plan, const TensorView& scales) {
  const dispatch::Packed packed = dispatch::as_packed(y);
  cpu::Target target{.dtype = y.dtype,
                     .data = packed.data,
                     .token_stride = packed.token_stride,
                     .head_stride = packed.head_stride,
                     .dim_stride = packed.dim_stride,
                     .scales = {},
                     .offsets = &plan.offsets,
                     .head_dim = packed.dim,
                     .rule = plan.spec.rule};
  if (y.dtype == DType::kE4M3) {
    target.scales = dispatch::as_compact(scales, plan, plan.spec.block_shape);
  }
  return target;
}

}  // namespace

void rmsnorm(const RmsNormArgs& args, Backend backend) {
  dispatch::check_backend(backend);
  check_norm_inputs(args.x, args.weight);
  core::expect(args.eps >= 0 && std::isfinite(static_cast<float>(args.eps)), "eps",
               "a finite number of at least 0", core::later("{}", args.eps));
  const std::int64_t tokens = args.x.shape[0];
  std::vector<std::int32_t> offsets = read_offsets(args.cu_seqlens, "cu_seqlens", tokens);
  const TensorView& y = args.y.values;
  check_result(y, "y", {tokens, args.x.shape[1]}, {DType::kF32, DType::kBF16, DType::kE4M3});
  check_scales_of(args.y, "y", BlockShape::k32x32, offsets);
  check_result(args.rstd, "rstd", {tokens}, {DType::kF32});
  dispatch::check_member(args.rule, "rule");
  dispatch::Overlaps tensors;
  tensors.input(args.x, "x");
  tensors.input(args.weight, "weight");
  tensors.input(args.cu_seqlens, "cu_seqlens");
  tensors.output(args.y, "y");
  tensors.output(args.rstd, "rstd");
  tensors.check();
  Plan plan = plan_of(y, BlockShape::k32x32, offsets);
  plan.spec.rule = args.rule;
  cpu::rmsnorm_forward({.x = args.x,
                        .weight = args.weight,
                        .eps = static_cast<float>(args.eps),
                        .y = target_of(y, plan, args.y.scales),
                        .rstd = args.rstd});
  clear_rows(y, offsets.back());
  clear_rows(args.rstd, offsets.back());
  if (y.dtype == DType::kE4M3) {
    dispatch::clear_slack(args.y.scales, plan, BlockShape::k32x32, ScaleLayout::kRowMajor);
  }
}

void gemm(const Matrix& a, const Matrix& b, const TensorView& c, Backend backend) {
  dispatch::check_backend(backend);
  const Operand left(a, "a");
  const Operand right(b, "b");
  check_inner(left, right, "b");
  check_result(c, "c", {left.rows(), right.cols()});
  dispatch::Overlaps tensors;
  add_operand(tensors, a, "a", "a.cu_seqlens");
  add_operand(tensors, b, "b", "b.cu_seqlens");
  tensors.output(c, "c");
  tensors.check();
  cpu::gemm(left.get(), right.get(), c);
}

void project(const ProjectionArgs& args, Backend backend) {
  dispatch::check_backend(backend);
  const Operand x(args.x, "x");
  const Operand w(args.w, "w");
  core::expect(!args.x.transposed, "x", "an operand that is not transposed", "transposed");
  core::expect(x.cols() == w.cols(), "w", core::later("{} columns, as x", x.cols()), w.cols());
  const TensorView& y = args.y.values;
  dispatch::check_output(y, "y");
  dispatch::check_dtype(y, "y", {DType::kBF16, DType::kE4M3});
  core::expect(y.rank == 3 && y.shape[0] == x.rows() && y.shape[1] * y.shape[2] == w.rows(), "y",
               core::later("[{}, num_heads, head_dim] with {} values a token", x.rows(), w.rows()),
               y);
  std::vector<std::int32_t> offsets = read_offsets(args.cu_seqlens, "cu_seqlens", x.rows());
  check_scales_of(args.y, "y", args.block_shape, offsets);
  dispatch::check_member(args.block_shape, "block_shape");
  dispatch::check_member(args.rule, "rule");
  dispatch::Overlaps tensors;
  add_operand(tensors, args.x, "x", "x.cu_seqlens");
  add_operand(tensors, args.w, "w", "w.cu_seqlens");
  tensors.input(args.cu_seqlens, "cu_seqlens");
  tensors.output(args.y, "y");
  tensors.check();
  if (w.rows() == 0) return;  // no head
  cpu::GemmQuantizeOutputs outputs;
  (y.dtype == DType::kE4M3 ? outputs.payload : outputs.bf16) = y;
  outputs.scales = args.y.scales;
  cpu::gemm_quantize(x.get(), w.get(),
                     {.num_heads = y.shape[1],
                      .block_shape = args.block_shape,
                      .rule = args.rule,
                      .cu_seqlens = offsets},
                     outputs);
}

void rmsnorm_backward(const RmsNormBackwardArgs& args, Backend backend) {
  dispatch::check_backend(backend);
  check_norm_inputs(args.x, args.weight);
  const std::int64_t tokens = args.x.shape[0];
  const std::int64_t dim = args.x.shape[1];
  const std::vector<std::int32_t> offsets = read_offsets(args.cu_seqlens, "cu_seqlens", tokens);
  std::vector<Operand> operands;
  std::vector<cpu::Product> products;
  operands.reserve(2 * args.products.size());
  for (std::size_t i = 0; i < args.products.size(); ++i) {
    const std::string name = fmt::format("products[{}]", i);
    const Operand& a = operands.emplace_back(args.products[i].a, name + ".a");
    const Operand& b = operands.emplace_back(args.products[i].b, name + ".b");
    check_inner(a, b, name + ".b");
    core::expect(a.rows() == tokens && b.cols() == dim, name,
                 core::later("shape [{}, {}]", tokens, dim),
                 core::later("[{}, {}]", a.rows(), b.cols()));
    products.push_back({a.get(), b.get()});
  }
  dispatch::check_tensor(args.rstd, "rstd");
  dispatch::check_dtype(args.rstd, "rstd", {DType::kF32});
  dispatch::check_shape(args.rstd, "rstd", std::vector{tokens});
  if (args.dy.rank != 0) check_result(args.dy, "dy", {tokens, dim});
  if (args.dx.rank != 0) check_result(args.dx, "dx", {tokens, dim});
  if (args.dweight.rank != 0) check_result(args.dweight, "dweight", {dim});
  check_overlaps(args);
  cpu::rmsnorm_backward({.products = products,
                         .x = args.x,
                         .weight = args.weight,
                         .rstd = args.rstd,
                         .rows = offsets.back(),
                         .dy_sum = args.dy,
                         .dx = args.dx,
                         .dweight = args.dweight});
  clear_rows(args.dy, offsets.back());
  clear_rows(args.dx, offsets.back());
}

}  // namespace mxfa::producers
