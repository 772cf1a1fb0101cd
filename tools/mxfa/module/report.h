#pragma once

#include <string>
#include <vector>

#include "io/json_records.h"
#include "module/measure.h"

/// What `mxfa module` prints, draws and writes.
namespace mxfa::cli::module {

struct Report {
  const reference::CrossAttentionBatch* batch = nullptr;
  cross_attention::Options options;  ///< of the MXFP8 step
  std::vector<StepMeasurement> steps;
  std::vector<TensorError> errors;  ///< empty where only one precision ran

  bool failed() const;
};

std::string report_text(const Report& report);
std::vector<io::Record> report_records(const Report& report);
/// Needs errors.
std::string report_svg(const Report& report);

}  // namespace mxfa::cli::module
