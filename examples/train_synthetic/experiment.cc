#include "experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>

#include "core/check.h"
#include "core/parallel.h"
#include "dispatch/recipe_name.h"
#include "io/progress.h"

namespace mxfa::examples {
namespace {

constexpr std::int64_t kCurvePoints = 40;
constexpr std::uint64_t kTaskSeed = 2026;

/// Held-out users in batches, the same for every run.
struct HeldOut {
  std::vector<ClickBatch> batches;
  std::vector<float> label;
  std::vector<double> probability;

  HeldOut(const ClickTask& task, std::uint64_t purpose, std::int64_t users) {
    constexpr std::int64_t kBatch = 512;
    reference::Stream stream(kTaskSeed, purpose);
    for (std::int64_t u = 0; u < users; u += kBatch) {
      const ClickBatch& batch = batches.emplace_back(task.draw(stream, kBatch));
      label.insert(label.end(), batch.label.begin(), batch.label.end());
      probability.insert(probability.end(), batch.probability.begin(), batch.probability.end());
    }
  }
  double normalized_entropy(const std::vector<double>& predicted) const {
    return log_loss(predicted, label) / base_entropy(label);
  }
  double normalized_entropy(ClickModel& model) const {
    std::vector<double> predicted;
    for (const ClickBatch& batch : batches) {
      const std::vector<double> part = model.predict(batch);
      predicted.insert(predicted.end(), part.begin(), part.end());
    }
    return normalized_entropy(predicted);
  }
};

struct Experiment {
  const ClickTask& task;
  const HeldOut& curve;
  const HeldOut& last;
  const Settings& settings;
};

void expect_finite(double loss, const Settings& settings, const Arm& arm, std::uint64_t seed,
                   std::int64_t step) {
  if (std::isfinite(loss)) return;
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("learning-rate: {}: the loss of {}, seed {}, is not finite after step {}",
                          settings.learning_rate, arm.name, seed, step));
}

Run train(const Experiment& experiment, const Arm& arm, std::uint64_t seed,
          io::Progress& progress) {
  const Settings& settings = experiment.settings;
  ClickModel model(arm.model, seed);
  reference::Stream data(seed, 2);
  Run run;
  const std::int64_t every = std::max<std::int64_t>(1, settings.steps / kCurvePoints);
  for (std::int64_t step = 0; step < settings.steps; ++step) {
    const double left = 1 - static_cast<double>(step) / static_cast<double>(settings.steps);
    const double loss =
        model.train(experiment.task.draw(data, settings.users), settings.learning_rate * left);
    expect_finite(loss, settings, arm, seed, step);
    progress.advance();
    if ((step + 1) % every != 0) continue;
    run.step.push_back(static_cast<double>(step + 1));
    run.entropy.push_back(experiment.curve.normalized_entropy(model));
  }
  run.final_entropy = experiment.last.normalized_entropy(model);
  expect_finite(run.final_entropy, settings, arm, seed, settings.steps);
  return run;
}

}  // namespace

std::vector<Arm> make_arms(const Settings& settings) {
  const ModelOptions mxfp8{.precision = attention::Precision::kMxfp8,
                           .recipe = dispatch::recipe_of(settings.recipe),
                           .queries_bf16 = settings.queries_bf16};
  std::vector<Arm> arms{{"BF16"}, {"MXFP8", mxfp8}};
  if (settings.control) {
    ModelOptions broken = mxfp8;
    broken.broken_scales = true;
    arms.push_back({"MXFP8, broken", broken});
  }
  return arms;
}

std::vector<double> ArmResult::finals() const {
  std::vector<double> values;
  for (const Run& run : runs) values.push_back(run.final_entropy);
  return values;
}

Spread spread_of(const std::vector<double>& values) {
  Spread spread;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) spread.mean += value / count;
  for (const double value : values) {
    spread.deviation += (value - spread.mean) * (value - spread.mean) / std::max(1.0, count - 1);
  }
  spread.deviation = std::sqrt(spread.deviation);
  spread.low = std::ranges::min(values);
  spread.high = std::ranges::max(values);
  return spread;
}

std::vector<double> Outcome::differences(std::size_t arm) const {
  std::vector<double> values = arms[arm].finals();
  const std::vector<double> base = arms[0].finals();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] -= base[i];
  return values;
}

bool Outcome::within_spread(std::size_t arm) const {
  const Spread base = spread_of(arms[0].finals());
  const double mean = spread_of(arms[arm].finals()).mean;
  return mean >= base.low && mean <= base.high;
}

void check(const Settings& settings) {
  const auto count = [](std::int64_t value, std::string_view name, std::int64_t most) {
    core::expect(value >= 1 && value <= most, name, core::later("1 to {}", most), value);
  };
  count(settings.steps, "steps", 1'000'000'000);
  count(settings.seeds, "seeds", 1000);
  count(settings.users, "users", 65536);
  core::expect(std::isfinite(settings.learning_rate) && settings.learning_rate > 0, "learning-rate",
               "a finite number above 0", fmt::format("{}", settings.learning_rate));
  dispatch::recipe_of(settings.recipe);
}

Outcome run_all(const Settings& settings) {
  const ClickTask task({}, kTaskSeed);
  const HeldOut curve(task, 1, kCurveUsers);
  const HeldOut last(task, 2, kFinalUsers);
  const Experiment experiment{task, curve, last, settings};
  Outcome outcome;
  outcome.best_entropy = last.normalized_entropy(last.probability);
  for (const Arm& arm : make_arms(settings)) {
    outcome.arms.push_back({arm, std::vector<Run>(static_cast<std::size_t>(settings.seeds))});
  }
  const std::int64_t runs = std::ssize(outcome.arms) * settings.seeds;
  io::Progress progress("train_synthetic", runs * settings.steps);
  // Steps are too small to share among threads: whole runs go side by side.
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i = next++; i < runs; i = next++) {
      ArmResult& result = outcome.arms[static_cast<std::size_t>(i % std::ssize(outcome.arms))];
      const auto seed = static_cast<std::size_t>(i / std::ssize(outcome.arms));
      try {
        result.runs[seed] = train(experiment, result.arm, seed, progress);
      } catch (...) {
        next = runs;  // no other run starts
        throw;
      }
    }
  };
  const int threads = core::num_threads();
  core::set_num_threads(1);
  std::vector<std::future<void>> workers;
  for (int t = 0; t < threads; ++t) workers.push_back(std::async(std::launch::async, work));
  for (std::future<void>& worker : workers) worker.get();
  core::set_num_threads(0);
  return outcome;
}

}  // namespace mxfa::examples
