// Payloads and scales bit for bit against the definition, written out once more in scalar code
// from the codes alone: no panels, no vector loops, no tiles of rows.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "mx/block.h"
#include "mx/tensor_core.h"
#include "recipe_support.h"

namespace mxfa::reference::recipe {
namespace {

using attention::KeyRange;
using mx::QuantizedMatrix;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLog2e = 1.44269504f;

int exponent_at(const QuantizedMatrix& m, std::int64_t row, std::int64_t col) {
  return int{m.scale(row, col)} - 127;
}

/// One dot product along head_dim as the machine's MMA gives it, scales applied where it can.
float dot(const QuantizedMatrix& a, std::int64_t i, const QuantizedMatrix& b, std::int64_t j,
          const RecipeConfig& config) {
  const bool hopper = config.machine == Machine::kHopper;
  if (config.accumulator == Accumulator::kExact) {
    long double sum = 0;
    for (std::int64_t d = 0; d < a.cols; ++d) {
      const int e = hopper ? 0 : exponent_at(a, i, d) + exponent_at(b, j, d);
      sum += std::ldexp(
          static_cast<long double>(mx::decode_e4m3(a.code(i, d))) * mx::decode_e4m3(b.code(j, d)),
          e);
    }
    return static_cast<float>(sum);
  }
  const mx::AccumulatorRule rule = hopper ? mx::kHopperFp8Accumulator : mx::kBlackwellAccumulator;
  float c = 0;
  for (std::int64_t d0 = 0; d0 < a.cols; d0 += 32) {
    float x[32];
    float y[32];
    for (int d = 0; d < 32; ++d) {
      x[d] = mx::decode_e4m3(a.code(i, d0 + d));
      y[d] = mx::decode_e4m3(b.code(j, d0 + d));
    }
    mx::MmaElement element{mx::MmaType::kE4M3, mx::MmaType::kE4M3, rule, 0};
    if (!hopper) element.scale_exponent = exponent_at(a, i, d0) + exponent_at(b, j, d0);
    c = element.f32(x, y, c);
  }
  return c;
}

/// softmax_scale * log2(e) * 2^(what the MMA did not apply)
float score_factor(const Operands& ops, const HeadProblem& problem, const RecipeConfig& config,
                   std::int64_t i, std::int64_t j) {
  const float scale = static_cast<float>(problem.softmax_scale * 1.4426950408889634);
  if (config.machine != Machine::kHopper) return scale;
  return std::ldexp(scale, exponent_at(ops.q.along_d, i, 0) + exponent_at(ops.k.along_d, j, 0));
}

struct Definition {
  Matrix<std::uint8_t> codes;
  std::vector<float> lse;
};

/// The forward of one row at a time: constant P scale, V's exponents folded on Hopper and in
/// leak-free form.
Definition forward_definition(const Operands& ops, const HeadProblem& problem,
                              const RecipeConfig& config) {
  const std::int64_t m = ops.q.rows();
  const std::int64_t n = ops.k.rows();
  Definition out{Matrix<std::uint8_t>(m, n), std::vector<float>(std::size_t(m), -kInf)};
  const QuantizedMatrix& v = ops.v.along_tokens;
  for (std::int64_t i = 0; i < m; ++i) {
    const KeyRange keys = attention::visible_keys(problem.mask, m, n, i);
    float top = -kInf;
    float sum = 0;
    int anchor = -127;
    for (std::int64_t tile = 0; tile < n; tile += config.tile_n) {
      const std::int64_t end = std::min<std::int64_t>(n, tile + config.tile_n);
      for (std::int64_t j = tile; j < end; ++j) anchor = std::max(anchor, exponent_at(v, j, 0));
      const auto fold = [&](std::int64_t j) {
        if (config.leak_free) return exponent_at(v, j, 0);
        return config.machine == Machine::kHopper ? std::max(exponent_at(v, j, 0) - anchor, -32)
                                                  : 0;
      };
      const auto score = [&](std::int64_t j, float addend) {
        return std::fma(dot(ops.q.along_d, i, ops.k.along_d, j, config),
                        score_factor(ops, problem, config, i, j), addend);
      };
      const float old = top;
      for (std::int64_t j = std::max(tile, keys.begin); j < std::min(end, keys.end); ++j) {
        top = std::max(top, score(j, config.leak_free ? float(fold(j)) : 0.0f));
      }
      if (top == -kInf) continue;
      double tile_sum = 0;
      for (std::int64_t j = std::max(tile, keys.begin); j < std::min(end, keys.end); ++j) {
        const float base = 8.0f - top;
        const float x =
            config.leak_free ? score(j, float(fold(j))) + base : score(j, base + float(fold(j)));
        const float p = exp2_f32(x);
        out.codes(i, j) = mx::encode_e4m3(p);
        tile_sum += std::ldexp(double{p}, -fold(j));
      }
      sum = std::fma(sum, exp2_f32(old - top), float(tile_sum));
    }
    if (sum > 0) out.lse[i] = (log2_f32(sum) - (8.0f - top)) * 0.693147182f;
  }
  return out;
}

/// Rows and groups of several sizes, so that every fold is at work.
HeadInputs uneven_inputs(std::uint64_t seed) {
  HeadInputs inputs = normal_inputs({72, 300, 64}, seed, {.causal = true});
  Matrix<float>* const matrices[] = {&inputs.q, &inputs.k, &inputs.v, &inputs.dout};
  for (int t = 0; t < 4; ++t) {
    for (std::int64_t row = 0; row < matrices[t]->rows; ++row) {
      const int exponent = static_cast<int>((row / 32 * 7 + row % 3 + t) % 5) - 2;
      for (float& value : matrices[t]->row(row)) value = std::ldexp(value, exponent);
    }
  }
  return inputs;
}

std::vector<NamedConfig> defined_configs() {
  RecipeConfig blackwell_25 = RecipeConfig::blackwell();
  blackwell_25.accumulator = Accumulator::kBlackwell;
  return {{"blackwell", RecipeConfig::blackwell()},
          {"blackwell_25_bits", blackwell_25},
          {"hopper", RecipeConfig::hopper()},
          {"hopper_exact", hopper_exact()},
          {"leak_free_hopper", RecipeConfig::leak_free_of(RecipeConfig::hopper())},
          {"leak_free_blackwell", RecipeConfig::leak_free_of(RecipeConfig::blackwell())}};
}

class RecipePayload : public ::testing::TestWithParam<NamedConfig> {
 protected:
  void check_warp16_and_tile() const;
  void check_squares() const;
  RecipePayload() : config_(GetParam().config), inputs_(uneven_inputs(21)) {
    config_.keep_intermediates = true;
    operands_ = quantize_operands(inputs_, config_);
    problem_ = problem_of(inputs_);
    forward_ = recipe_forward(operands_, problem_, config_);
    backward_ = recipe_backward(operands_, problem_, forward_.saved, config_);
  }
  RecipeConfig config_;
  HeadInputs inputs_;
  Operands operands_;
  HeadProblem problem_;
  RecipeForward forward_;
  RecipeBackward backward_;
};

TEST_P(RecipePayload, ForwardCodesAndLse) {
  const Definition want = forward_definition(operands_, problem_, config_);
  EXPECT_TRUE(testing::bitwise_equal(forward_.p_payload.codes, want.codes.data,
                                     {.label = "P codes", .cols = 300}));
  EXPECT_TRUE(testing::bitwise_equal(forward_.saved.lse, want.lse, {.label = "LSE"}));
}

/// P', dP and dS of one element from codes, LSE and O alone.
struct ScoreDefinition {
  float p = 0;  ///< folded
  float dp = 0;
  float ds = 0;
};
ScoreDefinition score_definition(const Operands& ops, const HeadProblem& problem,
                                 const RecipeConfig& config, const SavedForward& saved,
                                 const RecipeBackward& backward, std::int64_t i, std::int64_t j) {
  const bool hopper = config.machine == Machine::kHopper;
  const float bias = float(backward.p_fold[i]) - saved.lse[i] * kLog2e;
  const float x = std::fma(dot(ops.q.along_d, i, ops.k.along_d, j, config),
                           score_factor(ops, problem, config, i, j), bias);
  ScoreDefinition out;
  out.p = exp2_f32(x);
  const int e = hopper ? exponent_at(ops.dout.along_d, i, 0) + exponent_at(ops.v.along_d, j, 0) : 0;
  const float acc = dot(ops.dout.along_d, i, ops.v.along_d, j, config);
  out.dp = std::ldexp(acc, e);
  out.ds = std::ldexp(out.p, -backward.p_fold[i]) *
           std::fma(acc, std::ldexp(1.0f, e), -backward.delta[i]);
  return out;
}

TEST_P(RecipePayload, BackwardScores) {
  const std::int64_t n = 300;
  for (std::int64_t i = 0; i < 72; ++i) {
    const KeyRange keys = attention::visible_keys(problem_.mask, 72, n, i);
    double delta = 0;
    for (std::int64_t d = 0; d < 64; ++d) {
      delta += double{operands_.dout.along_d.value(i, d)} * forward_.saved.o(i, d);
    }
    ASSERT_EQ(backward_.delta[i], static_cast<float>(delta)) << i;
    for (std::int64_t j = 0; j < n; ++j) {
      if (j < keys.begin || j >= keys.end) {
        ASSERT_EQ(backward_.p(i, j), 0.0f) << i << " " << j;
        ASSERT_EQ(backward_.ds(i, j), 0.0f) << i << " " << j;
        continue;
      }
      const ScoreDefinition want =
          score_definition(operands_, problem_, config_, forward_.saved, backward_, i, j);
      ASSERT_EQ(backward_.p(i, j), want.p) << i << " " << j;
      ASSERT_EQ(backward_.dp(i, j), want.dp) << i << " " << j;
      ASSERT_EQ(backward_.ds(i, j), want.ds) << i << " " << j;
    }
  }
}

TEST_P(RecipePayload, BackwardPCodes) {
  const QuantizedMatrix& payload = backward_.p_payload;
  if (config_.p_scale_backward == PScale::kConstant) {
    int anchor = -1000;
    for (std::int64_t i = 0; i < 72; ++i) {
      const float log2_pmax = forward_.saved.row_max[i] - forward_.saved.lse[i] * kLog2e;
      anchor = std::max(anchor, exponent_at(operands_.dout.along_d, i, 0) +
                                    int(std::min(0.0f, std::ceil(log2_pmax))));
    }
    EXPECT_EQ(backward_.p_anchor, anchor - 8);
    for (std::int64_t i = 0; i < 72; ++i) {
      EXPECT_EQ(backward_.p_fold[i],
                std::max(exponent_at(operands_.dout.along_d, i, 0) - anchor + 8, -32));
      for (std::int64_t j = 0; j < 300; ++j) {
        ASSERT_LE(backward_.p(i, j), 256.1f);
        ASSERT_EQ(payload.code(i, j), mx::encode_e4m3(backward_.p(i, j))) << i << " " << j;
      }
    }
    return;
  }
  for (std::int64_t j = 0; j < 300; ++j) {
    for (std::int64_t i0 = 0; i0 < 72; i0 += 32) {
      std::vector<float> column;
      for (std::int64_t i = i0; i < std::min<std::int64_t>(72, i0 + 32); ++i) {
        column.push_back(backward_.p(i, j));
      }
      const mx::Block block = mx::quantize_block(column);
      ASSERT_EQ(payload.scale(i0, j), block.scale) << i0 << " " << j;
      for (std::size_t q = 0; q < column.size(); ++q) {
        ASSERT_EQ(payload.code(i0 + std::int64_t(q), j), block.codes[q]) << i0 << " " << j;
      }
    }
  }
}

float block_amax_of(const Matrix<float>& ds, std::int64_t i0, std::int64_t i1, std::int64_t j0,
                    std::int64_t j1, const std::function<int(std::int64_t, std::int64_t)>& fold) {
  float amax = 0;
  for (std::int64_t i = i0; i < i1; ++i) {
    for (std::int64_t j = j0; j < j1; ++j) {
      amax = std::max(amax, std::fabs(std::ldexp(ds(i, j), fold(i, j))));
    }
  }
  return amax;
}

void RecipePayload::check_warp16_and_tile() const {
  const auto q_fold = [&](std::int64_t i, std::int64_t) {
    return exponent_at(operands_.q.along_tokens, i, 0);
  };
  const auto k_fold = [&](std::int64_t, std::int64_t j) {
    return exponent_at(operands_.k.along_tokens, j, 0);
  };
  const auto exponent_of = [](float amax) {
    return int{mx::scale_from_amax<mx::E4M3>(amax, ScaleRule::kRoundUp)} - 127;
  };
  for (std::int64_t j0 = 0; j0 < 300; j0 += 16) {
    const std::int64_t j1 = std::min<std::int64_t>(300, j0 + 16);
    int exponent = -1000;
    for (std::int64_t i0 = 0; i0 < 72; i0 += 64) {
      const std::int64_t i1 = std::min<std::int64_t>(72, i0 + 64);
      const float amax = block_amax_of(backward_.ds, i0, i1, j0, j1, q_fold);
      if (amax > 0) exponent = std::max(exponent, exponent_of(amax));
      EXPECT_EQ(backward_.ds_dk_exponent(i0 / 64, j0 / 16), exponent) << i0 << " " << j0;
      for (std::int64_t i = i0; i < i1; ++i) {
        for (std::int64_t j = j0; j < j1; ++j) {
          ASSERT_EQ(backward_.ds_dk_codes(i, j),
                    mx::encode_e4m3(std::ldexp(backward_.ds(i, j), q_fold(i, j) - exponent)))
              << i << " " << j;
        }
      }
    }
  }
  for (std::int64_t j0 = 0; j0 < 300; j0 += 64) {
    for (std::int64_t i0 = 0; i0 < 72; i0 += 64) {
      const std::int64_t i1 = std::min<std::int64_t>(72, i0 + 64);
      const std::int64_t j1 = std::min<std::int64_t>(300, j0 + 64);
      const float amax = block_amax_of(backward_.ds, i0, i1, j0, j1, k_fold);
      const int exponent = amax > 0 ? exponent_of(amax) : -1000;
      EXPECT_EQ(backward_.ds_dq_exponent(i0 / 64, j0 / 64), exponent);
      for (std::int64_t i = i0; i < i1; ++i) {
        for (std::int64_t j = j0; j < j1; ++j) {
          ASSERT_EQ(backward_.ds_dq_codes(i, j),
                    mx::encode_e4m3(std::ldexp(backward_.ds(i, j), k_fold(i, j) - exponent)))
              << i << " " << j;
        }
      }
    }
  }
}

void RecipePayload::check_squares() const {
  const auto fold = [&](std::int64_t i, std::int64_t j) {
    const bool folds = !backward_.ds_row_fold.empty();
    return folds ? backward_.ds_row_fold[i] + backward_.ds_col_fold[j] : 0;
  };
  EXPECT_EQ(backward_.ds_row_fold.empty(), config_.qk_shape != BlockShape::k1xD);
  for (std::int64_t i0 = 0; i0 < 72; i0 += 32) {
    for (std::int64_t j0 = 0; j0 < 300; j0 += 32) {
      const std::int64_t i1 = std::min<std::int64_t>(72, i0 + 32);
      const std::int64_t j1 = std::min<std::int64_t>(300, j0 + 32);
      const std::uint8_t scale = mx::scale_from_amax<mx::E4M3>(
          block_amax_of(backward_.ds, i0, i1, j0, j1, fold), ScaleRule::kRoundUp);
      EXPECT_EQ(backward_.ds_dk_exponent(i0 / 32, j0 / 32), int{scale} - 127);
      for (std::int64_t i = i0; i < i1; ++i) {
        for (std::int64_t j = j0; j < j1; ++j) {
          const std::uint8_t code =
              mx::encode_scaled<mx::E4M3>(std::ldexp(backward_.ds(i, j), fold(i, j)), scale);
          ASSERT_EQ(backward_.ds_dk_codes(i, j), code) << i << " " << j;
          ASSERT_EQ(backward_.ds_dq_codes(i, j), code) << i << " " << j;
        }
      }
    }
  }
}

TEST_P(RecipePayload, DsCodesAndExponents) {
  if (config_.machine == Machine::kHopper) {
    check_warp16_and_tile();
  } else {
    check_squares();
  }
}

/// The gradients as sums of what the payloads mean, in double.
TEST_P(RecipePayload, GradientsAreTheSumsOfTheirPayloads) {
  const Matrix<float> q = kern_inputs(operands_, problem_, config_).q;
  const Matrix<float> k = kern_inputs(operands_, problem_, config_).k;
  Matrix<double> dv(300, 64), dk(300, 64), dq(72, 64);
  for (std::int64_t i = 0; i < 72; ++i) {
    for (std::int64_t j = 0; j < 300; ++j) {
      const bool hopper = config_.machine == Machine::kHopper;
      const double p =
          std::ldexp(double{backward_.p_payload.value(i, j)}, hopper ? -backward_.p_fold[i] : 0);
      const double for_dk = backward_.ds_dequantized(i, j);
      double for_dq = for_dk;
      if (hopper) {
        for_dq = std::ldexp(
            double{mx::decode_e4m3(backward_.ds_dq_codes(i, j))},
            backward_.ds_dq_exponent(i / 64, j / 64) - exponent_at(operands_.k.along_tokens, j, 0));
      }
      for (std::int64_t d = 0; d < 64; ++d) {
        dv(j, d) += p * operands_.dout.along_tokens.value(i, d);
        dk(j, d) += for_dk * q(i, d) * problem_.softmax_scale;
        dq(i, d) += for_dq * k(j, d) * problem_.softmax_scale;
      }
    }
  }
  // BF16 outputs: 2^-9 relative at most, about 53 dB.
  const auto close = [&](const auto& want, const auto& got, const char* name) {
    EXPECT_TRUE(testing::expect_close(got.data, want.data, {testing::Metric::kSqnrDb, 50},
                                      {.label = name, .cols = 64}));
  };
  close(dv, backward_.dv, "dV");
  close(dk, backward_.dk, "dK");
  close(dq, backward_.dq, "dQ");
}

/// Each key tile's dQ is rounded to the format, then added, then rounded again.
TEST(RecipeDqSum, TermsAndSumsAreRounded) {
  const HeadInputs inputs = uneven_inputs(22);
  RecipeConfig config = RecipeConfig::blackwell();
  config.keep_intermediates = true;
  config.dq_out = OutputFormat::kF32;
  const Operands operands = quantize_operands(inputs, config);
  const HeadProblem problem = problem_of(inputs);
  const SavedForward saved = recipe_forward(operands, problem, config).saved;
  for (const DqAccum format : {DqAccum::kF32, DqAccum::kF16, DqAccum::kBf16}) {
    config.dq_accum = format;
    const RecipeBackward backward = recipe_backward(operands, problem, saved, config);
    const auto round = [&](float value) {
      if (format == DqAccum::kF16) return mx::round_f16(value);
      return format == DqAccum::kBf16 ? mx::round_bf16(value) : value;
    };
    Matrix<float> want(72, 64);
    for (std::int64_t element = 0; element < 72 * 64; ++element) {
      const std::int64_t i = element / 64;
      const std::int64_t d = element % 64;
      float sum = 0;
      for (std::int64_t j0 = 0; j0 < 300; j0 += 128) {
        double acc = 0;
        for (std::int64_t j = j0; j < std::min<std::int64_t>(300, j0 + 128); ++j) {
          acc += double{backward.ds_dequantized(i, j)} * operands.k.along_tokens.value(j, d);
        }
        const float term = static_cast<float>(acc) * static_cast<float>(problem.softmax_scale);
        sum = round(sum + round(std::ldexp(term, backward.dq_exponent)));
      }
      want(i, d) = std::ldexp(sum, -backward.dq_exponent);
    }
    EXPECT_TRUE(testing::bitwise_equal(backward.dq.data, want.data, {.label = "dQ", .cols = 64}));
  }
}

TEST_P(RecipePayload, OutputIsTheSumOfItsPayload) {
  Matrix<double> o(72, 64);
  for (std::int64_t i = 0; i < 72; ++i) {
    for (std::int64_t j = 0; j < 300; ++j) {
      for (std::int64_t d = 0; d < 64; ++d) {
        o(i, d) += double{forward_.p_normalized(i, j)} * operands_.v.along_tokens.value(j, d);
      }
    }
  }
  EXPECT_TRUE(testing::expect_close(forward_.saved.o.data, o.data, {testing::Metric::kSqnrDb, 50},
                                    {.label = "O", .cols = 64}));
}

INSTANTIATE_TEST_SUITE_P(Machines, RecipePayload, ::testing::ValuesIn(defined_configs()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace mxfa::reference::recipe
