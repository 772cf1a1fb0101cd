#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "reference/attention.h"

/// Properties of the inputs that decide what 8-bit attention costs on them.
namespace mxfa::cli::sqnr {

/// A channel (column of one head) that is far larger than the head's others.
struct OutlierChannel {
  std::int64_t channel = 0;
  double ratio = 0;  ///< its RMS over the median RMS of the channels
};

struct OperandDiagnostics {
  /// Share of the energy that is one vector common to all rows of a head: 0 none, 1 all.
  double mean_share = 0;
  /// Channels above kOutlierRatio times the median, of the head where they stand out most.
  std::vector<OutlierChannel> outliers;
  /// Binades between the largest and the smallest non-zero 1x32 block maximum that share a scale
  /// of 32 tokens x head_dim, in the worst group. Beyond 10 the small blocks lose bits.
  int exponent_spread = 0;
};

inline constexpr double kOutlierRatio = 6.0;

struct Diagnostics {
  double logit_std = 0;          ///< of visible logits within a row, RMS over the rows
  double logit_rms = 0;          ///< of visible logits, a row's common offset included
  double p_max_mean = 0;         ///< mean over the rows of the largest P
  double one_key_row_share = 0;  ///< rows in which one key takes more than half of P
  OperandDiagnostics q, k, v, dout;
};

/// Accumulates over heads; merge() in a fixed order gives the same result for any threads.
class DiagnosticsBuilder {
 public:
  void add(const reference::HeadInputs& inputs, const reference::ForwardResult& forward);
  void merge(const DiagnosticsBuilder& other);
  Diagnostics result() const;

 private:
  struct Operand {
    double energy = 0;
    double mean_energy = 0;
    std::vector<OutlierChannel> outliers;
    int exponent_spread = 0;

    void add(const reference::Matrix<float>& matrix);
    void merge(const Operand& other);
    OperandDiagnostics result() const;
  };

  std::array<Operand, 4> operands_;  ///< q, k, v, dout
  double logit_variance_ = 0;        ///< summed over visible logits
  double logit_energy_ = 0;
  std::int64_t logits_ = 0;
  double p_max_ = 0;
  std::int64_t one_key_rows_ = 0;
  std::int64_t rows_ = 0;  ///< with a visible key
};

}  // namespace mxfa::cli::sqnr
