#include <cmath>
#include <string_view>

#include "core/check.h"
#include "reference/recipe/recipe.h"

namespace mxfa::reference::recipe {
namespace {

/// log2 of the largest payload.
constexpr double kPayloadLog2 = 8.807354922057604;

bool uniform_along_d(BlockShape shape) {
  return shape == BlockShape::k32xD || shape == BlockShape::k1xD;
}

void require(bool ok, std::string_view field, std::string_view expected, std::string_view got) {
  core::expect(ok, field, expected, std::string(got));
}
std::string_view on_off(bool value) { return value ? "true" : "false"; }

void check_numbers(const RecipeConfig& c) {
  core::expect(c.tile_n > 0 && c.tile_n % kScaleBlock == 0, "tile_n", "a positive multiple of 32",
               core::text(c.tile_n));
  core::expect(c.backward_tile_m > 0 && c.backward_tile_m % kScaleBlock == 0, "backward_tile_m",
               "a positive multiple of 32", core::text(c.backward_tile_m));
  core::expect(c.promote_keys >= 0 && c.promote_keys % c.tile_n == 0, "promote_keys",
               "0 or a multiple of tile_n", core::text(c.promote_keys));
  core::expect(c.promote_queries >= 0 && c.promote_queries % c.backward_tile_m == 0,
               "promote_queries", "0 or a multiple of backward_tile_m",
               core::text(c.promote_queries));
  // Above it the largest P saturates; NaN fails too.
  core::expect(c.p_offset >= 0 && c.p_offset <= kPayloadLog2 + 1e-9, "p_offset", "0 .. log2(448)",
               fmt::format("{}", c.p_offset));
  const bool may_lag = c.machine == Machine::kBlackwell && c.p_scale != PScale::kConstant;
  core::expect(c.rescale_threshold >= 0 &&
                   c.rescale_threshold <= (may_lag ? kPayloadLog2 - c.p_offset + 1e-9 : 0.0),
               "rescale_threshold",
               may_lag ? "0 .. log2(448) - p_offset" : "0 where P has no block scales",
               fmt::format("{}", c.rescale_threshold));
  core::expect(c.dq_exponent >= -100 && c.dq_exponent <= 100, "dq_exponent", "-100 .. 100",
               core::text(c.dq_exponent));
  core::expect(c.tie_shift >= 0 && c.tie_shift <= 10, "tie_shift", "0 .. 10 nats",
               fmt::format("{}", c.tie_shift));
  require(c.exp2 != nullptr, "exp2", "a function", "null");
}

void check_half_sums(const RecipeConfig& c) {
  require(c.machine == Machine::kHopper && c.accumulator == Accumulator::kHopper && !c.dkq_bf16,
          "half_sums", "false but with Hopper's accumulator of FP8", "true");
  core::expect(c.promote_queries > 0 && c.promote_dk_queries > 0 &&
                   c.promote_dk_queries % c.promote_queries == 0,
               "promote_dk_queries", "a multiple of promote_queries with half sums",
               core::text(c.promote_dk_queries));
}

void check_hopper(const RecipeConfig& c) {
  require(uniform_along_d(c.qk_shape), "qk_shape", "32xD or 1xD on Hopper",
          block_shape_name(c.qk_shape));
  require(uniform_along_d(c.v_shape), "v_shape", "32xD or 1xD on Hopper",
          block_shape_name(c.v_shape));
  require(uniform_along_d(c.dout_shape), "dout_shape", "32xD or 1xD on Hopper",
          block_shape_name(c.dout_shape));
  require(c.p_scale == PScale::kConstant && c.p_scale_backward == PScale::kConstant, "p_scale",
          "constant on Hopper, whose MMA has no block scales", "block scales");
  require(c.ds_scale == DsScale::kWarp16, "ds_scale", "kWarp16 on Hopper", "another");
  require(c.accumulator != Accumulator::kBlackwell, "accumulator", "exact or Hopper's",
          "Blackwell's");
}

void check_blackwell(const RecipeConfig& c) {
  require(c.leak_free || c.v_shape != BlockShape::k1xD, "v_shape",
          "scales of 32 tokens, which the PV GEMM can apply, unless leak_free",
          block_shape_name(c.v_shape));
  require(c.p_scale_backward != PScale::kBlockRowMax, "p_scale_backward", "kConstant or kBlockAmax",
          "kBlockRowMax");
  require(c.ds_scale == DsScale::kSquare32, "ds_scale", "kSquare32 on Blackwell", "another");
  require(c.accumulator != Accumulator::kHopper, "accumulator", "exact or Blackwell's", "Hopper's");
  core::expect(c.promote_keys == 0 && c.promote_queries == 0, "promote_keys",
               "0 on Blackwell, which accumulates in FP32", core::text(c.promote_keys));
}

}  // namespace

RecipeConfig RecipeConfig::blackwell() { return {}; }

RecipeConfig RecipeConfig::hopper() {
  RecipeConfig config;
  config.machine = Machine::kHopper;
  config.qk_shape = config.v_shape = config.dout_shape = BlockShape::k32xD;
  config.p_scale_backward = PScale::kConstant;
  config.ds_scale = DsScale::kWarp16;
  config.accumulator = Accumulator::kHopper;
  config.promote_keys = 128;
  config.promote_queries = 512;
  config.backward_tile_m = 64;
  return config;
}

RecipeConfig RecipeConfig::bf16() {
  RecipeConfig config;
  config.machine = Machine::kBf16;
  config.p_offset = 0;
  config.p_scale_backward = PScale::kConstant;
  config.delta_source = DeltaSource::kBf16;
  return config;
}

RecipeConfig RecipeConfig::f32() {
  RecipeConfig config = bf16();
  config.machine = Machine::kF32;
  config.o_out = config.dq_out = config.dkv_out = OutputFormat::kF32;
  return config;
}

RecipeConfig RecipeConfig::fp8_per_tensor() {
  RecipeConfig config;
  config.machine = Machine::kFp8PerTensor;
  config.p_scale_backward = PScale::kConstant;
  config.ds_scale = DsScale::kTensor;
  config.delta_source = DeltaSource::kBf16;
  return config;
}

RecipeConfig RecipeConfig::leak_free_of(RecipeConfig base) {
  base.leak_free = true;
  base.qk_shape = base.v_shape = BlockShape::k1xD;
  return base;
}

void RecipeConfig::check() const {
  check_numbers(*this);
  const bool is_mx = machine == Machine::kHopper || machine == Machine::kBlackwell;
  if (machine == Machine::kHopper) check_hopper(*this);
  if (machine == Machine::kBlackwell) check_blackwell(*this);
  if (half_sums) check_half_sums(*this);
  const bool has_fp8 = machine != Machine::kBf16 && machine != Machine::kF32;
  require(!has_fp8 || tie_shift == 0, "tie_shift",
          "0 but for the BF16 recipe: FP8 wants the maximum on an exact code", "a shift");
  require(is_mx || !leak_free, "leak_free", "false unless the scales are MX", on_off(leak_free));
  if (!is_mx) {
    require(p_scale == PScale::kConstant && p_scale_backward == PScale::kConstant, "p_scale",
            "constant unless the scales are MX", "block scales");
    require(accumulator != Accumulator::kBlackwell, "accumulator", "exact or Hopper's",
            "Blackwell's");
  }
  require(has_fp8 || accumulator == Accumulator::kExact, "accumulator", "exact for BF16",
          "an FP8 accumulator");
  if (machine == Machine::kFp8PerTensor) {
    require(ds_scale == DsScale::kTensor, "ds_scale", "kTensor with scales for each tensor",
            "another");
  }
  if (!leak_free) return;
  require(v_shape == BlockShape::k1xD, "v_shape", "1xD in leak-free form",
          block_shape_name(v_shape));
  require(qk_shape == BlockShape::k1xD || qk_shape == BlockShape::k1x32, "qk_shape",
          "1xD or 1x32 in leak-free form", block_shape_name(qk_shape));
  require(p_scale == PScale::kConstant, "p_scale", "constant in leak-free form", "block scales");
  // A mean over the sequence would be one more thing that future tokens change.
  require((!smooth_k || !shift_k.empty()) && (!smooth_v || !shift_v.empty()), "shift_v",
          "given vectors in leak-free form", "means over the sequence");
}

}  // namespace mxfa::reference::recipe
