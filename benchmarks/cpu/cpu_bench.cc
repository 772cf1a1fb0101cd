#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "common/cpu_suite.h"

/// The CPU routines as Google Benchmark targets, for its filters, repetitions and comparison tools:
/// cpu_bench --benchmark_filter=rmsnorm. `mxfa bench cpu` holds the same routines to the machine's
/// ceilings and measures accuracy beside them.
int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  std::vector<mxfa::bench::Benchmark> alive;
  for (const mxfa::bench::Group& group : mxfa::bench::cpu_groups({})) {
    for (mxfa::bench::Benchmark& one : group.make()) alive.push_back(std::move(one));
  }
  for (const mxfa::bench::Benchmark& one : alive) {
    const std::string name = one.record.routine + "/" + one.record.impl + "/" + one.label;
    benchmark::RegisterBenchmark(name.c_str(),
                                 [&one](benchmark::State& state) {
                                   for (auto _ : state) one.body();
                                   const auto per_second = [&](double value) {
                                     return benchmark::Counter(
                                         value, benchmark::Counter::kIsIterationInvariantRate);
                                   };
                                   if (one.flops > 0)
                                     state.counters["FLOP/s"] = per_second(one.flops);
                                   if (one.bytes > 0) state.counters["B/s"] = per_second(one.bytes);
                                 })
        ->UseRealTime()
        ->MeasureProcessCPUTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
