#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "mx/bits.h"
#include "reference/attention.h"
#include "reference/recipe/recipe.h"
#include "support/compare.h"
#include "support/rng.h"

namespace mxfa::reference::recipe {

struct Shape {
  std::int64_t seqlen_q = 64;
  std::int64_t seqlen_k = 256;
  std::int64_t head_dim = 64;
};

inline Matrix<float> normal_matrix(testing::Rng& rng, std::int64_t rows, std::int64_t cols,
                                   double sigma = 1, double mean = 0) {
  Matrix<float> matrix(rows, cols);
  for (float& value : matrix.data) {
    value = mx::round_bf16(static_cast<float>(mean + sigma * rng.normal()));
  }
  return matrix;
}

/// N(0, 1) everywhere, softmax_scale 1/sqrt(head_dim).
inline HeadInputs normal_inputs(const Shape& shape, std::uint64_t seed = 1,
                                attention::Mask mask = {}) {
  testing::Rng rng(seed);
  HeadInputs inputs;
  inputs.q = normal_matrix(rng, shape.seqlen_q, shape.head_dim);
  inputs.k = normal_matrix(rng, shape.seqlen_k, shape.head_dim);
  inputs.v = normal_matrix(rng, shape.seqlen_k, shape.head_dim);
  inputs.dout = normal_matrix(rng, shape.seqlen_q, shape.head_dim);
  inputs.mask = mask;
  inputs.softmax_scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  return inputs;
}

inline HeadProblem problem_of(const HeadInputs& inputs) {
  return {inputs.mask, inputs.softmax_scale};
}

/// SQNR in dB; +infinity where equal.
template <class A, class B>
double db(const Matrix<A>& want, const Matrix<B>& got) {
  return testing::sqnr_db_of(got.data, want.data);
}

inline double max_lse_error(const std::vector<double>& want, const std::vector<float>& got) {
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (want[i] == got[i]) continue;  // both -infinity
    worst = std::max(worst, std::fabs(want[i] - got[i]));
  }
  return worst;
}

/// Row-wise SQNR, rows whose reference is zero left out, ascending.
template <class A, class B>
std::vector<double> sorted_row_sqnr(const Matrix<A>& want, const Matrix<B>& got) {
  std::vector<double> rows;
  for (std::int64_t i = 0; i < want.rows; ++i) {
    double signal = 0;
    double noise = 0;
    for (std::int64_t c = 0; c < want.cols; ++c) {
      const double error = static_cast<double>(want(i, c)) - static_cast<double>(got(i, c));
      signal += static_cast<double>(want(i, c)) * static_cast<double>(want(i, c));
      noise += error * error;
    }
    if (signal > 0) rows.push_back(10 * std::log10(signal / noise));
  }
  std::ranges::sort(rows);
  return rows;
}

struct NamedConfig {
  std::string name;
  RecipeConfig config;
};
inline void PrintTo(const NamedConfig& named, std::ostream* out) { *out << named.name; }

inline RecipeConfig with_1x32() {
  RecipeConfig config = RecipeConfig::blackwell();
  config.qk_shape = config.v_shape = config.dout_shape = BlockShape::k1x32;
  return config;
}
inline RecipeConfig hopper_exact() {
  RecipeConfig config = RecipeConfig::hopper();
  config.accumulator = Accumulator::kExact;
  return config;
}

/// Every machine and granularity whose error is that of E4M3.
inline std::vector<NamedConfig> mx_configs() {
  RecipeConfig constant = RecipeConfig::blackwell();
  constant.p_scale_backward = PScale::kConstant;
  RecipeConfig folded = RecipeConfig::blackwell();
  folded.dout_shape = BlockShape::k1xD;
  RecipeConfig blackwell_25 = RecipeConfig::blackwell();
  blackwell_25.accumulator = Accumulator::kBlackwell;
  RecipeConfig block_p = RecipeConfig::blackwell();
  block_p.p_scale = PScale::kBlockAmax;
  block_p.p_offset = 0;
  RecipeConfig hopper_256 = RecipeConfig::hopper();
  hopper_256.promote_keys = 256;
  hopper_256.promote_queries = 128;
  RecipeConfig leak_free_1x32 = RecipeConfig::leak_free_of(RecipeConfig::blackwell());
  leak_free_1x32.qk_shape = BlockShape::k1x32;
  return {{"blackwell", RecipeConfig::blackwell()},
          {"blackwell_25_bits", blackwell_25},
          {"blackwell_1x32", with_1x32()},
          {"blackwell_constant_backward", constant},
          {"blackwell_dout_1xD", folded},
          {"blackwell_block_p", block_p},
          {"hopper", RecipeConfig::hopper()},
          {"hopper_exact", hopper_exact()},
          {"hopper_promoted_256", hopper_256},
          {"leak_free_blackwell", RecipeConfig::leak_free_of(RecipeConfig::blackwell())},
          {"leak_free_blackwell_1x32", leak_free_1x32},
          {"leak_free_hopper", RecipeConfig::leak_free_of(RecipeConfig::hopper())}};
}

}  // namespace mxfa::reference::recipe
