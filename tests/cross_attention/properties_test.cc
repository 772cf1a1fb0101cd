#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "cross_attention/module_call.h"
#include "mx/bits.h"

/// What holds of the module whatever the values are.
namespace mxfa::testing {
namespace {

class CrossAttentionModule : public ::testing::TestWithParam<ModuleMode> {
 protected:
  const cross_attention::Options& options() const { return GetParam().options; }
};

TEST_P(CrossAttentionModule, ResultsDoNotDependOnTheNumberOfThreads) {
  // Long enough for a weight's gradient to be cut into chunks.
  const ModuleShape shape{"Long",
                          {.batch = 3,
                           .seqlen_q = 8,
                           .dim = 64,
                           .num_heads = 1,
                           .max_seqlen_k = 4000,
                           .sparsity = 0.2}};
  const reference::CrossAttentionBatch batch = shape.batch();
  ASSERT_GT(batch.total_k(), 8192);
  core::set_num_threads(1);
  ModuleCall want(batch, options());
  want.run();
  for (const int threads : {2, 5}) {
    core::set_num_threads(threads);
    ModuleCall got(batch, options());
    got.run();
    expect_same_bits(got, want, std::to_string(threads) + " threads,");
  }
  core::set_num_threads(0);
}

/// Slack rows of kv hold NaN; activations, workspace and outputs are 0xFF before the call.
TEST_P(CrossAttentionModule, SlackIsNeitherReadNorLeftUnwritten) {
  for (const ModuleShape& shape : {plain_shape(), odd_shape()}) {
    const reference::CrossAttentionBatch batch = shape.batch();
    ModuleCall want(batch, options());
    want.run();
    ModuleCall got(batch, options());
    got.kv.resize(got.kv.size() + std::size_t(37 * got.dim()), 0xFFFF);
    got.make_views();
    got.run();
    for (std::size_t i = want.dkv.size(); i < got.dkv.size(); ++i) {
      ASSERT_EQ(mx::float_bits(got.dkv[i]), 0u) << "slack of dkv, index " << i;
    }
    got.dkv.resize(want.dkv.size());
    expect_same_bits(got, want, shape.name + " with slack,");
  }
}

TEST_P(CrossAttentionModule, SequencesDoNotTouchEachOther) {
  const reference::CrossAttentionBatch batch = plain_shape().batch();
  ModuleCall want(batch, options());
  want.run();
  ModuleCall got(batch, options());
  const std::int64_t dim = got.dim(), first = batch.cu_seqlens_k[1], last = batch.cu_seqlens_k[2];
  ASSERT_TRUE(first % 32 != 0 && last % 32 != 0);
  got.kv[std::size_t((first + 3) * dim + 5)] = mx::encode_bf16(INFINITY);
  got.run();
  for (std::int64_t row = 0; row < got.rows_o; ++row) {
    const bool mine = row / 40 == 1;
    for (std::int64_t c = 0; c < dim; ++c) {
      const auto i = std::size_t(row * dim + c);
      if (mine) {
        ASSERT_TRUE(std::isnan(got.y[i])) << "y of row " << row;
      } else {
        ASSERT_EQ(got.y[i], want.y[i]) << "y of row " << row;
      }
    }
  }
  for (std::int64_t row = 0; row < batch.total_k(); ++row) {
    if (row >= first && row < last) continue;
    for (std::int64_t c = 0; c < dim; ++c) {
      ASSERT_EQ(got.dkv[std::size_t(row * dim + c)], want.dkv[std::size_t(row * dim + c)])
          << "dkv of row " << row;
    }
  }
  EXPECT_TRUE(std::isnan(got.dwk[0]));
}

TEST_P(CrossAttentionModule, SequencesWithoutKeysGiveZeros) {
  ModuleCall call(odd_shape().batch(), options());
  call.run();
  for (const std::int64_t sequence : {0, 2, 5}) {
    for (std::int64_t i = 0; i < 19 * call.dim(); ++i) {
      ASSERT_EQ(call.y[std::size_t(sequence * 19 * call.dim() + i)], 0) << "sequence " << sequence;
    }
  }
  for (const auto& [name, values] : call.results()) {
    for (const float value : *values) ASSERT_TRUE(std::isfinite(value)) << name;
  }
}

TEST_P(CrossAttentionModule, EmptyBatch) {
  const ModuleShape shape{"Empty", {.batch = 0, .seqlen_q = 5, .dim = 64, .max_seqlen_k = 9}};
  ModuleCall call(shape.batch(), options());
  call.run();
  EXPECT_TRUE(call.y.empty() && call.dkv.empty());
  for (const auto& [name, values] : call.results()) {
    for (const float value : *values) ASSERT_EQ(value, 0) << name;
  }
}

/// Asking for fewer gradients changes none of them.
TEST_P(CrossAttentionModule, EachGradientAlone) {
  const reference::CrossAttentionBatch batch = grouped_shape().batch();
  ModuleCall all(batch, options());
  all.run();
  ModuleCall some(batch, options());
  using Gradients = cross_attention::Gradients;
  TensorView Gradients::*const members[] = {&Gradients::seeds,
                                            &Gradients::kv,
                                            &Gradients::seed_norm_weight,
                                            &Gradients::kv_norm_weight,
                                            &Gradients::wq,
                                            &Gradients::wk,
                                            &Gradients::wv,
                                            &Gradients::wo};
  const auto want = all.results();
  for (std::size_t i = 0; i < std::size(members); ++i) {
    Gradients one;
    one.*members[i] = some.gradients().*members[i];
    some.run(one);
    EXPECT_TRUE(bitwise_equal(*some.results()[i + 1].second, *want[i + 1].second,
                              {.label = want[i + 1].first + " alone"}));
  }
  some.run({});  // none: no work, no error
}

/// Inputs in FP32, with gaps, outputs with gaps or in BF16.
TEST_P(CrossAttentionModule, FormsOfTensors) {
  const reference::CrossAttentionBatch batch = grouped_shape().batch();
  ModuleCall want(batch, options());
  want.run();
  ModuleCall got(batch, options());
  std::vector<std::vector<float>> storage;
  const auto spread = [&](TensorView& view) {
    const auto* codes = static_cast<const std::uint16_t*>(view.data);
    const std::int64_t cols = view.shape[view.rank - 1];
    std::vector<float>& values = storage.emplace_back(std::size_t(2 * view.num_elements()), NAN);
    for (std::int64_t i = 0; i < view.num_elements(); ++i) {
      values[std::size_t(2 * i)] = mx::decode_bf16(codes[i]);
    }
    view.data = values.data();
    view.dtype = DType::kF32;
    view.strides[view.rank - 1] = 2;
    if (view.rank == 2) view.strides[0] = 2 * cols;
  };
  cross_attention::Inputs& in = got.inputs;
  for (TensorView* view : {&in.seeds, &in.kv, &in.seed_norm_weight, &in.kv_norm_weight, &in.wq,
                           &in.wk, &in.wv, &in.wo, &got.dy_view}) {
    spread(*view);
  }
  got.run();
  expect_same_bits(got, want, "FP32 with gaps,");

  cross_attention::Gradients gradients = got.gradients();
  std::vector<std::uint16_t> dkv(want.dkv.size(), 0xFFFF), dwo(want.dwo.size(), 0xFFFF);
  gradients.kv = make_tensor(dkv.data(), DType::kBF16, in.kv.dims());
  // Transposed in memory.
  gradients.wo = make_tensor(dwo.data(), DType::kBF16, in.wo.dims());
  gradients.wo.strides[0] = 1;
  gradients.wo.strides[1] = gradients.wo.shape[0];
  got.run(gradients);
  for (std::size_t i = 0; i < dkv.size(); ++i) ASSERT_EQ(dkv[i], mx::encode_bf16(want.dkv[i]));
  const std::int64_t rows = in.wo.shape[0], cols = in.wo.shape[1];
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    ASSERT_EQ(dwo[std::size_t(i % cols * rows + i / cols)],
              mx::encode_bf16(want.dwo[std::size_t(i)]));
  }
}

/// All keys are one vector, values are a mean and a smaller part of their own. Rows of dS sum to
/// zero, so nothing should reach the queries but the error of delta, which the mean of V makes ten
/// times larger where delta reads an o that was rounded to E4M3.
TEST_P(CrossAttentionModule, DeltaReadsOAsAttentionLeftIt) {
  reference::CrossAttentionBatch batch = plain_shape().batch();
  const std::int64_t dim = batch.options.dim, half = dim / 2;
  for (std::int64_t row = 0; row < batch.total_k(); ++row) {
    for (std::int64_t c = 0; c < dim; ++c) {
      // As many of each sign in every row, so that all have one norm.
      const bool up = (c * 5 + row * 7) % half < half / 2;
      batch.kv[std::size_t(row * dim + c)] = mx::encode_bf16(c < half || up ? 1.0f : 0.75f);
    }
  }
  std::ranges::fill(batch.kv_norm_weight, mx::encode_bf16(1));
  for (std::int64_t i = 0; i < std::ssize(batch.wk); ++i) {
    if (i % dim >= half) batch.wk[std::size_t(i)] = 0;
  }
  ModuleCall call(batch, options());
  call.run();
  double mean = 0, through_keys = 0;
  for (const float value : call.dseeds) mean += double(value) * value / double(call.dseeds.size());
  for (const float value : call.dkv) {
    through_keys += double(value) * value / double(call.dkv.size());
  }
  RecordProperty("dseeds_over_dkv", std::to_string(std::sqrt(mean / through_keys)));
  EXPECT_LT(std::sqrt(mean / through_keys), 0.1);  // 0.04 in BF16, 0.36 with such an o
}

/// Projections in FP32 that BF16 cannot hold are rounded once, not twice.
TEST(CrossAttentionRounding, ProjectionsAreRoundedOnce) {
  const reference::CrossAttentionBatch batch = plain_shape().batch();
  ModuleCall call(batch, {});
  // Just above the middle between two codes (1 and 1.125): BF16 would round it to the tie.
  std::vector<float> wq(call.wq.size(), 1.0f);
  wq[0] = 448.0f;
  wq[1] = 272.0f + 0.01f;
  call.inputs.wq = make_tensor(wq.data(), DType::kF32, call.inputs.wq.dims());
  call.run();
  ModuleCall exact(batch, {});
  std::vector<float> rounded = wq;
  rounded[1] = 288.0f;
  exact.inputs.wq = make_tensor(rounded.data(), DType::kF32, call.inputs.wq.dims());
  exact.run();
  expect_same_bits(call, exact, "rounded up,");
}

INSTANTIATE_TEST_SUITE_P(Modes, CrossAttentionModule, ::testing::ValuesIn(module_modes()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace mxfa::testing
