#pragma once

#include <functional>
#include <string>
#include <vector>

#include "driver/driver.h"
#include "driver/kernel.h"
#include "support/range.h"

/// What each wait, arrival, fence and barrier of the kernels under test is for: each is taken away
/// or weakened in turn, and the chosen tests run on the emulator with the hazard checker on.
namespace mxfa::testing {

struct MutantRun {
  driver::DriverOptions driver;  ///< the emulator; its policy is tried first, then the others
  std::vector<driver::KernelImage> images;
  std::string entry;  ///< part of the name of the kernels that are changed; empty: all launched
  Range numbers;      ///< of mutants, counted over all these kernels
  /// Opens the machine with these images and runs the tests; returns what RUN_ALL_TESTS returns.
  std::function<int(const driver::DriverOptions&, std::vector<driver::KernelImage>)> run_tests;
};

/// Prints a table: number, line, kind, change, what shows it. Each run is a process of its own.
/// Returns 0, or 1 where the tests fail as they stand or a mutant gives wrong results that the
/// checker misses.
int run_mutants(const MutantRun& run);

}  // namespace mxfa::testing
