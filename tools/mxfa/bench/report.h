#pragma once

#include <string>
#include <vector>

#include "io/json_records.h"

/// What every `mxfa bench ...` prints and draws from its records.
namespace mxfa::cli::bench {

/// A record and the name of its shape.
struct Row {
  std::string label;
  io::Record record;
};

/// One line a record: routine, shape, what ran, median and range in ms, rate, fraction of the
/// ceiling, SQNR.
std::string report_text(const std::vector<Row>& rows);

/// Bars: the fraction of its ceiling that each routine and shape reaches, by implementation.
std::string report_svg(const std::string& title, const std::vector<Row>& rows);

}  // namespace mxfa::cli::bench
