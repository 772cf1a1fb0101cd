#pragma once

/// Umbrella header: the whole public API.
///
/// Threads: calls may come from several threads at once, on the CPU and on one Device, as long as
/// no call writes what another one reads or writes. On the CPU a call uses up to as many threads as
/// the machine has processors, whatever the process's affinity, and the process keeps them for its
/// next calls; a call beside another one starts threads of its own for as long as it takes. There
/// is no public way to use fewer. Results do not depend on the number.
#include "mxfa/attention.h"
#include "mxfa/cross_attention.h"
#include "mxfa/device.h"
#include "mxfa/error.h"
#include "mxfa/producers.h"
#include "mxfa/quantize.h"
#include "mxfa/tensor.h"
#include "mxfa/types.h"
#include "mxfa/version.h"
