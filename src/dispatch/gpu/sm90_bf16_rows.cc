#include "dispatch/gpu/sm90_bf16_rows.h"

#include "core/check.h"
#include "dispatch/refuse.h"

namespace mxfa::dispatch {

void check_bf16_rows(const device::OperandInput& x, std::string_view name,
                     const device::Sequences& sequences, std::string_view option) {
  if (x.dtype != DType::kBF16) {
    unsupported(name, fmt::format("bf16 on sm_90a where {} is set", option), dtype_name(x.dtype));
  }
  const bool aligned = reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 &&
                       x.token_stride % 8 == 0 && x.head_stride % 8 == 0;
  const bool packed = sequences.cu_seqlens != nullptr || sequences.batch <= 1 ||
                      x.batch_stride == sequences.seqlen * x.token_stride;
  if (aligned && packed) return;
  unsupported(name,
              fmt::format("an address on 16 bytes, strides that are multiples of 8, sequences side "
                          "by side on sm_90a where {} is set",
                          option),
              fmt::format("strides {}, {}, {}, address {}", x.batch_stride, x.token_stride,
                          x.head_stride, fmt::ptr(x.data)));
}

sm90::Bf16Rows bf16_rows(const device::OperandInput& x) {
  return {static_cast<const std::uint16_t*>(x.data), x.token_stride, x.head_stride};
}

}  // namespace mxfa::dispatch
