#include "kernel/forward_budget.h"

#include <algorithm>

#include "kernels/sm100/forward/exp2_share.h"

namespace mxfa::cli::kernel {
namespace {

namespace forward = sm100::forward;
using forward::PScale;

constexpr int kShortSteps = 3, kLongSteps = 7;
constexpr int kQuarters = 4;
/// A wait's loop: the test, its result to a register, a comparison, the branch back.
constexpr double kPollInstructions = 4;

/// Machine instructions of one softmax warp in an unmasked step of head_dim 128, counted in the
/// disassembly of the cubin: the loop around the first tcgen05.ld less the block that masks
/// (nvdisasm 13.0; head_dim does not matter to it); beside each what a step of the same kernel
/// issues of PTX, by which a test sees that the kernel has changed since.
struct SassCount {
  const char* arch;
  bool leak_free;
  PScale p_scale;
  int instructions;
  int ptx_instructions;
};
constexpr SassCount kSassCounts[] = {{"sm_100a", false, PScale::kConstant, 662, 1071},
                                     {"sm_100a", false, PScale::kBlockAmax, 885, 1384},
                                     {"sm_100a", false, PScale::kBlockRowMax, 828, 1337},
                                     {"sm_100a", true, PScale::kConstant, 919, 1528},
                                     {"sm_103a", false, PScale::kConstant, 405, 796},
                                     {"sm_103a", false, PScale::kBlockAmax, 624, 1077},
                                     {"sm_103a", false, PScale::kBlockRowMax, 567, 1030},
                                     {"sm_103a", true, PScale::kConstant, 658, 1152}};

SassCount sass_count(const TracedLaunch& launch) {
  for (const SassCount& count : kSassCounts) {
    if (launch.arch == count.arch && launch.leak_free == count.leak_free &&
        launch.p_scale == count.p_scale) {
      return count;
    }
  }
  return {};
}

/// What one launch did, all of it.
class Totals {
 public:
  explicit Totals(const ForwardTrace& trace) : trace_(trace) {}

  /// FLOP of all MMAs: 128 rows, K = 32, as many columns as they write.
  double flop() const {
    double sum = 0;
    for (const Operation& operation : trace_.operations) {
      if (operation.what != "tcgen05.mma") continue;
      for (const Touch& touch : operation.tensor) {
        if (touch.writes) sum += 2.0 * 128 * 32 * touch.size;
      }
    }
    return sum;
  }
  double shared_bytes() const {
    double sum = 0;
    for (const Operation& operation : trace_.operations) {
      for (const Touch& touch : operation.shared) sum += touch.size;
    }
    for (int warp = 0; warp < forward::kThreads / 32; ++warp) {
      for (const auto& [text, count] : instructions(warp)) {
        if (text.starts_with("ld.shared") || text.starts_with("st.shared")) {
          sum += static_cast<double>(count) * access_bytes(text);
        }
      }
    }
    return sum;
  }
  /// Bytes between tensor memory and registers.
  double tensor_bytes() const {
    double sum = 0;
    for (const Operation& operation : trace_.operations) {
      if (operation.what != "tcgen05.ld" && operation.what != "tcgen05.st") continue;
      for (const Touch& touch : operation.tensor) sum += 32.0 * 4 * touch.size;
    }
    return sum;
  }
  double exp2() const {
    double sum = 0;
    for (int warp = 0; warp < forward::kThreads / 32; ++warp) {
      for (const auto& [text, count] : instructions(warp)) {
        if (text.starts_with("ex2")) sum += static_cast<double>(count) * 32;
      }
    }
    return sum;
  }
  /// Instructions of a warp, each wait passed at its first test.
  double issued(int warp) const {
    double sum = 0, tests = 0;
    for (const auto& [text, count] : instructions(warp)) {
      sum += static_cast<double>(count);
      if (text.starts_with("mbarrier.try_wait")) tests += static_cast<double>(count);
    }
    const auto waits = std::ranges::count_if(trace_.waits, [&](const Wait& wait) {
      return wait.warp == warp && !signaller_of(wait.what).empty();
    });
    return sum - kPollInstructions * std::max(0.0, tests - static_cast<double>(waits));
  }

 private:
  const std::map<std::string, std::uint64_t>& instructions(int warp) const {
    static const std::map<std::string, std::uint64_t> kNone;
    const auto found = trace_.executed.find(warp);
    return found == trace_.executed.end() ? kNone : found->second;
  }
  /// Of a warp. The leak-free form reads V's exponents in pairs of 64 bits, all lanes the same: one
  /// pass of 128 bytes.
  static double access_bytes(const std::string& text) {
    if (text.starts_with("ld.shared.v2.b64")) return 128;
    const double words = text.find(".v4") != std::string::npos   ? 4
                         : text.find(".v2") != std::string::npos ? 2
                                                                 : 1;
    const double word = text.ends_with("64")   ? 8
                        : text.ends_with("16") ? 2
                        : text.ends_with("8")  ? 1
                                               : 4;
    return 32 * words * word;
  }

  const ForwardTrace& trace_;
};

}  // namespace

Rates rates_of(const std::string& arch) {
  Rates rates;
  if (arch == "sm_103a") rates.exp2 = 32;
  return rates;
}

Budget forward_budget(TracedLaunch launch, const Rates& rates) {
  launch.seqlen_q = forward::kStreams * forward::kTileM;
  launch.seqlen_k = kShortSteps * forward::kTileN;
  const ForwardTrace few = trace_forward(launch);
  launch.seqlen_k = kLongSteps * forward::kTileN;
  const ForwardTrace many = trace_forward(launch);
  const Totals a(few), b(many);
  constexpr double kSteps = kLongSteps - kShortSteps;
  const auto step = [&](auto of) { return (of(b) - of(a)) / kSteps; };

  Budget budget;
  budget.polynomials = 2.0 * forward::kTileM * forward::kTileN *
                       forward::polynomial_pairs(launch.arch == "sm_103a" ? 1030 : 1000) / 16;
  budget.ptx_softmax = step([](const Totals& totals) { return totals.issued(0); });
  const SassCount sass = sass_count(launch);
  budget.sass_softmax = sass.instructions;
  budget.ptx_of_sass = sass.ptx_instructions;
  // Warps w, w + 4, ... share a quarter's scheduler.
  double others = 0;
  for (int quarter = 0; quarter < kQuarters; ++quarter) {
    double sum = 0;
    for (int warp = forward::kCorrectionWarp + quarter; warp < forward::kThreads / 32;
         warp += kQuarters) {
      sum += step([&](const Totals& totals) { return totals.issued(warp); });
    }
    others = std::max(others, sum);
  }
  const double flop = step([](const Totals& totals) { return totals.flop(); });
  const double exp2 = step([](const Totals& totals) { return totals.exp2(); });
  // The trace knows what is read; a tile of K and one of V with their atoms are written.
  const double loads = 2.0 * (forward::kTileN * launch.head_dim + mx::kAtomBytes);
  const double shared = loads + step([](const Totals& totals) { return totals.shared_bytes(); });
  const double tensor = step([](const Totals& totals) { return totals.tensor_bytes(); });
  const double softmax = 2 * budget.sass_softmax;
  const double quarter_issue = rates.issue / kQuarters;
  budget.demands = {
      {"MMA", flop, "FLOP", flop / rates.mxfp8_flop},
      {"exp2, special function unit", exp2, "numbers", exp2 / rates.exp2},
      {"issue slots, softmax warps", softmax, "instructions a quarter", softmax / quarter_issue},
      {"issue slots, other warps", others, "of PTX a quarter", 0},
      {"shared memory", shared, "bytes", shared / rates.shared_bytes},
      {"tensor memory, to and from registers", tensor, "bytes", 0}};
  const auto slowest = std::ranges::max_element(budget.demands, {},
                                                [](const Demand& demand) { return demand.clocks; });
  budget.limit = slowest->resource;
  budget.fraction = budget.demands.front().clocks / slowest->clocks;
  return budget;
}

}  // namespace mxfa::cli::kernel
