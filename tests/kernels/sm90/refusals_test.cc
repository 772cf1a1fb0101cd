#include <gtest/gtest.h>

#include <string>

#include "kernels/sm90/backward/launch.h"
#include "support/machine.h"

/// Calls that are refused before anything is launched; no address is looked at.
namespace mxfa::testing {
namespace {

using sm90::backward::BackwardCall;
using sm90::backward::DqSums;
using sm90::backward::Product;
using sm90::backward::Scores;

template <class T>
T* somewhere() {
  return reinterpret_cast<T*>(256);
}

BackwardCall good_call(Product product) {
  BackwardCall call;
  const auto operand = [&](device::TokenOrder order) {
    device::AttentionOperand x{.rows = somewhere<std::uint8_t>(),
                               .token_stride = 64,
                               .head_stride = 64,
                               .transposed = somewhere<std::uint8_t>(),
                               .tiles = 1,
                               .order = order,
                               .scales = {.data = somewhere<std::uint8_t>()},
                               .total = 1,
                               .head_dim = 64};
    x.offsets.batch = 1;
    x.offsets.seqlen = 1;
    return x;
  };
  call.q = call.v = call.dout = operand(device::TokenOrder::kPi);
  call.k = operand(device::TokenOrder::kSigma);
  call.q_bf16 = call.k_bf16 = call.v_bf16 = call.dout_bf16 = {somewhere<std::uint16_t>(), 64, 64};
  call.product = product;
  call.softmax_scale = 1.0;
  call.o = somewhere<std::uint16_t>();
  call.lse = somewhere<float>();
  return call;
}

template <class Change>
std::string refusal(Product product, Change change) {
  BackwardCall call = good_call(product);
  change(call);
  try {
    attention_backward(machine().queue(), call);
  } catch (const Error& error) {
    return error.what();
  }
  return "taken";
}

constexpr auto kUnchanged = [](BackwardCall&) {};

TEST(BackwardRefusals, OnlyTheWorkspaceIsMissing) {
  for (const Product product :
       {Product::kGroupScales, Product::kBf16, Product::kBf16S, Product::kBf16Dp}) {
    EXPECT_EQ(refusal(product, kUnchanged),
              "workspace: expected an address on 256 bytes, got none");
  }
}

TEST(BackwardRefusals, HalfBesideOtherProducts) {
  const std::string want =
      "scores, dq_sums: expected FP32 beside operands in BF16 or 1xD, got half";
  for (const Product product : {Product::kBf16, Product::kBf16S, Product::kBf16Dp}) {
    EXPECT_EQ(refusal(product, [](auto& call) { call.scores = Scores::kF16; }), want);
    EXPECT_EQ(refusal(product, [](auto& call) { call.dq_sums = DqSums::kF16; }), want);
  }
  const auto tokens = [](auto& call) {
    call.q.block_shape = call.k.block_shape = call.v.block_shape = BlockShape::k1xD;
    call.dq_sums = DqSums::kF16;
  };
  EXPECT_EQ(refusal(Product::kTokenScales, tokens), want);
}

/// Those that a product does not read may be missing.
TEST(BackwardRefusals, RowsInBf16) {
  const auto missing = [](auto member) {
    return [member](auto& call) { (call.*member).data = nullptr; };
  };
  const std::string none = ": expected an address on 16 bytes, got none";
  const std::string accepted = refusal(Product::kBf16, kUnchanged);
  EXPECT_EQ(refusal(Product::kBf16S, missing(&BackwardCall::q_bf16)), "q_bf16" + none);
  EXPECT_EQ(refusal(Product::kBf16S, missing(&BackwardCall::k_bf16)), "k_bf16" + none);
  EXPECT_EQ(refusal(Product::kBf16S, missing(&BackwardCall::v_bf16)), accepted);
  EXPECT_EQ(refusal(Product::kBf16Dp, missing(&BackwardCall::v_bf16)), "v_bf16" + none);
  EXPECT_EQ(refusal(Product::kBf16Dp, missing(&BackwardCall::dout_bf16)), "dout_bf16" + none);
  EXPECT_EQ(refusal(Product::kBf16Dp, missing(&BackwardCall::q_bf16)), accepted);
  EXPECT_EQ(refusal(Product::kBf16, [](auto& call) { call.k_bf16.data += 4; }),
            "k_bf16: expected an address on 16 bytes, got another");
}

TEST(BackwardRefusals, StridesThatTensorMapsDoNotTake) {
  const std::string limits =
      "expected multiples of 16 bytes, at least 0, below 1099511627776 and 1099511627776, got ";
  EXPECT_EQ(refusal(Product::kBf16, [](auto& call) { call.v_bf16.token_stride = 12; }),
            "v_bf16.token_stride, head_stride: " + limits + "24, 128 bytes");
  EXPECT_EQ(refusal(Product::kBf16, [](auto& call) { call.dout_bf16.token_stride = -64; }),
            "dout_bf16.token_stride, head_stride: " + limits + "-128, 128 bytes");
  EXPECT_EQ(refusal(Product::kBf16, [](auto& call) { call.q_bf16.head_stride = 1ll << 39; }),
            "q_bf16.token_stride, head_stride: " + limits + "128, 1099511627776 bytes");
  EXPECT_EQ(refusal(Product::kGroupScales, [](auto& call) { call.k.head_stride = -16; }),
            "k.token_stride, head_stride: " + limits + "64, -16 bytes");
}

}  // namespace
}  // namespace mxfa::testing
