#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mxfa/cross_attention.h"
#include "task.h"

/// A click model around the cross-attention module, trained by Adam with FP32 master weights.
///
///   kv     = item embedding + embedding of "clicked or not", one row for each event
///   y      = cross_attention(seeds, kv), [users, seed_queries, dim]
///   logit  = bias[candidate] + <y of the user, readout[candidate]> / sqrt(seed_queries * dim)
namespace mxfa::examples {

struct ModelOptions {
  std::int64_t items = 64;
  std::int64_t dim = 64;
  std::int64_t num_heads = 2;
  std::int64_t seed_queries = 8;
  attention::Precision precision = attention::Precision::kBf16;
  attention::Recipe recipe = attention::Recipe::kBlackwell;
  bool queries_bf16 = false;
  /// MXFP8 only, to see what a defect does to training: the backward finds the exponents of K's
  /// scales one too high, so it works with keys twice as large as the forward's.
  bool broken_scales = false;
};

/// A tensor with its gradient and Adam's moments.
struct Parameter {
  std::vector<std::int64_t> shape;
  std::vector<float> value, gradient, first, second;

  Parameter(reference::Stream& stream, std::vector<std::int64_t> dims, double sigma,
            double mean = 0);
  TensorView view() { return make_tensor(value.data(), DType::kF32, shape); }
  TensorView gradient_view() { return make_tensor(gradient.data(), DType::kF32, shape); }
};

class ClickModel {
 public:
  ClickModel(const ModelOptions& options, std::uint64_t seed);

  /// One step of Adam; returns the batch's log loss before it.
  double train(const ClickBatch& batch, double learning_rate);
  /// Click probabilities [users].
  std::vector<double> predict(const ClickBatch& batch);

 private:
  cross_attention::Inputs inputs(const ClickBatch& batch);
  void forward(const ClickBatch& batch);
  void break_scales();
  void backward(const ClickBatch& batch);
  void adam(double learning_rate);
  std::span<std::byte> aligned(std::vector<std::byte>& memory, std::int64_t bytes);

  ModelOptions options_;
  cross_attention::Options module_;
  // Order matters to the draws: the same seed gives the same start in every precision.
  reference::Stream stream_;
  Parameter item_, event_, seeds_, seed_norm_, kv_norm_, wq_, wk_, wv_, wo_, readout_, bias_;
  std::vector<Parameter*> parameters_;
  std::int64_t steps_ = 0;

  std::vector<float> kv_, y_, dy_, dkv_;
  std::vector<double> probability_;
  std::vector<std::byte> activation_memory_, workspace_;
  cross_attention::Activations activations_;
};

}  // namespace mxfa::examples
