// Requests that no machine can execute, and the recipes' exponential.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "mx/bits.h"
#include "mxfa/error.h"
#include "recipe_support.h"

namespace mxfa::reference::recipe {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Refusal {
  const char* field;
  std::function<void(RecipeConfig&)> change;
  RecipeConfig base = RecipeConfig::hopper();
};

TEST(RecipeConfigCheck, NamesTheFieldThatCannotBeExecuted) {
  const Refusal refusals[] = {
      {"qk_shape", [](auto& c) { c.qk_shape = BlockShape::k32x32; }},
      {"v_shape", [](auto& c) { c.v_shape = BlockShape::k1x32; }},
      {"dout_shape", [](auto& c) { c.dout_shape = BlockShape::k32x1; }},
      {"p_scale", [](auto& c) { c.p_scale = PScale::kBlockAmax; }},
      {"ds_scale", [](auto& c) { c.ds_scale = DsScale::kSquare32; }},
      {"accumulator", [](auto& c) { c.accumulator = Accumulator::kBlackwell; }},
      {"promote_keys", [](auto& c) { c.promote_keys = 100; }},
      {"promote_queries", [](auto& c) { c.promote_queries = 96; }},
      {"p_offset", [](auto& c) { c.p_offset = 9; }},
      {"p_offset", [](auto& c) { c.p_offset = std::nan(""); }},
      {"tile_n", [](auto& c) { c.tile_n = 0; }},
      {"tile_n", [](auto& c) { c.tile_n = 40; }},
      {"backward_tile_m", [](auto& c) { c.backward_tile_m = 16; }},
      {"tie_shift", [](auto& c) { c.tie_shift = 0.3; }},
      {"exp2", [](auto& c) { c.exp2 = nullptr; }},
      {"promote_dk_queries", [](auto& c) { c.half_sums = true; }},
      {"half_sums", [](auto& c) { c.half_sums = c.dkq_bf16 = true; }},
      {"half_sums", [](auto& c) { c.half_sums = true; }, RecipeConfig::blackwell()},
      {"dq_exponent", [](auto& c) { c.dq_exponent = 200; }},
      {"v_shape", [](auto& c) { c.leak_free = true; }},
      {"v_shape", [](auto& c) { c.v_shape = BlockShape::k1xD; }, RecipeConfig::blackwell()},
      {"promote_keys", [](auto& c) { c.promote_keys = 128; }, RecipeConfig::blackwell()},
      {"accumulator", [](auto& c) { c.accumulator = Accumulator::kHopper; },
       RecipeConfig::blackwell()},
      {"leak_free", [](auto& c) { c.leak_free = true; }, RecipeConfig::bf16()},
      {"accumulator", [](auto& c) { c.accumulator = Accumulator::kHopper; }, RecipeConfig::bf16()},
      {"ds_scale", [](auto& c) { c.ds_scale = DsScale::kWarp16; }, RecipeConfig::fp8_per_tensor()},
      {"shift_v",
       [](auto& c) {
         c = RecipeConfig::leak_free_of(c);
         c.smooth_v = true;
       }},
  };
  for (const Refusal& refusal : refusals) {
    RecipeConfig config = refusal.base;
    EXPECT_NO_THROW(config.check());
    refusal.change(config);
    try {
      config.check();
      FAIL() << refusal.field << " was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).rfind(std::string(refusal.field) + ":", 0), 0u)
          << error.what();
    }
  }
}

TEST(RecipeConfigCheck, NamesTheOperandThatDoesNotFit) {
  const RecipeConfig config = RecipeConfig::hopper();
  const auto expect_refusal = [](const char* name, const std::function<void()>& call) {
    try {
      call();
      FAIL() << name << " was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).rfind(std::string(name) + ":", 0), 0u) << error.what();
    }
  };
  HeadInputs inputs = normal_inputs({32, 64, 64});
  inputs.v = Matrix<float>(63, 64);
  expect_refusal("v", [&] { quantize_operands(inputs, config); });
  inputs = normal_inputs({32, 64, 64});
  inputs.dout = Matrix<float>(31, 64);
  expect_refusal("dout", [&] { quantize_operands(inputs, config); });
  inputs = normal_inputs({32, 64, 64});
  RecipeConfig shifted = config;
  shifted.smooth_k = true;
  shifted.shift_k.assign(3, 0.0f);
  expect_refusal("shift_k", [&] { quantize_operands(inputs, shifted); });

  const HeadProblem problem = problem_of(inputs);
  const Operands operands = quantize_operands(inputs, config);
  const SavedForward saved = recipe_forward(operands, problem, config).saved;
  Operands bad = operands;
  bad.k = quantize_operands(inputs, RecipeConfig::blackwell()).k;
  expect_refusal("operands.k", [&] { recipe_forward(bad, problem, config); });
  bad = operands;
  bad.v.along_tokens.rows = 50;
  expect_refusal("operands.v", [&] { recipe_forward(bad, problem, config); });
  bad = operands;
  bad.dout = {};
  expect_refusal("operands.dout", [&] { recipe_backward(bad, problem, saved, config); });
  SavedForward short_lse = saved;
  short_lse.lse.pop_back();
  expect_refusal("forward.lse", [&] { recipe_backward(operands, problem, short_lse, config); });
  // Codes alone are enough: what a kernel's producers hand over.
  Operands codes = operands;
  codes.q.bf16 = codes.k.bf16 = codes.v.bf16 = codes.dout.bf16 = {};
  const RecipeForward again = recipe_forward(codes, problem, config);
  EXPECT_TRUE(testing::bitwise_equal(again.saved.o.data, saved.o.data));
  EXPECT_NO_THROW(recipe_backward(codes, problem, saved, config));
}

TEST(RecipeExp2, NearestFp32Value) {
  std::int64_t wrong = 0;
  for (std::uint64_t bits = 0; bits < 0x100000000u; bits += 9973) {
    const float x = mx::bits_float(static_cast<std::uint32_t>(bits));
    if (!(x > -152 && x < 129)) continue;
    const auto want = static_cast<float>(std::exp2(static_cast<long double>(x)));
    if (exp2_f32(x) != want) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
  for (int e = -149; e < 128; ++e) EXPECT_EQ(exp2_f32(float(e)), std::ldexp(1.0f, e)) << e;
  EXPECT_EQ(exp2_f32(-kInf), 0.0f);
  EXPECT_EQ(exp2_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(exp2_f32(std::nanf(""))));
  EXPECT_EQ(exp2_f32(-1e30f), 0.0f);
  EXPECT_EQ(exp2_f32(128.0f), kInf);
}

}  // namespace
}  // namespace mxfa::reference::recipe
