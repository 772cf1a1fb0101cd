#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/json_records.h"
#include "sqnr/verdict.h"

/// The result of `mxfa sqnr` as text, records and picture; all three hold the same numbers.
namespace mxfa::cli::sqnr {

struct Report {
  const Input* input = nullptr;
  const Sample* sample = nullptr;
  const Measurement* measurement = nullptr;
  const Verdict* verdict = nullptr;
  std::int64_t max_pairs = 0;
  bool with_kern = false;
};

/// Input, sampling, one aligned table for each reference, verdict.
std::string report_text(const Report& report);

/// One record a scheme (routine "attention_sqnr"), then one of routine "sqnr_verdict".
std::vector<io::Record> report_records(const Report& report);

/// Bars by tensor and scheme, against the oracle on the given inputs.
std::string report_svg(const Report& report);

}  // namespace mxfa::cli::sqnr
