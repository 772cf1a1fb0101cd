#pragma once

/// The library's version, stated here only: CMake, the package files and `mxfa info` read it.
/// ABI policy: before 1.0 any minor release may change the ABI; patch releases never do.
#define MXFA_VERSION_MAJOR 0
#define MXFA_VERSION_MINOR 1
#define MXFA_VERSION_PATCH 0
