#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "cpu/attention_call.h"
#include "support/compare.h"

/// NaN in one token: loud in every row that sees it, nowhere else, although the masked weights of a
/// partly visible tile are multiplied with it.
namespace mxfa::testing {
namespace {

constexpr std::int64_t kToken = 100;
constexpr std::int64_t kHeads = 2, kDim = 64;
constexpr std::int64_t kQueryTile = 64;  ///< of the backward: what the scale of a dS spans at most

struct MaskCase {
  std::string name;
  std::int64_t seqlen_q, seqlen_k;
  CausalAlignment alignment;
  bool causal;
  int window_left, window_right;
};
std::vector<MaskCase> mask_cases() {
  constexpr auto kTop = CausalAlignment::kTopLeft, kBottom = CausalAlignment::kBottomRight;
  return {{"Causal", 300, 300, kBottom, true, -1, -1},
          {"CausalTopLeft", 200, 400, kTop, true, -1, -1},
          {"CausalWindow", 400, 400, kBottom, true, 20, -1},
          {"Window", 400, 400, kBottom, false, 10, 10},
          {"WindowRight", 300, 300, kBottom, false, -1, 5}};
}

using Param = std::tuple<Mode, MaskCase>;

using Values = std::vector<float> AttentionCall::*;
constexpr attention::KeyRange kOneToken{kToken, kToken + 1};

class CpuAttentionNan : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    const auto& [mode, mask] = GetParam();
    call_ = random_call({.num_heads = kHeads,
                         .head_dim = kDim,
                         .cu_seqlens_q = {0, static_cast<std::int32_t>(mask.seqlen_q)},
                         .cu_seqlens_k = {0, static_cast<std::int32_t>(mask.seqlen_k)},
                         .options = mode.options},
                        3);
    call_.options.causal = mask.causal;
    call_.options.causal_alignment = mask.alignment;
    call_.options.window_left = mask.window_left;
    call_.options.window_right = mask.window_right;
    mask_ = {mask.causal, mask.alignment, mask.window_left, mask.window_right};
  }

  std::int64_t seqlen_q() const { return std::get<1>(GetParam()).seqlen_q; }
  std::int64_t seqlen_k() const { return std::get<1>(GetParam()).seqlen_k; }

  /// Tokens of the blocks that kToken's NaN makes NaN, at most: the dials keep some operands in
  /// BF16, where it stays alone.
  attention::KeyRange tokens(Values values) const {
    const bool dout = values == &AttentionCall::dout;
    const bool bf16 = call_.options.precision == attention::Precision::kBf16;
    if (bf16 || (call_.options.leak_free && !dout)) return {kToken, kToken + 1};
    const std::int64_t begin = kToken / kScaleBlock * kScaleBlock;
    return {begin, begin + kScaleBlock};
  }
  bool sees(std::int64_t row, attention::KeyRange keys) const {
    const attention::KeyRange seen = visible_keys(mask_, seqlen_q(), seqlen_k(), row);
    return seen.begin < keys.end && keys.begin < seen.end;
  }

  /// Runs with NaN in `values` and, to compare, with zeros in its blocks.
  void run(Values values, std::int64_t heads) {
    clean_ = nan_ = call_;
    const attention::KeyRange blocks = tokens(values);
    std::fill((clean_.*values).begin() + blocks.begin * heads * kDim,
              (clean_.*values).begin() + blocks.end * heads * kDim, 0.0f);
    nan_.*values = clean_.*values;
    for (std::int64_t h = 0; h < heads; ++h) {
      (nan_.*values)[static_cast<std::size_t>((kToken * heads + h) * kDim + 3)] =
          std::numeric_limits<float>::quiet_NaN();
    }
    clean_.run();
    nan_.run();
  }

  /// Row `row` of [rows, heads, kDim] is as if there were no NaN. On Hopper P' is relative to an
  /// anchor of the head, which counts a NaN query's weights as 1: the smallest P' may lose a bit.
  void expect_clean(Values values, std::int64_t heads, std::int64_t row, const char* label) const {
    const auto part = [&](const AttentionCall& call) {
      const auto begin = (call.*values).begin() + row * heads * kDim;
      return std::vector<float>(begin, begin + heads * kDim);
    };
    if (values == &AttentionCall::dv && call_.options.recipe == attention::Recipe::kHopper) {
      EXPECT_TRUE(expect_close(part(nan_), part(clean_), {.metric = Metric::kSqnrDb, .limit = 40},
                               {.label = label}))
          << "row " << row;
      return;
    }
    EXPECT_TRUE(bitwise_equal(part(nan_), part(clean_), {.label = label})) << "row " << row;
  }
  void expect_loud(Values values, std::int64_t heads, std::int64_t row, const char* label) const {
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto begin = (nan_.*values).begin() + (row * heads + h) * kDim;
      EXPECT_TRUE(std::any_of(begin, begin + kDim, [](float x) { return std::isnan(x); }))
          << label << " of row " << row << ", head " << h << " hides a NaN";
    }
  }

  /// Rows of O and dQ where keys or values hold the NaN.
  void check_query_rows(Values values) const {
    const attention::KeyRange blocks = tokens(values);
    int clean = 0, loud = 0;
    for (std::int64_t row = 0; row < seqlen_q(); ++row) {
      if (!sees(row, blocks)) {
        expect_clean(&AttentionCall::o, kHeads, row, "o");
        ++clean;
      } else if (sees(row, kOneToken)) {
        expect_loud(&AttentionCall::o, kHeads, row, "o");
        expect_loud(&AttentionCall::dq, kHeads, row, "dq");
        ++loud;
      }
      // Rows that share a block of dS with one that sees the NaN share its NaN scale.
      const std::int64_t first = row / kQueryTile * kQueryTile;
      bool shared = false;
      for (std::int64_t r = first; r < std::min(first + kQueryTile, seqlen_q()); ++r) {
        shared = shared || sees(r, blocks);
      }
      if (!shared) expect_clean(&AttentionCall::dq, kHeads, row, "dq");
    }
    EXPECT_GT(clean, 0);
    EXPECT_GT(loud, 0);
  }

  /// Rows of dK or dV. Queries may be NaN where `maybe(row)`, and are where `surely(row)`.
  template <class Maybe, class Surely>
  void check_key_rows(Values values, Maybe maybe, Surely surely, const char* label) const {
    const auto reached = [&](auto is_nan, attention::KeyRange keys) {
      bool any = false;
      for (std::int64_t row = 0; row < seqlen_q(); ++row) {
        any = any || (is_nan(row) && sees(row, keys));
      }
      return any;
    };
    std::int64_t clean = 0, loud = 0;
    for (std::int64_t group = 0; group < seqlen_k(); group += kScaleBlock) {
      const std::int64_t end = std::min(group + kScaleBlock, seqlen_k());
      const bool spared = !reached(maybe, {group, end});
      for (std::int64_t key = group; key < end; ++key) {
        if (spared) expect_clean(values, 1, key, label);
        clean += spared ? 1 : 0;
        if (!reached(surely, {key, key + 1})) continue;
        expect_loud(values, 1, key, label);
        ++loud;
      }
    }
    EXPECT_GT(loud, 0) << label;
    if (mask_.window_left >= 0) {
      EXPECT_GT(clean, 0) << label;
    }
  }
  /// Where keys or values hold the NaN: queries that see it.
  void check_seen(Values values, Values of, const char* label) const {
    const attention::KeyRange blocks = tokens(of);
    check_key_rows(
        values, [&](std::int64_t row) { return sees(row, blocks); },
        [&](std::int64_t row) { return sees(row, kOneToken); }, label);
  }
  /// Where queries or output gradients hold it.
  void check_seeing(Values values, Values of, const char* label) const {
    const attention::KeyRange blocks = tokens(of);
    check_key_rows(
        values, [&](std::int64_t row) { return row >= blocks.begin && row < blocks.end; },
        [&](std::int64_t row) { return row == kToken; }, label);
  }

  AttentionCall call_, clean_, nan_;
  attention::Mask mask_;
};

TEST_P(CpuAttentionNan, OfKeysStaysInTheRowsThatSeeIt) {
  run(&AttentionCall::k, 1);
  check_query_rows(&AttentionCall::k);
  check_seen(&AttentionCall::dk, &AttentionCall::k, "dk");
  check_seen(&AttentionCall::dv, &AttentionCall::k, "dv");
}

TEST_P(CpuAttentionNan, OfValuesStaysInTheRowsThatSeeIt) {
  run(&AttentionCall::v, 1);
  check_query_rows(&AttentionCall::v);
  check_seen(&AttentionCall::dk, &AttentionCall::v, "dk");
  EXPECT_TRUE(bitwise_equal(nan_.dv, clean_.dv, {.label = "dv, which does not read v"}));
}

TEST_P(CpuAttentionNan, OfQueriesStaysInTheKeysThatTheySee) {
  run(&AttentionCall::q, kHeads);
  check_seeing(&AttentionCall::dk, &AttentionCall::q, "dk");
  check_seeing(&AttentionCall::dv, &AttentionCall::q, "dv");
}

TEST_P(CpuAttentionNan, OfOutputGradientsStaysInTheKeysThatTheySee) {
  run(&AttentionCall::dout, kHeads);
  EXPECT_TRUE(bitwise_equal(nan_.o, clean_.o, {.label = "o"}));
  check_seeing(&AttentionCall::dk, &AttentionCall::dout, "dk");
  check_seeing(&AttentionCall::dv, &AttentionCall::dout, "dv");
}

const auto name_of = [](const ::testing::TestParamInfo<Param>& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
};
INSTANTIATE_TEST_SUITE_P(Masks, CpuAttentionNan,
                         ::testing::Combine(::testing::ValuesIn(all_modes()),
                                            ::testing::ValuesIn(mask_cases())),
                         name_of);

}  // namespace
}  // namespace mxfa::testing
