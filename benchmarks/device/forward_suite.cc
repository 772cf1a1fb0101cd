#include "device/forward_suite.h"

#include "common/bars.h"

namespace mxfa::bench {
ForwardCase::ForwardCase(const Device& device, CUstream stream, const AttentionTensors& tensors)
    : tensors_(tensors),
      o_(tensors.device(), tensors.elements_q() * sizeof(std::uint16_t)),
      lse_(tensors.device(), tensors.shape().total_q() * tensors.shape().num_heads * sizeof(float)),
      row_max_(tensors.device(), lse_.size_bytes()),
      options_{.device = &device,
               .stream = stream,
               .recipe = attention::native_recipe(device),
               .causal = tensors.shape().causal} {
  const AttentionCase& c = tensors.shape();
  const auto rows = [&](const driver::DeviceBuffer& buffer) {
    return make_tensor(reinterpret_cast<void*>(buffer.address()), DType::kF32,
                       {c.num_heads, c.total_q()});
  };
  args_ = {.q = tensors.q(),
           .k = tensors.k(),
           .v = tensors.v(),
           .cu_seqlens_q = tensors.cu_seqlens_q(),
           .cu_seqlens_k = tensors.cu_seqlens_k(),
           .o = tensors.like_q(reinterpret_cast<void*>(o_.address())),
           .lse = rows(lse_),
           .row_max = rows(row_max_)};
  use(ForwardVariant::kF32);
}

void ForwardCase::use(ForwardVariant variant) {
  variant_ = variant;
  options_.qk_bf16 = variant == ForwardVariant::kBf16;
  const bool leak_free_half = variant == ForwardVariant::kLeakFreeHalf;
  options_.leak_free = variant == ForwardVariant::kLeakFree || leak_free_half;
  options_.half_scores = variant == ForwardVariant::kHalf || leak_free_half;
  workspace_.reset();
  workspace_.emplace(tensors_.device(),
                     static_cast<std::size_t>(attention::forward_workspace_bytes(args_, options_)));
  for (const auto* output : {&o_, &lse_, &row_max_}) output->fill(0xFF);
}

CallParts ForwardCase::parts() const {
  return {.attend = [this] { attention::forward_prepared(args_, options_, workspace_span()); },
          .prepare = [this] { attention::prepare_forward(args_, options_, workspace_span()); },
          .whole = [this] { attention::forward(args_, options_, workspace_span()); },
          .checks = [this] { attention::forward_workspace_bytes(args_, options_); },
          .attend_anew =
              [this, options = options_, scale = 0.1]() mutable {
                options.softmax_scale = scale += 1e-9;
                attention::forward_prepared(args_, options, workspace_span());
              }};
}

io::Record ForwardCase::record() const {
  constexpr const char* kImpls[] = {"mxfa mxfp8", "mxfa mxfp8 (half scores)",
                                    "mxfa mxfp8 (qk bf16)", "mxfa mxfp8 (leak-free)",
                                    "mxfa mxfp8 (leak-free, half scores)"};
  io::Record record;
  record.routine = "attention_forward";
  record.shape = tensors_.shape().record();
  record.impl = kImpls[static_cast<int>(variant_)];
  record.variant.qk = variant_ == ForwardVariant::kBf16 ? "bf16" : "mxfp8";
  record.variant.scores = options_.half_scores ? "fp16" : "fp32";
  record.variant.p_scale = "constant";
  record.variant.block_shape = block_shape_name(attention::operand_shape(options_));
  return record;
}

void ForwardCase::add_accuracy(io::Record& record) const {
  const AttentionCase& c = tensors_.shape();
  const driver::Device& device = tensors_.device();
  const AttentionTensors::Sample sample = tensors_.sample();
  const auto want = reference::attention_forward(tensors_.inputs(sample));
  const auto lse =
      download<float>(device, lse_, sample.head * c.total_q() + sample.first_q, sample.rows_q);
  const auto o =
      head_values(device, o_, sample.first_q, sample.rows_q, c.num_heads, sample.head, c.head_dim);
  record.sqnr_db = {{"o", reference::sqnr_db(want.o.data, o)}};
  record.extra["lse_error_max"] =
      largest_difference(want.lse, std::vector<double>(lse.begin(), lse.end()));
}

}  // namespace mxfa::bench
