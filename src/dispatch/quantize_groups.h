#pragma once

#include "dispatch/packed.h"
#include "mx/realign.h"

/// The loops over groups of 32 tokens behind the public quantization calls. Arguments are checked
/// already; tensors have the plan's shape. Threads write distinct bytes, so results do not depend
/// on their number.
namespace mxfa::dispatch {

void quantize_groups(const Plan& plan, const TensorView& input, const TensorView& payload,
                     const mx::CompactScales<std::uint8_t>& compact);
void dequantize_groups(const Plan& plan, const TensorView& payload,
                       const mx::CompactScales<std::uint8_t>& compact, const TensorView& output);
/// From the plan's block shape to 32xD.
mx::RealignReport realign_groups(const Plan& plan, const TensorView& payload,
                                 const mx::CompactScales<std::uint8_t>& compact,
                                 const TensorView& payload_out,
                                 const mx::CompactScales<std::uint8_t>& uniform);

/// Writes zeros to the tokens behind the last sequence.
void clear_tokens(const Plan& plan, const TensorView& tensor);

}  // namespace mxfa::dispatch
