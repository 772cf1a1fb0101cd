#pragma once

#include <cstdint>

#include "attention/jagged_plan.h"

/// The plan of a jagged batch (attention/jagged_plan.h), made on the device: parameters that host
/// and kernel share.
namespace mxfa::device {

struct TilePlanParams {
  attention::TileShape shape;
  attention::Seqlens seqlens;  ///< device addresses
  std::int32_t batch = 0;
  std::int32_t* plan = nullptr;     ///< out: attention::plan_elems(batch) elements
  std::int32_t* counter = nullptr;  ///< out, optional: 0, what DynamicCounter adds to
};

inline constexpr int kTilePlanThreads = 256;

}  // namespace mxfa::device
