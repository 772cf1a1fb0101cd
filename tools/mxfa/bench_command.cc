#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>

#include "bench/backward_command.h"
#include "bench/compare_command.h"
#include "bench/forward_command.h"
#include "bench/report.h"
#include "command.h"
#include "common/cpu_suite.h"
#include "core/check.h"
#include "core/parallel.h"
#include "dispatch/recipe_name.h"
#include "io/progress.h"

namespace mxfa::cli {
namespace {

constexpr int kThreadsOfCore = 4;  ///< more only wait for each other

struct BenchArguments {
  std::string preset = "peer";
  std::vector<std::string> routines;
  std::string recipe = "blackwell";
  std::string precision = "both";
  int threads = 0;
  int runs = 15;
  std::string json;
  std::string plot;
};

mxfa::bench::CpuOptions options_of(const BenchArguments& arguments) {
  expect_one_of(arguments.precision, "precision", {"mxfp8", "bf16", "both"});
  core::expect(arguments.runs >= 1, "runs", "at least 1", core::text(arguments.runs));
  // core::num_threads() is the machine's: nothing was set yet.
  const int most = kThreadsOfCore * core::num_threads();
  core::expect(arguments.threads >= 0 && arguments.threads <= most, "threads",
               fmt::format("0 for all cores, or 1 to {}, {} for each", most, kThreadsOfCore),
               core::text(arguments.threads));
  return {.preset = arguments.preset,
          .routines = arguments.routines,
          .recipe = dispatch::recipe_of(arguments.recipe),
          .mxfp8 = arguments.precision != "bf16",
          .bf16 = arguments.precision != "mxfp8"};
}

ExitStatus run_bench_cpu(const BenchArguments& arguments) {
  const mxfa::bench::CpuOptions options = options_of(arguments);
  const std::vector<mxfa::bench::Group> groups = mxfa::bench::cpu_groups(options);
  check_outputs({{"json", arguments.json}, {"plot", arguments.plot}});
  core::set_num_threads(arguments.threads);
  const mxfa::bench::RunPlan plan{.warm_ups = 2, .runs = arguments.runs};
  std::vector<bench::Row> rows;
  {
    io::Progress progress("mxfa bench cpu", std::ssize(groups) + 1);
    const mxfa::bench::CpuCeilings ceilings = mxfa::bench::measure_cpu_ceilings(plan);
    progress.advance();
    for (io::Record& record : mxfa::bench::ceiling_records(ceilings)) {
      rows.push_back({"", complete_record(std::move(record), {}, {})});
    }
    for (const mxfa::bench::Group& group : groups) {
      const std::vector<mxfa::bench::Benchmark> benchmarks = group.make();
      std::vector<std::function<void()>> bodies;
      for (const mxfa::bench::Benchmark& one : benchmarks) bodies.push_back(one.body);
      const auto samples = mxfa::bench::time_alternating(bodies, plan);
      for (std::size_t i = 0; i < benchmarks.size(); ++i) {
        rows.push_back(
            {benchmarks[i].label,
             complete_record(mxfa::bench::finished(benchmarks[i], samples[i], ceilings), {}, {})});
      }
      progress.advance();
    }
  }
  fmt::print("{}, {} threads\n\n{}", io::cpu_name(), core::num_threads(), bench::report_text(rows));
  write_svg(arguments.plot, [&] { return bench::report_svg("CPU backend", rows); });
  std::vector<io::Record> records;
  for (const bench::Row& row : rows) records.push_back(row.record);
  write_json(arguments.json, records);
  return kDone;
}

}  // namespace

Command add_bench(CLI::App& root) {
  CLI::App* app = root.add_subcommand("bench", "How fast is it on this machine?");
  app->require_subcommand(1);
  CLI::App* cpu = app->add_subcommand("cpu", "The CPU backend, on all cores");
  cpu->footer(
      "Attention forward and backward, quantization, RMSNorm+quantize and GEMM+quantize, beside\n"
      "what the machine reaches at best in the same run: FP32 multiply-adds, BF16 matrix products\n"
      "(where it has them), copying. Medians; what is compared runs in turns. SQNR of attention\n"
      "against attention in float64, on one head.\n\n"
      "Shapes: peer (1 x 8 heads x 2048 x 128), dense, causal, jagged, all.\n"
      "Examples:\n"
      "  mxfa bench cpu\n"
      "  mxfa bench cpu --preset jagged --routines attention_forward,attention_backward\n"
      "  mxfa bench cpu --json cpu.json --plot cpu.svg");
  const auto arguments = std::make_shared<BenchArguments>();
  cpu->add_option("--preset", arguments->preset, "Shapes of attention")->capture_default_str();
  add_names_option(*cpu, "--routines", arguments->routines,
                   fmt::format("Some of {}", fmt::join(mxfa::bench::kCpuRoutines, ", ")));
  cpu->add_option("--recipe", arguments->recipe, "MXFP8 arithmetic: blackwell or hopper")
      ->capture_default_str();
  cpu->add_option("--precision", arguments->precision, "mxfp8, bf16 or both")
      ->capture_default_str();
  cpu->add_option("--threads", arguments->threads, "0: all cores")->capture_default_str();
  cpu->add_option("--runs", arguments->runs, "Timed runs of each routine")->capture_default_str();
  add_json_option(*cpu, arguments->json);
  add_svg_option(*cpu, "--plot", arguments->plot, "Bars by routine and shape");
  const std::vector<Command> others{bench::add_forward(*app), bench::add_backward(*app),
                                    bench::add_compare(*app)};
  return {app, [arguments, others] {
            for (const Command& command : others) {
              if (command.app->parsed()) return command.run();
            }
            return run_bench_cpu(*arguments);
          }};
}

}  // namespace mxfa::cli
