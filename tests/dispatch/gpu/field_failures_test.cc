#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dispatch/gpu/device_call.h"
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
