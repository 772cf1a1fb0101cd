#include <gtest/gtest.h>

#include <cmath>

#include "dispatch/gpu/backward_call.h"
#include "dispatch/gpu/captured_graph.h"
#include "dispatch/gpu/device_state.h"
#include "dispatch/gpu/payload.h"
#include "support/compare.h"

namespace mxfa::testing {
namespace {

// The CPU rounds the same payloads, from scores that are exact where Hopper's keep 13 bits: now and
// then a code of P or dS differs.
constexpr double kSameRecipeDb = 36;

void expect_close_results(const BackwardResults& got, const BackwardResults& want, double limit,
                          std::int64_t cols, const std::string& label) {
  const auto check = [&](const std::vector<double>& a, const std::vector<double>& b,
                         const std::string& name) {
    EXPECT_TRUE(expect_close(a, b, {.metric = Metric::kSqnrDb, .limit = limit},
                             {.label = label + ": " + name, .cols = cols}));
  };
  check(got.dq, want.dq, "dq");
  check(got.dk, want.dk, "dk");
  check(got.dv, want.dv, "dv");
}

/// dk and dv; dq as well where its sums were made in order.
void expect_equal(const DeviceBackward::Codes& got, const DeviceBackward::Codes& want,
                  const std::string& label) {
  EXPECT_TRUE(bitwise_equal(got.dq, want.dq, {.label = label + ": dq"}));
  EXPECT_TRUE(bitwise_equal(got.dk, want.dk, {.label = label + ": dk"}));
  EXPECT_TRUE(bitwise_equal(got.dv, want.dv, {.label = label + ": dv"}));
}

CallCase jagged_in_order() {
  CallCase c = jagged();
  c.slack_rows_k = 2;
  c.options.deterministic = true;
  return c;
}

/// Qualities of S and dP that the public options name.
std::vector<CallCase> with_dials(const CallCase& c) {
  std::vector<CallCase> cases(5, c);
  cases[1].options.qk_bf16 = cases[3].options.qk_bf16 = true;
  cases[2].options.dp_bf16 = cases[3].options.dp_bf16 = true;
  cases[4].options.leak_free = true;
  return cases;
}
std::vector<CallCase> jagged_dense_and_broadcast_with_dials() {
  std::vector<CallCase> cases;
  for (const CallCase& c : {jagged_in_order(), dense(), broadcast()}) {
    for (const CallCase& dialled : with_dials(c)) cases.push_back(dialled);
  }
  return cases;
}

bool is_known(DeviceBackward& call) {
  return device().state().backwards.find({call.args(), call.options(), call.workspace().bytes()}) !=
         nullptr;
}

TEST(GpuBackward, AsOnTheCpuAndNearTheTruth) {
  for (const CallCase& c : jagged_dense_and_broadcast_with_dials()) {
    std::string label = c.dense() ? "dense" : c.options.broadcast_q ? "broadcast" : "jagged";
    if (c.options.qk_bf16) label += ", qk_bf16";
    if (c.options.dp_bf16) label += ", dp_bf16";
    if (c.options.leak_free) label += ", leak_free";
    DeviceBackward call(c);
    const BackwardResults got = DeviceBackward::decoded_of(call.run());
    const BackwardResults cpu = call.run_on_cpu(), truth = call.oracle();
    expect_close_results(got, cpu, kSameRecipeDb, c.head_dim, label);
    const auto near = [&](const std::vector<double>& x, const std::vector<double>& by_recipe,
                          const std::vector<double>& want) {
      EXPECT_GT(reference::sqnr_db(want, x), reference::sqnr_db(want, by_recipe) - 0.5) << label;
      EXPECT_GT(reference::sqnr_db(want, x), 18) << label;
    };
    near(got.dq, cpu.dq, truth.dq);
    near(got.dk, cpu.dk, truth.dk);
    near(got.dv, cpu.dv, truth.dv);
  }
}

// Forward and backward of half scores: as near to the truth as the CPU's.
TEST(GpuBackward, HalfScoresAreAsNearToTheTruth) {
  for (CallCase c : {jagged_in_order(), dense()}) {
    c.options.half_scores = true;
    DeviceBackward call(c);
    const BackwardResults got = DeviceBackward::decoded_of(call.run());
    const BackwardResults cpu = call.run_on_cpu(), truth = call.oracle();
    const auto near = [&](const std::vector<double>& x, const std::vector<double>& by_recipe,
                          const std::vector<double>& want, const char* name) {
      EXPECT_GT(reference::sqnr_db(want, x), reference::sqnr_db(want, by_recipe) - 0.5) << name;
    };
    near(got.dq, cpu.dq, truth.dq, "dq");
    near(got.dk, cpu.dk, truth.dk, "dk");
    near(got.dv, cpu.dv, truth.dv, "dv");
  }
}

TEST(GpuBackward, RowsOfNoSequenceAreCleared) {
  const CallCase c = jagged_in_order();
  DeviceBackward call(c);
  const DeviceBackward::Codes got = call.run();
  const auto expect_zeros = [&](const std::vector<std::uint16_t>& x, std::int64_t first) {
    for (std::size_t i = static_cast<std::size_t>(first * c.head_dim); i < x.size(); ++i) {
      ASSERT_EQ(x[i], 0) << i;
    }
  };
  expect_zeros(got.dq, c.cu_seqlens_q.back() * c.num_heads);
  expect_zeros(got.dk, c.cu_seqlens_k.back() * c.num_heads_kv);
  expect_zeros(got.dv, c.cu_seqlens_k.back() * c.num_heads_kv);
}

TEST(GpuBackward, EmptyBatches) {
  const CallCase empty{
      .cu_seqlens_q = {0}, .cu_seqlens_k = {0}, .batch = 0, .slack_rows = 2, .slack_rows_k = 3};
  for (const CallCase& c : with_dials(empty)) {
    const DeviceBackward::Codes got = DeviceBackward(c).run();
    for (const auto* x : {&got.dq, &got.dk, &got.dv}) {
      EXPECT_EQ(std::count(x->begin(), x->end(), 0), std::ssize(*x));
    }
  }
  DeviceBackward call(empty);
  const std::vector<std::int64_t> keys{3, 1, 64};
  const Mxfp8Output dk(keys, 0, BlockShape::k32x32);
  const TiledOutput tiled(keys, 0, {.scale_axis = ScaleAxis::kTokens});
  call.args().dk = dk.tensor();
  call.args().dk_tiled = {.tokens = tiled.view()};
  call.run();
  for (const auto& x : {dk.codes(), dk.scales(), tiled.bytes()}) {
    EXPECT_EQ(std::count(x.begin(), x.end(), 0), std::ssize(x));
  }
}

TEST(GpuBackward, PayloadGivesTheSameBits) {
  const CallCase c = jagged_in_order();
  DeviceBackward call(c);
  const DeviceBackward::Codes want = call.run();
  const auto payload = [&](const std::vector<std::uint16_t>& values, std::int64_t total,
                           std::int64_t heads, const std::vector<std::int32_t>& cu) {
    return Payload(values, {total, heads, c.head_dim}, cu);
  };
  const Payload q = payload(call.forward().values(0), c.total_q(), c.num_heads, c.cu_seqlens_q),
                k = payload(call.forward().values(1), c.total_k(), c.num_heads_kv, c.cu_seqlens_k),
                v = payload(call.forward().values(2), c.total_k(), c.num_heads_kv, c.cu_seqlens_k),
                dout = payload(call.dout_values(), c.total_q(), c.num_heads, c.cu_seqlens_q);
  const auto use = [](Tensor& x, const Payload& made) { x = made.tensor(x.values.dims()); };
  use(call.args().q, q);
  use(call.args().k, k);
  use(call.args().v, v);
  use(call.args().dout, dout);
  call.poison_outputs();
  expect_equal(call.run(), want, "payload");
}

TEST(GpuBackward, PreparedOperandsServeManyCalls) {
  DeviceBackward call(jagged_in_order());
  const DeviceBackward::Codes want = call.run();
  call.workspace().poison_again();
  attention::prepare_backward(call.args(), call.options(), call.workspace().bytes());
  for (int i = 0; i < 3; ++i) {
    call.poison_outputs();
    attention::backward_prepared(call.args(), call.options(), call.workspace().bytes());
    expect_equal(call.codes(), want, "prepared");
    EXPECT_EQ(is_known(call), i > 0);
  }
  // Gradients elsewhere are another call.
  DeviceBackward other(jagged_in_order());
  other.poison_outputs();
  call.args().dv = other.args().dv;
  EXPECT_FALSE(is_known(call));
  call.poison_outputs();
  attention::backward_prepared(call.args(), call.options(), call.workspace().bytes());
  EXPECT_TRUE(bitwise_equal(other.codes().dv, want.dv, {.label = "dv elsewhere"}));
  EXPECT_FALSE(bitwise_equal(call.codes().dv, want.dv, {}));
}

// It fills memory, which is no launch of a kernel: each call does.
TEST(GpuBackward, CallsWithoutQueriesAreNotKept) {
  DeviceBackward call({.cu_seqlens_q = {0, 0}, .cu_seqlens_k = {0, 40}});
  const DeviceBackward::Codes want = call.run();
  for (int i = 0; i < 3; ++i) {
    call.poison_outputs();
    attention::backward_prepared(call.args(), call.options(), call.workspace().bytes());
    expect_equal(call.codes(), want, "no queries");
    EXPECT_FALSE(is_known(call));
  }
}

TEST(GpuBackward, GraphsReplayIt) {
  DeviceBackward call(jagged_in_order());
  const driver::Stream stream(device().state().device);
  call.options().stream = stream.handle();
  const DeviceBackward::Codes want = call.run();  // loads the kernels
  const std::span<std::byte> workspace = call.workspace().bytes();
  const CapturedGraph graph(stream,
                            [&] { attention::backward(call.args(), call.options(), workspace); });
  for (int i = 0; i < 2; ++i) {
    call.poison_outputs();
    call.workspace().poison_again();
    graph.replay();
    expect_equal(call.codes(), want, "replayed");
  }
}

TEST(GpuBackward, GradientOfASumHasStrideZero) {
  CallCase c = dense();
  c.options.deterministic = true;
  DeviceBackward call(c);
  const std::vector<std::uint16_t> ones(static_cast<std::size_t>(c.head_dim), 0x3F80);
  const DeviceArray<std::uint16_t> row(ones);
  const DeviceArray<std::uint16_t> rows(
      std::vector<std::uint16_t>(call.dout_values().size(), 0x3F80));
  call.args().dout.values.data = rows.data();
  const DeviceBackward::Codes want = call.run();
  TensorView& dout = call.args().dout.values;
  dout.data = row.data();
  for (int i = 0; i + 1 < dout.rank; ++i) dout.strides[i] = 0;
  call.poison_outputs();
  expect_equal(call.run(), want, "stride 0");
}

TEST(GpuBackward, WhatIsNotGivenIsNotComputed) {
  DeviceBackward call(jagged_in_order());
  const DeviceBackward::Codes all = call.run();
  call.poison_outputs();
  call.args().dq = {};
  call.args().dv = {};
  const DeviceBackward::Codes got = call.run();
  EXPECT_TRUE(bitwise_equal(got.dk, all.dk, {.label = "dk"}));
  EXPECT_EQ(std::count(got.dq.begin(), got.dq.end(), 0xFFFF), std::ssize(got.dq));
  EXPECT_EQ(std::count(got.dv.begin(), got.dv.end(), 0xFFFF), std::ssize(got.dv));
}

TEST(GpuBackward, GradientsInMxfp8) {
  const CallCase c = jagged_in_order();
  DeviceBackward call(c);
  const DeviceBackward::Codes want = call.run();
  const attention::BackwardArgs in_bf16 = call.args();
  const std::vector<std::int64_t> keys{c.total_k(), c.num_heads_kv, c.head_dim};
  const std::vector<std::int64_t> queries{c.total_q(), c.num_heads, c.head_dim};
  for (const BlockShape shape : {BlockShape::k1x32, BlockShape::k32x32}) {
    call.options().output_shape = shape;
    const Mxfp8Output dq(queries, c.batches(), shape), dk(keys, c.batches(), shape),
        dv(keys, c.batches(), shape);
    call.args().dq = dq.tensor();
    call.args().dk = dk.tensor();
    call.args().dv = dv.tensor();
    call.run();
    // The same bytes as of the gradient in BF16, quantized on the host. dq is quantized from its
    // sums in FP32: BF16 has 16 steps in one of E4M3, so rounding to it first moves a code where
    // the sum lies in the one step around a boundary.
    const auto expect_quantized = [&](const Mxfp8Output& got, const std::vector<std::uint16_t>& x,
                                      const std::string& name) {
      const Payload quantized(x, keys, c.cu_seqlens_k, shape);
      const std::string label = name + " in " + std::string(block_shape_name(shape));
      EXPECT_TRUE(bitwise_equal(got.codes(), quantized.codes(), {.label = label}));
      EXPECT_TRUE(bitwise_equal(got.scales(), quantized.scales(), {.label = label + ": scales"}));
    };
    expect_quantized(dk, want.dk, "dk");
    expect_quantized(dv, want.dv, "dv");
    const Payload of_bf16(want.dq, queries, c.cu_seqlens_q, shape);
    const auto codes = dq.codes(), other = of_bf16.codes();
    std::int64_t different = 0;
    for (std::size_t i = 0; i < codes.size(); ++i) different += codes[i] != other[i];
    EXPECT_LT(different, std::ssize(codes) / 16) << block_shape_name(shape);

    // Any subset, and a mix.
    call.args() = in_bf16;
    call.args().dq = {};
    const Mxfp8Output alone(keys, c.batches(), shape);
    call.args().dv = alone.tensor();
    call.poison_outputs();
    const DeviceBackward::Codes mixed = call.run();
    expect_quantized(alone, want.dv, "dv alone");
    EXPECT_TRUE(bitwise_equal(mixed.dk, want.dk, {.label = "dk beside it"}));
    EXPECT_EQ(std::count(mixed.dq.begin(), mixed.dq.end(), 0xFFFF), std::ssize(mixed.dq));
  }
}

/// Scales of dk along head_dim and along tokens, those of dv along tokens alone.
TEST(GpuBackward, ScalesOfKeyGradientsInTiles) {
  CallCase side_by_side = dense();
  side_by_side.head_dim = 96;
  for (const CallCase& c : {jagged_in_order(), side_by_side}) {
    DeviceBackward call(c);
    const DeviceBackward::Codes in_bf16 = call.run();
    auto offsets = c.offsets(c.cu_seqlens_k, c.seqlen_k);
    const std::vector<std::int64_t> keys{c.total_k(), c.num_heads_kv, c.head_dim};
    const auto along = [&](ScaleAxis axis) -> QuantizeOptions {
      return {.block_shape = BlockShape::k32x32,
              .scale_axis = axis,
              .cu_seqlens = make_tensor(offsets.data(), DType::kI32, {std::ssize(offsets)})};
    };
    const QuantizeOptions head_dim = along(ScaleAxis::kHeadDim), tokens = along(ScaleAxis::kTokens);
    const Mxfp8Output dk(keys, c.batches(), BlockShape::k32x32),
        dv(keys, c.batches(), BlockShape::k32x32);
    const TiledOutput dk_dim(keys, c.batches(), head_dim), dk_tokens(keys, c.batches(), tokens),
        dv_tokens(keys, c.batches(), tokens);
    const std::vector<std::int64_t> dims(call.args().dk.values.dims().begin(),
                                         call.args().dk.values.dims().end());
    call.args().dk = dk.tensor(dims);
    call.args().dv = dv.tensor(dims);
    call.args().dk_tiled = {.head_dim = dk_dim.view(), .tokens = dk_tokens.view()};
    call.args().dv_tiled = {.tokens = dv_tokens.view()};
    call.run();
    const Payload want_dk(in_bf16.dk, keys, offsets, BlockShape::k32x32),
        want_dv(in_bf16.dv, keys, offsets, BlockShape::k32x32);
    const std::string label = c.dense() ? "dense " : "jagged ";
    const auto expect_tiled = [&](const TiledOutput& got, const Payload& want, const char* name) {
      EXPECT_TRUE(bitwise_equal(got.bytes(), got.tiled(want), {.label = label + name}));
    };
    EXPECT_TRUE(bitwise_equal(dk.codes(), want_dk.codes(), {.label = label + "dk"}));
    expect_tiled(dk_dim, want_dk, "dk along head_dim");
    expect_tiled(dk_tokens, want_dk, "dk along tokens");
    expect_tiled(dv_tokens, want_dv, "dv along tokens");
  }
}

TEST(GpuBackward, HalfSumsCountWhatOverflows) {
  CallCase c = dense();
  c.options.dq_accum = DType::kF16;
  DeviceBackward call(c);
  const BackwardResults cpu = call.run_on_cpu();
  const std::vector<std::int64_t> before{5};
  const DeviceArray<std::int64_t> count(before);
  call.args().dq_overflows = make_tensor(count.data(), DType::kI64, {1});
  // Sums of half a dozen terms in half, 66 dB each, behind the recipe's own differences.
  expect_close_results(DeviceBackward::decoded_of(call.run()), cpu, kSameRecipeDb, c.head_dim,
                       "half sums");
  EXPECT_EQ(count.download()[0], 5);
  call.options().dq_exponent = 40;  // all but zeros
  const DeviceBackward::Codes got = call.run();
  const std::int64_t overflows = count.download()[0] - 5;
  EXPECT_GT(overflows, std::ssize(got.dq) / 2);
  for (const double value : decoded(got.dq)) {
    EXPECT_LE(std::abs(value), 65504 * 0x1p-40 * (1 + 0x1p-8));
  }
}

}  // namespace
}  // namespace mxfa::testing
