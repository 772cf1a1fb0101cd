#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "dispatch/gpu/captured_graph.h"
#include "dispatch/gpu/device_call.h"
#include "dispatch/gpu/payload.h"
#include "reference/attention.h"
#include "support/compare.h"

namespace mxfa::testing {
namespace {

// The CPU sums exactly, Hopper's accumulator keeps 13 bits: S differs by up to 1e-3 of its size
// (half of what is allowed), and now and then a code of P with it.
constexpr double kSameRecipeDb = 40;
constexpr double kSameScore = 2e-3;

void expect_same_recipe(const CallResults& got, const CallResults& want, const CallCase& c) {
  EXPECT_TRUE(expect_close(decoded(got.o), decoded(want.o),
                           {.metric = Metric::kSqnrDb, .limit = kSameRecipeDb},
                           {.label = "o", .cols = c.head_dim}));
  for (std::size_t i = 0; i < want.lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      EXPECT_EQ(got.lse[i], want.lse[i]) << i;
      EXPECT_EQ(got.row_max[i], want.row_max[i]) << i;
      continue;
    }
    EXPECT_NEAR(got.lse[i], want.lse[i], kSameScore * std::max(1.0, std::abs(double{want.lse[i]})))
        << i;
    EXPECT_NEAR(got.row_max[i], want.row_max[i],
                kSameScore * std::max(1.0, std::abs(double{want.row_max[i]})))
        << i;
  }
}

void expect_equal(const CallResults& got, const CallResults& want, const std::string& label) {
  EXPECT_TRUE(bitwise_equal(got.o, want.o, {.label = label + ": o"}));
  EXPECT_TRUE(bitwise_equal(got.lse, want.lse, {.label = label + ": lse"}));
  EXPECT_TRUE(bitwise_equal(got.row_max, want.row_max, {.label = label + ": row_max"}));
}

TEST(GpuForward, JaggedAsOnTheCpu) {
  const CallCase c = jagged();
  DeviceCall call(c);
  expect_same_recipe(call.run(), call.run_on_cpu(), c);
}

TEST(GpuForward, DenseOfAnyWidthAsOnTheCpu) {
  const CallCase c = dense();
  DeviceCall call(c);
  expect_same_recipe(call.run(), call.run_on_cpu(), c);
}

TEST(GpuForward, BroadcastAsOnTheCpu) {
  const CallCase c = broadcast();
  DeviceCall call(c);
  expect_same_recipe(call.run(), call.run_on_cpu(), c);
}

TEST(GpuForward, LeakFreeAsOnTheCpu) {
  CallCase c = jagged();
  c.options.leak_free = true;
  DeviceCall call(c);
  expect_same_recipe(call.run(), call.run_on_cpu(), c);
}

TEST(GpuForward, ScoresInBf16AsOnTheCpu) {
  for (CallCase c : {jagged(), dense(), broadcast()}) {
    c.options.qk_bf16 = true;
    DeviceCall call(c);
    expect_same_recipe(call.run(), call.run_on_cpu(), c);
  }
}

TEST(GpuForward, OutputInMxfp8IsThatInBf16Quantized) {
  for (const BlockShape shape : {BlockShape::k1x32, BlockShape::k32x32}) {
    CallCase c = jagged();
    DeviceCall call(c);
    const CallResults want = call.run();
    call.options().output_shape = shape;
    auto cu = c.cu_seqlens_q;
    const TensorView offsets = make_tensor(cu.data(), DType::kI32, {std::ssize(cu)});
    const std::vector<std::int64_t> dims{c.rows_o(), c.num_heads, c.head_dim};
    const auto scale_dims =
        max_scale_shape(dims, std::ssize(cu) - 1, {.block_shape = shape, .cu_seqlens = offsets});
    const DeviceArray<std::uint8_t> codes(c.rows_o() * c.num_heads * c.head_dim);
    const DeviceArray<std::uint8_t> scales(scale_dims[0] * scale_dims[1] * scale_dims[2]);
    call.args().o = {make_tensor(codes.data(), DType::kE4M3, dims),
                     make_tensor(scales.data(), DType::kE8M0, scale_dims)};
    call.run();
    auto host_codes = codes.download();
    auto host_scales = scales.download();
    // Behind the last sequence there are zeros, in payload and scales.
    std::int64_t rows = cu.back();
    if (shape == BlockShape::k32x32) {
      rows = 0;
      for (std::size_t s = 0; s + 1 < cu.size(); ++s) rows += (cu[s + 1] - cu[s] + 31) / 32;
    }
    const std::int64_t row_scales = scale_dims[1] * scale_dims[2];
    ASSERT_LT(rows, scale_dims[0]);
    EXPECT_NE(host_scales[rows * row_scales - 1], 0) << block_shape_name(shape);
    for (std::int64_t i = rows * row_scales; i < std::ssize(host_scales); ++i) {
      EXPECT_EQ(host_scales[i], 0) << block_shape_name(shape) << ", " << i;
    }
    for (std::int64_t i = cu.back() * c.num_heads * c.head_dim; i < std::ssize(host_codes); ++i) {
      ASSERT_EQ(host_codes[i], 0) << block_shape_name(shape) << ", " << i;
    }
    std::vector<float> values(host_codes.size());
    dequantize(make_tensor(host_codes.data(), DType::kE4M3, dims),
               make_tensor(host_scales.data(), DType::kE8M0, scale_dims),
               make_tensor(values.data(), DType::kF32, dims),
               {.block_shape = shape, .cu_seqlens = offsets});
    // E4M3 keeps 4 bits: 31 dB of a normal tensor, less where blocks are ragged.
    EXPECT_TRUE(expect_close(std::vector<double>(values.begin(), values.end()), decoded(want.o),
                             {.metric = Metric::kSqnrDb, .limit = 29},
                             {.label = std::string(block_shape_name(shape))}));
  }
}

TEST(GpuForward, BatchesOfOutputMayLieApart) {
  const CallCase c = dense();
  DeviceCall call(c);
  const CallResults want = call.run();
  const std::int64_t width = c.num_heads * c.head_dim, rows = c.seqlen_q + 3;
  const DeviceArray<std::uint16_t> o(c.batch * rows * width);
  TensorView& view = call.args().o.values;
  view.data = o.data();
  view.strides[0] = rows * width;
  call.run();
  const std::vector<std::uint16_t> got = o.download();
  for (std::int64_t row = 0; row < c.batch * rows; ++row) {
    const std::int64_t s = row / rows, in_sequence = row % rows;
    for (std::int64_t i = 0; i < width; ++i) {
      const std::uint16_t expected =
          in_sequence < c.seqlen_q ? want.o[(s * c.seqlen_q + in_sequence) * width + i] : 0xFFFF;
      ASSERT_EQ(got[row * width + i], expected) << row << ", " << i;
    }
  }
}

TEST(GpuForward, HalfScoresStayNearTheCpu) {
  for (const bool leak_free : {false, true}) {
    CallCase c = dense();
    c.options.leak_free = leak_free;
    c.options.half_scores = true;
    DeviceCall call(c);
    // Operands are others (lowered), so both differ from the truth by their own 28 dB.
    EXPECT_TRUE(expect_close(decoded(call.run().o), decoded(call.run_on_cpu().o),
                             {.metric = Metric::kSqnrDb, .limit = 25},
                             {.label = leak_free ? "o, leak-free" : "o"}));
  }
}

TEST(GpuForward, FloatsAreRoundedToBf16) {
  DeviceCall call(dense());
  const CallResults want = call.run();
  std::vector<float> wide;
  for (const std::uint16_t bits : call.values(0)) {
    // Low bits below half an ulp of BF16: the rounding takes them away.
    wide.push_back(mx::bits_float((std::uint32_t{bits} << 16) | 0x1234u));
  }
  const DeviceArray<float> q(wide);
  std::vector<float> k, v;
  for (const std::uint16_t bits : call.values(1)) k.push_back(mx::decode_bf16(bits));
  for (const std::uint16_t bits : call.values(2)) v.push_back(mx::decode_bf16(bits));
  const DeviceArray<float> k_array(k), v_array(v);
  const auto as_f32 = [](Tensor& x, void* data) {
    x.values.data = data;
    x.values.dtype = DType::kF32;
  };
  as_f32(call.args().q, q.data());
  as_f32(call.args().k, k_array.data());
  as_f32(call.args().v, v_array.data());
  call.poison_outputs();
  expect_equal(call.run(), want, "f32");
}

TEST(GpuForward, PayloadGivesTheSameBits) {
  const CallCase c = jagged();
  DeviceCall call(c);
  const CallResults want = call.run();
  const BlockShape shape = attention::operand_shape(call.options());
  const auto payload = [&](int which, std::int64_t rows, std::int64_t heads,
                           const std::vector<std::int32_t>& cu) {
    return Payload(call.values(which), {rows, heads, c.head_dim}, cu, shape);
  };
  const Payload q = payload(0, c.total_q(), c.num_heads, c.cu_seqlens_q);
  const Payload k = payload(1, c.total_k(), c.num_heads_kv, c.cu_seqlens_k);
  const Payload v = payload(2, c.total_k(), c.num_heads_kv, c.cu_seqlens_k);
  const auto use = [](Tensor& x, const Payload& made) { x = made.tensor(x.values.dims()); };
  use(call.args().q, q);
  use(call.args().k, k);
  use(call.args().v, v);
  call.poison_outputs();
  expect_equal(call.run(), want, "payload");
}

// Block scales of P keep more of it than the constant one: as near to it as E4M3 is.
TEST(BlackwellForward, ScalesOfPInBlocks) {
  const CallCase c = jagged();
  DeviceCall call(c);
  const CallResults want = call.run();
  for (const auto scale : {attention::PScale::kBlockAmax, attention::PScale::kBlockRowMax}) {
    call.options().p_scale = scale;
    call.poison_outputs();
    const CallResults got = call.run();
    EXPECT_TRUE(expect_close(decoded(got.o), decoded(want.o),
                             {.metric = Metric::kSqnrDb, .limit = 28}, {.label = "o"}));
    EXPECT_FALSE(bitwise_equal(got.o, want.o, {}));
    EXPECT_TRUE(bitwise_equal(got.row_max, want.row_max, {.label = "row_max"}));
  }
}

TEST(GpuForward, PreparedOperandsServeManyCalls) {
  // Two tiles of so many keys are divided among multiprocessors, which count who has come.
  for (const CallCase& c : {jagged(), CallCase{.seqlen_q = 20, .seqlen_k = 1024}}) {
    DeviceCall call(c);
    const CallResults want = call.run();
    call.workspace().poison_again();
    attention::prepare_forward(call.args(), call.options(), call.workspace().bytes());
    for (int i = 0; i < 2; ++i) {
      call.poison_outputs();
      attention::forward_prepared(call.args(), call.options(), call.workspace().bytes());
      expect_equal(call.results(), want, c.dense() ? "divided" : "jagged");
    }
  }
}

TEST(GpuForward, GraphsReplayIt) {
  DeviceCall call(jagged());
  const driver::Stream stream(device().state().device);
  call.options().stream = stream.handle();
  const CallResults want = call.run();  // loads the kernels
  const std::span<std::byte> workspace = call.workspace().bytes();
  const CapturedGraph graph(stream,
                            [&] { attention::forward(call.args(), call.options(), workspace); });
  for (int i = 0; i < 2; ++i) {
    call.poison_outputs();
    call.workspace().poison_again();
    graph.replay();
    expect_equal(call.results(), want, "replayed");
  }
}

TEST(GpuForward, GraphsReplayNewLengths) {
  const auto call_of = [](std::vector<std::int32_t> cu_seqlens_k) {
    return DeviceCall({.cu_seqlens_q = {0, 20, 40}, .cu_seqlens_k = std::move(cu_seqlens_k)});
  };
  DeviceCall call = call_of({0, 30, 100}), other = call_of({0, 90, 100});
  const driver::Stream stream(device().state().device);
  call.options().stream = stream.handle();
  call.run();
  const std::span<std::byte> workspace = call.workspace().bytes();
  const CapturedGraph graph(stream,
                            [&] { attention::forward(call.args(), call.options(), workspace); });
  call.set_cu_seqlens_k({0, 90, 100});
  graph.replay();
  expect_equal(call.results(), other.run(), "other lengths");
}

TEST(GpuForward, CurrentContextStays) {
  DeviceCall call(jagged());
  const CallResults want = call.run();
  call.poison_outputs();
  // In a new thread none is current: the call makes the device's so, and takes it back.
  std::thread([&] {
    call.run();
    CUcontext current = nullptr;
    EXPECT_EQ(device().state().device.calls().cuCtxGetCurrent(&current), CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
  }).join();
  expect_equal(call.results(), want, "another thread");
}

TEST(GpuForward, OffsetsOf64BitsGiveTheSameBits) {
  const CallCase c = jagged();
  DeviceCall call(c);
  const CallResults want = call.run();
  const auto wide = [](const std::vector<std::int32_t>& cu) {
    return DeviceArray<std::int64_t>(std::vector<std::int64_t>(cu.begin(), cu.end()));
  };
  const auto cu_q = wide(c.cu_seqlens_q), cu_k = wide(c.cu_seqlens_k);
  call.args().cu_seqlens_q = make_tensor(cu_q.data(), DType::kI64, {std::ssize(c.cu_seqlens_q)});
  call.args().cu_seqlens_k = make_tensor(cu_k.data(), DType::kI64, {std::ssize(c.cu_seqlens_k)});
  call.poison_outputs();
  expect_equal(call.run(), want, "64-bit offsets");
  call.poison_outputs();
  attention::forward_prepared(call.args(), call.options(), call.workspace().bytes());
  expect_equal(call.results(), want, "64-bit offsets, prepared");
}

TEST(GpuForward, RowsOfNoSequenceAreCleared) {
  const CallCase c = jagged();
  DeviceCall call(c);
  const CallResults got = call.run();
  const std::int64_t width = c.num_heads * c.head_dim;
  for (std::int64_t row = c.cu_seqlens_q.back(); row < c.rows_o(); ++row) {
    for (std::int64_t i = 0; i < width; ++i) EXPECT_EQ(got.o[row * width + i], 0) << row;
    for (std::int64_t head = 0; head < c.num_heads; ++head) {
      EXPECT_EQ(got.lse[head * c.rows_o() + row], -INFINITY) << row;
      EXPECT_EQ(got.row_max[head * c.rows_o() + row], -INFINITY) << row;
    }
  }
}

TEST(GpuForward, EmptyBatches) {
  CallCase c{.cu_seqlens_q = {0}, .cu_seqlens_k = {0}, .batch = 0, .slack_rows = 2};
  DeviceCall call(c);
  const CallResults got = call.run();
  for (const std::uint16_t value : got.o) EXPECT_EQ(value, 0);
  for (const float value : got.lse) EXPECT_EQ(value, -INFINITY);
}

/// The oracle on dequantized operands, packed as o is.
std::vector<double> oracle_o(const DeviceCall& call, const CallCase& c) {
  const auto dequantized = [&](int which, std::int64_t total, std::int64_t heads,
                               std::vector<std::int32_t> cu) {
    std::vector<std::uint16_t> bf16 = call.values(which);
    const std::vector<std::int64_t> shape{total, heads, c.head_dim};
    const TensorView offsets = make_tensor(cu.data(), DType::kI32, {std::ssize(cu)});
    const QuantizeOptions options{.block_shape = BlockShape::k32xD, .cu_seqlens = offsets};
    const auto scale_dims = max_scale_shape(shape, std::ssize(cu) - 1, options);
    std::vector<std::uint8_t> codes(bf16.size());
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(scale_dims[0] * scale_dims[1]));
    std::vector<float> result(bf16.size());
    const TensorView payload = make_tensor(codes.data(), DType::kE4M3, shape);
    const TensorView scale_view = make_tensor(scales.data(), DType::kE8M0, scale_dims);
    quantize(make_tensor(bf16.data(), DType::kBF16, shape), payload, scale_view, options);
    dequantize(payload, scale_view, make_tensor(result.data(), DType::kF32, shape), options);
    return result;
  };
  const auto q = dequantized(0, c.total_q(), c.num_heads, c.cu_seqlens_q);
  const auto k = dequantized(1, c.total_k(), c.num_heads_kv, c.cu_seqlens_k);
  const auto v = dequantized(2, c.total_k(), c.num_heads_kv, c.cu_seqlens_k);
  const auto matrix = [&](const std::vector<float>& x, std::int64_t heads, std::int64_t head,
                          std::int64_t first, std::int64_t end) {
    reference::Matrix<float> result(end - first, c.head_dim);
    for (std::int64_t row = first; row < end; ++row) {
      for (std::int64_t d = 0; d < c.head_dim; ++d) {
        result(row - first, d) = x[(row * heads + head) * c.head_dim + d];
      }
    }
    return result;
  };
  std::vector<double> o(static_cast<std::size_t>(c.rows_o() * c.num_heads * c.head_dim));
  for (std::int64_t s = 0; s < c.batches(); ++s) {
    const std::int64_t q0 = c.cu_seqlens_q[s], q1 = c.cu_seqlens_q[s + 1];
    const std::int64_t k0 = c.cu_seqlens_k[s], k1 = c.cu_seqlens_k[s + 1];
    for (std::int64_t head = 0; head < c.num_heads; ++head) {
      const std::int64_t kv = head / (c.num_heads / c.num_heads_kv);
      const auto result = reference::attention_forward(
          {.q = matrix(q, c.num_heads, head, q0, q1),
           .k = matrix(k, c.num_heads_kv, kv, k0, k1),
           .v = matrix(v, c.num_heads_kv, kv, k0, k1),
           .dout = {},
           .mask = {.causal = c.options.causal},
           .softmax_scale = 1 / std::sqrt(static_cast<double>(c.head_dim))});
      for (std::int64_t row = q0; row < q1; ++row) {
        for (std::int64_t d = 0; d < c.head_dim; ++d) {
          o[(row * c.num_heads + head) * c.head_dim + d] = result.o(row - q0, d);
        }
      }
    }
  }
  return o;
}

TEST(GpuForward, ExactIsTheOracleButForRounding) {
  CallCase c = jagged();
  c.options.exact = true;
  DeviceCall call(c);
  const std::int64_t count = c.rows_o() * c.num_heads * c.head_dim;
  const DeviceArray<float> o(count);
  call.args().o.values = make_tensor(o.data(), DType::kF32, {c.rows_o(), c.num_heads, c.head_dim});
  call.run();
  const std::vector<float> got = o.download();
  // FP32 sums of 140 terms: 24 bits, less what exp2f and a chain lose.
  EXPECT_TRUE(expect_close(std::vector<double>(got.begin(), got.end()), oracle_o(call, c),
                           {.metric = Metric::kSqnrDb, .limit = 115}, {.label = "o"}));
}

TEST(GpuForward, FastIsNearExact) {
  CallCase c = jagged();
  DeviceCall call(c);
  const CallResults fast = call.run();
  call.poison_outputs();
  call.options().exact = true;
  const CallResults exact = call.run();
  // P in E4M3 and 13 bits of accumulation: 32 dB on such data (docs/numerics.md).
  EXPECT_TRUE(expect_close(decoded(fast.o), decoded(exact.o),
                           {.metric = Metric::kSqnrDb, .limit = 31}, {.label = "o"}));
}

}  // namespace
}  // namespace mxfa::testing
