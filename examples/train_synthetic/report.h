#pragma once

#include <string>
#include <vector>

#include "experiment.h"
#include "io/json_records.h"

/// What an outcome says: a table, curves side by side, records.
namespace mxfa::examples {

std::string report_text(const Outcome& outcome, const Settings& settings);
std::string report_svg(const Outcome& outcome);
/// One for each arm, with the curves of its runs.
std::vector<io::Record> report_records(const Outcome& outcome, const Settings& settings);

}  // namespace mxfa::examples
