#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>

#include "command.h"
#include "core/check.h"
#ifdef MXFA_HAS_DRIVER
#include "kernel/forward_budget.h"
#endif

namespace mxfa::cli {
namespace {

struct BudgetOptions {
  std::string kernel;
  std::string arch = "sm_103a";
  int head_dim = 128;
  std::string p_scale = "constant";
  bool leak_free = false;
  int multiprocessors = 148;
  double clock_ghz = 1.85;
  std::string json;
};

#ifdef MXFA_HAS_DRIVER

using sm100::forward::PScale;

kernel::TracedLaunch launch_of(const BudgetOptions& options) {
  expect_one_of(options.arch, "arch", {"sm_100a", "sm_103a"});
  expect_one_of(options.p_scale, "p-scale", {"constant", "amax", "row_max"});
  core::expect(!options.leak_free || options.p_scale == "constant", "p-scale",
               "constant with leak-free", fmt::format("'{}'", options.p_scale));
  core::expect(options.multiprocessors > 0, "multiprocessors", "at least 1",
               core::text(options.multiprocessors));
  core::expect(options.clock_ghz > 0, "clock", "above 0", fmt::format("{}", options.clock_ghz));
  return {.arch = options.arch,
          .head_dim = options.head_dim,
          .p_scale = options.p_scale == "constant" ? PScale::kConstant
                     : options.p_scale == "amax"   ? PScale::kBlockAmax
                                                   : PScale::kBlockRowMax,
          .leak_free = options.leak_free};
}

void print_budget(const BudgetOptions& options, const kernel::Budget& budget,
                  const kernel::Rates& rates) {
  fmt::print("Forward, {}, head_dim {}, scale of P {}{}: a step of 2 x 128 queries and 128 keys\n",
             options.arch, options.head_dim, options.p_scale,
             options.leak_free ? ", leak-free" : "");
  fmt::print(
      "assumed of a multiprocessor and clock: {} MXFP8 FLOP, {} exp2, {} instructions, {} "
      "bytes of shared memory\n\n",
      rates.mxfp8_flop, rates.exp2, rates.issue, rates.shared_bytes);
  std::vector<std::vector<std::string>> rows{{"resource", "a step", "unit", "clocks"}};
  for (const kernel::Demand& demand : budget.demands) {
    rows.push_back({demand.resource, fmt::format("{:.0f}", demand.amount), demand.unit,
                    demand.clocks > 0 ? fmt::format("{:.0f}", demand.clocks) : "-"});
  }
  fmt::print("{}\n", format_table(rows));
  fmt::print("exp2 as polynomials: {:.0f} numbers a step\n", budget.polynomials);
  fmt::print(
      "a softmax warp: {:.0f} machine instructions, counted of a kernel of {:.0f} of PTX; {:.0f} "
      "of PTX in the emulator\n",
      budget.sass_softmax, budget.ptx_of_sass, budget.ptx_softmax);
  const double flop = rates.mxfp8_flop * budget.fraction;
  fmt::print(
      "\nbound, not a speed: {:.2f} of the MXFP8 rate, {:.0f} FLOP a clock and "
      "multiprocessor; the limit: {}\n",
      budget.fraction, flop, budget.limit);
  fmt::print("with {} multiprocessors at {} GHz: {:.2f} PFLOP/s at most\n", options.multiprocessors,
             options.clock_ghz, flop * options.multiprocessors * options.clock_ghz * 1e-6);
}

ExitStatus run_budget(const BudgetOptions& options) {
  check_outputs({{"json", options.json}});
  const kernel::TracedLaunch launch = launch_of(options);
  const kernel::Rates rates = kernel::rates_of(options.arch);
  const kernel::Budget budget = kernel::forward_budget(launch, rates);
  print_budget(options, budget, rates);
  io::Record record = base_record("budget", "mxfa");
  record.extra = {{"kernel", options.kernel},
                  {"arch", options.arch},
                  {"head_dim", options.head_dim},
                  {"p_scale", options.p_scale},
                  {"leak_free", options.leak_free},
                  {"fraction_of_mxfp8", budget.fraction},
                  {"limit", budget.limit},
                  {"sass_softmax", budget.sass_softmax},
                  {"ptx_of_sass", budget.ptx_of_sass},
                  {"ptx_softmax", budget.ptx_softmax}};
  for (const kernel::Demand& demand : budget.demands) {
    record.extra["demands"].push_back({{"resource", demand.resource},
                                       {"amount", demand.amount},
                                       {"unit", demand.unit},
                                       {"clocks", demand.clocks}});
  }
  write_json(options.json, {record});
  return kDone;
}

#else

ExitStatus run_budget(const BudgetOptions&) {
  throw Error(ErrorKind::kDevice, "budget: this build has no device code");
}

#endif

}  // namespace

Command add_budget(CLI::App& root) {
  CLI::App* app = root.add_subcommand(
      "budget", "What a Blackwell kernel asks of each resource, and the bound that follows");
  app->footer(
      "Counts what the kernel does in the emulator in a step of keys, and divides by rates that "
      "are\n"
      "public or assumed. The largest number of clocks bounds the kernel. It is a bound of single\n"
      "resources: latencies, power and what goes on between steps are not in it, so it is never a\n"
      "speed.\n\n"
      "Examples:\n"
      "  mxfa budget forward --arch sm_103a\n"
      "  mxfa budget forward --arch sm_100a --p-scale amax --json budget.json");
  const auto options = std::make_shared<BudgetOptions>();
  add_blackwell_kernel_options(*app, options->kernel, options->arch, options->head_dim);
  app->add_option("--p-scale", options->p_scale, "constant, amax or row_max")
      ->capture_default_str();
  app->add_flag("--leak-free", options->leak_free, "No scale is shared by two tokens");
  app->add_option("--multiprocessors", options->multiprocessors, "Of the GPU")
      ->capture_default_str();
  app->add_option("--clock", options->clock_ghz, "GHz")
      ->check(kFiniteNumber)
      ->capture_default_str();
  add_json_option(*app, options->json);
  return {app, [options] { return run_budget(*options); }};
}

}  // namespace mxfa::cli
