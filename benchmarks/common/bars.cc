#include "common/bars.h"

#include <algorithm>
#include <cmath>

#include "reference/attention.h"

namespace mxfa::bench {
namespace {

/// The larger one, or NaN where either is: std::max would drop a NaN on the right.
double max_or_nan(double a, double b) { return std::isnan(a) || a > b ? a : b; }

}  // namespace

io::SqnrRecord sqnr_bar(const std::string& tensor, const TensorValues& values,
                        std::optional<double> listed_db, double slack_db) {
  const double recipe_db = reference::sqnr_db(values.want, values.by_recipe);
  io::SqnrRecord record{.tensor = tensor,
                        .db = reference::sqnr_db(values.want, values.got),
                        .threshold_db = recipe_db - slack_db,
                        .verdict = {}};
  if (listed_db) {
    record.fixed_db = *listed_db - slack_db;
    const bool passes = record.db >= *record.fixed_db;
    const bool asked = recipe_db >= *record.fixed_db;
    record.fixed_verdict = passes ? "pass" : asked ? "fail" : "missed by the recipe too";
    if (asked) record.threshold_db = std::max(record.threshold_db, *record.fixed_db);
  }
  record.verdict = record.db >= record.threshold_db ? "pass" : "fail";
  return record;
}

double largest_difference(std::span<const double> want, std::span<const double> got) {
  double largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (want[i] == got[i]) continue;
    largest = max_or_nan(largest, std::abs(want[i] - got[i]));
  }
  return largest;
}

double largest_relative_difference(std::span<const double> want, std::span<const double> got) {
  double largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (want[i] == got[i]) continue;
    const double scale = std::max(1.0, std::abs(want[i]));
    largest = max_or_nan(largest, std::abs(want[i] - got[i]) / scale);
  }
  return largest;
}

io::Json difference_bar(double value, double bar) {
  return {{"value", value}, {"bar", bar}, {"verdict", value <= bar ? "pass" : "fail"}};
}

}  // namespace mxfa::bench
