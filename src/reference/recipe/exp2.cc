#include "reference/recipe/exp2.h"

#include "core/simd_clones.h"

namespace mxfa::reference::recipe {

MXFA_SIMD_CLONES
void exp2_f32_row(const float* x, float* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = exp2_f32(x[i]);
}

}  // namespace mxfa::reference::recipe
