#pragma once

#include <functional>
#include <span>
#include <vector>

#include "io/json_records.h"

/// How host code is timed: by the wall clock, and by the CPU time of the process, which on a
/// machine that does other work too is the fairer of the two.
namespace mxfa::bench {

struct RunPlan {
  int warm_ups = 2;
  int runs = 15;
};

/// Of one body, a value for each run.
struct Samples {
  std::vector<double> wall_ms;
  std::vector<double> cpu_ms;  ///< of the process, all threads
};

double median(std::vector<double> values);
io::TimingRecord timing_record(const Samples& samples);

/// Runs every body plan.warm_ups + plan.runs times. One round runs each body once; rounds go there
/// and back (a b c, c b a, ..), so that a machine that gets slower does not favour anyone.
/// `after_run` is called after each run of a body.
std::vector<Samples> time_alternating(std::span<const std::function<void()>> bodies,
                                      const RunPlan& plan,
                                      const std::function<void()>& after_run = {});

}  // namespace mxfa::bench
