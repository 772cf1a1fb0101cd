#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "mxfa/cross_attention.h"
#include "reference/cross_attention_batch.h"

/// One training step of the cross-attention module on a synthetic batch, with all its memory.
namespace mxfa::cli::module {

/// Zeroed lazily by the system: untouched pages take no memory.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::int64_t bytes);

  std::span<std::byte> span() const { return {data_.get(), size_}; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

/// One of the step's 24 tensors (reference/cross_attention.h lists them).
struct StepTensor {
  std::string_view name;
  Tensor tensor;
  BlockShape block_shape = BlockShape::k32x32;
  TensorView cu_seqlens = {};  ///< of its rows, where they are grouped by 32 from each sequence on
};
/// Its values in FP32, packed.
std::vector<float> values_of(const StepTensor& tensor);

/// Bytes, as the library documents them.
struct StepBytes {
  std::int64_t inputs = 0;       ///< dy included
  std::int64_t outputs = 0;      ///< y and the gradients
  std::int64_t activations = 0;  ///< what the forward leaves for the backward
  std::int64_t workspace = 0;    ///< the larger of the two calls'
};

class Step {
 public:
  /// `options.num_heads` and `num_heads_kv` come from the batch. Keeps the backward's intermediates
  /// where asked to.
  Step(const reference::CrossAttentionBatch& batch, const cross_attention::Options& options,
       bool keep_intermediates);

  void forward();
  void backward();
  /// In the order of reference::kCrossAttentionTensors; needs kept intermediates.
  std::vector<StepTensor> tensors() const;
  StepBytes bytes() const { return bytes_; }
  const cross_attention::Inputs& inputs() const { return inputs_; }

 private:
  TensorView output(std::initializer_list<std::int64_t> shape, DType dtype);

  cross_attention::Options options_;
  cross_attention::Inputs inputs_;
  TensorView dy_, y_, cu_seqlens_o_;
  std::vector<std::int32_t> offsets_o_;
  std::vector<Memory> outputs_;
  Memory activation_memory_, intermediate_memory_, workspace_;
  cross_attention::Activations activations_;
  cross_attention::Intermediates intermediates_;
  cross_attention::Gradients gradients_;
  bool keep_intermediates_;
  StepBytes bytes_;
};

}  // namespace mxfa::cli::module
