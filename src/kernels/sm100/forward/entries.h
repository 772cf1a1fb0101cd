#pragma once

/// The kernels of the Blackwell forward: ENTRY(name, head_dim, scale of P, leak-free).
#define MXFA_SM100_FORWARD_ENTRIES(ENTRY)       \
  ENTRY(d128_constant, 128, kConstant, false)   \
  ENTRY(d128_amax, 128, kBlockAmax, false)      \
  ENTRY(d128_row_max, 128, kBlockRowMax, false) \
  ENTRY(d128_leak_free, 128, kConstant, true)   \
  ENTRY(d64_constant, 64, kConstant, false)     \
  ENTRY(d64_amax, 64, kBlockAmax, false)        \
  ENTRY(d64_row_max, 64, kBlockRowMax, false)   \
  ENTRY(d64_leak_free, 64, kConstant, true)
