#pragma once

#include "driver/kernel.h"

namespace mxfa::driver {

/// A launch as the driver takes it.
struct LaunchConfig {
  CUlaunchAttribute attributes[2] = {};
  CUlaunchConfig config = {};

  LaunchConfig(CUstream stream, const LaunchShape& shape) {
    unsigned count = 0;
    if (shape.cluster[0] * shape.cluster[1] * shape.cluster[2] > 1) {
      attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      attributes[count++].value.clusterDim = {shape.cluster[0], shape.cluster[1], shape.cluster[2]};
    }
    if (shape.programmatic_launch) {
      attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      attributes[count++].value.programmaticStreamSerializationAllowed = 1;
    }
    config.gridDimX = shape.grid[0];
    config.gridDimY = shape.grid[1];
    config.gridDimZ = shape.grid[2];
    config.blockDimX = shape.block[0];
    config.blockDimY = shape.block[1];
    config.blockDimZ = shape.block[2];
    config.sharedMemBytes = shape.dynamic_smem_bytes;
    config.hStream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
};

}  // namespace mxfa::driver
