#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model.h"
#include "task.h"

/// Trains the same model on the same data in several ways ("arms"), once for each seed.
namespace mxfa::examples {

struct Settings {
  std::int64_t steps = 4000;
  std::int64_t seeds = 5;
  std::int64_t users = 64;      ///< of a batch
  double learning_rate = 1e-2;  ///< of Adam; falls to 0 linearly
  std::string recipe = "blackwell";
  bool queries_bf16 = false;  ///< the module's option, in MXFP8
  bool control = false;       ///< an arm whose MXFP8 is broken on purpose
  std::string plot = {};
  std::string json = {};
};

/// The first is BF16, which the others are compared with.
struct Arm {
  std::string name;
  ModelOptions model = {};
};
std::vector<Arm> make_arms(const Settings& settings);

struct Run {
  std::vector<double> step, entropy;  ///< normalized entropy of held-out users along the training
  double final_entropy = 0;           ///< at the end, of kFinalUsers others
};
inline constexpr std::int64_t kCurveUsers = 2048;
inline constexpr std::int64_t kFinalUsers = 16384;

struct ArmResult {
  Arm arm;
  std::vector<Run> runs;  ///< by seed

  std::vector<double> finals() const;
};

struct Spread {
  double mean = 0;
  double deviation = 0;  ///< of the sample; 0 for one value
  double low = 0;
  double high = 0;
};
Spread spread_of(const std::vector<double>& values);

struct Outcome {
  std::vector<ArmResult> arms;
  double best_entropy = 0;  ///< of who knows the true probabilities

  /// Final entropies minus BF16's of the same seed: same start, same data.
  std::vector<double> differences(std::size_t arm) const;
  /// Whether the arm's mean lies between the least and the largest of BF16's final entropies.
  bool within_spread(std::size_t arm) const;
};

/// Throws Error that names the setting.
void check(const Settings& settings);
/// Runs side by side, each on one thread; the outcome does not depend on how many there are.
Outcome run_all(const Settings& settings);

}  // namespace mxfa::examples
