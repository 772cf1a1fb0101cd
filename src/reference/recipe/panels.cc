#include "reference/recipe/panels.h"

#include <array>

#include "core/check.h"
#include "core/simd_clones.h"
#include "mx/fp8.h"

namespace mxfa::reference::recipe::internal {
namespace {

std::array<float, 256> decode_table() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) {
    table[static_cast<std::size_t>(code)] = mx::decode_e4m3(static_cast<std::uint8_t>(code));
  }
  return table;
}

/// Block exponents in the panel's order: A [rows, depth / 32], B [depth / 32, cols].
void fill_scales(const mx::QuantizedMatrix& matrix, Role role, mx::MmaPanel& panel) {
  panel.scales.assign(static_cast<std::size_t>(panel.rows * panel.cols / kScaleBlock), 0);
  const auto set = [&](std::int64_t index, std::int64_t row, std::int64_t col) {
    panel.scales[static_cast<std::size_t>(index)] =
        static_cast<std::int16_t>(scale_exponent(matrix.scale(row, col)));
  };
  if (role == Role::kTokens) {
    for (std::int64_t row = 0; row < matrix.rows; row += kScaleBlock) {
      for (std::int64_t c = 0; c < matrix.cols; ++c) {
        set(row / kScaleBlock * panel.cols + c, row, c);
      }
    }
    return;
  }
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t c = 0; c < matrix.cols; c += kScaleBlock) {
      const std::int64_t block = c / kScaleBlock;
      set(role == Role::kRows ? row * (panel.cols / kScaleBlock) + block : block * panel.cols + row,
          row, c);
    }
  }
}

/// Whatever its codes, a block with the NaN scale is NaN.
std::vector<float> poisoned(const mx::QuantizedMatrix& matrix, std::vector<float> values) {
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    for (std::int64_t c = 0; c < matrix.cols; ++c) {
      if (matrix.scale(i, c) == mx::kE8M0Nan) values[i * matrix.cols + c] = std::nanf("");
    }
  }
  return values;
}

}  // namespace

void decode_codes(std::span<const std::uint8_t> codes, float* values) {
  static const std::array<float, 256> table = decode_table();
  for (std::size_t i = 0; i < codes.size(); ++i) values[i] = table[codes[i]];
}

TokenExponents token_exponents(const mx::QuantizedMatrix& matrix) {
  TokenExponents exponents;
  exponents.reserve(static_cast<std::size_t>(matrix.rows));
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    exponents.push_back(scale_exponent(matrix.scale(i, 0)));
  }
  return exponents;
}

mx::MmaPanel make_panel(const Matrix<float>& matrix, Role role) {
  const bool transposed = role == Role::kTransposed;
  mx::MmaPanel panel =
      transposed ? mx::MmaPanel(matrix.cols, matrix.rows) : mx::MmaPanel(matrix.rows, matrix.cols);
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    const float* row = matrix.data.data() + i * matrix.cols;
    if (transposed) {
      for (std::int64_t c = 0; c < matrix.cols; ++c) panel.row(c)[i] = row[c];
    } else {
      std::copy(row, row + matrix.cols, panel.row(i));
    }
  }
  return panel;
}

mx::MmaPanel make_panel(const mx::QuantizedMatrix& matrix, Role role, bool scaled,
                        mx::AccumulatorRule rule) {
  Matrix<float> values(matrix.rows, matrix.cols);
  decode_codes(matrix.codes, values.data.data());
  if (std::ranges::find(matrix.scales, mx::kE8M0Nan) != matrix.scales.end()) {
    values.data = poisoned(matrix, std::move(values.data));
  }
  mx::MmaPanel panel = make_panel(values, role);
  if (scaled) fill_scales(matrix, role, panel);
  if (rule != mx::kExactAccumulator) mx::prepare_aligned(panel);
  return panel;
}

mx::AccumulatorRule fp8_rule(const RecipeConfig& config) {
  if (config.accumulator == Accumulator::kHopper) return mx::kHopperFp8Accumulator;
  if (config.accumulator == Accumulator::kBlackwell) return mx::kBlackwellAccumulator;
  return mx::kExactAccumulator;
}

bool is_mx(const RecipeConfig& config) {
  return config.machine == Machine::kBlackwell || config.machine == Machine::kHopper;
}

bool bf16_operands(const RecipeConfig& config) {
  return config.machine == Machine::kBf16 || config.machine == Machine::kF32;
}

void check_operands(const Operands& operands, const RecipeConfig& config, bool backward) {
  const std::int64_t dim = operands.q.cols();
  const auto check = [&](const Operand& operand, const char* name, std::int64_t rows, bool bf16) {
    const auto fits = [&](const auto& matrix) { return matrix.rows == rows && matrix.cols == dim; };
    const bool fp8 = !bf16_operands(config);
    core::expect((!fp8 || (fits(operand.along_d) && fits(operand.along_tokens))) &&
                     (!(bf16 || !fp8) || fits(operand.bf16)),
                 name, fmt::format("[{}, {}] in each form that the recipe reads", rows, dim),
                 fmt::format("codes [{}, {}] and [{}, {}], BF16 [{}, {}]", operand.along_d.rows,
                             operand.along_d.cols, operand.along_tokens.rows,
                             operand.along_tokens.cols, operand.bf16.rows, operand.bf16.cols));
  };
  // What the MMA or the folds could not express.
  const auto check_shape = [&](const Operand& operand, const char* name) {
    const BlockShape d = operand.along_d.block_shape;
    const BlockShape tokens = operand.along_tokens.block_shape;
    const auto uniform = [](BlockShape s) {
      return s == BlockShape::k32xD || s == BlockShape::k1xD;
    };
    const bool ok = config.machine == Machine::kHopper
                        ? uniform(d) && uniform(tokens)
                        : d != BlockShape::k32x1 && tokens != BlockShape::k1x32;
    core::expect(ok, name, "scales that the machine can apply",
                 fmt::format("{} and {}", block_shape_name(d), block_shape_name(tokens)));
  };
  check_shape(operands.q, "operands.q");
  check_shape(operands.k, "operands.k");
  check_shape(operands.v, "operands.v");
  core::expect(!config.leak_free || operands.v.along_tokens.block_shape == BlockShape::k1xD,
               "operands.v", "1xD in leak-free form",
               std::string(block_shape_name(operands.v.along_tokens.block_shape)));
  if (backward) check_shape(operands.dout, "operands.dout");
  core::expect(dim > 0, "operands.q", "a positive head_dim", core::text(dim));
  check(operands.q, "operands.q", operands.q.rows(), config.qk_bf16);
  check(operands.k, "operands.k", operands.k.rows(), config.qk_bf16);
  check(operands.v, "operands.v", operands.k.rows(), config.dp_bf16 && backward);
  const bool delta = config.delta_source == DeltaSource::kBf16;
  if (backward) check(operands.dout, "operands.dout", operands.q.rows(), config.dp_bf16 || delta);
}

HeadDimGemm::HeadDimGemm(const Operand& a, const Operand& b, bool bf16, double scale,
                         const RecipeConfig& config) {
  if (bf16) {
    a_ = make_panel(a.bf16, Role::kRows);
    b_ = make_panel(b.bf16, Role::kTransposed);
    scale_ = static_cast<float>(scale);
    return;
  }
  const bool scaled = config.machine == Machine::kBlackwell;
  rule_ = fp8_rule(config);
  a_ = make_panel(a.along_d, Role::kRows, scaled, rule_);
  b_ = make_panel(b.along_d, Role::kTransposed, scaled, rule_);
  if (config.machine == Machine::kHopper) {
    a_fold_ = token_exponents(a.along_d);
    b_fold_ = token_exponents(b.along_d);
  }
  scale_ = static_cast<float>(scale * a.tensor_scale * b.tensor_scale);
}

void HeadDimGemm::run(std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols,
                      float* acc, std::int64_t ldacc) const {
  for (std::int64_t i = 0; i < rows; ++i) std::fill_n(acc + i * ldacc, cols, 0.0f);
  const mx::MmaTile tile{.m = rows, .n = cols, .depth = a_.cols, .a_row = row, .b_col = col};
  mx::tensor_core_gemm(a_, b_, tile, rule_, acc, ldacc);
}

void HeadDimGemm::multipliers(std::int64_t row, std::int64_t col, std::int64_t cols,
                              float* out) const {
  if (a_fold_.empty()) {
    std::fill_n(out, cols, scale_);
    return;
  }
  for (std::int64_t j = 0; j < cols; ++j) {
    out[j] = folded(scale_, a_fold_[row] + b_fold_[col + j]);
  }
}

HeadDimGemm score_gemm(const Operands& operands, const HeadProblem& problem,
                       const RecipeConfig& config) {
  const bool bf16 = bf16_operands(config) || config.qk_bf16;
  constexpr double kLog2eDouble = 1.4426950408889634;
  return {operands.q, operands.k, bf16, problem.softmax_scale * kLog2eDouble, config};
}

MXFA_SIMD_CLONES
void multiply_row(const float* a, const float* b, float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = a[i] * b[i];
}

MXFA_SIMD_CLONES
void fma_row(const float* a, const float* b, const float* c, float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = __builtin_fmaf(a[i], b[i], c[i]);
}

MXFA_SIMD_CLONES
void scale_row(const float* values, int exponent, float* out, std::int64_t count) {
  const float factor = power_of_two(exponent);
  for (std::int64_t i = 0; i < count; ++i) out[i] = values[i] * factor;
}

}  // namespace mxfa::reference::recipe::internal
