#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/json_records.h"

/// Bars that accuracy is held to. A NaN misses every bar.
namespace mxfa::bench {

/// Values of one tensor: what is wanted, what was got, and what the recipe makes of the same
/// operands.
struct TensorValues {
  const std::vector<double>& want;
  const std::vector<double>& got;
  const std::vector<double>& by_recipe;
};
/// Its SQNR and verdict. Bar: `slack_db` below what the recipe reaches on these operands. Where
/// there is a figure `listed_db`, of other draws, `slack_db` below it is a fixed bar that counts as
/// well unless the recipe itself misses it.
io::SqnrRecord sqnr_bar(const std::string& tensor, const TensorValues& values,
                        std::optional<double> listed_db, double slack_db);

/// Largest |want - got|, and the largest |want - got| / max(1, |want|), of two spans of one size;
/// 0 where both are equal, infinite ones too, and NaN where any difference is NaN.
double largest_difference(std::span<const double> want, std::span<const double> got);
double largest_relative_difference(std::span<const double> want, std::span<const double> got);

/// {value, bar, verdict}: "pass" where the value is no larger.
io::Json difference_bar(double value, double bar);

}  // namespace mxfa::bench
