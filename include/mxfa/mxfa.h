#pragma once

/// Umbrella header: the whole public API.
#include "mxfa/attention.h"
#include "mxfa/cross_attention.h"
#include "mxfa/device.h"
#include "mxfa/error.h"
#include "mxfa/producers.h"
#include "mxfa/quantize.h"
#include "mxfa/tensor.h"
#include "mxfa/types.h"
#include "mxfa/version.h"
