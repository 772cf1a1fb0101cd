#include "reference/recipe/outputs.h"

#include "mx/bits.h"
#include "mx/quantize.h"

namespace mxfa::reference::recipe::internal {

void round_output(Matrix<float>& matrix, OutputFormat format, const RecipeConfig& config) {
  if (format == OutputFormat::kBf16) {
    for (float& value : matrix.data) value = mx::round_bf16(value);
  } else if (format == OutputFormat::kMxfp8) {
    matrix.data = mx::dequantize(
        mx::quantize(mx::row_major(matrix.data.data(), matrix.rows, matrix.cols),
                     {.block_shape = config.output_shape, .rule = config.scale_rule}));
  }
}

}  // namespace mxfa::reference::recipe::internal
