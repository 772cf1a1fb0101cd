#include <fmt/format.h>
#include <gtest/gtest.h>

#include <climits>
#include <functional>
#include <string>

#include "dispatch/gpu/backward_call.h"

namespace mxfa::testing {
namespace {

using attention::BackwardArgs;
using attention::ForwardArgs;
using attention::Options;

CallCase small_case() {
  return {.cu_seqlens_q = {0, 5}, .cu_seqlens_k = {0, 40}, .batch = 1, .num_heads_kv = 1};
}

/// A change of a call's arguments, and how it is refused.
template <class Args>
struct RefusalOf {
  std::string name;
  std::string message;
  std::function<void(Args&, Options&)> change;
  ErrorKind kind = ErrorKind::kInvalidArgument;

  void expect(const std::function<void()>& call) const {
    try {
      call();
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, message.size()), message);
      EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind));
    }
  }
};
using Refusal = RefusalOf<ForwardArgs>;
using BackwardRefusal = RefusalOf<BackwardArgs>;

class GpuRefusals : public ::testing::TestWithParam<Refusal> {};
class BlackwellRefusals : public ::testing::TestWithParam<Refusal> {};
class GpuBackwardRefusals : public ::testing::TestWithParam<BackwardRefusal> {};

void expect_refused(const Refusal& refusal) {
  DeviceCall call(small_case());
  const DeviceArray<std::byte>& workspace = call.workspace();
  refusal.change(call.args(), call.options());
  refusal.expect([&] { attention::forward(call.args(), call.options(), workspace.bytes()); });
  for (const std::uint16_t value : call.results().o) EXPECT_EQ(value, 0xFFFF);
}

TEST_P(GpuRefusals, NameTheArgumentWhatWasExpectedAndWhatCame) { expect_refused(GetParam()); }

TEST_P(BlackwellRefusals, NameTheArgumentWhatWasExpectedAndWhatCame) { expect_refused(GetParam()); }

TEST_P(GpuBackwardRefusals, NameTheArgumentWhatWasExpectedAndWhatCame) {
  DeviceBackward call(small_case());
  const DeviceArray<std::byte>& workspace = call.workspace();
  GetParam().change(call.args(), call.options());
  GetParam().expect([&] { attention::backward(call.args(), call.options(), workspace.bytes()); });
  for (const std::uint16_t value : call.codes().dk) EXPECT_EQ(value, 0xFFFF);
}

std::uint16_t on_host[64 * 64];

void make_leak_free_payload(ForwardArgs& args, Options& options) {
  options.leak_free = true;
  for (Tensor* x : {&args.q, &args.k, &args.v}) {
    x->values.dtype = DType::kE4M3;
    x->scales = make_tensor(args.lse.data, DType::kE8M0, {x->values.shape[0], x->values.shape[1]});
  }
}
const Refusal kLeakFreePayload{
    "LeakFreePayload",
    "q: expected bf16 or f32 where operands are lowered or leak-free, got e4m3 payload",
    make_leak_free_payload, ErrorKind::kUnsupported};

const Refusal kRefusals[] = {
    {"HostMemory", "q: expected memory of device 0, got an address that is no device's",
     [](ForwardArgs& a, Options&) { a.q.values.data = on_host; }},
    {"HostOffsets", "cu_seqlens_k: expected memory of device 0, got an address that is no device's",
     [](ForwardArgs& a, Options&) { a.cu_seqlens_k.data = on_host; }},
    {"HostOutput", "lse: expected memory of device 0, got an address that is no device's",
     [](ForwardArgs& a, Options&) { a.lse.data = on_host; }},
    {"ScaleRuleMember", "scale_rule: expected round-up or floor, got 9",
     [](ForwardArgs&, Options& o) { o.scale_rule = static_cast<ScaleRule>(9); }},
    {"CausalAlignment", "causal_alignment: expected bottom-right or top-left, got 9",
     [](ForwardArgs&, Options& o) { o.causal_alignment = static_cast<CausalAlignment>(9); }},
    {"OutputShapeMember", "output_shape: expected a member of BlockShape, got 9",
     [](ForwardArgs&, Options& o) { o.output_shape = static_cast<BlockShape>(9); }},
    {"DType", "q: expected bf16, f32 or e4m3, got f16 [5, 2, 64]",
     [](ForwardArgs& a, Options&) {
       for (Tensor* x : {&a.q, &a.k, &a.v}) x->values.dtype = DType::kF16;
     }},
    {"MixedDTypes", "k: expected bf16 as q, got f32",
     [](ForwardArgs& a, Options&) { a.k.values.dtype = DType::kF32; }},
    {"ColumnStride", "v: expected contiguous rows of head_dim, got stride 2",
     [](ForwardArgs& a, Options&) { a.v.values.strides[2] = 2; }},
    {"NegativeStride", "k: expected no negative stride on a device, got stride -64 in dimension 0",
     [](ForwardArgs& a, Options&) { a.k.values.strides[0] = -64; }},
    {"FarRows",
     "k: expected strides below 2^40 bytes on a device, got stride 549755813888 of bf16 in",
     [](ForwardArgs& a, Options&) { a.k.values.strides[0] = 1ll << 39; }},
    {"ManyRows", "k: expected fewer than 2^56 elements, got bf16 [144115188075855872, 1, 64]",
     [](ForwardArgs& a, Options&) { a.k.values.shape[0] = 1ll << 57; }},
    {"Overlap", "o: expected memory that no other tensor of the call has, got some of q's",
     [](ForwardArgs& a, Options&) { a.o.values.data = a.q.values.data; }},
    {"RowMaxInLse",
     "lse: expected memory that no other tensor of the call has, got some of row_max",
     [](ForwardArgs& a, Options&) { a.row_max = a.lse; }},
    {"Shape", "v: expected shape [40, 1, 64], got bf16 [39, 1, 64]",
     [](ForwardArgs& a, Options&) { a.v.values.shape[0] = 39; }},
    {"HeadDim", "k: expected head_dim 64 as q, got bf16 [40, 1, 32]",
     [](ForwardArgs& a, Options&) { a.k.values.shape[2] = 32; }},
    {"WideHeadDim", "head_dim: expected 64 or 128, or a multiple of 8 up to 128, got 256",
     [](ForwardArgs& a, Options&) {
       for (Tensor* x : {&a.q, &a.k, &a.v, &a.o}) x->values.shape[2] = 256;
     },
     ErrorKind::kUnsupported},
    {"Rank",
     "k: expected [batch, seqlen, heads, head_dim], as there is no cu_seqlens_k, got bf16 "
     "[40, 1, 64]",
     [](ForwardArgs& a, Options&) { a.cu_seqlens_k = {}; }},
    {"FloatOffsets", "cu_seqlens_q: expected i32 or i64, got f32 [2]",
     [](ForwardArgs& a, Options&) { a.cu_seqlens_q.dtype = DType::kF32; }},
    {"Batches", "cu_seqlens_q: expected 1 sequences as k, got 0",
     [](ForwardArgs& a, Options&) { a.cu_seqlens_q.shape[0] = 1; }},
    {"NoScales", "q.scales: expected the scales of 32xD blocks, got none",
     [](ForwardArgs& a, Options&) {
       for (Tensor* x : {&a.q, &a.k, &a.v}) x->values.dtype = DType::kE4M3;
     }},
    {"OutputScales", "o.scales: expected the scales of 32x32 blocks, got none",
     [](ForwardArgs& a, Options&) { a.o.values.dtype = DType::kE4M3; }},
    {"LeakFreeScoresInBf16",
     "qk_bf16: expected false beside leak_free or half_scores on sm_90a, got true",
     [](ForwardArgs&, Options& o) { o.qk_bf16 = o.leak_free = true; }, ErrorKind::kUnsupported},
    {"HalfScoresInBf16",
     "qk_bf16: expected false beside leak_free or half_scores on sm_90a, got true",
     [](ForwardArgs&, Options& o) { o.qk_bf16 = o.half_scores = true; }, ErrorKind::kUnsupported},
    {"ExactScoresInBf16", "qk_bf16: expected false where attention is exact, got true",
     [](ForwardArgs&, Options& o) { o.exact = o.qk_bf16 = true; }, ErrorKind::kUnsupported},
    {"ExactDpInBf16", "dp_bf16: expected false where attention is exact, got true",
     [](ForwardArgs&, Options& o) { o.exact = o.dp_bf16 = true; }, ErrorKind::kUnsupported},
    {"OutputStride",
     "o: expected even strides and an address on 4 bytes, got strides 0, 129, 64, address ",
     [](ForwardArgs& a, Options&) { a.o.values.strides[0] = 129; }},
    {"OutputDType", "o: expected bf16 or e4m3 on sm_90a, got f32",
     [](ForwardArgs& a, Options&) { a.o.values.dtype = DType::kF32; }, ErrorKind::kUnsupported},
    {"OutputShape", "o: expected shape [5, 2, 64], got bf16 [4, 2, 64]",
     [](ForwardArgs& a, Options&) { a.o.values.shape[0] = 4; }},
    {"Lse", "lse: expected shape [2, 5], got f32 [2, 4]",
     [](ForwardArgs& a, Options&) { a.lse.shape[1] = 4; }},
    {"PScale", "p_scale: expected constant but on Blackwell, got block scales",
     [](ForwardArgs&, Options& o) { o.p_scale = attention::PScale::kBlockAmax; },
     ErrorKind::kUnsupported},
    {"MaxSeqlen",
     "max_seqlen_k: expected none on a device, where lengths are not read by the host, got 64",
     [](ForwardArgs&, Options& o) { o.max_seqlen_k = 64; }, ErrorKind::kUnsupported},
    {"Precision", "precision: expected mxfp8 on a device, got bf16",
     [](ForwardArgs&, Options& o) { o.precision = attention::Precision::kBf16; },
     ErrorKind::kUnsupported},
    {"Recipe", "recipe: expected that of sm_90a, native_recipe(), got another",
     [](ForwardArgs&, Options& o) { o.recipe = attention::Recipe::kBlackwell; },
     ErrorKind::kUnsupported},
    {"Scale", "softmax_scale: expected a finite number above 0, got 0",
     [](ForwardArgs&, Options& o) { o.softmax_scale = 0.0; }},
    {"WindowLeft", "window_left: expected at least -1, got -5",
     [](ForwardArgs&, Options& o) { o.window_left = -5; }},
    {"WindowRight", "window_right: expected at least -1, got -2",
     [](ForwardArgs&, Options& o) { o.window_right = -2; }},
    kLeakFreePayload,
};

/// dk in MXFP8 of its own memory, tiled along tokens.
void tile_dk(BackwardArgs& a, const TensorView& tokens) {
  a.dk.values.dtype = DType::kE4M3;
  a.dk.scales = make_tensor(a.dv.values.data, DType::kE8M0,
                            {a.dk.values.shape[0], 1, 2});  // as many as of 1x32 blocks
  a.dk_tiled.tokens = tokens;
}

const BackwardRefusal kBackwardRefusals[] = {
    {"HostMemory", "dout: expected memory of device 0, got an address that is no device's",
     [](BackwardArgs& a, Options&) { a.dout.values.data = on_host; }},
    {"HostGradient", "dv: expected memory of device 0, got an address that is no device's",
     [](BackwardArgs& a, Options&) { a.dv.values.data = on_host; }},
    {"NoOutput", "o: expected the forward's, got none",
     [](BackwardArgs& a, Options&) { a.o = {}; }},
    {"NoRowMax", "row_max: expected the forward's, in the Hopper recipe, got none",
     [](BackwardArgs& a, Options&) { a.row_max = {}; }},
    {"Overlap", "dk: expected memory that no other tensor of the call has, got some of dv's",
     [](BackwardArgs& a, Options&) { a.dv.values.data = a.dk.values.data; }},
    {"Shape", "dk: expected shape [40, 1, 64], got bf16 [39, 1, 64]",
     [](BackwardArgs& a, Options&) { a.dk.values.shape[0] = 39; }},
    {"DoutShape", "dout: expected shape [5, 2, 64], got bf16 [4, 2, 64]",
     [](BackwardArgs& a, Options&) { a.dout.values.shape[0] = 4; }},
    {"OutputStride", "dq: expected strides that are multiples of 2 and an address on 4 bytes, got ",
     [](BackwardArgs& a, Options&) { a.dq.values.strides[0] = 129; }},
    {"OStride", "o: expected strides that are multiples of 4 and an address on 8 bytes, got ",
     [](BackwardArgs& a, Options&) { a.o.values.strides[0] = 130; }},
    {"GradientDType", "dk: expected bf16 or e4m3 in a backward on sm_90a, got f32",
     [](BackwardArgs& a, Options&) { a.dk.values.dtype = DType::kF32; }, ErrorKind::kUnsupported},
    {"GradientScales", "dv.scales: expected the scales of 32x32 blocks, got none",
     [](BackwardArgs& a, Options&) { a.dv.values.dtype = DType::kE4M3; }},
    {"TiledScalesOfBf16", "dk_tiled.tokens: expected none without dk in e4m3, got f32 [2, 5]",
     [](BackwardArgs& a, Options&) { a.dk_tiled.tokens = a.lse; }},
    {"TiledScalesOfNothing", "dv_tiled.head_dim: expected none without dv in e4m3, got f32 [2, 5]",
     [](BackwardArgs& a, Options&) {
       a.dv = {};
       a.dv_tiled.head_dim = a.lse;
     }},
    {"TiledScalesOfTokens", "dk_tiled.tokens: expected none of 1x32 scales, got f32 [2, 5]",
     [](BackwardArgs& a, Options& o) {
       o.output_shape = BlockShape::k1x32;
       tile_dk(a, a.lse);
     }},
    {"TiledScalesDType", "dk_tiled.tokens: expected e8m0 or u8, got f32 [2, 5]",
     [](BackwardArgs& a, Options&) { tile_dk(a, a.lse); }},
    {"TiledScalesShape",
     "dk_tiled.tokens: expected shape [1, 1, 1, 512] (dimension 1 or more), got e8m0 [2, 5]",
     [](BackwardArgs& a, Options&) {
       tile_dk(a, a.lse);
       a.dk_tiled.tokens.dtype = DType::kE8M0;
     }},
    {"TiledScalesOnHost", "dk_tiled: expected memory of device 0, got an address that is no",
     [](BackwardArgs& a, Options&) {
       tile_dk(a, make_tensor(on_host, DType::kE8M0, {1, 1, 1, 512}));
     }},
    {"TiledScalesAddress", "dk_tiled: expected addresses on 16 bytes, got one 4 bytes past that",
     [](BackwardArgs& a, Options&) {
       tile_dk(a, make_tensor(static_cast<float*>(a.lse.data) + 1, DType::kE8M0, {1, 1, 1, 512}));
     }},
    {"GradientShape", "output_shape: expected 1x32 or 32x32 on a device, got 32xD",
     [](BackwardArgs& a, Options& o) {
       a.dq.values.dtype = DType::kE4M3;
       o.output_shape = BlockShape::k32xD;
     },
     ErrorKind::kUnsupported},
    {"ODType", "o: expected bf16 in a backward on sm_90a, got f32",
     [](BackwardArgs& a, Options&) { a.o.values.dtype = DType::kF32; }, ErrorKind::kUnsupported},
    {"Delta", "delta: expected none in a backward on sm_90a, got f32 [2, 5]",
     [](BackwardArgs& a, Options&) { a.delta = a.lse; }, ErrorKind::kUnsupported},
    {"DqSeq", "dq_seq: expected none in a backward on sm_90a, got bf16 [5, 2, 64]",
     [](BackwardArgs& a, Options&) { a.dq_seq = a.o.values; }, ErrorKind::kUnsupported},
    {"LeakFreeHalfScores",
     "leak_free: expected false beside half_scores in a backward on sm_90a, got true",
     [](BackwardArgs&, Options& o) { o.leak_free = o.half_scores = true; },
     ErrorKind::kUnsupported},
    {"LeakFreeScoresInBf16",
     "qk_bf16: expected false beside leak_free in a backward on sm_90a, got true",
     [](BackwardArgs&, Options& o) { o.leak_free = o.qk_bf16 = true; }, ErrorKind::kUnsupported},
    {"LeakFreeDpInBf16",
     "dp_bf16: expected false beside leak_free in a backward on sm_90a, got true",
     [](BackwardArgs&, Options& o) { o.leak_free = o.dp_bf16 = true; }, ErrorKind::kUnsupported},
    {"LeakFreeHalfSums", "dq_accum: expected f32 on sm_90a where leak_free is set, got f16",
     [](BackwardArgs&, Options& o) {
       o.leak_free = true;
       o.dq_accum = DType::kF16;
     },
     ErrorKind::kUnsupported},
    {"HalfScoresInBf16",
     "qk_bf16: expected false beside half_scores in a backward on sm_90a, got true",
     [](BackwardArgs&, Options& o) { o.qk_bf16 = o.half_scores = true; }, ErrorKind::kUnsupported},
    {"HalfDpInBf16", "dp_bf16: expected false beside half_scores in a backward on sm_90a, got true",
     [](BackwardArgs&, Options& o) { o.dp_bf16 = o.half_scores = true; }, ErrorKind::kUnsupported},
    {"HalfSumsOfABf16Product", "dq_accum: expected f32 on sm_90a where dp_bf16 is set, got f16",
     [](BackwardArgs&, Options& o) {
       o.dp_bf16 = true;
       o.dq_accum = DType::kF16;
     },
     ErrorKind::kUnsupported},
    {"DoutForABf16Product", "dout: expected bf16 on sm_90a where dp_bf16 is set, got f32",
     [](BackwardArgs& a, Options& o) {
       o.dp_bf16 = true;
       a.dout.values.dtype = DType::kF32;
     },
     ErrorKind::kUnsupported},
    {"StrideForABf16Product",
     "k: expected an address on 16 bytes, strides that are multiples of 8, sequences side by side "
     "on sm_90a where qk_bf16 is set, got strides 0, 65, 64, address ",
     [](BackwardArgs& a, Options& o) {
       o.qk_bf16 = true;
       a.k.values.strides[0] = 65;
     },
     ErrorKind::kUnsupported},
    {"Exact", "exact: expected false in a backward, got true",
     [](BackwardArgs&, Options& o) { o.exact = true; }, ErrorKind::kUnsupported},
    {"DqAccum", "dq_accum: expected f32 or f16, got bf16",
     [](BackwardArgs&, Options& o) { o.dq_accum = DType::kBF16; }},
    {"DqExponent", "dq_exponent: expected -64 to 64, got 65",
     [](BackwardArgs&, Options& o) { o.dq_exponent = 65; }},
    {"LeastDqExponent", "dq_exponent: expected -64 to 64, got -2147483648",
     [](BackwardArgs&, Options& o) { o.dq_exponent = INT_MIN; }},
    {"OrderUnderAMask",
     "deterministic: expected false on sm_90a where q is broadcast under a mask, got true",
     [](BackwardArgs& a, Options& o) {
       a.cu_seqlens_q = {};
       o.broadcast_q = o.causal = o.deterministic = true;
     },
     ErrorKind::kUnsupported},
    {"PScale", "p_scale: expected constant but on Blackwell, got block scales",
     [](BackwardArgs&, Options& o) { o.p_scale = attention::PScale::kBlockAmax; },
     ErrorKind::kUnsupported},
    {"Overflows", "dq_overflows: expected i64, got f32 [2, 5]",
     [](BackwardArgs& a, Options&) { a.dq_overflows = a.lse; }},
};

// What Hopper's kernel takes and Blackwell's does not.
const Refusal kBlackwellRefusals[] = {
    {"ScoresInBf16", "qk_bf16: expected false on Blackwell, got true",
     [](ForwardArgs&, Options& o) { o.qk_bf16 = true; }, ErrorKind::kUnsupported},
    {"DpInBf16", "dp_bf16: expected false on Blackwell, got true",
     [](ForwardArgs&, Options& o) { o.dp_bf16 = true; }, ErrorKind::kUnsupported},
    {"HalfScores", "half_scores: expected false on Blackwell, got true",
     [](ForwardArgs&, Options& o) { o.half_scores = true; }, ErrorKind::kUnsupported},
    {"PScale", "p_scale: expected constant where leak_free is set, got block scales",
     [](ForwardArgs&, Options& o) {
       o.leak_free = true;
       o.p_scale = attention::PScale::kBlockRowMax;
     },
     ErrorKind::kUnsupported},
    {"OutputDType", "o: expected bf16 or e4m3 on Blackwell, got f32",
     [](ForwardArgs& a, Options&) { a.o.values.dtype = DType::kF32; }, ErrorKind::kUnsupported},
    {"OutputStride", "o: expected strides that are multiples of 8 and an address on 16 bytes, got ",
     [](ForwardArgs& a, Options&) { a.o.values.strides[0] = 132; }},
    {"FarTokens", "o: expected a stride of tokens below 2^34 bytes on Blackwell, got 17179869184",
     [](ForwardArgs& a, Options&) { a.o.values.strides[0] = 1ll << 33; }},
    kLeakFreePayload,
};

// Of dout alone, as a broadcast q has one sequence.
TEST(GpuBackward, PayloadOfABroadcastCallLiesSideBySide) {
  CallCase c{.batch = 2, .seqlen_q = 5, .seqlen_k = 40};
  c.options.broadcast_q = true;
  DeviceBackward call(c);
  const DeviceArray<std::uint8_t> codes(std::int64_t{2} * 6 * 2 * 64), scales(2 * 2);
  Tensor& dout = call.args().dout;
  dout = {make_tensor(codes.data(), DType::kE4M3, {2, 5, 2, 64}),
          make_tensor(scales.data(), DType::kE8M0, {2, 2})};
  EXPECT_GT(attention::backward_workspace_bytes(call.args(), call.options()), 0);
  dout.values.strides[0] = 6 * 128;
  const BackwardRefusal refusal{"dout",
                                "dout: expected payload whose sequences lie side by side (batch "
                                "stride = seqlen * token stride), got batch stride 768, token "
                                "stride 128",
                                {},
                                ErrorKind::kUnsupported};
  refusal.expect([&] { attention::backward_workspace_bytes(call.args(), call.options()); });
}

INSTANTIATE_TEST_SUITE_P(Arguments, BlackwellRefusals, ::testing::ValuesIn(kBlackwellRefusals),
                         [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(Arguments, GpuBackwardRefusals, ::testing::ValuesIn(kBackwardRefusals),
                         [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(Arguments, GpuRefusals, ::testing::ValuesIn(kRefusals),
                         [](const auto& test) { return test.param.name; });

TEST(GpuWorkspace, IsChecked) {
  DeviceCall call(small_case());
  const std::span<std::byte> memory = call.workspace().bytes();
  const auto refusal = [&](std::span<std::byte> workspace) -> std::string {
    try {
      attention::forward(call.args(), call.options(), workspace);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const std::size_t bytes = memory.size();
  EXPECT_EQ(refusal(memory.first(bytes - 1)),
            fmt::format("workspace: expected at least {} bytes, got {}", bytes, bytes - 1));
  EXPECT_EQ(refusal({}), fmt::format("workspace: expected at least {} bytes, got 0", bytes));
  EXPECT_EQ(refusal({static_cast<std::byte*>(nullptr), bytes}),
            fmt::format("workspace: expected data, got a null pointer for {} bytes", bytes));
  EXPECT_EQ(refusal({memory.data() + 64, bytes}),
            "workspace: expected an address on 256 bytes, got one 64 bytes past that");
  alignas(256) static std::byte host[256];
  EXPECT_EQ(refusal({host, bytes}),
            "workspace: expected memory of device 0, got an address that is no device's");
}

TEST(BlackwellBackward, IsRefused) {
  CallCase c = small_case();
  DeviceBackward call(c);
  const BackwardRefusal refusal{
      "device",
      fmt::format("device: expected an architecture that has attention::backward (sm_90a), got {}",
                  device().arch()),
      {},
      ErrorKind::kUnsupported};
  refusal.expect([&] { attention::backward_workspace_bytes(call.args(), call.options()); });
}

TEST(GpuDevice, IsOpenedOrNamed) {
  for (const std::string arch : {"", "sm_90a"}) {
    try {
      const Device absent({.emulated_arch = arch, .library = "libno_such_driver.so"});
      FAIL() << "opened";
    } catch (const Error& error) {
      EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kDevice));
      const std::string message = error.what();
      EXPECT_NE(message.find("libno_such_driver.so"), std::string::npos);
      EXPECT_EQ(message.find("--target mxemu_driver") != std::string::npos, !arch.empty());
    }
  }
}

}  // namespace
}  // namespace mxfa::testing
