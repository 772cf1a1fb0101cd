#include <algorithm>
#include <vector>

#include "core/check.h"
#include "core/parallel.h"
#include "cpu/attention_tiles.h"
#include "cpu/gemm.h"
#include "cpu/packed_product.h"
#include "mx/scale_layout.h"

namespace mxfa::cpu {
namespace {

/// Rows of one sequence, from a multiple of 32 on.
struct RowBlock {
  std::int64_t sequence;
  std::int64_t row;
  std::int64_t rows;
};

std::vector<RowBlock> row_blocks(const mx::JaggedOffsets& offsets) {
  std::vector<RowBlock> blocks;
  for (std::int64_t s = 0; s < offsets.batch(); ++s) {
    for (std::int64_t row = 0; row < offsets.seqlen(s); row += kGemmRows) {
      blocks.push_back({s, row, std::min(kGemmRows, offsets.seqlen(s) - row)});
    }
  }
  return blocks;
}

/// Where y goes, checked.
class QuantizedOutput {
 public:
  QuantizedOutput(const GemmQuantizeSpec& spec, const GemmQuantizeOutputs& outputs,
                  std::int64_t tokens, std::int64_t n)
      : spec_(spec), outputs_(outputs) {
    core::expect(spec.num_heads >= 1 && n % spec.num_heads == 0, "num_heads",
                 core::later("a divisor of w's {} rows", n), spec.num_heads);
    dim_ = n / spec.num_heads;
    offsets_ = spec.cu_seqlens.empty() ? mx::make_single_sequence(tokens)
                                       : mx::make_jagged_offsets(spec.cu_seqlens, tokens);
    check(outputs.payload, "payload", DType::kE4M3, {tokens, spec.num_heads, dim_});
    check(outputs.bf16, "bf16", DType::kBF16, {tokens, spec.num_heads, dim_});
    const bool per_token = mx::block_rows(spec.block_shape) == 1;
    std::vector<std::int64_t> scales{per_token ? tokens : offsets_.groups.back(), spec.num_heads};
    if (mx::block_cols(spec.block_shape) != 0) {
      scales.push_back(mx::scale_cols(spec.block_shape, dim_));
    }
    check_scales(outputs.scales, scales);
    const std::vector<std::int64_t> tiles{spec.num_heads, offsets_.tiles.back(),
                                          mx::ceil_div(dim_, mx::kAtomRows), mx::kAtomBytes};
    check_tiled(outputs.tiled_dim, "tiled_dim", ScaleAxis::kHeadDim, tiles);
    check_tiled(outputs.tiled_tokens, "tiled_tokens", ScaleAxis::kTokens, tiles);
    compact_ = outputs.scales;
    if (compact_.rank > 0) return;
    compact_ = make_tensor(nullptr, DType::kE8M0, scales);
    own_scales_.resize(static_cast<std::size_t>(compact_.num_elements()));
    compact_.data = own_scales_.data();
  }
  const mx::JaggedOffsets& offsets() const { return offsets_; }

  void write(const RowBlock& block, const float* sums, std::int64_t ld) const {
    for (std::int64_t head = 0; head < spec_.num_heads; ++head) {
      const float* values = sums + head * dim_;
      const mx::SequenceHead which{block.sequence, head};
      write_rows(target(outputs_.payload), which, block.row, block.rows, values, ld);
      write_rows(target(outputs_.bf16), which, block.row, block.rows, values, ld);
    }
  }

  void finish() const {
    clear_behind(outputs_.payload, offsets_.tokens.back());
    clear_behind(outputs_.bf16, offsets_.tokens.back());
    if (outputs_.payload.rank == 0) return;
    clear_behind(compact_, offsets_.scale_rows_total(spec_.block_shape));
    tile(outputs_.tiled_dim, ScaleAxis::kHeadDim);
    tile(outputs_.tiled_tokens, ScaleAxis::kTokens);
  }

 private:
  static void check(const TensorView& tensor, std::string_view name, DType dtype,
                    const std::vector<std::int64_t>& shape) {
    if (tensor.rank == 0) return;
    const bool fits = tensor.dtype == dtype && std::ranges::equal(tensor.dims(), shape);
    core::expect(fits, name, core::later("{} [{}]", dtype_name(dtype), fmt::join(shape, ", ")),
                 tensor);
  }
  /// Room behind the last sequence is allowed.
  static void check_scales(const TensorView& tensor, std::vector<std::int64_t> shape) {
    if (tensor.rank == 0) return;
    if (tensor.shape[0] > shape[0]) shape[0] = tensor.shape[0];
    check(tensor, "scales", tensor.dtype == DType::kU8 ? DType::kU8 : DType::kE8M0, shape);
  }
  void check_tiled(const TensorView& tensor, std::string_view name, ScaleAxis axis,
                   const std::vector<std::int64_t>& shape) const {
    if (tensor.rank == 0) return;
    mx::check_scale_axis(spec_.block_shape, axis);
    check(tensor, name, DType::kE8M0, shape);
    core::expect(tensor.is_contiguous(), name, "atoms without gaps", tensor);
    core::expect(outputs_.payload.rank > 0, name, "a payload as well", "none");
  }
  mx::CompactScales<std::uint8_t> compact() const {
    return {static_cast<std::uint8_t*>(compact_.data), spec_.block_shape, compact_.strides[0],
            compact_.strides[1], compact_.rank == 3 ? compact_.strides[2] : 0};
  }
  Target target(const TensorView& tensor) const {
    if (tensor.rank == 0) return {};
    return {.dtype = tensor.dtype,
            .data = tensor.data,
            .token_stride = tensor.strides[0],
            .head_stride = tensor.strides[1],
            .dim_stride = tensor.strides[2],
            .scales = tensor.dtype == DType::kE4M3 ? compact() : mx::CompactScales<std::uint8_t>{},
            .offsets = &offsets_,
            .head_dim = dim_,
            .rule = spec_.rule};
  }
  /// Zeros in rows from `first` on of a tensor of rank 2 or 3.
  static void clear_behind(const TensorView& tensor, std::int64_t first) {
    if (tensor.rank == 0) return;
    const auto size = static_cast<std::int64_t>(dtype_size(tensor.dtype));
    const std::int64_t cols = tensor.rank == 3 ? tensor.shape[2] : 1;
    for (std::int64_t row = first; row < tensor.shape[0]; ++row) {
      for (std::int64_t i = 0; i < tensor.shape[1] * cols; ++i) {
        const std::int64_t at =
            row * tensor.strides[0] + i / cols * tensor.strides[1] + i % cols * tensor.strides[2];
        std::fill_n(static_cast<std::uint8_t*>(tensor.data) + at * size, size, std::uint8_t{0});
      }
    }
  }
  void tile(const TensorView& tensor, ScaleAxis axis) const {
    if (tensor.rank == 0) return;
    const mx::CompactScales<std::uint8_t> from = compact();
    const mx::CompactScales<const std::uint8_t> scales{from.data, from.shape, from.row_stride,
                                                       from.head_stride, from.col_stride};
    const mx::TiledScales<std::uint8_t> tiled{static_cast<std::uint8_t*>(tensor.data), axis, dim_,
                                              tensor.strides[0]};
    core::parallel_for(offsets_.batch() * spec_.num_heads, [&](std::int64_t i) {
      mx::tile_scales(offsets_, {i / spec_.num_heads, i % spec_.num_heads}, scales, tiled);
    });
  }

  const GemmQuantizeSpec& spec_;
  const GemmQuantizeOutputs& outputs_;
  std::int64_t dim_ = 0;
  mx::JaggedOffsets offsets_;
  TensorView compact_;
  std::vector<std::uint8_t> own_scales_;
};

}  // namespace

void gemm_quantize(const MatrixOperand& x, const MatrixOperand& w, const GemmQuantizeSpec& spec,
                   const GemmQuantizeOutputs& outputs) {
  core::expect(!x.transposed, "x", "an operand that is not transposed", "one");
  MatrixOperand w_transposed = w;
  w_transposed.transposed = !w.transposed;
  const MatrixReader left(x, "x");
  const MatrixReader right(w_transposed, "w");
  const Extents size = extents(left, right);
  QuantizedOutput output(spec, outputs, size.m, size.n);
  const float scale = folded(1.0f, left.anchor() + right.anchor());
  PackedRight packed(right, size.n, size.k);
  const std::vector<RowBlock> blocks = row_blocks(output.offsets());
  for_each_unit<GemmScratch>(std::ssize(blocks), [&](GemmScratch& scratch, std::int64_t i) {
    const RowBlock& block = blocks[static_cast<std::size_t>(i)];
    const std::int64_t first = output.offsets().tokens[block.sequence] + block.row;
    packed.multiply(left, {first, block.rows}, scratch);
    float* const sums = scratch.sums.data();
    for (std::int64_t j = 0; j < block.rows * packed.n_padded(); ++j) sums[j] *= scale;
    output.write(block, sums, packed.n_padded());
  });
  output.finish();
}

}  // namespace mxfa::cpu
