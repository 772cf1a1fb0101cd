#pragma once

#include <cstdint>
#include <vector>

#include "mxfa/cross_attention.h"

/// The checked inputs of a module call.
namespace mxfa::cross_attention {

/// Throws Error where an input or an option does not fit. Views point into the object: neither
/// copied nor moved.
struct Shape {
  Shape(const Inputs& inputs, const Options& options);
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;

  std::int64_t batch = 0;
  std::int64_t seqlen_q = 0;
  std::int64_t total_k = 0;  ///< rows of kv, slack included
  std::int64_t dim = 0;
  std::int64_t num_heads = 1;
  std::int64_t num_heads_kv = 1;
  std::int64_t head_dim = 0;
  std::vector<std::int32_t> cu_seqlens_k, cu_seqlens_o;

  std::int64_t rows_o() const { return batch * seqlen_q; }
  TensorView offsets_k() const { return view(cu_seqlens_k); }
  TensorView offsets_o() const { return view(cu_seqlens_o); }

 private:
  static TensorView view(const std::vector<std::int32_t>& offsets);
};

bool is_mxfp8(const Options& options);
/// The operands of the products with few rows are MXFP8 as well.
bool has_mxfp8_queries(const Options& options);
/// Of the module's attention.
attention::Options attention_options(const Options& options);

/// A checked [batch * seqlen_q, dim] tensor: y is written, dy is read.
void check_y(const TensorView& y, const Shape& shape);
void check_dy(const TensorView& dy, const Shape& shape);

}  // namespace mxfa::cross_attention
