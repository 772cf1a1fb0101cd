#pragma once

#include <string>

#include "mxfa/cross_attention.h"
#include "reference/cross_attention_batch.h"

namespace mxfa::cli::module {

/// Runs one step and writes what entered it (BF16, by the names of cross_attention::Inputs, and dy)
/// and its 24 tensors (FP32) as safetensors, for other implementations to be compared with.
/// Metadata: num_heads, num_heads_kv, eps.
void write_tensors(const std::string& path, const reference::CrossAttentionBatch& batch,
                   const cross_attention::Options& options);

}  // namespace mxfa::cli::module
