#include "sqnr/sample.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/check.h"

namespace mxfa::cli::sqnr {

const char* const kSamplingRule =
    "(sequence, head) units by the R2 low-discrepancy sequence until --max-pairs; of a unit above "
    "a quarter of that, blocks of 32 query rows from the end of the sequence (from its start where "
    "causal alignment is top-left)";

namespace {

constexpr std::int64_t kRowBlock = 32;

/// Point `index` of the R2 sequence (powers of the inverse of the plastic number) as a cell of a
/// [rows, cols] grid.
std::pair<std::int64_t, std::int64_t> r2_cell(std::int64_t index, std::int64_t rows,
                                              std::int64_t cols) {
  const auto coordinate = [&](double alpha, std::int64_t extent) {
    const double x = 0.5 + alpha * static_cast<double>(index);
    return std::min(extent - 1,
                    static_cast<std::int64_t>((x - std::floor(x)) * static_cast<double>(extent)));
  };
  return {coordinate(0.7548776662466927, rows), coordinate(0.5698402909980532, cols)};
}

class Chooser {
 public:
  Chooser(const attention::AttentionProblem& problem, std::int64_t max_pairs)
      : problem_(problem), max_pairs_(max_pairs) {
    for (std::int64_t s = 0; s < problem.batch; ++s) {
      const std::int64_t pairs = whole(s, 0).pairs();
      if (pairs == 0) continue;
      sequences_.push_back(s);
      sample_.units_total += problem.num_heads;
      sample_.pairs_total += pairs * problem.num_heads;
    }
  }

  Sample run() {
    core::expect(!sequences_.empty(), "input", "a sequence that has queries and keys",
                 "none: there is nothing to measure");
    if (sample_.pairs_total <= max_pairs_) {
      for (const std::int64_t s : sequences_) {
        for (std::int64_t h = 0; h < problem_.num_heads; ++h) add(whole(s, h));
      }
      return std::move(sample_);
    }
    const auto rows = static_cast<std::int64_t>(sequences_.size());
    std::set<std::pair<std::int64_t, std::int64_t>> taken;
    // Few distinct cells are new late in the sequence; giving up then only samples less.
    for (std::int64_t i = 0; i < 16 * sample_.units_total; ++i) {
      const auto [s, h] = r2_cell(i, rows, problem_.num_heads);
      if (!taken.insert({s, h}).second) continue;
      const Unit unit = cut(whole(sequences_[static_cast<std::size_t>(s)], h));
      if (!sample_.units.empty() && sample_.pairs + unit.pairs() > max_pairs_) break;
      add(unit);
    }
    return std::move(sample_);
  }

 private:
  Unit whole(std::int64_t sequence, std::int64_t head) const {
    const auto s = static_cast<std::size_t>(sequence);
    return {.index = {sequence, head},
            .first_row = 0,
            .rows = problem_.cu_seqlens_q[s + 1] - problem_.cu_seqlens_q[s],
            .seqlen_k = problem_.cu_seqlens_k[s + 1] - problem_.cu_seqlens_k[s]};
  }

  Unit cut(Unit unit) {
    const std::int64_t limit = max_pairs_ / 4;
    if (unit.pairs() <= limit) return unit;
    const std::int64_t blocks = std::max<std::int64_t>(1, limit / unit.seqlen_k / kRowBlock);
    const std::int64_t rows = std::min(unit.rows, blocks * kRowBlock);
    const bool from_start = problem_.mask.alignment == CausalAlignment::kTopLeft;
    unit.first_row = from_start ? 0 : unit.rows - rows;
    unit.rows = rows;
    return unit;
  }

  void add(const Unit& unit) {
    sample_.pairs += unit.pairs();
    const Unit all = whole(unit.index.sequence, unit.index.head);
    if (unit.rows < all.rows) ++sample_.cut_units;
    sample_.units.push_back(unit);
  }

  const attention::AttentionProblem& problem_;
  std::int64_t max_pairs_;
  std::vector<std::int64_t> sequences_;  ///< those with pairs
  Sample sample_;
};

}  // namespace

Sample choose_units(const attention::AttentionProblem& problem, std::int64_t max_pairs) {
  core::expect(max_pairs >= 1, "max-pairs", "at least 1", core::text(max_pairs));
  return Chooser(problem, max_pairs).run();
}

}  // namespace mxfa::cli::sqnr
