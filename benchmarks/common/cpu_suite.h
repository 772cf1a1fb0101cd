#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/attention_case.h"
#include "common/cpu_ceilings.h"
#include "common/timing.h"
#include "io/json_records.h"
#include "mxfa/attention.h"

/// The CPU backend's benchmarks, for `mxfa bench cpu` and for Google Benchmark.
namespace mxfa::bench {

/// One routine on one shape; alive, it holds its tensors.
struct Benchmark {
  std::string label;  ///< of the shape
  io::Record record;  ///< routine, impl, case, variant; the rest comes with the samples
  double flops = 0;   ///< 0: bound by memory
  double bytes = 0;   ///< that have to be moved; 0: bound by arithmetic
  std::function<void()> body;
  /// SQNR by tensor, after a run.
  std::function<std::vector<std::pair<std::string, double>>()> accuracy = {};
};

/// Benchmarks that are timed in turns. Tensors are made when it is its turn.
struct Group {
  std::string name;
  std::function<std::vector<Benchmark>()> make;
};

inline constexpr std::string_view kCpuRoutines[] = {
    "attention_forward", "attention_backward", "quantize", "rmsnorm_quantize", "gemm_quantize"};

struct CpuOptions {
  std::string preset = "peer";
  std::vector<std::string> routines = {};  ///< of kCpuRoutines; empty: all
  attention::Recipe recipe = attention::Recipe::kBlackwell;
  bool mxfp8 = true;
  bool bf16 = true;  ///< attention only
};

/// Throws Error naming an unknown preset or routine.
std::vector<Group> cpu_groups(const CpuOptions& options);

/// The record with times, rates and the fraction of what bounds it: copy bandwidth; with AMX its
/// BF16 rate; else the FP32 rate. The CPU time of a run, divided by the threads, is an extra field.
io::Record finished(const Benchmark& benchmark, const Samples& samples,
                    const CpuCeilings& ceilings);
/// Records of routine "ceiling".
std::vector<io::Record> ceiling_records(const CpuCeilings& ceilings);

}  // namespace mxfa::bench
