#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dispatch/gpu/device_call.h"
#include "dispatch/gpu/payload.h"
#include "support/cases.h"

/// The faults that users of other libraries met, through the public calls on a device.
namespace mxfa::testing {
namespace {

std::vector<std::uint16_t> bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> result;
  for (const float value : values) result.push_back(mx::encode_bf16(value));
  return result;
}

/// A case's tensors on the device, outputs poisoned.
class FieldCall {
 public:
  explicit FieldCall(const AttentionCase& c)
      : q_(bf16(c.q)),
        k_(bf16(c.k)),
        v_(bf16(c.v)),
        dout_(bf16(c.dout)),
        cu_q_(c.cu_seqlens_q),
        cu_k_(c.cu_seqlens_k),
        o_(std::ssize(c.q)),
        dq_(std::ssize(c.q)),
        dk_(std::ssize(c.k)),
        dv_(std::ssize(c.v)),
        lse_(c.total_q() * c.num_heads),
        row_max_(c.total_q() * c.num_heads) {
    const auto rows = [&](void* data, const std::vector<float>& like, std::int64_t heads) {
      return Tensor{make_tensor(data, DType::kBF16,
                                {std::ssize(like) / (heads * c.head_dim), heads, c.head_dim})};
    };
    const auto row_values = [&](void* data) {
      return make_tensor(data, DType::kF32, {c.num_heads, c.total_q()});
    };
    options.device = &device();
    options.recipe = attention::native_recipe(device());
    options.causal = c.mask.causal;
    options.softmax_scale = c.softmax_scale;
    forward = {.q = rows(q_.data(), c.q, c.num_heads),
               .k = rows(k_.data(), c.k, c.num_heads_kv),
               .v = rows(v_.data(), c.v, c.num_heads_kv),
               .cu_seqlens_q = make_tensor(cu_q_.data(), DType::kI32, {std::ssize(c.cu_seqlens_q)}),
               .cu_seqlens_k = make_tensor(cu_k_.data(), DType::kI32, {std::ssize(c.cu_seqlens_k)}),
               .o = rows(o_.data(), c.q, c.num_heads),
               .lse = row_values(lse_.data()),
               .row_max = row_values(row_max_.data())};
    backward = attention::backward_args(forward, rows(dout_.data(), c.q, c.num_heads));
    backward.dq = rows(dq_.data(), c.q, c.num_heads);
    backward.dk = rows(dk_.data(), c.k, c.num_heads_kv);
    backward.dv = rows(dv_.data(), c.v, c.num_heads_kv);
  }

  void run_forward() const {
    const DeviceArray<std::byte> workspace(attention::forward_workspace_bytes(forward, options));
    attention::forward(forward, options, workspace.bytes());
    device().synchronize();
  }
  void run_backward() const {
    const DeviceArray<std::byte> workspace(attention::backward_workspace_bytes(backward, options));
    attention::backward(backward, options, workspace.bytes());
    device().synchronize();
  }
  std::vector<double> o() const { return decoded(o_.download()); }
  std::vector<float> lse() const { return lse_.download(); }
  std::vector<double> dq() const { return decoded(dq_.download()); }
  std::vector<double> dk() const { return decoded(dk_.download()); }
  std::vector<double> dv() const { return decoded(dv_.download()); }

  attention::ForwardArgs forward;
  attention::BackwardArgs backward;
  attention::Options options;

 private:
  DeviceArray<std::uint16_t> q_, k_, v_, dout_;
  DeviceArray<std::int32_t> cu_q_, cu_k_;
  DeviceArray<std::uint16_t> o_, dq_, dk_, dv_;
  DeviceArray<float> lse_, row_max_;
};

/// A device reads no offsets on the host, so that B26 is not among its cases.
std::vector<CaseEntry> entries(bool large) {
  std::vector<CaseEntry> result;
  for (const CaseEntry& entry : field_failure_cases()) {
    if (entry.large == large && !entry.name.starts_with("B26")) result.push_back(entry);
  }
  return result;
}

void expect_refused(const std::function<void()>& call, const std::vector<std::string>& parts) {
  try {
    call();
    FAIL() << "accepted";
  } catch (const Error& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

/// BF16 outputs; quantized operands may cost an answer's `relative`.
constexpr Precision kGradient{.rounding = 0x1p-8, .quantized = true};

void check_forward(const AttentionCase& c) {
  const FieldCall call(c);
  if (!c.refusal.empty()) return expect_refused([&] { call.run_forward(); }, c.refusal);
  call.run_forward();
  EXPECT_TRUE(matches(call.o(), c.o, kGradient, "o"));
  EXPECT_TRUE(matches(call.lse(), c.lse, {.rounding = 1e-6, .quantized = true}, "lse"));
}

void check_backward(const AttentionCase& c) {
  const FieldCall call(c);
  if (!c.refusal.empty()) return expect_refused([&] { call.run_backward(); }, c.refusal);
  call.run_forward();
  call.run_backward();
  EXPECT_TRUE(matches(call.dq(), c.dq, kGradient, "dq"));
  EXPECT_TRUE(matches(call.dk(), c.dk, kGradient, "dk"));
  EXPECT_TRUE(matches(call.dv(), c.dv, kGradient, "dv"));
}

/// The gradients of a backward to MXFP8 on the host.
struct HostGradients {
  std::vector<std::uint8_t> dq, dk, dv, dq_scales, dk_scales, dv_scales;
};
HostGradients backward_on_cpu(const AttentionCase& c, const FieldCall& device_call) {
  auto q = bf16(c.q), k = bf16(c.k), v = bf16(c.v), dout = bf16(c.dout);
  std::vector<std::uint16_t> o(c.q.size());
  std::vector<float> lse(static_cast<std::size_t>(c.total_q() * c.num_heads)), row_max = lse;
  auto cu_q = c.cu_seqlens_q, cu_k = c.cu_seqlens_k;
  const auto on_host = [](const Tensor& like, auto& values) {
    TensorView view = like.values;
    view.data = values.data();
    return Tensor{view};
  };
  const auto host_view = [](TensorView view, auto& values) {
    view.data = values.data();
    return view;
  };
  attention::Options options = device_call.options;
  options.device = nullptr;
  const attention::ForwardArgs& like = device_call.forward;
  const attention::ForwardArgs forward{.q = on_host(like.q, q),
                                       .k = on_host(like.k, k),
                                       .v = on_host(like.v, v),
                                       .cu_seqlens_q = host_view(like.cu_seqlens_q, cu_q),
                                       .cu_seqlens_k = host_view(like.cu_seqlens_k, cu_k),
                                       .o = on_host(like.o, o),
                                       .lse = host_view(like.lse, lse),
                                       .row_max = host_view(like.row_max, row_max)};
  attention::forward(forward, options);
  attention::BackwardArgs args = attention::backward_args(forward, on_host(like.o, dout));
  HostGradients result;
  const auto mxfp8 = [&](const Tensor& like_this, std::vector<std::uint8_t>& codes,
                         std::vector<std::uint8_t>& scales) {
    const auto dims = like_this.values.dims();
    const auto scale_dims = max_scale_shape(dims, std::ssize(cu_k) - 1, {});
    codes.resize(static_cast<std::size_t>(like_this.values.num_elements()));
    scales.resize(static_cast<std::size_t>(scale_dims[0] * scale_dims[1] * scale_dims[2]));
    return Tensor{make_tensor(codes.data(), DType::kE4M3, dims),
                  make_tensor(scales.data(), DType::kE8M0, scale_dims)};
  };
  args.dq = mxfp8(like.q, result.dq, result.dq_scales);
  args.dk = mxfp8(like.k, result.dk, result.dk_scales);
  args.dv = mxfp8(like.v, result.dv, result.dv_scales);
  attention::backward(args, options);
  return result;
}

// Gradients that are exact are the same bytes of MXFP8 on the CPU and on a device.
TEST(GpuBackward, ExactGradientsInMxfp8AsOnTheCpu) {
  for (const AttentionCase& c :
       {cases::fix(), cases::empty_queries(128, true), cases::more_queries_than_keys()}) {
    FieldCall call(c);
    const HostGradients want = backward_on_cpu(c, call);
    const std::int64_t batch = std::ssize(c.cu_seqlens_k) - 1;
    const auto output = [&](const Tensor& like) {
      const auto dims = like.values.dims();
      return Mxfp8Output({dims.begin(), dims.end()}, batch, BlockShape::k32x32);
    };
    const Mxfp8Output dq = output(call.forward.q), dk = output(call.forward.k),
                      dv = output(call.forward.v);
    call.backward.dq = dq.tensor();
    call.backward.dk = dk.tensor();
    call.backward.dv = dv.tensor();
    call.run_forward();
    call.run_backward();
    EXPECT_TRUE(bitwise_equal(dq.codes(), want.dq, {.label = "dq"}));
    EXPECT_TRUE(bitwise_equal(dk.codes(), want.dk, {.label = "dk"}));
    EXPECT_TRUE(bitwise_equal(dv.codes(), want.dv, {.label = "dv"}));
    EXPECT_TRUE(bitwise_equal(dq.scales(), want.dq_scales, {.label = "dq.scales"}));
    EXPECT_TRUE(bitwise_equal(dk.scales(), want.dk_scales, {.label = "dk.scales"}));
    EXPECT_TRUE(bitwise_equal(dv.scales(), want.dv_scales, {.label = "dv.scales"}));
  }
}

class GpuFieldFailures : public ::testing::TestWithParam<CaseEntry> {};
class GpuBackwardFieldFailures : public ::testing::TestWithParam<CaseEntry> {};
/// Large ones, on a GPU only.
class GpuFarFieldFailures : public ::testing::TestWithParam<CaseEntry> {};

TEST_P(GpuFieldFailures, RightAnswer) { check_forward(GetParam().make()); }
TEST_P(GpuBackwardFieldFailures, RightAnswer) { check_backward(GetParam().make()); }
TEST_P(GpuFarFieldFailures, RightAnswer) {
  check_forward(GetParam().make());
  check_backward(GetParam().make());
}

const auto name_of = [](const ::testing::TestParamInfo<CaseEntry>& info) {
  return info.param.name;
};
INSTANTIATE_TEST_SUITE_P(Cases, GpuFieldFailures, ::testing::ValuesIn(entries(false)), name_of);
INSTANTIATE_TEST_SUITE_P(Cases, GpuBackwardFieldFailures, ::testing::ValuesIn(entries(false)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cases, GpuFarFieldFailures, ::testing::ValuesIn(entries(true)), name_of);

}  // namespace
}  // namespace mxfa::testing
