#include <cstdint>

#include "cpu/kernels.h"
#include "mx/row_sum.h"

#define MXFA_CPU_INLINE inline __attribute__((always_inline))

namespace mxfa::cpu {
namespace portable {
namespace {
#include "cpu/vector_inl.h"
// The loops follow.
#include "cpu/kernels_inl.h"
}  // namespace
}  // namespace portable

const Kernels* portable_kernels() {
  static constexpr Kernels table = portable::make_table(Isa::kPortable, "portable");
  return &table;
}

}  // namespace mxfa::cpu
