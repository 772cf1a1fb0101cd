#include "module/step.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "mx/convert.h"
#include "mxfa/quantize.h"

namespace mxfa::cli::module {
namespace {

using reference::CrossAttentionBatch;

TensorView bf16_view(const std::vector<std::uint16_t>& codes,
                     std::initializer_list<std::int64_t> shape) {
  return make_tensor(const_cast<std::uint16_t*>(codes.data()), DType::kBF16, shape);
}
TensorView offsets_view(const std::vector<std::int32_t>& offsets) {
  return make_tensor(const_cast<std::int32_t*>(offsets.data()), DType::kI32, {std::ssize(offsets)});
}
std::int64_t bytes_of(const TensorView& view) {
  return view.num_elements() * static_cast<std::int64_t>(dtype_size(view.dtype));
}

cross_attention::Inputs views(const CrossAttentionBatch& batch) {
  const std::int64_t dim = batch.options.dim;
  const std::int64_t width_q = batch.width_q(), width_kv = batch.width_kv();
  return {.seeds = bf16_view(batch.seeds, {batch.options.seqlen_q, dim}),
          .kv = bf16_view(batch.kv, {std::ssize(batch.kv) / dim, dim}),
          .cu_seqlens_k = offsets_view(batch.cu_seqlens_k),
          .seed_norm_weight = bf16_view(batch.seed_norm_weight, {dim}),
          .kv_norm_weight = bf16_view(batch.kv_norm_weight, {dim}),
          .wq = bf16_view(batch.wq, {width_q, dim}),
          .wk = bf16_view(batch.wk, {width_kv, dim}),
          .wv = bf16_view(batch.wv, {width_kv, dim}),
          .wo = bf16_view(batch.wo, {dim, width_q})};
}

}  // namespace

Memory::Memory(std::int64_t bytes) : size_(static_cast<std::size_t>(bytes)) {
  if (bytes == 0) return;
  const std::size_t rounded = (size_ + 63) / 64 * 64;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
  if (data_ == nullptr) throw std::bad_alloc();
}
void Memory::Free::operator()(std::byte* data) const { std::free(data); }

std::vector<float> values_of(const StepTensor& tensor) {
  const TensorView& values = tensor.tensor.values;
  std::vector<float> result(static_cast<std::size_t>(values.num_elements()));
  if (values.dtype == DType::kE4M3) {
    QuantizeOptions options{.block_shape = tensor.block_shape};
    if (tensor.cu_seqlens.rank > 0) options.cu_seqlens = tensor.cu_seqlens;
    dequantize(values, tensor.tensor.scales, make_tensor(result.data(), DType::kF32, values.dims()),
               options);
  } else if (values.dtype == DType::kF32) {
    std::copy_n(static_cast<const float*>(values.data), result.size(), result.begin());
  } else {
    mx::decode_bf16_row(static_cast<const std::uint16_t*>(values.data), result.data(),
                        std::ssize(result));
  }
  return result;
}

Step::Step(const CrossAttentionBatch& batch, const cross_attention::Options& options,
           bool keep_intermediates)
    : options_(options), inputs_(views(batch)), keep_intermediates_(keep_intermediates) {
  options_.num_heads = batch.options.num_heads;
  options_.num_heads_kv = batch.options.num_heads_kv;
  const std::int64_t dim = batch.options.dim;
  dy_ = bf16_view(batch.dy, {batch.rows_o(), dim});
  for (std::int64_t s = 0; s <= batch.options.batch; ++s) {
    offsets_o_.push_back(static_cast<std::int32_t>(s * batch.options.seqlen_q));
  }
  cu_seqlens_o_ = offsets_view(offsets_o_);
  for (const TensorView* input :
       {&inputs_.seeds, &inputs_.kv, &inputs_.cu_seqlens_k, &inputs_.seed_norm_weight,
        &inputs_.kv_norm_weight, &inputs_.wq, &inputs_.wk, &inputs_.wv, &inputs_.wo, &dy_}) {
    bytes_.inputs += bytes_of(*input);
  }
  y_ = output({batch.rows_o(), dim}, DType::kBF16);
  gradients_ = {.seeds = output({batch.options.seqlen_q, dim}, DType::kF32),
                .kv = output({inputs_.kv.shape[0], dim}, DType::kBF16),
                .seed_norm_weight = output({dim}, DType::kF32),
                .kv_norm_weight = output({dim}, DType::kF32),
                .wq = output({batch.width_q(), dim}, DType::kF32),
                .wk = output({batch.width_kv(), dim}, DType::kF32),
                .wv = output({batch.width_kv(), dim}, DType::kF32),
                .wo = output({dim, batch.width_q()}, DType::kF32)};
  bytes_.activations = cross_attention::activation_bytes(inputs_, options_);
  bytes_.workspace = std::max(cross_attention::forward_workspace_bytes(inputs_, options_),
                              cross_attention::backward_workspace_bytes(inputs_, options_));
  activation_memory_ = Memory(bytes_.activations);
  workspace_ = Memory(bytes_.workspace);
  activations_ = make_activations(inputs_, options_, activation_memory_.span());
  if (!keep_intermediates) return;
  intermediate_memory_ = Memory(cross_attention::intermediate_bytes(inputs_, options_));
  intermediates_ = make_intermediates(inputs_, options_, intermediate_memory_.span());
}

TensorView Step::output(std::initializer_list<std::int64_t> shape, DType dtype) {
  TensorView view = make_tensor(nullptr, dtype, shape);
  const std::int64_t bytes = bytes_of(view);
  bytes_.outputs += bytes;
  view.data = outputs_.emplace_back(bytes).as<void>();
  return view;
}

void Step::forward() {
  cross_attention::forward(inputs_, activations_, y_, options_, workspace_.span());
}

void Step::backward() {
  cross_attention::backward(inputs_, activations_, dy_, gradients_, options_, workspace_.span(),
                            keep_intermediates_ ? &intermediates_ : nullptr);
}

std::vector<StepTensor> Step::tensors() const {
  attention::Options attention;
  attention.precision = options_.precision;
  attention.recipe = options_.recipe;
  const BlockShape operand = attention::operand_shape(attention);
  const BlockShape square = BlockShape::k32x32;
  const TensorView& keys = inputs_.cu_seqlens_k;
  const cross_attention::Activations& a = activations_;
  const cross_attention::Intermediates& m = intermediates_;
  const cross_attention::Gradients& g = gradients_;
  const auto plain = [](std::string_view name, const TensorView& view) {
    return StepTensor{.name = name, .tensor = {.values = view}};
  };
  return {{"seed_norm", a.seed_norm},
          {"kv_norm", a.kv_norm, square, keys},
          {"q", a.q, operand},
          {"k", a.k, operand, keys},
          {"v", a.v, operand, keys},
          {"o", a.o, square, cu_seqlens_o_},
          plain("lse", a.lse),
          plain("y", y_),
          {"dout", m.dout, attention::dout_shape(attention), cu_seqlens_o_},
          plain("delta", m.delta),
          plain("dq_seq", m.dq_seq),
          {"dq", m.dq, square},
          {"dk", m.dk, square, keys},
          {"dv", m.dv, square, keys},
          plain("dseed_norm", m.dseed_norm),
          plain("dkv_norm", m.dkv_norm),
          plain("dseeds", g.seeds),
          plain("dkv", g.kv),
          plain("dseed_norm_weight", g.seed_norm_weight),
          plain("dkv_norm_weight", g.kv_norm_weight),
          plain("dwq", g.wq),
          plain("dwk", g.wk),
          plain("dwv", g.wv),
          plain("dwo", g.wo)};
}

}  // namespace mxfa::cli::module
