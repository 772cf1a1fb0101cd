#include "common/cpu_attention.h"

#include "common/accuracy.h"
#include "mxfa/quantize.h"

namespace mxfa::bench {

CpuAttention::CpuAttention(const AttentionCase& c, const attention::Options& options)
    : case_(c),
      options_(options),
      cu_seqlens_q_(c.cu_seqlens_q()),
      cu_seqlens_k_(c.cu_seqlens_k()) {
  options_.causal = c.causal;
  shapes_[kQ] = shapes_[kDout] = {c.total_q(), c.num_heads, c.head_dim};
  shapes_[kK] = shapes_[kV] = {c.total_k(), c.num_heads_kv, c.head_dim};
  for (const Role role : {kQ, kK, kV, kDout}) {
    const auto& shape = shapes_[role];
    values_[role] = random_bf16(shape[0] * shape[1] * shape[2], static_cast<std::uint64_t>(role));
    operands_[role] = make_operand(role);
  }
  for (auto* out : {&o_, &dq_}) out->resize(values_[kQ].size());
  for (auto* out : {&dk_, &dv_}) out->resize(values_[kK].size());
  const auto rows_of_heads = static_cast<std::size_t>(c.total_q() * c.num_heads);
  for (auto* out : {&lse_, &row_max_}) out->resize(rows_of_heads);
}

void CpuAttention::forward() {
  const attention::ForwardArgs args{.q = operands_[kQ],
                                    .k = operands_[kK],
                                    .v = operands_[kV],
                                    .cu_seqlens_q = offsets(cu_seqlens_q_),
                                    .cu_seqlens_k = offsets(cu_seqlens_k_),
                                    .o = output(o_, kQ),
                                    .lse = rows(lse_),
                                    .row_max = rows(row_max_)};
  const std::int64_t bytes = attention::forward_workspace_bytes(args, options_);
  attention::forward(args, options_, workspace(bytes));
}

void CpuAttention::backward() {
  const attention::BackwardArgs args = backward_args();
  const std::int64_t bytes = attention::backward_workspace_bytes(args, options_);
  attention::backward(args, options_, workspace(bytes));
}

std::span<std::byte> CpuAttention::workspace(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  if (workspace_.size() < size) workspace_.resize(size);
  return std::span(workspace_.data(), size);
}

attention::BackwardArgs CpuAttention::backward_args() {
  return {.q = operands_[kQ],
          .k = operands_[kK],
          .v = operands_[kV],
          .cu_seqlens_q = offsets(cu_seqlens_q_),
          .cu_seqlens_k = offsets(cu_seqlens_k_),
          .o = output(o_, kQ),
          .lse = rows(lse_),
          .row_max = rows(row_max_),
          .dout = operands_[kDout],
          .dq = output(dq_, kQ),
          .dk = output(dk_, kK),
          .dv = output(dv_, kV)};
}

std::vector<std::pair<std::string, double>> CpuAttention::accuracy() const {
  constexpr std::int64_t kMostPairs = std::int64_t{2048} * 2048;  // a second or two
  return sqnr_db(case_,
                 {.q = values_[kQ],
                  .k = values_[kK],
                  .v = values_[kV],
                  .dout = values_[kDout],
                  .o = o_,
                  .dq = dq_,
                  .dk = dk_,
                  .dv = dv_},
                 kMostPairs);
}

TensorView CpuAttention::offsets(std::vector<std::int32_t>& values) const {
  return make_tensor(values.data(), DType::kI32, {std::ssize(values)});
}

TensorView CpuAttention::rows(Values<float>& values) const {
  return make_tensor(values.data(), DType::kF32, {case_.num_heads, case_.total_q()});
}

attention::Tensor CpuAttention::output(Values<std::uint16_t>& values, Role like) const {
  return {make_tensor(values.data(), DType::kBF16, shapes_[like]), {}};
}

attention::Tensor CpuAttention::make_operand(Role role) {
  const TensorView values = make_tensor(values_[role].data(), DType::kBF16, shapes_[role]);
  if (options_.precision == attention::Precision::kBf16) return {values, {}};
  const bool of_queries = role == kQ || role == kDout;
  const QuantizeOptions quantize_options{
      .block_shape =
          role == kDout ? attention::dout_shape(options_) : attention::operand_shape(options_),
      .cu_seqlens = offsets(of_queries ? cu_seqlens_q_ : cu_seqlens_k_)};
  payload_[role].resize(values_[role].size());
  const TensorView payload = make_tensor(payload_[role].data(), DType::kE4M3, shapes_[role]);
  TensorView scales =
      make_tensor(nullptr, DType::kE8M0, scale_shape(shapes_[role], quantize_options));
  scales_[role].resize(static_cast<std::size_t>(scales.num_elements()));
  scales.data = scales_[role].data();
  quantize(values, payload, scales, quantize_options);
  return {payload, scales};
}

}  // namespace mxfa::bench
