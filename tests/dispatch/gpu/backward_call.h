#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "dispatch/gpu/device_call.h"
#include "reference/attention.h"

/// A public backward behind a public forward, on the device of the test program and on the CPU.
namespace mxfa::testing {

struct BackwardResults {
  std::vector<double> dq, dk, dv;  ///< [total, heads, head_dim]
};

class DeviceBackward {
 public:
  explicit DeviceBackward(const CallCase& c)
      : case_(c),
        forward_(c),
        forward_results_(forward_.run()),
        dout_values_(normal_bf16(c.rows_o() * c.num_heads * c.head_dim, 4)),
        dout_(dout_values_),
        dq_(c.total_q() * c.num_heads * c.head_dim),
        dk_(c.total_k() * c.num_heads_kv * c.head_dim),
        dv_(c.total_k() * c.num_heads_kv * c.head_dim) {
    const attention::ForwardArgs& args = forward_.args();
    const auto as = [](const Tensor& like, void* data) {
      TensorView view = like.values;
      view.data = data;
      return Tensor{view};
    };
    args_ = attention::backward_args(args, as(args.o, dout_.data()));
    args_.dq = as(args.q, dq_.data());
    args_.dk = as(args.k, dk_.data());
    args_.dv = as(args.v, dv_.data());
  }

  attention::BackwardArgs& args() { return args_; }
  attention::Options& options() { return forward_.options(); }
  const DeviceCall& forward() const { return forward_; }
  const std::vector<std::uint16_t>& dout_values() const { return dout_values_; }
  const DeviceArray<std::byte>& workspace() {
    const std::int64_t bytes = attention::backward_workspace_bytes(args_, options());
    if (!workspace_ || std::ssize(workspace_->bytes()) != bytes) workspace_.emplace(bytes);
    return *workspace_;
  }
  void poison_outputs() {
    for (const auto* x : {&dq_, &dk_, &dv_}) x->poison_again();
  }
  /// BF16 of what is on the device now.
  struct Codes {
    std::vector<std::uint16_t> dq, dk, dv;
  };
  Codes codes() {
    device().synchronize();
    return {dq_.download(), dk_.download(), dv_.download()};
  }
  Codes run() {
    attention::backward(args_, options(), workspace().bytes());
    return codes();
  }
  static BackwardResults decoded_of(const Codes& codes) {
    return {decoded(codes.dq), decoded(codes.dk), decoded(codes.dv)};
  }
  /// The same recipe on the CPU, packed, from the device's forward, to FP32.
  BackwardResults run_on_cpu();
  /// In float64, on BF16 inputs.
  BackwardResults oracle() const;

 private:
  CallCase case_;
  DeviceCall forward_;
  CallResults forward_results_;
  std::vector<std::uint16_t> dout_values_;
  DeviceArray<std::uint16_t> dout_, dq_, dk_, dv_;
  std::optional<DeviceArray<std::byte>> workspace_;
  attention::BackwardArgs args_;
};

inline BackwardResults DeviceBackward::run_on_cpu() {
  const CallCase& c = case_;
  auto cu_q = c.offsets(c.cu_seqlens_q, c.seqlen_q), cu_k = c.offsets(c.cu_seqlens_k, c.seqlen_k);
  auto q = forward_.values(0), k = forward_.values(1), v = forward_.values(2);
  auto dout = dout_values_, o = forward_results_.o;
  auto lse = forward_results_.lse, row_max = forward_results_.row_max;
  std::vector<float> dq(q.size()), dk(k.size()), dv(v.size());
  const auto packed = [&](void* data, DType dtype, std::int64_t rows, std::int64_t heads) {
    return Tensor{make_tensor(data, dtype, {rows, heads, c.head_dim})};
  };
  const auto rows = [&](std::vector<float>& values) {
    return make_tensor(values.data(), DType::kF32, {c.num_heads, c.rows_o()});
  };
  attention::Options options = c.options;
  options.recipe = forward_.options().recipe;
  options.dq_accum = DType::kF32;
  options.half_scores = false;
  attention::BackwardArgs args{
      .q = packed(q.data(), DType::kBF16, c.total_q(), c.num_heads),
      .k = packed(k.data(), DType::kBF16, c.total_k(), c.num_heads_kv),
      .v = packed(v.data(), DType::kBF16, c.total_k(), c.num_heads_kv),
      .cu_seqlens_k = make_tensor(cu_k.data(), DType::kI32, {std::ssize(cu_k)}),
      .o = packed(o.data(), DType::kBF16, c.rows_o(), c.num_heads),
      .lse = rows(lse),
      .row_max = rows(row_max),
      .dout = packed(dout.data(), DType::kBF16, c.rows_o(), c.num_heads),
      .dq = packed(dq.data(), DType::kF32, c.total_q(), c.num_heads),
      .dk = packed(dk.data(), DType::kF32, c.total_k(), c.num_heads_kv),
      .dv = packed(dv.data(), DType::kF32, c.total_k(), c.num_heads_kv)};
  if (!c.options.broadcast_q) {
    args.cu_seqlens_q = make_tensor(cu_q.data(), DType::kI32, {std::ssize(cu_q)});
  }
  attention::backward(args, options);
  return {{dq.begin(), dq.end()}, {dk.begin(), dk.end()}, {dv.begin(), dv.end()}};
}

inline BackwardResults DeviceBackward::oracle() const {
  const CallCase& c = case_;
  const auto cu_q = c.offsets(c.cu_seqlens_q, c.seqlen_q);
  const auto cu_k = c.offsets(c.cu_seqlens_k, c.seqlen_k);
  const auto matrix = [&](const std::vector<std::uint16_t>& x, std::int64_t heads,
                          std::int64_t head, std::int64_t first, std::int64_t count) {
    reference::Matrix<float> result(count, c.head_dim);
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t d = 0; d < c.head_dim; ++d) {
        result(row, d) = mx::decode_bf16(x[((first + row) * heads + head) * c.head_dim + d]);
      }
    }
    return result;
  };
  const auto add = [&](const reference::Matrix<double>& x, std::int64_t heads, std::int64_t head,
                       std::int64_t first, std::vector<double>& sums) {
    for (std::int64_t row = 0; row < x.rows; ++row) {
      for (std::int64_t d = 0; d < x.cols; ++d) {
        sums[((first + row) * heads + head) * x.cols + d] += x(row, d);
      }
    }
  };
  BackwardResults sums{std::vector<double>(forward_.values(0).size()),
                       std::vector<double>(forward_.values(1).size()),
                       std::vector<double>(forward_.values(2).size())};
  for (std::int64_t s = 0; s < c.batches(); ++s) {
    const bool shared = c.options.broadcast_q;
    const std::int64_t q0 = shared ? 0 : cu_q[s];
    const std::int64_t rows = shared ? c.seqlen_q : cu_q[s + 1] - cu_q[s];
    const std::int64_t o0 = shared ? s * c.seqlen_q : q0;
    const std::int64_t k0 = cu_k[s], keys = cu_k[s + 1] - cu_k[s];
    for (std::int64_t head = 0; head < c.num_heads; ++head) {
      const std::int64_t kv = head / (c.num_heads / c.num_heads_kv);
      const reference::HeadInputs inputs{
          .q = matrix(forward_.values(0), c.num_heads, head, q0, rows),
          .k = matrix(forward_.values(1), c.num_heads_kv, kv, k0, keys),
          .v = matrix(forward_.values(2), c.num_heads_kv, kv, k0, keys),
          .dout = matrix(dout_values_, c.num_heads, head, o0, rows),
          .mask = {.causal = c.options.causal},
          .softmax_scale = 1 / std::sqrt(static_cast<double>(c.head_dim))};
      const auto got = reference::attention_backward(inputs, reference::attention_forward(inputs));
      add(got.dq, c.num_heads, head, q0, sums.dq);
      add(got.dk, c.num_heads_kv, kv, k0, sums.dk);
      add(got.dv, c.num_heads_kv, kv, k0, sums.dv);
    }
  }
  return sums;
}

}  // namespace mxfa::testing
