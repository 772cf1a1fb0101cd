#include <gtest/gtest.h>

#include "kernels/sm100/forward_support.h"
#include "support/compare.h"

namespace mxfa::testing {
namespace {

class Forward : public ::testing::TestWithParam<ForwardCase> {};

float bf16_value(std::uint16_t bits) { return mx::bits_float(std::uint32_t{bits} << 16); }

// One row of the kernel's P against the recipe's, bit for bit, in the key blocks that its stream of
// 128 rows works on.
void expect_p(const ForwardBatch& batch, const ForwardBatch::Results& got,
              const recipe::RecipeForward& want, const std::string& label, std::int64_t sequence,
              std::int64_t head, std::int64_t row, const Mask& mask) {
  const std::int64_t seqlen_q = batch.seqlen_q(sequence), seqlen_k = batch.seqlen_k(sequence);
  const auto keys =
      attention::visible_span(mask, seqlen_q, seqlen_k, row / 128 * 128, row / 128 * 128 + 128);
  const std::int64_t at =
      (head * batch.rows_o() + batch.o_begin(sequence) + row) * batch.probe_pitch();
  for (std::int64_t j = keys.begin / 128 * 128;
       j < std::min(mx::ceil_div(keys.end, 128) * 128, seqlen_k); ++j) {
    ASSERT_EQ(got.p_codes[at + j], want.p_payload.code(row, j))
        << label << ", row " << row << ", key " << j << ": code of P = " << want.p(row, j);
    ASSERT_EQ(got.p_scales[(at + j) / 32], want.p_payload.scale(row, j))
        << label << ", row " << row << ", key " << j << ": scale of P = " << want.p(row, j);
  }
}

// O differs from the recipe's by the row sum's rounding alone (a tree of FP32 sums here, double
// there), which may move a value over one rounding boundary of BF16.
void expect_row(const ForwardBatch& batch, const ForwardBatch::Results& got,
                const recipe::RecipeForward& want, const std::string& label, std::int64_t sequence,
                std::int64_t head, std::int64_t row) {
  const std::int64_t at = batch.o_begin(sequence) + row;
  const float lse = got.lse[head * batch.rows_o() + at];
  const float row_max = got.row_max[head * batch.rows_o() + at];
  const float want_lse = want.saved.lse[row];
  EXPECT_EQ(row_max, want.saved.row_max[row]) << label << ", row " << row;
  if (std::isinf(want_lse)) {
    EXPECT_EQ(lse, want_lse) << label << ", row " << row;
  } else {
    // 2^-20: 16 roundings of the row sum; 2^-22: three of the result.
    EXPECT_NEAR(lse, want_lse, std::ldexp(1.0, -20) + std::ldexp(std::abs(want_lse), -22))
        << label << ", row " << row;
  }
  const std::uint16_t* const o = &got.o[(at * batch.num_heads() + head) * batch.columns()];
  for (std::int64_t d = 0; d < batch.columns(); ++d) {
    const float value = bf16_value(o[d]), wanted = want.saved.o(row, d);
    const float step = std::ldexp(1.0f, std::ilogb(std::max(std::abs(wanted), 1e-30f)) - 7);
    ASSERT_TRUE(std::abs(value - wanted) <= step)
        << label << ", row " << row << ", column " << d << ": O " << value << ", want " << wanted;
  }
}

// Where the machine rounds its products once an instruction and the recipe once a tile, a code of P
// may differ: O as close to the oracle as the recipe is, within what P's roundings scatter.
void expect_close_head(const ForwardBatch& batch, const ForwardBatch::Results& got,
                       const recipe::RecipeForward& want, const std::string& label,
                       std::int64_t sequence, std::int64_t head) {
  const auto oracle = reference::attention_forward(
      recipe::kern_inputs(batch.operands(sequence, head), batch.problem(), batch.config()));
  std::vector<double> o, wanted, right;
  for (std::int64_t row = 0; row < batch.seqlen_q(sequence); ++row) {
    const std::int64_t at = batch.o_begin(sequence) + row;
    const double lse = oracle.lse[row];
    if (std::isinf(lse)) {
      EXPECT_EQ(got.lse[head * batch.rows_o() + at], lse) << label << ", row " << row;
      continue;
    }
    EXPECT_NEAR(got.lse[head * batch.rows_o() + at], want.saved.lse[row],
                1e-5 * std::max(1.0, std::abs(lse)))
        << label << ", row " << row;
    for (std::int64_t d = 0; d < batch.columns(); ++d) {
      o.push_back(bf16_value(got.o[(at * batch.num_heads() + head) * batch.columns() + d]));
      wanted.push_back(want.saved.o(row, d));
      right.push_back(oracle.o(row, d));
    }
  }
  if (o.empty()) return;
  const double limit = reference::sqnr_db(right, wanted) - 0.1;
  EXPECT_TRUE(expect_close(o, right, {.metric = Metric::kSqnrDb, .limit = limit},
                           {.label = label, .cols = batch.columns()}));
}

TEST_P(Forward, AsTheRecipe) {
  const ForwardCase& test = GetParam();
  const ForwardBatch batch(test);
  const ForwardBatch::Results got = batch.run();
  EXPECT_TRUE(got.guards_intact) << test.name;
  for (std::int64_t s = 0; s < batch.batch(); ++s) {
    for (std::int64_t head = 0; head < test.num_heads; ++head) {
      const std::string label = fmt::format("{}: sequence {}, head {}", test.name, s, head);
      const recipe::RecipeForward want =
          recipe::recipe_forward(batch.operands(s, head), batch.problem(), batch.config());
      if (exact_arithmetic()) {
        expect_close_head(batch, got, want, label, s, head);
        continue;
      }
      for (std::int64_t row = 0; row < batch.seqlen_q(s); ++row) {
        expect_p(batch, got, want, label, s, head, row, test.mask);
        expect_row(batch, got, want, label, s, head, row);
        if (HasFailure()) return;
      }
    }
  }
}

constexpr auto kTopLeft = CausalAlignment::kTopLeft;

const ForwardCase kCases[] = {
    {.name = "one_tile", .dense_batch = 1, .dense_seqlen_q = 256, .dense_seqlen_k = 128},
    {.name = "blocks", .dense_batch = 1, .dense_seqlen_q = 256, .dense_seqlen_k = 512},
    {.name = "row_blocks",
     .head_dim = 64,
     .p_scale = PScale::kBlockAmax,
     .shape = BlockShape::k1x32,
     .dense_batch = 2,
     .dense_seqlen_q = 256,
     .dense_seqlen_k = 256,
     .drift = 3.0},
    {.name = "from_row_max",
     .p_scale = PScale::kBlockRowMax,
     .dense_batch = 1,
     .dense_seqlen_q = 128,
     .dense_seqlen_k = 384,
     .sigma_q = 2.0,
     .drift = 4.0},
    {.name = "jagged",
     .cu_seqlens_q = {0, 5, 5, 200, 230, 231},
     .cu_seqlens_k = {0, 130, 160, 190, 190, 330},
     .head_dim = 64,
     .num_heads = 2,
     .num_heads_kv = 1,
     .slack_rows = 7},
    {.name = "causal",
     .cu_seqlens_q = {0, 300, 310},
     .cu_seqlens_k = {0, 420, 425},
     .mask = {.causal = true}},
    {.name = "window",
     .cu_seqlens_q = {0, 140},
     .cu_seqlens_k = {0, 400},
     .head_dim = 64,
     .mask = {.alignment = kTopLeft, .window_left = 40, .window_right = 150},
     .p_scale = PScale::kBlockAmax},
    {.name = "broadcast",
     .cu_seqlens_k = {0, 70, 70, 300},
     .head_dim = 64,
     .columns = 40,
     .num_heads = 2,
     .num_heads_kv = 2,
     .broadcast_seqlen_q = 33},
};

INSTANTIATE_TEST_SUITE_P(Cases, Forward, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace mxfa::testing
