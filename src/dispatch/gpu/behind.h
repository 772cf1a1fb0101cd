#pragma once

#include "device/clear_behind.h"
#include "dispatch/gpu/device_problem.h"

namespace mxfa::dispatch {

/// Collects what no sequence has: rows behind the last one of packed sides. Sides whose sequences
/// are dense have nothing there.
class Behind {
 public:
  explicit Behind(const DeviceProblem& problem) : problem_(problem) {}

  /// Zeros, in values and scales.
  void add_rows(const DeviceRows& rows, Side side);
  /// -infinity, in FP32 [num_heads, rows_o].
  void add_row_values(const TensorView& x);
  const device::ClearBehindParams& params() const { return params_; }

 private:
  void add(const device::RowsBehind& rows);

  const DeviceProblem& problem_;
  device::ClearBehindParams params_ = {};
};

}  // namespace mxfa::dispatch
