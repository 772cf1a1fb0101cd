#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sqnr/input.h"

/// Which (sequence, head) units are measured where all of them would take too long.
namespace mxfa::cli::sqnr {

struct Sample {
  std::vector<Unit> units;
  std::int64_t units_total = 0;  ///< with at least one (query, key) pair
  std::int64_t pairs = 0;        ///< of the units chosen; masked pairs count
  std::int64_t pairs_total = 0;
  std::int64_t cut_units = 0;  ///< measured on a part of their query rows

  bool complete() const { return pairs == pairs_total; }
};

/// The rule, in words, for the output: see choose_units().
extern const char* const kSamplingRule;

/// Everything where it fits `max_pairs`. Otherwise units follow the R2 low-discrepancy sequence
/// over (sequence, head), each at most once, until the next would exceed `max_pairs`; a unit above
/// a quarter of `max_pairs` keeps whole blocks of 32 query rows up to that share, at least one: the
/// last rows of the sequence (the first ones where causal_alignment is top left), whose mask is the
/// same without the others. At least one unit is chosen. Throws Error where no pair exists.
Sample choose_units(const attention::AttentionProblem& problem, std::int64_t max_pairs);

}  // namespace mxfa::cli::sqnr
