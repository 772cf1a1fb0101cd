#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "io/progress.h"
#include "sqnr/diagnostics.h"
#include "sqnr/input.h"
#include "sqnr/sample.h"
#include "sqnr/schemes.h"

/// Runs the schemes on the chosen units and compares each tensor of the step with the oracle.
namespace mxfa::cli::sqnr {

enum class StepTensor { kS, kP, kO, kDv, kDp, kDs, kDq, kDk };
inline constexpr int kStepTensors = 8;
inline constexpr std::array<std::string_view, kStepTensors> kStepTensorNames = {
    "S", "P", "O", "dV", "dP", "dS", "dQ", "dK"};

/// Sums from which SQNR follows, over any number of units.
struct Energy {
  double signal = 0;
  double noise = 0;
  std::int64_t count = 0;

  void add(double reference, double value);
  void add(const Energy& other);
  /// 10 log10(signal / noise): +infinity where nothing differs, NaN where something was NaN.
  double db() const;
  double rms_noise() const;
};

struct StepEnergies {
  std::array<Energy, kStepTensors> tensors;
  double lse_abs_error = 0;  ///< largest over the rows, natural log
  std::int64_t dq_overflows = 0;

  Energy& operator[](StepTensor tensor) { return tensors[static_cast<std::size_t>(tensor)]; }
  const Energy& operator[](StepTensor tensor) const {
    return tensors[static_cast<std::size_t>(tensor)];
  }
  void add(const StepEnergies& other);
};

/// The unit on which a tensor is worst.
struct WorstUnit {
  double db = 0;
  std::size_t unit = 0;
};

struct SchemeResult {
  Scheme scheme;
  StepEnergies f64;   ///< against the oracle on the given inputs
  StepEnergies kern;  ///< against the oracle on the dequantized inputs; only if asked for
  std::array<WorstUnit, kStepTensors> worst;  ///< of f64
};

struct Measurement {
  std::vector<SchemeResult> schemes;
  Diagnostics diagnostics;
};

/// Where K or V is smoothed, what the shift took from S, LSE and dP is added back before they are
/// compared with the oracle on the given inputs, so that schemes stay comparable. Only visible
/// scores count. The result does not depend on the number of threads.
Measurement measure(const Input& input, const Sample& sample, const std::vector<Scheme>& schemes,
                    bool with_kern, io::Progress& progress);

}  // namespace mxfa::cli::sqnr
