#pragma once

#include <initializer_list>
#include <string_view>

#include "core/arena.h"
#include "cross_attention/shape.h"
#include "dispatch/overlap.h"
#include "mxfa/producers.h"

/// The module's own tensors: how each is stored, and where in a piece of memory.
namespace mxfa::cross_attention {

class Layout {
 public:
  Layout(const Shape& shape, const Options& options, core::Arena& arena)
      : shape_(shape), options_(options), arena_(arena) {}

  Activations activations() const;
  Intermediates intermediates() const;
  /// MXFP8 copies of the projections, in squares; the inputs themselves in BF16. Not yet written.
  struct Projections {
    Tensor q, k, v, o;
  };
  Projections projections(const Inputs& inputs) const;
  /// o and dy as the products read them: an MXFP8 copy, not yet written, or what is given.
  Tensor o_operand(const Tensor& o) const;
  Tensor dy_operand(const TensorView& dy) const;
  /// dout, dq, dk and dv alone.
  Intermediates gradients_of_attention() const;

 private:
  enum class Rows : std::uint8_t { kSeeds, kKeys, kOutputs, kWeights };
  /// MXFP8 in blocks of `block_shape`, or BF16.
  Tensor stored(bool mxfp8, std::initializer_list<std::int64_t> shape, Rows rows,
                BlockShape block_shape = BlockShape::k32x32) const;
  TensorView floats(std::initializer_list<std::int64_t> shape) const;

  const Shape& shape_;
  const Options& options_;
  core::Arena& arena_;
};

/// Throws Error naming the tensor that is not laid out as make_activations() or
/// make_intermediates() do it.
void check_activations(const Activations& given, const Shape& shape, const Options& options);
void check_intermediates(const Intermediates& given, const Shape& shape, const Options& options);

/// Adds a call's tensors to those that must not share memory.
void add_inputs(dispatch::Overlaps& tensors, const Inputs& inputs);
void add_activations(dispatch::Overlaps& tensors, const Activations& activations, bool output);
void add_gradients(dispatch::Overlaps& tensors, const Gradients& gradients);
void add_intermediates(dispatch::Overlaps& tensors, const Intermediates& intermediates);

/// Operands of products, in squares.
producers::Matrix seed_rows(const Tensor& tensor);
producers::Matrix key_rows(const Tensor& tensor, const Shape& shape);
producers::Matrix output_rows(const Tensor& tensor, const Shape& shape);
producers::Matrix transposed(producers::Matrix matrix);

/// Quantizes `from` into an MXFP8 copy, groups counted from each sequence of `cu_seqlens` (rank 0:
/// one of all rows); nothing where `to` is `from` itself.
void store(const TensorView& from, const Tensor& to, const TensorView& cu_seqlens,
           const Options& options);
void store(const Inputs& inputs, const Layout::Projections& projections, const Options& options);

}  // namespace mxfa::cross_attention
