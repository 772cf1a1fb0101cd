#include "module/tensors_file.h"

#include <fmt/format.h>

#include <vector>

#include "io/host_tensor.h"
#include "io/safetensors.h"
#include "module/step.h"

namespace mxfa::cli::module {

void write_tensors(const std::string& path, const reference::CrossAttentionBatch& batch,
                   const cross_attention::Options& options) {
  Step step(batch, options, true);
  step.forward();
  step.backward();
  const cross_attention::Inputs& in = step.inputs();
  std::vector<std::uint16_t> dy = batch.dy;
  std::vector<io::NamedTensor> tensors{
      {"seeds", in.seeds},
      {"kv", in.kv},
      {"cu_seqlens_k", in.cu_seqlens_k},
      {"seed_norm_weight", in.seed_norm_weight},
      {"kv_norm_weight", in.kv_norm_weight},
      {"wq", in.wq},
      {"wk", in.wk},
      {"wv", in.wv},
      {"wo", in.wo},
      {"dy", make_tensor(dy.data(), DType::kBF16, {batch.rows_o(), batch.options.dim})}};
  std::vector<io::HostTensor> results;
  const std::vector<StepTensor> step_tensors = step.tensors();
  results.reserve(step_tensors.size());
  for (const StepTensor& tensor : step_tensors) {
    results.push_back(io::from_f32(values_of(tensor), DType::kF32, tensor.tensor.values.dims()));
    tensors.push_back({std::string(tensor.name), results.back().view()});
  }
  io::write_safetensors(path, tensors,
                        {{"num_heads", fmt::format("{}", batch.options.num_heads)},
                         {"num_heads_kv", fmt::format("{}", batch.options.num_heads_kv)},
                         {"eps", fmt::format("{}", options.eps)}});
}

}  // namespace mxfa::cli::module
