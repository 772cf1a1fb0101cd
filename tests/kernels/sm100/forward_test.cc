#include <gtest/gtest.h>

#include <numbers>

#include "kernels/sm100/forward_support.h"
#include "support/compare.h"

namespace mxfa::testing {
namespace {

class Forward : public ::testing::TestWithParam<ForwardCase> {};

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

// FP32 rounds by up to this, relatively.
constexpr double kUnit = 0x1p-24;

// Of the row sum, all of whose terms are positive: eight chains of 16 additions a step and a tree
// of three levels above them, one fused multiply-add a step. The recipe adds in double.
double sum_error(std::int64_t keys) {
  return (16 + 3 + static_cast<double>(mx::ceil_div(keys, 128))) * kUnit;
}

// LSE = ln 2 * (lg2.approx(sum) - base): the sum's error, 2^-22 of lg2 (absolute where the
// logarithm is below 1, else relative; a sum is at most 2^8 times the keys), three roundings of
// results that are not larger than |LSE| and ln 2 * (|base| + 16).
double lse_error(std::int64_t keys, double lse) {
  const double log2_sum = 8 + std::log2(static_cast<double>(keys) + 1);
  return sum_error(keys) + std::numbers::ln2 * log2_sum * 0x1p-22 +
         3 * kUnit * (std::abs(lse) + log2_sum);
}

// O differs from the recipe's by the row sum's error, a division and a product, relatively
// sum_error + 2 kUnit: far less than half a step of BF16, so that the two land on the same value or
// on neighbours.
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
    EXPECT_NEAR(lse, want_lse, lse_error(batch.seqlen_k(sequence), want_lse))
        << label << ", row " << row;
  }
  const float* const o = &got.o[(at * batch.num_heads() + head) * batch.columns()];
  for (std::int64_t d = 0; d < batch.columns(); ++d) {
    const float value = o[d], wanted = want.saved.o(row, d);
    const float step = std::ldexp(1.0f, std::ilogb(std::max(std::abs(wanted), 1e-30f)) - 7);
    ASSERT_TRUE(std::abs(value - wanted) <= step)
        << label << ", row " << row << ", column " << d << ": O " << value << ", want " << wanted;
  }
}

// Where the machine rounds its products once an instruction and the recipe once a tile, S differs
// by a rounding for each further instruction, of partial sums that |q| |k| bounds; LSE by the
// largest such difference of its scores. A code of P flips where that crosses a rounding boundary:
// of at most 2^-13 of them (a difference of 2^-18 against steps of 2^-4, both ways), each with 12
// times the noise that rounding has anyway, which is 0.01 dB; 0.1 dB allows for few rows.
void expect_close_head(const ForwardBatch& batch, const ForwardBatch::Results& got,
                       const recipe::RecipeForward& want, const std::string& label,
                       std::int64_t sequence, std::int64_t head) {
  const reference::HeadInputs inputs =
      recipe::kern_inputs(batch.operands(sequence, head), batch.problem(), batch.config());
  const auto oracle = reference::attention_forward(inputs);
  const auto norm = [](const auto& matrix, std::int64_t row) {
    double sum = 0;
    for (std::int64_t d = 0; d < matrix.cols; ++d) sum += std::pow(matrix(row, d), 2);
    return std::sqrt(sum);
  };
  double longest_key = 0;
  for (std::int64_t j = 0; j < inputs.k.rows; ++j) {
    longest_key = std::max(longest_key, norm(inputs.k, j));
  }
  std::vector<double> o, wanted, right;
  for (std::int64_t row = 0; row < batch.seqlen_q(sequence); ++row) {
    const std::int64_t at = batch.o_begin(sequence) + row;
    const double lse = oracle.lse[row];
    if (std::isinf(lse)) {
      EXPECT_EQ(got.lse[head * batch.rows_o() + at], lse) << label << ", row " << row;
      continue;
    }
    const double score_error = batch.problem().softmax_scale *
                               (static_cast<double>(inputs.q.cols) / 32) * kUnit *
                               norm(inputs.q, row) * longest_key;
    EXPECT_NEAR(got.lse[head * batch.rows_o() + at], want.saved.lse[row],
                2 * score_error + lse_error(batch.seqlen_k(sequence), lse))
        << label << ", row " << row;
    for (std::int64_t d = 0; d < batch.columns(); ++d) {
      o.push_back(got.o[(at * batch.num_heads() + head) * batch.columns() + d]);
      wanted.push_back(want.saved.o(row, d));
      right.push_back(oracle.o(row, d));
    }
  }
  if (o.empty()) return;
  const double limit = reference::sqnr_db(right, wanted) - 0.1;
  EXPECT_TRUE(expect_close(o, right, {.metric = Metric::kSqnrDb, .limit = limit},
                           {.label = label, .cols = batch.columns()}));
}

// O in MXFP8 is what the library's quantizer makes of the FP32 values that it comes from, bit for
// bit.
void expect_codes(const ForwardBatch& batch, const ForwardBatch::Results& got, BlockShape shape,
                  const std::string& label, std::int64_t sequence, std::int64_t head) {
  const std::int64_t cols = batch.columns(), heads = batch.num_heads(), parts = batch.o_parts();
  const std::int64_t first = (batch.o_begin(sequence) * heads + head) * cols;
  const mx::QuantizedMatrix want = mx::quantize(
      {got.o.data() + first, batch.seqlen_q(sequence), cols, heads * cols}, {.block_shape = shape});
  for (std::int64_t row = 0; row < want.rows; ++row) {
    const std::int64_t scales = (batch.o_scale_row(sequence, row) * heads + head) * parts;
    for (std::int64_t d = 0; d < cols; ++d) {
      const std::int64_t at = first + row * heads * cols + d;
      ASSERT_EQ(got.o_codes[at], want.code(row, d))
          << label << ", row " << row << ", column " << d << ": code of O = " << got.o[at];
      ASSERT_EQ(got.o_scales[scales + d / 32], want.scale(row, d))
          << label << ", row " << row << ", column " << d << ": scale of O = " << got.o[at];
    }
  }
}

void check(const ForwardCase& test) {
  const ForwardBatch batch(test);
  const ForwardBatch::Results got = batch.run();
  EXPECT_TRUE(got.guards_intact) << test.name;
  for (std::int64_t s = 0; s < batch.batch(); ++s) {
    for (std::int64_t head = 0; head < test.num_heads; ++head) {
      const std::string label = fmt::format("{}: sequence {}, head {}", test.name, s, head);
      if (test.o_shape) expect_codes(batch, got, *test.o_shape, label, s, head);
      const recipe::RecipeForward want =
          recipe::recipe_forward(batch.operands(s, head), batch.problem(), batch.config());
      if (exact_arithmetic()) {
        expect_close_head(batch, got, want, label, s, head);
        continue;
      }
      for (std::int64_t row = 0; row < batch.seqlen_q(s); ++row) {
        expect_p(batch, got, want, label, s, head, row, test.mask);
        expect_row(batch, got, want, label, s, head, row);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST_P(Forward, AsTheRecipe) { check(GetParam()); }

// The acceptance figures of O against float64 attention on the dequantized operands, by the kernels
// of the library: at most 1 dB below what these data give.
TEST(ForwardNumerics, KernFigures) {
  struct Figure {
    const char* dataset;
    std::int64_t keys;
    double o_db;
  };
  for (const Figure& figure :
       {Figure{"normal", 1024, 32.1}, {"diffuse", 1024, 31.2}, {"rmsnorm", 4096, 48.0}}) {
    const ForwardBatch batch({.name = figure.dataset,
                              .dense_batch = 1,
                              .dense_seqlen_q = 256,
                              .dense_seqlen_k = figure.keys,
                              .dataset = figure.dataset});
    const auto oracle = reference::attention_forward(
        recipe::kern_inputs(batch.operands(0, 0), batch.problem(), batch.config()));
    EXPECT_TRUE(expect_close(batch.run(false).o, oracle.o.data,
                             {.metric = Metric::kSqnrDb, .limit = figure.o_db - 1},
                             {.label = figure.dataset, .cols = batch.columns()}));
  }
}

// The kernels of the library, which do not write P, give the same.
TEST(ForwardPlain, AsTheProbed) {
  const ForwardBatch batch({.name = "plain",
                            .cu_seqlens_q = {0, 140, 150},
                            .cu_seqlens_k = {0, 170, 300},
                            .p_scale = PScale::kBlockAmax});
  const ForwardBatch::Results probed = batch.run(true), plain = batch.run(false);
  EXPECT_TRUE(bitwise_equal(plain.o, probed.o, {.label = "o"}));
  EXPECT_TRUE(bitwise_equal(plain.lse, probed.lse, {.label = "lse"}));
  EXPECT_TRUE(bitwise_equal(plain.row_max, probed.row_max, {.label = "row_max"}));
}

TEST(ForwardPlain, Mxfp8AsTheProbed) {
  for (const BlockShape shape : {BlockShape::k1x32, BlockShape::k32x32}) {
    const ForwardBatch batch({.name = "plain",
                              .cu_seqlens_q = {0, 140, 150},
                              .cu_seqlens_k = {0, 170, 300},
                              .head_dim = 64,
                              .o_shape = shape});
    const ForwardBatch::Results probed = batch.run(true), plain = batch.run(false);
    EXPECT_TRUE(bitwise_equal(plain.o_codes, probed.o_codes, {.label = "codes"}));
    EXPECT_TRUE(bitwise_equal(plain.o_scales, probed.o_scales, {.label = "scales"}));
  }
}

// Under a causal mask, what later tokens hold changes no bit of earlier rows.
TEST(ForwardLeakFree, LaterTokensDoNotMatter) {
  ForwardCase test{.name = "leak",
                   .cu_seqlens_q = {0, 170},
                   .cu_seqlens_k = {0, 170},
                   .head_dim = 64,
                   .mask = {.causal = true},
                   .shape = BlockShape::k1xD,
                   .leak_free = true};
  const ForwardBatch::Results one = ForwardBatch(test).run(false);
  test.alter_from = 77;
  const ForwardBatch::Results other = ForwardBatch(test).run(false);
  const auto rows = [&](const ForwardBatch::Results& results, std::int64_t begin) {
    return std::span(results.o).subspan(begin * 64, 64);
  };
  for (std::int64_t row = 0; row < 77; ++row) {
    EXPECT_TRUE(bitwise_equal(rows(one, row), rows(other, row), {.label = "o"})) << "row " << row;
    EXPECT_EQ(one.lse[row], other.lse[row]) << "row " << row;
  }
  EXPECT_FALSE(bitwise_equal(rows(one, 100), rows(other, 100), {}));
}

TEST(ForwardCall, RefusesByName) {
  const auto refusal = [](const char* field, auto change) {
    sm100::forward::ForwardCall call;
    call.softmax_scale = 1.0;
    call.q.head_dim = call.k.head_dim = call.v.head_dim = 64;
    call.v.axis = ScaleAxis::kTokens;
    call.q.total = 1;  // without rows, outputs are not looked at
    call.q.rows = call.q.atoms = reinterpret_cast<const std::uint8_t*>(256);
    call.o = reinterpret_cast<std::uint16_t*>(256);
    call.lse = reinterpret_cast<float*>(256);
    change(call);
    try {
      attention_forward(machine().queue(), call);
      ADD_FAILURE() << field << ": not refused";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
    }
  };
  refusal("q.head_dim", [](auto& call) { call.q.head_dim = 96; });
  refusal("v.axis", [](auto& call) { call.v.axis = ScaleAxis::kHeadDim; });
  refusal("k.token_stride", [](auto& call) { call.k.token_stride = 8; });
  refusal("softmax_scale", [](auto& call) { call.softmax_scale = 0; });
  refusal("columns", [](auto& call) { call.columns = 72; });
  refusal("o", [](auto& call) { call.o += 1; });
  refusal("o.token_stride", [](auto& call) { call.o_token_stride = 12; });
  refusal("at least 0, below 17179869184 and", [](auto& call) { call.q.token_stride = 1ll << 34; });
  refusal("-64 bytes", [](auto& call) { call.o_head_stride = -32; });
  refusal("p_scale", [](auto& call) {
    call.leak_free = true;
    call.v.axis = ScaleAxis::kHeadDim;
    call.p_scale = PScale::kBlockAmax;
  });
}

constexpr auto kTopLeft = CausalAlignment::kTopLeft;

// Short ones: each path of the kernel once or twice.
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
    // Tiles without keys behind steps of both streams, of the second and of the first alone, with
    // work behind them that goes round the rings of loads and records.
    {.name = "keyless_between",
     .cu_seqlens_q = {0, 130, 730, 1342, 1352, 1362, 1372, 1382, 1392, 1402, 1412},
     .cu_seqlens_k = {0, 900, 1200, 1300, 1400, 1500, 1600, 1700, 1800, 1900, 2000},
     .head_dim = 64,
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
    {.name = "o_squares",
     .cu_seqlens_q = {0, 5, 5, 200, 230, 231},
     .cu_seqlens_k = {0, 130, 160, 190, 190, 330},
     .head_dim = 64,
     .num_heads = 2,
     .o_shape = BlockShape::k32x32,
     .spread = 3.0},
    {.name = "o_rows",
     .cu_seqlens_k = {0, 70, 70, 300},
     .columns = 104,
     .num_heads = 2,
     .num_heads_kv = 2,
     .p_scale = PScale::kBlockAmax,
     .o_shape = BlockShape::k1x32,
     .broadcast_seqlen_q = 33},
    {.name = "leak_free",
     .cu_seqlens_q = {0, 150, 157},
     .cu_seqlens_k = {0, 300, 333},
     .head_dim = 64,
     .mask = {.causal = true},
     .shape = BlockShape::k1x32,
     .leak_free = true,
     .spread = 3.0},
};

INSTANTIATE_TEST_SUITE_P(Cases, Forward, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

// The grid of what may be combined.
std::vector<ForwardCase> grid_cases() {
  const std::vector<std::int32_t> q{0, 1, 1, 258, 300, 556}, k{0, 200, 233, 600, 601, 985};
  const Mask masks[] = {{},
                        {.causal = true},
                        {.causal = true, .alignment = kTopLeft},
                        {.window_left = 100, .window_right = 0},
                        {.alignment = kTopLeft, .window_left = 31, .window_right = 200}};
  const char* const mask_names[] = {"all", "causal", "causal_top_left", "window",
                                    "window_top_left"};
  const char* const scale_names[] = {"constant", "amax", "row_max"};
  std::vector<ForwardCase> cases;
  for (const std::int64_t dim : {64, 128}) {
    for (int m = 0; m < 5; ++m) {
      for (const PScale scale : {PScale::kConstant, PScale::kBlockAmax, PScale::kBlockRowMax}) {
        cases.push_back({.name = fmt::format("d{}_{}_{}", dim, mask_names[m],
                                             scale_names[static_cast<int>(scale)]),
                         .cu_seqlens_q = q,
                         .cu_seqlens_k = k,
                         .head_dim = dim,
                         .num_heads = 2,
                         .num_heads_kv = m % 2 == 0 ? 1 : 2,
                         .mask = masks[m],
                         .p_scale = scale,
                         .shape = m % 2 == 0 ? BlockShape::k32x32 : BlockShape::k1x32,
                         .spread = 2.0,
                         .drift = 2.0});
      }
      cases.push_back({.name = fmt::format("d{}_{}_leak_free", dim, mask_names[m]),
                       .cu_seqlens_q = q,
                       .cu_seqlens_k = k,
                       .head_dim = dim,
                       .num_heads = 2,
                       .num_heads_kv = 1,
                       .mask = masks[m],
                       .shape = m % 2 == 0 ? BlockShape::k1xD : BlockShape::k1x32,
                       .leak_free = true,
                       .spread = 6.0});
    }
  }
  return cases;
}

// Long runs: every ring goes round several times, work tiles follow each other in a CTA.
std::vector<ForwardCase> long_cases() {
  std::vector<ForwardCase> cases;
  for (const PScale scale : {PScale::kConstant, PScale::kBlockAmax, PScale::kBlockRowMax}) {
    const int index = static_cast<int>(scale);
    cases.push_back({.name = fmt::format("long_{}", index),
                     .num_heads = 2,
                     .num_heads_kv = 1,
                     .p_scale = scale,
                     .dense_batch = 2,
                     .dense_seqlen_q = 512,
                     .dense_seqlen_k = 1100,
                     .drift = 3.0});
    cases.push_back({.name = fmt::format("shared_queries_{}", index),
                     .cu_seqlens_k = {0, 900, 901, 901, 1500, 1628},
                     .num_heads = 3,
                     .num_heads_kv = 3,
                     .p_scale = scale,
                     .broadcast_seqlen_q = 300});
  }
  cases.push_back(
      {.name = "columns_96", .cu_seqlens_q = {0, 130}, .cu_seqlens_k = {0, 300}, .columns = 96});
  cases.push_back({.name = "tied_maxima",
                   .dense_batch = 1,
                   .dense_seqlen_q = 64,
                   .dense_seqlen_k = 256,
                   .fill_q = 2.0,
                   .fill_k = 1.0});
  cases.push_back({.name = "no_keys", .cu_seqlens_q = {0, 300, 300}, .cu_seqlens_k = {0, 0, 40}});
  cases.push_back({.name = "peaky",
                   .dense_batch = 1,
                   .dense_seqlen_q = 128,
                   .dense_seqlen_k = 512,
                   .sigma_q = 12.0});
  return cases;
}

class ForwardFull : public Forward {};
TEST_P(ForwardFull, AsTheRecipe) { check(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Grid, ForwardFull, ::testing::ValuesIn(grid_cases()),
                         [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Long, ForwardFull, ::testing::ValuesIn(long_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace mxfa::testing
