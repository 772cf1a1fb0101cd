#pragma once

#include <string>
#include <vector>

#include "kernel/forward_trace.h"

/// What a key step of the Blackwell forward (two streams of 128 queries, 128 keys) asks of one
/// multiprocessor, against what it has: bounds of single resources, never a speed.
namespace mxfa::cli::kernel {

/// A clock of one multiprocessor. Sources: public figures, some of them derived; nobody confirms
/// them all (docs/kernels/sm100-forward.md).
struct Rates {
  double mxfp8_flop = 16384;
  double exp2 = 16;  ///< special function unit
  double issue = 4;  ///< warp instructions, one a quarter
  double shared_bytes = 128;
};
Rates rates_of(const std::string& arch);

struct Demand {
  std::string resource;
  double amount = 0;  ///< a step
  std::string unit;
  double clocks = 0;  ///< amount / rate; 0: no bound, the rate or the machine's count is not known
};

struct Budget {
  std::vector<Demand> demands;
  double polynomials = 0;   ///< powers of two that are no special function's, a step
  double ptx_softmax = 0;   ///< PTX instructions of a softmax warp, a step
  double sass_softmax = 0;  ///< machine instructions of it, unmasked step
  double ptx_of_sass = 0;   ///< ptx_softmax of the kernel of which sass_softmax was counted
  double fraction = 0;      ///< of the MXFP8 rate, as the slowest resource allows
  std::string limit;        ///< that resource
};

/// From traces of the emulator that differ in their steps alone.
Budget forward_budget(TracedLaunch launch, const Rates& rates);

}  // namespace mxfa::cli::kernel
