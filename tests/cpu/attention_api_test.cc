#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "cpu/attention_call.h"
#include "mx/bits.h"
#include "mxfa/quantize.h"
#include "support/compare.h"
#include "support/rng.h"

/// Tensors in the forms that the public interface takes, and what it refuses.
namespace mxfa::testing {
namespace {

constexpr std::int64_t kHeads = 2, kDim = 64;

AttentionCall small_call(const attention::Options& options) {
  Rng rng(21);
  AttentionCall call{.num_heads = kHeads,
                     .num_heads_kv = kHeads,
                     .head_dim = kDim,
                     .cu_seqlens_q = {0, 5, 50},
                     .cu_seqlens_k = {0, 33, 90},
                     .q = {},
                     .k = {},
                     .v = {},
                     .dout = {},
                     .options = options,
                     .o = {},
                     .lse = {},
                     .row_max = {},
                     .dq = {},
                     .dk = {},
                     .dv = {}};
  for (auto* values : {&call.q, &call.dout}) *values = rng.normal_values<float>(50 * kHeads * kDim);
  for (auto* values : {&call.k, &call.v}) *values = rng.normal_values<float>(90 * kHeads * kDim);
  // BF16 values, so that every dtype holds the same.
  for (auto* values : {&call.q, &call.k, &call.v, &call.dout}) {
    for (float& value : *values) value = mx::round_bf16(value);
  }
  return call;
}

void expect_equal(const AttentionCall& got, const AttentionCall& want, const std::string& label) {
  EXPECT_TRUE(bitwise_equal(got.o, want.o, {.label = label + " o"}));
  EXPECT_TRUE(bitwise_equal(got.dq, want.dq, {.label = label + " dq"}));
  EXPECT_TRUE(bitwise_equal(got.dk, want.dk, {.label = label + " dk"}));
  EXPECT_TRUE(bitwise_equal(got.dv, want.dv, {.label = label + " dv"}));
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
    expect_equal(call, want, "layout " + std::to_string(i));
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
  expect_equal(call, want, "stride 0");
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
  expect_equal(call, want, "bf16");
}

/// Payload made by quantize() gives what unquantized tensors give; MXFP8 outputs are quantize() of
/// the FP32 ones.
TEST_P(CpuAttentionForms, PayloadInAndOut) {
  const attention::Options& options = GetParam().options;
  if (options.precision == attention::Precision::kBf16 || options.qk_bf16) return;
  AttentionCall want = small_call(options);
  want.run();
  AttentionCall call = small_call(options);
  call.poison_all();
  struct Bytes {
    std::vector<std::uint8_t> payload, scales;
  };
  const auto tensor = [&](Bytes& bytes, BlockShape block, std::int64_t rows,
                          std::vector<std::int32_t>& offsets, std::vector<float>* values) {
    const std::vector<std::int64_t> shape{rows, kHeads, kDim};
    const QuantizeOptions quantize_options{
        .block_shape = block,
        .cu_seqlens = make_tensor(offsets.data(), DType::kI32, {std::ssize(offsets)})};
    bytes.payload.assign(std::size_t(rows * kHeads * kDim), 0xFF);
    attention::Tensor result{
        make_tensor(bytes.payload.data(), DType::kE4M3, shape),
        make_tensor(nullptr, DType::kE8M0,
                    std::span<const std::int64_t>(scale_shape(shape, quantize_options)))};
    bytes.scales.assign(std::size_t(result.scales.num_elements()), 0xFF);
    result.scales.data = bytes.scales.data();
    if (values != nullptr) {
      quantize(make_tensor(values->data(), DType::kF32, shape), result.values, result.scales,
               quantize_options);
    }
    return result;
  };
  Bytes q, k, v, dout, dk, want_dk, o, want_o;
  const BlockShape block = attention::operand_shape(options);
  attention::ForwardArgs forward = call.forward_args();
  forward.q = tensor(q, block, 50, call.cu_seqlens_q, &call.q);
  forward.k = tensor(k, block, 90, call.cu_seqlens_k, &call.k);
  forward.v = tensor(v, block, 90, call.cu_seqlens_k, &call.v);
  attention::forward(forward, call.options);
  attention::BackwardArgs backward = call.backward_args();
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.dout = tensor(dout, attention::dout_shape(options), 50, call.cu_seqlens_q, &call.dout);
  attention::backward(backward, call.options);
  expect_equal(call, want, "payload in");

  forward.o = tensor(o, options.output_shape, 50, call.cu_seqlens_q, nullptr);
  attention::forward(forward, call.options);
  tensor(want_o, options.output_shape, 50, call.cu_seqlens_q, &want.o);
  EXPECT_TRUE(bitwise_equal(o.payload, want_o.payload, {.label = "o payload"}));
  EXPECT_TRUE(bitwise_equal(o.scales, want_o.scales, {.label = "o scales"}));
  backward.dk = tensor(dk, options.output_shape, 90, call.cu_seqlens_k, nullptr);
  attention::backward(backward, call.options);
  tensor(want_dk, options.output_shape, 90, call.cu_seqlens_k, &want.dk);
  EXPECT_TRUE(bitwise_equal(dk.payload, want_dk.payload, {.label = "dk payload"}));
  EXPECT_TRUE(bitwise_equal(dk.scales, want_dk.scales, {.label = "dk scales"}));
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
      {"softmax_scale: expected a finite number above 0, got 0",
       [](ForwardArgs&, Options& o) { o.softmax_scale = 0.0; }},
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

}  // namespace
}  // namespace mxfa::testing
