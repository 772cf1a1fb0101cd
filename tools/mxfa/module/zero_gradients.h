#pragma once

#include <map>
#include <span>
#include <string_view>

#include "module/step.h"

/// Gradients of a step that are zero but for rounding.
namespace mxfa::cli::module {

/// A softmax over one key does not depend on its score: where no sequence has two keys, dS = P (dP
/// - delta) is 0, and so is every gradient through it. Returns those tensors, each with how large
/// rounding can make a value of it, from the sizes of the values that `step` multiplied; none
/// where a sequence has two keys.
std::map<std::string_view, double> zero_gradients(const reference::CrossAttentionBatch& batch,
                                                  const Step& step);

/// NaN where a value is NaN.
double largest_magnitude(std::span<const float> values);

}  // namespace mxfa::cli::module
