#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cpu/attention_call.h"
#include "mx/bits.h"
#include "mx/jagged_scale.h"
#include "mxfa/quantize.h"
#include "support/compare.h"

/// Tensors in the forms that the public interface takes, and what it refuses.
namespace mxfa::testing {
namespace {

constexpr std::int64_t kHeads = 2, kDim = 64;

/// BF16 values, so that every dtype holds the same.
AttentionCall small_call(const attention::Options& options) {
  AttentionCall call = random_call({.num_heads = kHeads,
                                    .num_heads_kv = kHeads,
                                    .head_dim = kDim,
                                    .cu_seqlens_q = {0, 5, 50},
                                    .cu_seqlens_k = {0, 33, 90},
                                    .options = options},
                                   21);
  for (auto* values : {&call.q, &call.k, &call.v, &call.dout}) {
    for (float& value : *values) value = mx::round_bf16(value);
  }
  return call;
}

class CpuAttentionForms : public ::testing::TestWithParam<Mode> {};

/// Elements of a packed tensor scattered by strides.
struct Strided {
  std::vector<float> data;
  TensorView view;

  Strided(const std::vector<float>& values, std::int64_t rows, std::array<std::int64_t, 3> strides)
      : data(4 * values.size(), NAN) {
    view = make_tensor(data.data(), DType::kF32, {rows, kHeads, kDim});
    for (int i = 0; i < 3; ++i) view.strides[i] = strides[i];
    for (std::size_t i = 0; i < values.size(); ++i) data[at(i)] = values[i];
  }
  std::size_t at(std::size_t i) const {
    const std::int64_t row = std::int64_t(i) / (kHeads * kDim);
    const std::int64_t head = std::int64_t(i) / kDim % kHeads;
    return std::size_t(row * view.strides[0] + head * view.strides[1] +
                       std::int64_t(i) % kDim * view.strides[2]);
  }
  std::vector<float> packed(std::size_t count) const {
    std::vector<float> result(count);
    for (std::size_t i = 0; i < count; ++i) result[i] = data[at(i)];
    return result;
  }
};

TEST_P(CpuAttentionForms, AnyStridesGiveTheSameBits) {
  AttentionCall want = small_call(GetParam().options);
  want.run();
  // [heads, tokens, dim] transposed; dim outermost; every second element.
  const auto layouts = [](std::int64_t rows) {
    return std::vector<std::array<std::int64_t, 3>>{
        {kDim, rows * kDim, 1}, {1, rows, kHeads * rows}, {2 * kHeads * kDim, 2 * kDim, 2}};
  };
  for (std::size_t i = 0; i < 3; ++i) {
    AttentionCall call = small_call(GetParam().options);
    call.poison_all();
    Strided q(call.q, 50, layouts(50)[i]), dout(call.dout, 50, layouts(50)[i]),
        o(call.o, 50, layouts(50)[i]), dq(call.dq, 50, layouts(50)[i]);
    Strided k(call.k, 90, layouts(90)[i]), v(call.v, 90, layouts(90)[i]),
        dk(call.dk, 90, layouts(90)[i]), dv(call.dv, 90, layouts(90)[i]);
    attention::ForwardArgs forward = call.forward_args();
    forward.q.values = q.view;
    forward.k.values = k.view;
    forward.v.values = v.view;
    forward.o.values = o.view;
    attention::forward(forward, call.options);
    attention::BackwardArgs backward = call.backward_args();
    backward.q.values = q.view;
    backward.k.values = k.view;
    backward.v.values = v.view;
    backward.o.values = o.view;
    backward.dout.values = dout.view;
    backward.dq.values = dq.view;
    backward.dk.values = dk.view;
    backward.dv.values = dv.view;
    attention::backward(backward, call.options);
    call.o = o.packed(call.q.size());
    call.dq = dq.packed(call.q.size());
    call.dk = dk.packed(call.k.size());
    call.dv = dv.packed(call.k.size());
    expect_equal_bits(call, want, "layout " + std::to_string(i));
  }
}

TEST_P(CpuAttentionForms, GradientOfASumHasStrideZero) {
  AttentionCall want = small_call(GetParam().options);
  want.dout.assign(want.dout.size(), 1.0f);
  want.run();
  AttentionCall call = want;
  call.run_forward();
  attention::BackwardArgs args = call.backward_args();
  args.dout.values.strides = {0, 0, 0};
  attention::backward(args, call.options);
  expect_equal_bits(call, want, "stride 0");
}

TEST_P(CpuAttentionForms, Bf16InputsEqualTheirFp32Values) {
  AttentionCall want = small_call(GetParam().options);
  want.run();
  AttentionCall call = small_call(GetParam().options);
  call.poison_all();
  std::vector<std::uint16_t> codes[4];
  std::vector<std::int64_t> long_offsets{0, 33, 90};
  const auto tensor = [&](int index, const std::vector<float>& values, std::int64_t rows) {
    for (const float value : values) codes[index].push_back(mx::encode_bf16(value));
    return attention::Tensor{make_tensor(codes[index].data(), DType::kBF16, {rows, kHeads, kDim}),
                             {}};
  };
  attention::ForwardArgs forward = call.forward_args();
  forward.q = tensor(0, call.q, 50);
  forward.k = tensor(1, call.k, 90);
  forward.v = tensor(2, call.v, 90);
  forward.cu_seqlens_k = make_tensor(long_offsets.data(), DType::kI64, {3});
  attention::forward(forward, call.options);
  attention::BackwardArgs backward = call.backward_args();
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.dout = tensor(3, call.dout, 50);
  attention::backward(backward, call.options);
  expect_equal_bits(call, want, "bf16");
}

/// Payload and scales of [rows, kHeads, kDim], poisoned; tiled scales have a tile more than needed.
struct Mxfp8Bytes {
  QuantizeOptions options;
  std::vector<std::uint8_t> payload, scales;
  Tensor tensor;

  Mxfp8Bytes(std::int64_t rows, BlockShape block_shape, std::vector<std::int32_t>& offsets,
             std::optional<ScaleAxis> tiled_along = {})
      : options{.block_shape = block_shape,
                .layout = tiled_along ? ScaleLayout::kTiled128x4 : ScaleLayout::kRowMajor,
                .scale_axis = tiled_along.value_or(ScaleAxis::kHeadDim),
                .cu_seqlens = make_tensor(offsets.data(), DType::kI32, {std::ssize(offsets)})} {
    const std::vector<std::int64_t> shape{rows, kHeads, kDim};
    payload.assign(std::size_t(rows * kHeads * kDim), 0xFF);
    std::vector<std::int64_t> scale_dims = scale_shape(shape, options);
    if (tiled_along) ++scale_dims[1];
    tensor = {make_tensor(payload.data(), DType::kE4M3, shape),
              make_tensor(nullptr, DType::kE8M0, scale_dims)};
    scales.assign(std::size_t(tensor.scales.num_elements()), 0xFF);
    tensor.scales.data = scales.data();
  }
  Mxfp8Bytes(const Mxfp8Bytes&) = delete;
  Mxfp8Bytes& operator=(const Mxfp8Bytes&) = delete;

  Tensor& of(std::vector<float>& values) {
    quantize(make_tensor(values.data(), DType::kF32, tensor.values.dims()), tensor.values,
             tensor.scales, options);
    return tensor;
  }
  void expect(const Mxfp8Bytes& want, const std::string& label) const {
    EXPECT_TRUE(bitwise_equal(payload, want.payload, {.label = label + " payload"}));
    EXPECT_TRUE(bitwise_equal(scales, want.scales, {.label = label + " scales"}));
  }
};

/// Payload made by quantize() gives what unquantized tensors give; MXFP8 outputs are quantize() of
/// the FP32 ones.
TEST_P(CpuAttentionForms, PayloadInAndOut) {
  const attention::Options& options = GetParam().options;
  if (options.precision == attention::Precision::kBf16 || options.qk_bf16) return;
  AttentionCall want = small_call(options);
  want.run();
  AttentionCall call = small_call(options);
  call.poison_all();
  const BlockShape block = attention::operand_shape(options), out = options.output_shape;
  auto &cu_q = call.cu_seqlens_q, &cu_k = call.cu_seqlens_k;
  Mxfp8Bytes q(50, block, cu_q), k(90, block, cu_k), v(90, block, cu_k),
      dout(50, attention::dout_shape(options), cu_q);
  attention::ForwardArgs forward = call.forward_args();
  forward.q = q.of(call.q);
  forward.k = k.of(call.k);
  forward.v = v.of(call.v);
  attention::forward(forward, call.options);
  attention::BackwardArgs backward = call.backward_args();
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.dout = dout.of(call.dout);
  attention::backward(backward, call.options);
  expect_equal_bits(call, want, "payload in");

  Mxfp8Bytes o(50, out, cu_q), want_o(50, out, cu_q), dk(90, out, cu_k), want_dk(90, out, cu_k);
  forward.o = o.tensor;
  attention::forward(forward, call.options);
  want_o.of(want.o);
  o.expect(want_o, "o");
  backward.dk = dk.tensor;
  attention::backward(backward, call.options);
  want_dk.of(want.dk);
  dk.expect(want_dk, "dk");
}

/// The scales of dk and dv once more, tiled along either axis: those that quantize() makes.
TEST_P(CpuAttentionForms, TiledScalesOfKeyGradients) {
  AttentionCall call = small_call(GetParam().options);
  call.cu_seqlens_k = {0, 33, 33, 85};  // with slack behind
  call.cu_seqlens_q = {0, 5, 20, 50};
  call.run();
  for (const BlockShape shape : {BlockShape::k32x32, BlockShape::k1x32, BlockShape::k32x1}) {
    attention::Options options = call.options;
    options.output_shape = shape;
    for (const ScaleAxis axis : {ScaleAxis::kHeadDim, ScaleAxis::kTokens}) {
      if (!mx::tiles_along(shape, axis)) continue;
      auto& offsets = call.cu_seqlens_k;
      Mxfp8Bytes dk(90, shape, offsets), dv(90, shape, offsets);
      Mxfp8Bytes tiled_dk(90, shape, offsets, axis), tiled_dv(90, shape, offsets, axis),
          want_dk(90, shape, offsets, axis), want_dv(90, shape, offsets, axis);
      attention::BackwardArgs args = call.backward_args();
      args.dk = dk.tensor;
      args.dv = dv.tensor;
      const auto copy = [axis](attention::TiledScales& tiled) -> TensorView& {
        return axis == ScaleAxis::kHeadDim ? tiled.head_dim : tiled.tokens;
      };
      copy(args.dk_tiled) = tiled_dk.tensor.scales;
      copy(args.dv_tiled) = tiled_dv.tensor.scales;
      attention::backward(args, options);
      want_dk.of(call.dk);
      want_dv.of(call.dv);
      const std::string label =
          fmt::format("{} along {}", block_shape_name(shape), scale_axis_name(axis));
      EXPECT_TRUE(bitwise_equal(dk.payload, want_dk.payload, {.label = label + " dk"}));
      EXPECT_TRUE(bitwise_equal(tiled_dk.scales, want_dk.scales, {.label = label + " dk"}));
      EXPECT_TRUE(bitwise_equal(tiled_dv.scales, want_dv.scales, {.label = label + " dv"}));
    }
  }
}

const auto name_of = [](const ::testing::TestParamInfo<Mode>& param) { return param.param.name; };
INSTANTIATE_TEST_SUITE_P(Modes, CpuAttentionForms, ::testing::ValuesIn(all_modes()), name_of);

/// The message of what a call throws; empty if nothing.
template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}
template <class Change>
std::string refusal(const attention::Options& options, Change change) {
  AttentionCall call = small_call(options);
  call.poison_all();
  attention::ForwardArgs args = call.forward_args();
  change(args, call.options);
  return message_of([&] { attention::forward(args, call.options); });
}

/// A rounded o spoils delta, so no backward reads one.
TEST(CpuAttentionRefusals, BackwardTakesNoRoundedO) {
  for (const DType dtype : {DType::kE4M3, DType::kF16}) {
    AttentionCall call = small_call({});
    call.run_forward();
    attention::BackwardArgs args = call.backward_args();
    args.o.values.dtype = dtype;
    args.o.scales = make_tensor(call.o.data(), DType::kE8M0, {3, 2, 2});  // of its 32x32 blocks
    EXPECT_EQ(message_of([&] { attention::backward(args, call.options); }),
              "o: expected bf16 or f32, got " + std::string(dtype_name(dtype)) + " [50, 2, 64]");
  }
}

TEST(CpuAttentionRefusals, TiledScalesBelongToPayloadThatHasThem) {
  AttentionCall call = small_call({});
  call.run_forward();
  std::vector<std::uint8_t> bytes(4 * 2 * 512);
  const auto refusal_of = [&](DType dtype, BlockShape shape, std::int64_t tiles) {
    Mxfp8Bytes dv(90, shape, call.cu_seqlens_k);
    attention::BackwardArgs args = call.backward_args();
    if (dtype == DType::kE4M3) args.dv = dv.tensor;
    args.dv_tiled.tokens = make_tensor(bytes.data(), DType::kE8M0, {2, tiles, 1, 512});
    attention::Options options = call.options;
    options.output_shape = shape;
    return message_of([&] { attention::backward(args, options); });
  };
  EXPECT_EQ(refusal_of(DType::kF32, BlockShape::k32x32, 2),
            "dv_tiled.tokens: expected none without dv in e4m3, got e8m0 [2, 2, 1, 512]");
  EXPECT_EQ(refusal_of(DType::kE4M3, BlockShape::k1x32, 2),
            "dv_tiled.tokens: expected none of 1x32 scales, got e8m0 [2, 2, 1, 512]");
  EXPECT_EQ(refusal_of(DType::kE4M3, BlockShape::k32x32, 1),
            "dv_tiled.tokens: expected shape [2, 2, 1, 512] (dimension 1 or more), got e8m0 [2, 1, "
            "1, 512]");
  EXPECT_EQ(refusal_of(DType::kE4M3, BlockShape::k32x32, 3), "");
}

TEST(CpuAttentionRefusals, NameTheArgumentWhatWasExpectedAndWhatCame) {
  using attention::ForwardArgs;
  using attention::Options;
  struct Case {
    std::string message;
    std::function<void(ForwardArgs&, Options&)> change;
  };
  std::vector<std::byte> little(64);
  const std::vector<Case> cases{
      {"k: expected f32 as q, got bf16 [90, 2, 64]",
       [](ForwardArgs& a, Options&) { a.k.values.dtype = DType::kBF16; }},
      {"q: expected bf16, f16, f32 or e4m3, got f64 [50, 2, 64]",
       [](ForwardArgs& a, Options&) { a.q.values.dtype = DType::kF64; }},
      {"v: expected shape [90, 2, 64], got f32 [89, 2, 64]",
       [](ForwardArgs& a, Options&) { a.v.values.shape[0] = 89; }},
      {"q.scales: expected the scales of 32x32 blocks, got none",
       [](ForwardArgs& a, Options&) { a.q.values.dtype = DType::kE4M3; }},
      {"lse: expected shape [2, 50], got f32 [2, 49]",
       [](ForwardArgs& a, Options&) { a.lse.shape[1] = 49; }},
      {"o: expected an output whose elements do not share memory, got stride 0 in dimension 1 of "
       "f32 [50, 2, 64]",
       [](ForwardArgs& a, Options&) { a.o.values.strides[1] = 0; }},
      {"cu_seqlens_q: expected none where q is broadcast, got i32 [3]",
       [](ForwardArgs&, Options& o) { o.broadcast_q = true; }},
      {"half_scores: expected a Hopper GPU, got the CPU",
       [](ForwardArgs&, Options& o) { o.half_scores = true; }},
      {"p_scale: expected constant on the CPU, got block scales",
       [](ForwardArgs&, Options& o) { o.p_scale = attention::PScale::kBlockAmax; }},
      {"exact: expected a device, got the CPU (its oracle is `mxfa sqnr`)",
       [](ForwardArgs&, Options& o) { o.exact = true; }},
      {"scale_rule: expected round-up or floor, got 9",
       [](ForwardArgs&, Options& o) { o.scale_rule = static_cast<ScaleRule>(9); }},
      {"causal_alignment: expected bottom-right or top-left, got 9",
       [](ForwardArgs&, Options& o) { o.causal_alignment = static_cast<CausalAlignment>(9); }},
      {"output_shape: expected a member of BlockShape, got 9",
       [](ForwardArgs&, Options& o) { o.output_shape = static_cast<BlockShape>(9); }},
      {"dq_accum: expected a member of DType, got 77",
       [](ForwardArgs&, Options& o) { o.dq_accum = static_cast<DType>(77); }},
      {"p_scale: expected a member of PScale, got 9",
       [](ForwardArgs&, Options& o) { o.p_scale = static_cast<attention::PScale>(9); }},
      {"softmax_scale: expected a finite number above 0, got 0",
       [](ForwardArgs&, Options& o) { o.softmax_scale = 0.0; }},
      {"softmax_scale: expected 2^-120 to 2^120, which FP32 holds, got 1e+300",
       [](ForwardArgs&, Options& o) { o.softmax_scale = 1e300; }},
      {"q: expected a member of DType, got 77",
       [](ForwardArgs& a, Options&) { a.q.values.dtype = static_cast<DType>(77); }},
      {"k: expected fewer than 2^56 elements, got f32 [144115188075855872, 2, 64]",
       [](ForwardArgs& a, Options&) { a.k.values.shape[0] = std::int64_t{1} << 57; }},
      {"q: expected less than 2^31 tokens, got f32 [2147483648, 2, 64]",
       [](ForwardArgs& a, Options&) { a.q.values.shape[0] = std::int64_t{1} << 31; }},
      {"o: expected elements that lie within 2^56 bytes, got f32 [50, 2, 64] with strides "
       "[-4611686018427387904, 64, 1]",
       [](ForwardArgs& a, Options&) { a.o.values.strides[0] = -(std::int64_t{1} << 62); }},
      {"cu_seqlens_k: expected elements that lie within 2^56 bytes, got i32 [3] with strides "
       "[9223372036854775807]",
       [](ForwardArgs& a, Options&) { a.cu_seqlens_k.strides[0] = INT64_MAX; }},
      {"cu_seqlens_k[1]: expected a sequence of at most 32 rows, got one of 33",
       [](ForwardArgs&, Options& o) { o.max_seqlen_k = 32; }},
  };
  for (const Case& c : cases) EXPECT_EQ(refusal({}, c.change), c.message);
  attention::Options dial;
  dial.qk_bf16 = true;
  EXPECT_EQ(refusal(dial, [](ForwardArgs&, Options&) {}), "");
  AttentionCall call = small_call({});
  call.poison_all();
  EXPECT_THROW(attention::forward(call.forward_args(), call.options, little), Error);
}

/// Also where FP16 sums, which it scales, are a device's alone.
TEST(CpuAttentionRefusals, DqExponent) {
  AttentionCall call = small_call({});
  call.run_forward();
  call.options.dq_exponent = 999;
  EXPECT_EQ(message_of([&] { attention::backward(call.backward_args(), call.options); }),
            "dq_exponent: expected -64 to 64, got 999");
}

TEST(CpuAttentionRefusals, MoreElementsThanCanBeCounted) {
  const std::int64_t rows = std::int64_t{1} << 58;
  EXPECT_EQ(message_of([&] {
              make_tensor(nullptr, DType::kBF16, {rows, 2, 32});
            }),
            "shape: expected fewer than 2^63 elements, got [288230376151711744, 2, 32]");
  EXPECT_EQ(message_of([&] { make_tensor(nullptr, DType::kBF16, {rows, 1, 16}); }), "");
}

TEST(CpuAttentionRefusals, WorkspaceWithoutAnAddress) {
  AttentionCall call = small_call({});
  call.run_forward();
  const std::span<std::byte> nowhere(static_cast<std::byte*>(nullptr), std::size_t{1} << 20);
  const std::string want = "workspace: expected data, got a null pointer for 1048576 bytes";
  EXPECT_EQ(message_of([&] { attention::forward(call.forward_args(), call.options, nowhere); }),
            want);
  EXPECT_EQ(message_of([&] { attention::backward(call.backward_args(), call.options, nowhere); }),
            want);
}

/// Keys that broadcast one row: the tensors are small, what attention would make of them is not.
TEST(CpuAttentionRefusals, WorkspaceThatNoMachineHas) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers end the program at such an allocation";
#endif
  constexpr std::int64_t kManyHeads = 1 << 12;
  AttentionCall call{.num_heads = kManyHeads,
                     .num_heads_kv = kManyHeads,
                     .cu_seqlens_q = {0, 1},
                     .cu_seqlens_k = {0, INT32_MAX},
                     .q = std::vector<float>(kManyHeads * 32),
                     .k = std::vector<float>(32),
                     .dout = std::vector<float>(kManyHeads * 32)};
  call.poison_all();
  const auto broadcast = [&] {
    attention::Tensor keys{make_tensor(call.k.data(), DType::kF32, {INT32_MAX, kManyHeads, 32}),
                           {}};
    keys.values.strides = {0, 0, 1};
    return keys;
  };
  attention::ForwardArgs args = call.forward_args();
  args.k = args.v = broadcast();
  const std::int64_t bytes = attention::forward_workspace_bytes(args, {}) + 64;
  EXPECT_GT(bytes, std::int64_t{1} << 47);
  EXPECT_EQ(message_of([&] { attention::forward(args, {}); }),
            "workspace: " + std::to_string(bytes) + " bytes could not be allocated");
}

TEST(CpuAttentionRefusals, DialsOfMxfp8InBf16) {
  attention::Options options;
  options.precision = attention::Precision::kBf16;
  const std::string want = ": expected false where precision is bf16, got true";
  EXPECT_EQ(refusal(options, [](auto&, auto& o) { o.qk_bf16 = true; }), "qk_bf16" + want);
  EXPECT_EQ(refusal(options, [](auto&, auto& o) { o.dp_bf16 = true; }), "dp_bf16" + want);
  EXPECT_EQ(refusal(options, [](auto&, auto& o) { o.leak_free = true; }), "leak_free" + want);
  AttentionCall call = small_call(options);
  call.run_forward();
  call.options.leak_free = true;
  EXPECT_EQ(message_of([&] { attention::backward(call.backward_args(), call.options); }),
            "leak_free" + want);
}

}  // namespace
}  // namespace mxfa::testing
