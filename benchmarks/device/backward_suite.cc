#include "device/backward_suite.h"

#include <algorithm>

#include "common/key_gradients.h"

namespace mxfa::bench {
namespace {

/// How many keys' dk and dv are checked.
std::int64_t checked_keys(const AttentionTensors::Sample& sample) {
  return std::min<std::int64_t>(16, sample.keys);
}

}  // namespace

BackwardCase::BackwardCase(const Device& device, CUstream stream, const AttentionTensors& tensors)
    : tensors_(tensors),
      forward_(device, stream, tensors),
      dq_(tensors.device(), tensors.elements_q() * sizeof(std::uint16_t)),
      dk_(tensors.device(), tensors.elements_k() * sizeof(std::uint16_t)),
      dv_(tensors.device(), tensors.elements_k() * sizeof(std::uint16_t)),
      options_(forward_.options()) {
  run_forward(ForwardVariant::kF32);
  const auto memory = [](const driver::DeviceBuffer& buffer) {
    return reinterpret_cast<void*>(buffer.address());
  };
  args_ = attention::backward_args(forward_.args(), tensors.dout());
  args_.dq = tensors.like_q(memory(dq_));
  args_.dk = tensors.like_k(memory(dk_));
  args_.dv = tensors.like_k(memory(dv_));
  use(BackwardVariant::kF32);
}

void BackwardCase::run_forward(ForwardVariant variant) {
  if (forward_variant_ == variant) return;
  forward_.use(variant);
  forward_.parts().whole();
  forward_variant_ = variant;
}

void BackwardCase::use(BackwardVariant variant) {
  variant_ = variant;
  options_.qk_bf16 = variant == BackwardVariant::kQkBf16 || variant == BackwardVariant::kBf16;
  options_.dp_bf16 = variant == BackwardVariant::kDpBf16 || variant == BackwardVariant::kBf16;
  options_.leak_free = variant == BackwardVariant::kLeakFree;
  run_forward(options_.leak_free ? ForwardVariant::kLeakFree
              : options_.qk_bf16 ? ForwardVariant::kBf16
                                 : ForwardVariant::kF32);
  const bool half_sums = variant == BackwardVariant::kF16 || variant == BackwardVariant::kHalfF16;
  options_.dq_accum = half_sums ? DType::kF16 : DType::kF32;
  options_.half_scores = variant == BackwardVariant::kHalf || variant == BackwardVariant::kHalfF16;
  options_.deterministic = variant == BackwardVariant::kDeterministic;
  workspace_.reset();
  workspace_.emplace(tensors_.device(), static_cast<std::size_t>(
                                            attention::backward_workspace_bytes(args_, options_)));
  for (const auto* gradient : {&dq_, &dk_, &dv_}) gradient->fill(0xFF);
}

BackwardCase::Gradients BackwardCase::wanted() const {
  const AttentionCase& c = tensors_.shape();
  const AttentionTensors::Sample sample = tensors_.sample();
  reference::HeadInputs inputs = tensors_.inputs(sample);
  const auto oracle = reference::attention_backward(inputs, reference::attention_forward(inputs));
  const std::int64_t count = checked_keys(sample);
  const auto zeros = std::vector<double>(static_cast<std::size_t>(count * c.head_dim));
  Gradients want{oracle.dq.data, zeros, zeros};
  const std::int64_t heads_per_kv = c.num_heads / c.num_heads_kv;
  for (std::int64_t head = sample.head + 1 - heads_per_kv; head <= sample.head; ++head) {
    inputs.q = tensors_.sequence_rows(sample, tensors_.q_noise(), head);
    inputs.dout = tensors_.sequence_rows(sample, tensors_.dout_noise(), head);
    const KeyGradients of_head = first_key_gradients(inputs, count);
    for (std::size_t i = 0; i < zeros.size(); ++i) {
      want.dk[i] += of_head.dk[i];
      want.dv[i] += of_head.dv[i];
    }
  }
  return want;
}

CallParts BackwardCase::parts() const {
  return {.attend = [this] { attention::backward_prepared(args_, options_, workspace_span()); },
          .prepare = [this] { attention::prepare_backward(args_, options_, workspace_span()); },
          .whole = [this] { attention::backward(args_, options_, workspace_span()); },
          .checks = [this] { attention::backward_workspace_bytes(args_, options_); },
          .attend_anew =
              [this, options = options_, scale = 0.1]() mutable {
                options.softmax_scale = scale += 1e-9;
                attention::backward_prepared(args_, options, workspace_span());
              }};
}

io::Record BackwardCase::record() const {
  constexpr const char* kImpls[] = {"mxfa mxfp8",
                                    "mxfa mxfp8 (dq fp16)",
                                    "mxfa mxfp8 (deterministic)",
                                    "mxfa mxfp8 (half scores)",
                                    "mxfa mxfp8 (half scores, dq fp16)",
                                    "mxfa mxfp8 (qk bf16)",
                                    "mxfa mxfp8 (dp bf16)",
                                    "mxfa mxfp8 (qk bf16, dp bf16)",
                                    "mxfa mxfp8 (leak-free)"};
  static_assert(std::size(kImpls) == std::size(kBackwardVariants));
  io::Record record;
  record.routine = "attention_backward";
  record.shape = tensors_.shape().record();
  record.impl = kImpls[static_cast<int>(variant_)];
  record.variant.dq_accum = options_.dq_accum == DType::kF16 ? "fp16" : "fp32";
  record.variant.deterministic = variant_ == BackwardVariant::kDeterministic;
  record.variant.qk = options_.qk_bf16 ? "bf16" : "mxfp8";
  if (options_.dp_bf16) record.variant.dp = "bf16";
  record.variant.scores = options_.half_scores ? "fp16" : "fp32";
  record.variant.block_shape = block_shape_name(attention::operand_shape(options_));
  return record;
}

void BackwardCase::add_accuracy(io::Record& record) {
  if (!wanted_) wanted_ = wanted();
  const AttentionCase& c = tensors_.shape();
  const driver::Device& device = tensors_.device();
  const AttentionTensors::Sample sample = tensors_.sample();
  const auto of_keys = [&](const driver::DeviceBuffer& buffer) {
    return head_values(device, buffer, sample.begin_k, checked_keys(sample), c.num_heads_kv,
                       sample.head_kv, c.head_dim);
  };
  record.sqnr_db = {
      {"dq", reference::sqnr_db(wanted_->dq, head_values(device, dq_, sample.first_q, sample.rows_q,
                                                         c.num_heads, sample.head, c.head_dim))},
      {"dk", reference::sqnr_db(wanted_->dk, of_keys(dk_))},
      {"dv", reference::sqnr_db(wanted_->dv, of_keys(dv_))}};
}

}  // namespace mxfa::bench
