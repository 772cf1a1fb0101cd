#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "mxfa/attention.h"
#include "support/attention_case.h"
#include "support/compare.h"
#include "support/rng.h"

/// One forward and backward through the public interface, every output poisoned beforehand.
namespace mxfa::testing {

/// A configuration that all cases run in.
struct Mode {
  std::string name;
  attention::Options options;
};
inline std::vector<Mode> all_modes() {
  using attention::Precision;
  using attention::Recipe;
  attention::Options blackwell, hopper, bf16;
  hopper.recipe = Recipe::kHopper;
  bf16.precision = Precision::kBf16;
  attention::Options leak_free = blackwell, hopper_leak_free = hopper, dials = blackwell,
                     hopper_dials = hopper;
  leak_free.leak_free = hopper_leak_free.leak_free = true;
  dials.qk_bf16 = dials.dp_bf16 = hopper_dials.qk_bf16 = hopper_dials.dp_bf16 = true;
  return {{"Blackwell", blackwell},
          {"Hopper", hopper},
          {"Bf16", bf16},
          {"BlackwellLeakFree", leak_free},
          {"HopperLeakFree", hopper_leak_free},
          {"BlackwellDials", dials},
          {"HopperDials", hopper_dials}};
}

/// Packed row-major inputs in FP32 and what a call makes of them.
struct AttentionCall {
  std::int64_t num_heads = 1;
  std::int64_t num_heads_kv = 1;
  std::int64_t head_dim = 32;
  std::vector<std::int32_t> cu_seqlens_q = {};  ///< empty where q is broadcast
  std::vector<std::int32_t> cu_seqlens_k = {};
  std::vector<float> q = {}, k = {}, v = {}, dout = {};
  attention::Options options = {};

  std::vector<float> o = {}, lse = {}, row_max = {}, dq = {}, dk = {}, dv = {};

  static AttentionCall of(const AttentionCase& c, const attention::Options& mode) {
    AttentionCall call{.num_heads = c.num_heads,
                       .num_heads_kv = c.num_heads_kv,
                       .head_dim = c.head_dim,
                       .cu_seqlens_q = c.cu_seqlens_q,
                       .cu_seqlens_k = c.cu_seqlens_k,
                       .q = c.q,
                       .k = c.k,
                       .v = c.v,
                       .dout = c.dout,
                       .options = mode};
    call.options.causal = c.mask.causal;
    call.options.causal_alignment = c.mask.alignment;
    call.options.window_left = c.mask.window_left;
    call.options.window_right = c.mask.window_right;
    call.options.softmax_scale = c.softmax_scale;
    call.options.max_seqlen_k = c.max_seqlen_k;
    return call;
  }

  std::int64_t total_q() const { return std::int64_t(q.size()) / (num_heads * head_dim); }
  std::int64_t total_k() const { return std::int64_t(k.size()) / (num_heads_kv * head_dim); }
  std::int64_t batch() const { return std::int64_t(cu_seqlens_k.size()) - 1; }
  std::int64_t rows_o() const { return options.broadcast_q ? batch() * total_q() : total_q(); }

  attention::Tensor tensor(std::vector<float>& values, std::int64_t rows, std::int64_t heads) {
    return {make_tensor(values.data(), DType::kF32, {rows, heads, head_dim}), {}};
  }
  TensorView offsets(std::vector<std::int32_t>& cu_seqlens) {
    if (cu_seqlens.empty()) return {};
    return make_tensor(cu_seqlens.data(), DType::kI32, {std::int64_t(cu_seqlens.size())});
  }
  TensorView rows(std::vector<float>& values) {
    return make_tensor(values.data(), DType::kF32, {num_heads, rows_o()});
  }

  attention::ForwardArgs forward_args() {
    return {.q = tensor(q, total_q(), num_heads),
            .k = tensor(k, total_k(), num_heads_kv),
            .v = tensor(v, total_k(), num_heads_kv),
            .cu_seqlens_q = offsets(cu_seqlens_q),
            .cu_seqlens_k = offsets(cu_seqlens_k),
            .o = tensor(o, rows_o(), num_heads),
            .lse = rows(lse),
            .row_max = rows(row_max)};
  }
  attention::BackwardArgs backward_args() {
    return {.q = tensor(q, total_q(), num_heads),
            .k = tensor(k, total_k(), num_heads_kv),
            .v = tensor(v, total_k(), num_heads_kv),
            .cu_seqlens_q = offsets(cu_seqlens_q),
            .cu_seqlens_k = offsets(cu_seqlens_k),
            .o = tensor(o, rows_o(), num_heads),
            .lse = rows(lse),
            .row_max = rows(row_max),
            .dout = tensor(dout, rows_o(), num_heads),
            .dq = tensor(dq, total_q(), num_heads),
            .dk = tensor(dk, total_k(), num_heads_kv),
            .dv = tensor(dv, total_k(), num_heads_kv)};
  }

  static void poison(std::vector<float>& values, std::int64_t count) {
    values.resize(static_cast<std::size_t>(count));
    if (count > 0) std::memset(values.data(), 0xFF, values.size() * sizeof(float));
  }
  void poison_all() {
    poison(o, rows_o() * num_heads * head_dim);
    poison(lse, rows_o() * num_heads);
    poison(row_max, rows_o() * num_heads);
    poison(dq, std::int64_t(q.size()));
    poison(dk, std::int64_t(k.size()));
    poison(dv, std::int64_t(v.size()));
  }
  void run_forward() {
    poison_all();
    attention::forward(forward_args(), options);
  }
  /// Forward and backward.
  void run() {
    run_forward();
    attention::backward(backward_args(), options);
  }
};

/// `call` of normal values: q of the rows that its lengths say, or of `broadcast_rows` that every
/// sequence reads.
inline AttentionCall random_call(AttentionCall call, unsigned seed,
                                 std::int64_t broadcast_rows = 0) {
  Rng rng(seed);
  call.options.broadcast_q = broadcast_rows > 0;
  const std::int64_t rows_q = broadcast_rows > 0 ? broadcast_rows : call.cu_seqlens_q.back();
  const std::int64_t width = call.num_heads * call.head_dim;
  call.q = rng.normal_values<float>(rows_q * width);
  for (auto* values : {&call.k, &call.v}) {
    *values =
        rng.normal_values<float>(call.cu_seqlens_k.back() * call.num_heads_kv * call.head_dim);
  }
  call.dout = rng.normal_values<float>(call.rows_o() * width);
  return call;
}

/// Every result of two calls.
inline void expect_equal_bits(const AttentionCall& got, const AttentionCall& want,
                              const std::string& label) {
  EXPECT_TRUE(bitwise_equal(got.o, want.o, {.label = label + " o"}));
  EXPECT_TRUE(bitwise_equal(got.lse, want.lse, {.label = label + " lse"}));
  EXPECT_TRUE(bitwise_equal(got.row_max, want.row_max, {.label = label + " row_max"}));
  EXPECT_TRUE(bitwise_equal(got.dq, want.dq, {.label = label + " dq"}));
  EXPECT_TRUE(bitwise_equal(got.dk, want.dk, {.label = label + " dk"}));
  EXPECT_TRUE(bitwise_equal(got.dv, want.dv, {.label = label + " dv"}));
}

}  // namespace mxfa::testing
