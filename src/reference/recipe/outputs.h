#pragma once

#include "reference/recipe/recipe.h"

namespace mxfa::reference::recipe::internal {

/// Rounds every value to what the output format holds.
void round_output(Matrix<float>& matrix, OutputFormat format, const RecipeConfig& config);

}  // namespace mxfa::reference::recipe::internal
