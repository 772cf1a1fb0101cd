#include "model.h"

#include <algorithm>
#include <cmath>

namespace mxfa::examples {
namespace {

TensorView matrix(std::vector<float>& values, std::int64_t cols) {
  return make_tensor(values.data(), DType::kF32, {std::ssize(values) / cols, cols});
}

void add(const float* values, std::int64_t count, float* sums) {
  for (std::int64_t i = 0; i < count; ++i) sums[i] += values[i];
}

}  // namespace

Parameter::Parameter(reference::Stream& stream, std::vector<std::int64_t> dims, double sigma,
                     double mean)
    : shape(std::move(dims)) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  for (std::int64_t i = 0; i < count; ++i) {
    value.push_back(static_cast<float>(mean + (sigma > 0 ? sigma * stream.normal() : 0)));
  }
  gradient.resize(value.size());
  first.resize(value.size());
  second.resize(value.size());
}

ClickModel::ClickModel(const ModelOptions& options, std::uint64_t seed)
    : options_(options),
      module_{.precision = options.precision,
              .recipe = options.recipe,
              .num_heads = options.num_heads,
              .queries_bf16 = options.queries_bf16},
      stream_(seed, 1),
      item_(stream_, {options.items, options.dim}, 0.5),
      event_(stream_, {2, options.dim}, 1),
      seeds_(stream_, {options.seed_queries, options.dim}, 1),
      seed_norm_(stream_, {options.dim}, 0, 1),
      kv_norm_(stream_, {options.dim}, 0, 1),
      wq_(stream_, {options.dim, options.dim}, 1 / std::sqrt(double(options.dim))),
      wk_(stream_, {options.dim, options.dim}, 1 / std::sqrt(double(options.dim))),
      wv_(stream_, {options.dim, options.dim}, 1 / std::sqrt(double(options.dim))),
      wo_(stream_, {options.dim, options.dim}, 1 / std::sqrt(double(options.dim))),
      readout_(stream_, {options.items, options.seed_queries * options.dim}, 0.3),
      bias_(stream_, {options.items}, 0),
      parameters_{&item_, &event_, &seeds_, &seed_norm_, &kv_norm_, &wq_,
                  &wk_,   &wv_,    &wo_,    &readout_,   &bias_} {}

std::span<std::byte> ClickModel::aligned(std::vector<std::byte>& memory, std::int64_t bytes) {
  constexpr std::size_t kAlign = 64;
  const auto size = static_cast<std::size_t>(bytes);
  if (memory.size() < size + kAlign) memory.resize(size + kAlign);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return {memory.data() + (kAlign - address % kAlign) % kAlign, size};
}

cross_attention::Inputs ClickModel::inputs(const ClickBatch& batch) {
  return {.seeds = seeds_.view(),
          .kv = matrix(kv_, options_.dim),
          .cu_seqlens_k = make_tensor(const_cast<std::int32_t*>(batch.cu_seqlens.data()),
                                      DType::kI32, {std::ssize(batch.cu_seqlens)}),
          .seed_norm_weight = seed_norm_.view(),
          .kv_norm_weight = kv_norm_.view(),
          .wq = wq_.view(),
          .wk = wk_.view(),
          .wv = wv_.view(),
          .wo = wo_.view()};
}

void ClickModel::forward(const ClickBatch& batch) {
  const std::int64_t dim = options_.dim, width = options_.seed_queries * dim;
  kv_.assign(static_cast<std::size_t>(batch.events() * dim), 0.0f);
  for (std::int64_t e = 0; e < batch.events(); ++e) {
    add(item_.value.data() + batch.item[e] * dim, dim, kv_.data() + e * dim);
    add(event_.value.data() + batch.clicked[e] * dim, dim, kv_.data() + e * dim);
  }
  const cross_attention::Inputs in = inputs(batch);
  activations_ = make_activations(
      in, module_, aligned(activation_memory_, cross_attention::activation_bytes(in, module_)));
  y_.resize(static_cast<std::size_t>(batch.users() * width));
  cross_attention::forward(
      in, activations_, matrix(y_, dim), module_,
      aligned(workspace_, cross_attention::forward_workspace_bytes(in, module_)));
  probability_.clear();
  for (std::int64_t u = 0; u < batch.users(); ++u) {
    const float* readout = readout_.value.data() + batch.candidate[u] * width;
    double logit = bias_.value[static_cast<std::size_t>(batch.candidate[u])];
    for (std::int64_t i = 0; i < width; ++i) {
      logit += double{y_[u * width + i]} * readout[i] / std::sqrt(double(width));
    }
    probability_.push_back(1 / (1 + std::exp(-logit)));
  }
}

void ClickModel::break_scales() {
  const TensorView& scales = activations_.k.scales;
  auto* const bytes = static_cast<std::uint8_t*>(scales.data);
  for (std::int64_t i = 0; i < scales.num_elements(); ++i) ++bytes[i];
}

/// Of the mean log loss.
void ClickModel::backward(const ClickBatch& batch) {
  const std::int64_t dim = options_.dim, width = options_.seed_queries * dim;
  for (Parameter* parameter : {&item_, &event_, &readout_, &bias_}) {
    std::ranges::fill(parameter->gradient, 0.0f);
  }
  dy_.resize(y_.size());
  for (std::int64_t u = 0; u < batch.users(); ++u) {
    const std::int64_t candidate = batch.candidate[u];
    const auto error =
        static_cast<float>((probability_[u] - batch.label[u]) / static_cast<double>(batch.users()));
    const float scaled = error / std::sqrt(static_cast<float>(width));
    bias_.gradient[static_cast<std::size_t>(candidate)] += error;
    for (std::int64_t i = 0; i < width; ++i) {
      dy_[u * width + i] = scaled * readout_.value[candidate * width + i];
      readout_.gradient[candidate * width + i] += scaled * y_[u * width + i];
    }
  }
  if (options_.broken_scales) break_scales();
  dkv_.resize(kv_.size());
  const cross_attention::Inputs in = inputs(batch);
  cross_attention::backward(
      in, activations_, matrix(dy_, dim),
      {.seeds = seeds_.gradient_view(),
       .kv = matrix(dkv_, dim),
       .seed_norm_weight = seed_norm_.gradient_view(),
       .kv_norm_weight = kv_norm_.gradient_view(),
       .wq = wq_.gradient_view(),
       .wk = wk_.gradient_view(),
       .wv = wv_.gradient_view(),
       .wo = wo_.gradient_view()},
      module_, aligned(workspace_, cross_attention::backward_workspace_bytes(in, module_)));
  for (std::int64_t e = 0; e < batch.events(); ++e) {
    add(dkv_.data() + e * dim, dim, item_.gradient.data() + batch.item[e] * dim);
    add(dkv_.data() + e * dim, dim, event_.gradient.data() + batch.clicked[e] * dim);
  }
}

void ClickModel::adam(double learning_rate) {
  constexpr float kBeta1 = 0.9f, kBeta2 = 0.999f, kEps = 1e-8f;
  ++steps_;
  const auto steps = static_cast<double>(steps_);
  const auto rate = static_cast<float>(learning_rate / (1 - std::pow(kBeta1, steps)));
  const auto correction = static_cast<float>(1 / (1 - std::pow(kBeta2, steps)));
  for (Parameter* p : parameters_) {
    for (std::size_t i = 0; i < p->value.size(); ++i) {
      const float g = p->gradient[i];
      p->first[i] = kBeta1 * p->first[i] + (1 - kBeta1) * g;
      p->second[i] = kBeta2 * p->second[i] + (1 - kBeta2) * g * g;
      p->value[i] -= rate * p->first[i] / (std::sqrt(p->second[i] * correction) + kEps);
    }
  }
}

double ClickModel::train(const ClickBatch& batch, double learning_rate) {
  forward(batch);
  backward(batch);
  adam(learning_rate);
  return log_loss(probability_, batch.label);
}

std::vector<double> ClickModel::predict(const ClickBatch& batch) {
  forward(batch);
  return probability_;
}

}  // namespace mxfa::examples
