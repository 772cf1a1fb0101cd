#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>

#include "core/check.h"
#include "core/standard_streams.h"
#include "experiment.h"
#include "io/atomic_file.h"
#include "io/json_records.h"
#include "report.h"

/// Trains the cross-attention module on a synthetic click task, in MXFP8 and in BF16 from the same
/// start on the same data, for several seeds: does MXFP8 change where training ends?
namespace mxfa::examples {
namespace {

/// CLI11 itself wraps or saturates what does not fit.
std::string integer_fault(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool fits = error == std::errc() && end == text.data() + text.size();
  return fits ? std::string() : fmt::format("expected an integer of 64 bits, got '{}'", text);
}

int run(const Settings& settings) {
  check(settings);
  core::expect(settings.plot.empty() || settings.plot.ends_with(".svg"), "plot",
               "a name that ends in .svg", settings.plot);
  io::check_outputs({{"json", settings.json}, {"plot", settings.plot}});
  const Outcome outcome = run_all(settings);
  if (!settings.plot.empty()) io::write_text_file(settings.plot, report_svg(outcome));
  if (!settings.json.empty()) io::write_records(settings.json, report_records(outcome, settings));
  fmt::print("{}", report_text(outcome, settings));
  constexpr std::size_t kMxfp8 = 1;
  return settings.seeds == 1 || outcome.within_spread(kMxfp8) ? 0 : 1;
}

int main_checked(int argc, char** argv) {
  Settings settings;
  CLI::App app{
      "Trains the cross-attention module on a synthetic click task, in MXFP8 and in BF16 from the\n"
      "same start on the same data. Exit status 1: MXFP8's mean final normalized entropy lies\n"
      "outside of what BF16's seeds span (with more than one seed).",
      "train_synthetic"};
  app.add_option("--steps", settings.steps, "Steps of each run")
      ->capture_default_str()
      ->check(integer_fault);
  app.add_option("--seeds", settings.seeds, "Runs of each kind")
      ->capture_default_str()
      ->check(integer_fault);
  app.add_option("--users", settings.users, "Users of a step")
      ->capture_default_str()
      ->check(integer_fault);
  app.add_option("--learning-rate", settings.learning_rate, "Of Adam; it falls to 0 linearly")
      ->capture_default_str();
  app.add_option("--recipe", settings.recipe, "Whose MXFP8 arithmetic: hopper or blackwell")
      ->capture_default_str();
  app.add_flag("--queries-bf16", settings.queries_bf16,
               "In MXFP8, BF16 for the operands of the products with few rows");
  app.add_flag("--control", settings.control,
               "Also train with an MXFP8 whose backward reads K's scales twice too large");
  app.add_option("--plot", settings.plot, "Curves of all runs")->type_name("FILE.svg");
  app.add_option("--json", settings.json, "Figures as JSON records")->type_name("FILE");
  try {
    app.parse(argc, argv);
    return run(settings);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    core::print_error("train_synthetic: error: {}\n", error.what());
    return 2;
  }
}

}  // namespace
}  // namespace mxfa::examples

int main(int argc, char** argv) {
  const int status = mxfa::examples::main_checked(argc, argv);
  if (mxfa::core::output_written()) return status;
  mxfa::core::print_error("train_synthetic: error: standard output: cannot write\n");
  return 2;
}
