#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "cpu/attention_call.h"

/// Outputs in the memory of other tensors.
namespace mxfa::testing {
namespace {

constexpr std::int64_t kHeads = 2, kDim = 32, kTokens = 70;

AttentionCall small_call() {
  return random_call({.num_heads = kHeads,
                      .num_heads_kv = kHeads,
                      .head_dim = kDim,
                      .cu_seqlens_q = {0, kTokens},
                      .cu_seqlens_k = {0, kTokens}},
                     3);
}

/// Three tensors [tokens, heads, dim] in one [tokens, 3 heads, dim].
struct Packed {
  std::vector<float> values = std::vector<float>(3 * kTokens * kHeads * kDim, -1.0f);

  attention::Tensor part(std::int64_t index) {
    TensorView view =
        make_tensor(values.data() + index * kHeads * kDim, DType::kF32, {kTokens, kHeads, kDim});
    view.strides[0] *= 3;
    return {view, {}};
  }
  std::vector<float> read(std::int64_t index) const {
    std::vector<float> result;
    for (std::int64_t token = 0; token < kTokens; ++token) {
      const auto from = values.begin() + (token * 3 + index) * kHeads * kDim;
      result.insert(result.end(), from, from + kHeads * kDim);
    }
    return result;
  }
  void write(std::int64_t index, const std::vector<float>& from) {
    for (std::int64_t token = 0; token < kTokens; ++token) {
      std::copy_n(from.begin() + token * kHeads * kDim, kHeads * kDim,
                  values.begin() + (token * 3 + index) * kHeads * kDim);
    }
  }
};

TEST(CpuAttentionOverlap, TensorsOfOneBufferInterleave) {
  AttentionCall want = small_call();
  want.run();
  Packed qkv, gradients;
  qkv.write(0, want.q);
  qkv.write(1, want.k);
  qkv.write(2, want.v);
  AttentionCall call = want;
  attention::BackwardArgs args = call.backward_args();
  args.q = qkv.part(0);
  args.k = qkv.part(1);
  args.v = qkv.part(2);
  args.dq = gradients.part(0);
  args.dk = gradients.part(1);
  args.dv = gradients.part(2);
  attention::backward(args, call.options);
  call.dq = gradients.read(0);
  call.dk = gradients.read(1);
  call.dv = gradients.read(2);
  expect_equal_bits(call, want, "one buffer");
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}
std::string refusal(std::string_view output, std::string_view other) {
  return fmt::format("{}: expected memory that no other tensor of the call has, got some of {}'s",
                     output, other);
}

TEST(CpuAttentionOverlap, ForwardNamesTheOutputAndTheOther) {
  AttentionCall call = small_call();
  call.poison_all();
  const auto message = [&](auto change) {
    attention::ForwardArgs args = call.forward_args();
    std::span<std::byte> workspace;
    change(args, workspace);
    const std::string result =
        message_of([&] { attention::forward(args, call.options, workspace); });
    EXPECT_TRUE(std::isnan(call.o[0]));
    return result;
  };
  EXPECT_EQ(message([](auto& a, auto&) { a.o = a.q; }), refusal("o", "q"));
  EXPECT_EQ(message([](auto& a, auto&) { a.row_max = a.lse; }), refusal("lse", "row_max"));
  EXPECT_EQ(
      message([](auto& a, auto&) { a.lse.data = static_cast<float*>(a.o.values.data) + kTokens; }),
      refusal("o", "lse"));
  EXPECT_EQ(message([](auto& a, auto& workspace) {
              const attention::Options options;
              workspace = {reinterpret_cast<std::byte*>(
                               (reinterpret_cast<std::uintptr_t>(a.o.values.data) + 63) / 64 * 64),
                           std::size_t(attention::forward_workspace_bytes(a, options))};
            }),
            refusal("o", "workspace"));
}

TEST(CpuAttentionOverlap, BackwardNamesTheOutputAndTheOther) {
  AttentionCall call = small_call();
  call.run_forward();
  const auto message = [&](auto change) {
    attention::BackwardArgs args = call.backward_args();
    change(args);
    const std::string result = message_of([&] { attention::backward(args, call.options); });
    EXPECT_TRUE(std::isnan(call.dk[0]));
    return result;
  };
  EXPECT_EQ(message([](auto& a) { a.dq = a.dout; }), refusal("dq", "dout"));
  EXPECT_EQ(message([](auto& a) { a.dv = a.dk; }), refusal("dk", "dv"));
  EXPECT_EQ(message([](auto& a) { a.delta = a.lse; }), refusal("delta", "lse"));
  EXPECT_EQ(message([](auto& a) {
              // One row of dv in dk's last.
              a.dv.values.data =
                  static_cast<float*>(a.dk.values.data) + (kTokens - 1) * kHeads * kDim;
            }),
            refusal("dk", "dv"));
}

}  // namespace
}  // namespace mxfa::testing
