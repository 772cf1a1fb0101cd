#pragma once

#include "device/clear_behind.h"
#include "dispatch/gpu/device_problem.h"

namespace mxfa::dispatch {

/// What kernels leave unwritten behind the last sequence of packed sides, collected and cleared by
/// one kernel. Sides whose sequences are dense have nothing there.
class Behind {
 public:
  explicit Behind(const DeviceProblem& problem) : problem_(problem) {}

  /// Zeros, in values and scales.
  void add_rows(const DeviceRows& rows, Side side);
  /// -infinity, in FP32 [num_heads, rows_o].
  void add_row_values(const TensorView& x);
  void clear() const;

 private:
  void add(const device::RowsBehind& rows);

  const DeviceProblem& problem_;
  device::ClearBehindParams params_ = {};
};

}  // namespace mxfa::dispatch
