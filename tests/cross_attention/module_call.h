#pragma once

#include <algorithm>
#include <cstring>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "mxfa/cross_attention.h"
#include "reference/cross_attention_batch.h"
#include "support/compare.h"

/// What the module's tests share: modes, shapes, and a call that owns its memory.
namespace mxfa::testing {

struct ModuleMode {
  std::string name;
  cross_attention::Options options;
};
inline void PrintTo(const ModuleMode& mode, std::ostream* out) { *out << mode.name; }

inline std::vector<ModuleMode> module_modes() {
  cross_attention::Options blackwell, hopper, queries, bf16;
  hopper.recipe = attention::Recipe::kHopper;
  queries.queries_bf16 = true;
  bf16.precision = attention::Precision::kBf16;
  return {{"Blackwell", blackwell}, {"Hopper", hopper}, {"QueriesBf16", queries}, {"Bf16", bf16}};
}

struct ModuleShape {
  std::string name;
  reference::CrossAttentionBatchOptions options;
  std::vector<std::int32_t> cu_seqlens_k = {};  ///< in place of drawn ones, no longer

  reference::CrossAttentionBatch batch() const {
    reference::CrossAttentionBatch result = reference::make_cross_attention_batch(options);
    if (cu_seqlens_k.empty()) return result;
    result.cu_seqlens_k = cu_seqlens_k;
    result.kv.resize(std::size_t(result.total_k() * options.dim));
    return result;
  }
};
inline void PrintTo(const ModuleShape& shape, std::ostream* out) { *out << shape.name; }

inline ModuleShape plain_shape() {
  return {"Plain", {.batch = 3, .seqlen_q = 40, .dim = 128, .num_heads = 2, .max_seqlen_k = 150}};
}
inline ModuleShape grouped_shape() {
  return {"Grouped",
          {.batch = 2,
           .seqlen_q = 33,
           .dim = 96,
           .num_heads = 4,
           .num_heads_kv = 2,
           .head_dim = 32,
           .max_seqlen_k = 200}};
}
/// No dimension is a multiple of 32; sequences without keys, the first and the last among them.
inline ModuleShape odd_shape() {
  return {
      "Odd",
      {.batch = 6, .seqlen_q = 19, .dim = 100, .num_heads = 2, .head_dim = 40, .max_seqlen_k = 120},
      {0, 0, 1, 1, 34, 99, 99}};
}

/// Bytes on 64, all 0xFF: NaN in every float format and in scales.
class PoisonedMemory {
 public:
  explicit PoisonedMemory(std::int64_t size) : size_(std::size_t(size)), data_(size_ + 128) {
    std::ranges::fill(data_, std::byte{0xFF});
  }
  std::span<std::byte> span() {
    const auto address = reinterpret_cast<std::uintptr_t>(data_.data());
    return {data_.data() + (64 - address % 64) % 64, size_};
  }
  /// Nothing behind the span was written.
  bool intact() {
    const std::byte* end = span().data() + size_;
    return std::all_of(end, const_cast<const std::byte*>(data_.data() + data_.size()),
                       [](std::byte b) { return b == std::byte{0xFF}; });
  }

 private:
  std::size_t size_;
  std::vector<std::byte> data_;
};

/// One step with every output in FP32, poisoned before.
struct ModuleCall {
  cross_attention::Options options;
  std::int64_t rows_o = 0;
  std::vector<std::int32_t> cu_seqlens_k;
  // BF16, but where a test says otherwise.
  std::vector<std::uint16_t> seeds, kv, seed_norm_weight, kv_norm_weight, wq, wk, wv, wo, dy;
  cross_attention::Inputs inputs;
  TensorView dy_view;
  std::vector<float> y, dseeds, dkv, dseed_norm_weight, dkv_norm_weight, dwq, dwk, dwv, dwo;

  ModuleCall(const reference::CrossAttentionBatch& batch, const cross_attention::Options& mode)
      : options(mode),
        rows_o(batch.rows_o()),
        cu_seqlens_k(batch.cu_seqlens_k),
        seeds(batch.seeds),
        kv(batch.kv),
        seed_norm_weight(batch.seed_norm_weight),
        kv_norm_weight(batch.kv_norm_weight),
        wq(batch.wq),
        wk(batch.wk),
        wv(batch.wv),
        wo(batch.wo),
        dy(batch.dy) {
    options.num_heads = batch.options.num_heads;
    options.num_heads_kv = batch.options.num_heads_kv;
    dim_ = batch.options.dim;
    make_views();
  }
  ModuleCall(const ModuleCall&) = delete;
  ModuleCall& operator=(const ModuleCall&) = delete;

  std::int64_t dim() const { return dim_; }

  /// After a vector has changed its size.
  void make_views() {
    const auto matrix = [](std::vector<std::uint16_t>& codes, std::int64_t cols) {
      return make_tensor(codes.data(), DType::kBF16, {std::ssize(codes) / cols, cols});
    };
    const auto vector = [](std::vector<std::uint16_t>& codes) {
      return make_tensor(codes.data(), DType::kBF16, {std::ssize(codes)});
    };
    const std::int64_t width_q = std::ssize(wq) / dim_;
    inputs = {
        .seeds = matrix(seeds, dim_),
        .kv = matrix(kv, dim_),
        .cu_seqlens_k = make_tensor(cu_seqlens_k.data(), DType::kI32, {std::ssize(cu_seqlens_k)}),
        .seed_norm_weight = vector(seed_norm_weight),
        .kv_norm_weight = vector(kv_norm_weight),
        .wq = matrix(wq, dim_),
        .wk = matrix(wk, dim_),
        .wv = matrix(wv, dim_),
        .wo = matrix(wo, width_q)};
    dy_view = matrix(dy, dim_);
  }

  cross_attention::Gradients gradients() {
    const auto like = [](std::vector<float>& values, const TensorView& input) {
      return poisoned(values, input.dims());
    };
    return {.seeds = like(dseeds, inputs.seeds),
            .kv = like(dkv, inputs.kv),
            .seed_norm_weight = like(dseed_norm_weight, inputs.seed_norm_weight),
            .kv_norm_weight = like(dkv_norm_weight, inputs.kv_norm_weight),
            .wq = like(dwq, inputs.wq),
            .wk = like(dwk, inputs.wk),
            .wv = like(dwv, inputs.wv),
            .wo = like(dwo, inputs.wo)};
  }
  TensorView output() { return poisoned(y, std::vector{rows_o, dim_}); }

  /// Forward and backward on poisoned memory.
  void run() { run(gradients()); }
  void run(const cross_attention::Gradients& wanted) {
    PoisonedMemory saved(cross_attention::activation_bytes(inputs, options));
    PoisonedMemory forward(cross_attention::forward_workspace_bytes(inputs, options));
    PoisonedMemory backward(cross_attention::backward_workspace_bytes(inputs, options));
    const auto activations = make_activations(inputs, options, saved.span());
    cross_attention::forward(inputs, activations, output(), options, forward.span());
    cross_attention::backward(inputs, activations, dy_view, wanted, options, backward.span());
    EXPECT_TRUE(saved.intact() && forward.intact() && backward.intact());
  }

  std::vector<std::pair<std::string, const std::vector<float>*>> results() const {
    return {{"y", &y},
            {"dseeds", &dseeds},
            {"dkv", &dkv},
            {"dseed_norm_weight", &dseed_norm_weight},
            {"dkv_norm_weight", &dkv_norm_weight},
            {"dwq", &dwq},
            {"dwk", &dwk},
            {"dwv", &dwv},
            {"dwo", &dwo}};
  }

 private:
  static TensorView poisoned(std::vector<float>& values, std::span<const std::int64_t> shape) {
    TensorView view = make_tensor(nullptr, DType::kF32, shape);
    values.resize(std::size_t(view.num_elements()));
    if (!values.empty()) std::memset(values.data(), 0xFF, values.size() * sizeof(float));
    view.data = values.data();
    return view;
  }

  std::int64_t dim_ = 0;
};

inline void expect_same_bits(const ModuleCall& got, const ModuleCall& want,
                             const std::string& label) {
  const auto expected = want.results();
  const auto results = got.results();
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(*results[i].second, *expected[i].second,
                              {.label = label + " " + results[i].first}));
  }
}

}  // namespace mxfa::testing
