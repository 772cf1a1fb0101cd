#include "sqnr/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace mxfa::cli::sqnr {
namespace {

/// Diagnostics worth a sentence. Below these the effect is under about 1 dB.
constexpr double kMeanShare = 0.3;
constexpr double kPeakyLogits = 3.0;
constexpr int kWideSpread = 10;
constexpr double kOneKeyRows = 0.5;
constexpr double kHelpfulDb = 1.0;

std::string_view name_of(StepTensor tensor) {
  return kStepTensorNames[static_cast<std::size_t>(tensor)];
}

const Bar& bar_of(StepTensor tensor) {
  return *std::find_if(std::begin(kBars), std::end(kBars),
                       [&](const Bar& bar) { return bar.tensor == tensor; });
}

/// The plain MXFP8 scheme that dials are judged against: the first one measured.
int find_plain(const std::vector<SchemeResult>& results) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].scheme.is_mx && results[i].scheme.num_dials == 0) return static_cast<int>(i);
  }
  return -1;
}

/// Less matmul time first, then fewer dials, then the order of the list.
int find_recommended(const std::vector<SchemeResult>& results,
                     const std::vector<SchemeGrade>& grades) {
  int best = -1;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Scheme& scheme = results[i].scheme;
    if (!scheme.is_mx || grades[i].grade != Grade::kPass) continue;
    const auto cost = [&](const Scheme& s) { return std::pair(s.matmul_time, s.num_dials); };
    if (best < 0 || cost(scheme) < cost(results[static_cast<std::size_t>(best)].scheme)) {
      best = static_cast<int>(i);
    }
  }
  return best;
}

/// The best margin over the bars, for when nothing is safe.
int find_closest(const std::vector<SchemeResult>& results, const std::vector<SchemeGrade>& grades) {
  int best = -1;
  double best_margin = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const double margin = grades[i].db - bar_of(grades[i].limiting).safe_db;
    if (results[i].scheme.is_mx && margin > best_margin) {
      best = static_cast<int>(i);
      best_margin = margin;
    }
  }
  return best;
}

const char* grade_words(Grade grade) {
  switch (grade) {
    case Grade::kPass:
      return "safe";
    case Grade::kBorderline:
      return "borderline";
    case Grade::kFail:
      return "NOT safe";
  }
  return "";
}

std::string channels_text(const OperandDiagnostics& operand) {
  constexpr std::size_t kListed = 4;
  std::vector<std::string> names;
  for (const OutlierChannel& c : operand.outliers) {
    if (names.size() == kListed) break;
    names.push_back(fmt::format("{} ({:.0f}x)", c.channel, c.ratio));
  }
  if (operand.outliers.size() > kListed) {
    names.push_back(fmt::format("{} more", operand.outliers.size() - kListed));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

void add_operand_reasons(const char* name, const OperandDiagnostics& operand,
                         std::vector<std::string>& reasons) {
  if (!operand.outliers.empty()) {
    reasons.push_back(fmt::format("{} has outlier channels, RMS over the median channel's: {}",
                                  name, channels_text(operand)));
  }
  if (operand.exponent_spread > kWideSpread) {
    reasons.push_back(fmt::format(
        "{}: blocks that share a scale differ by up to {} binades, small ones lose bits", name,
        operand.exponent_spread));
  }
}

/// What was measured about the inputs that explains the plain scheme's errors.
std::vector<std::string> reasons_of(const Diagnostics& d, const SchemeResult& plain,
                                    const SchemeGrade& grade) {
  std::vector<std::string> reasons;
  const double error = plain.f64[StepTensor::kS].rms_noise();
  if (!std::isfinite(error) || std::isnan(grade.db) || grade.db < -1e300) {
    reasons.push_back(fmt::format(
        "{} overflows: values of the step leave the range of FP32 or BF16 (logits are {:.3g} RMS), "
        "which no block scale can mend; scale the inputs down",
        name_of(grade.limiting), d.logit_rms));
    return reasons;
  }
  if (error > 0) {
    reasons.push_back(fmt::format(
        "logits are off by {:.2g} (RMS) where they spread by {:.2g} within a row; exp turns that "
        "into {:.0f} % of P",
        error, d.logit_std, 100 * std::expm1(error)));
  }
  if (d.k.mean_share > kMeanShare) {
    reasons.push_back(fmt::format(
        "K: {:.0f} % of its energy is one vector common to all keys; softmax ignores it, but 8 "
        "bits are spent on it",
        100 * d.k.mean_share));
  }
  if (d.v.mean_share > kMeanShare) {
    reasons.push_back(fmt::format(
        "V: {:.0f} % of its energy is one vector common to all keys; it cancels in dP - delta, "
        "its rounding error does not",
        100 * d.v.mean_share));
  }
  if (d.logit_std > kPeakyLogits) {
    reasons.push_back(fmt::format("peaky logits: their std within a row is {:.3g}", d.logit_std));
  }
  if (d.one_key_row_share > kOneKeyRows) {
    reasons.push_back(
        fmt::format("in {:.0f} % of the rows one key takes more than half of P (mean largest P "
                    "{:.2f})",
                    100 * d.one_key_row_share, d.p_max_mean));
  }
  add_operand_reasons("Q", d.q, reasons);
  add_operand_reasons("K", d.k, reasons);
  add_operand_reasons("V", d.v, reasons);
  add_operand_reasons("dO", d.dout, reasons);
  return reasons;
}

std::string limit_text(const SchemeGrade& grade) {
  const Bar& bar = bar_of(grade.limiting);
  return fmt::format("lowest is {} at {} dB (safe from {:g}, borderline from {:g})",
                     name_of(grade.limiting), db_text(grade.db), bar.safe_db, bar.borderline_db);
}

/// Dials on the plain scheme that help its limiting tensor, best first.
std::vector<std::string> effects_of(const std::vector<SchemeResult>& results, int plain,
                                    StepTensor limiting) {
  const auto t = static_cast<std::size_t>(limiting);
  const SchemeResult& base = results[static_cast<std::size_t>(plain)];
  const double before = base.f64.tensors[t].db();
  std::vector<std::pair<double, std::string>> gains;
  for (const SchemeResult& result : results) {
    const bool dial_on_base =
        result.scheme.num_dials > 0 && result.scheme.name.rfind(base.scheme.name + "+", 0) == 0;
    const double gain = result.f64.tensors[t].db() - before;
    if (!dial_on_base || !(gain >= kHelpfulDb)) continue;
    gains.emplace_back(gain, fmt::format("{} {:+.1f} dB (to {})", result.scheme.name, gain,
                                         db_text(result.f64.tensors[t].db())));
  }
  std::stable_sort(gains.begin(), gains.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> texts;
  for (const auto& gain : gains) texts.push_back(gain.second);
  return texts;
}

std::string cost_text(const Scheme& scheme) {
  return fmt::format("{}; matmul time x{:.2f} of all FP8 (BF16: x2.00)", scheme.advice,
                     scheme.matmul_time);
}

/// The MXFP8 schemes without dials that are safe: one for each kind of machine.
std::vector<std::string> safe_plain_names(const std::vector<SchemeResult>& results,
                                          const Verdict& verdict) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Scheme& scheme = results[i].scheme;
    if (scheme.is_mx && scheme.num_dials == 0 && verdict.grades[i].grade == Grade::kPass) {
      names.push_back(fmt::format("{} ({})", scheme.name, scheme.label));
    }
  }
  return names;
}

void add_advice(const std::vector<SchemeResult>& results, const Verdict& verdict,
                std::vector<std::string>& lines) {
  if (verdict.recommended >= 0) {
    const auto r = static_cast<std::size_t>(verdict.recommended);
    const Scheme& scheme = results[r].scheme;
    if (scheme.num_dials == 0) {
      lines.push_back(fmt::format("Use: {} as it is, no dial is needed.",
                                  fmt::join(safe_plain_names(results, verdict), " or ")));
    } else {
      lines.push_back(fmt::format("Switch on: {} ({}); {}.", scheme.name, scheme.label,
                                  limit_text(verdict.grades[r])));
      lines.push_back(fmt::format("  Cost: {}.", cost_text(scheme)));
    }
    return;
  }
  const int closest = find_closest(results, verdict.grades);
  if (closest < 0) return;
  const auto c = static_cast<std::size_t>(closest);
  lines.push_back(fmt::format("No MXFP8 scheme measured here is safe; closest is {} ({}): {}.",
                              results[c].scheme.name, grade_words(verdict.grades[c].grade),
                              limit_text(verdict.grades[c])));
  lines.emplace_back(
      "  Try combinations (--schemes all, or such as smooth-kv+qk-bf16), or keep this layer in "
      "BF16.");
}

/// A head far below the whole tensor hides in the sums.
void add_worst_unit(const SchemeResult& result, const SchemeGrade& grade, const Sample& sample,
                    std::vector<std::string>& lines) {
  const WorstUnit& worst = result.worst[static_cast<std::size_t>(grade.limiting)];
  if (sample.units.size() < 2 || grade_of(worst.db, bar_of(grade.limiting)) == Grade::kPass) return;
  const reference::HeadIndex index = sample.units[worst.unit].index;
  lines.push_back(fmt::format("  Worst head for {}: {} dB, sequence {}, head {}.",
                              name_of(grade.limiting), db_text(worst.db), index.sequence,
                              index.head));
}

void add_plain(const Measurement& measurement, const Verdict& verdict, const Sample& sample,
               std::vector<std::string>& lines) {
  const auto p = static_cast<std::size_t>(verdict.plain);
  const SchemeResult& plain = measurement.schemes[p];
  const SchemeGrade& grade = verdict.grades[p];
  lines.push_back(fmt::format("{} ({}) is {}: {}.", plain.scheme.name, plain.scheme.label,
                              grade_words(grade.grade), limit_text(grade)));
  add_worst_unit(plain, grade, sample, lines);
  const std::vector<std::string> reasons = reasons_of(measurement.diagnostics, plain, grade);
  if (!reasons.empty()) {
    lines.emplace_back(grade.grade == Grade::kPass ? "  What limits it:" : "  Why:");
  }
  for (const std::string& reason : reasons) {
    lines.push_back("  - " + reason + ".");
  }
  const std::vector<std::string> effects =
      effects_of(measurement.schemes, verdict.plain, grade.limiting);
  if (!effects.empty()) {
    lines.push_back(fmt::format("  What raises {} here: {}.", name_of(grade.limiting),
                                fmt::join(effects, ", ")));
  }
}

}  // namespace

const char* grade_name(Grade grade) {
  switch (grade) {
    case Grade::kPass:
      return "pass";
    case Grade::kBorderline:
      return "borderline";
    case Grade::kFail:
      return "fail";
  }
  return "";
}

Grade grade_of(double db, const Bar& bar) {
  if (db >= bar.safe_db) return Grade::kPass;
  // NaN compares false with everything and so ends as a failure.
  return db >= bar.borderline_db ? Grade::kBorderline : Grade::kFail;
}

SchemeGrade grade_scheme(const SchemeResult& result) {
  SchemeGrade worst;
  double least_margin = std::numeric_limits<double>::infinity();
  for (const Bar& bar : kBars) {
    const double db = result.f64[bar.tensor].db();
    const double margin =
        std::isnan(db) ? -std::numeric_limits<double>::infinity() : db - bar.safe_db;
    if (margin < least_margin || &bar == &kBars[0]) {
      least_margin = margin;
      worst = {grade_of(db, bar), bar.tensor, db};
    }
  }
  return worst;
}

Verdict judge(const Measurement& measurement, const Sample& sample) {
  const std::vector<SchemeResult>& results = measurement.schemes;
  Verdict verdict;
  for (const SchemeResult& result : results) verdict.grades.push_back(grade_scheme(result));
  verdict.plain = find_plain(results);
  verdict.recommended = find_recommended(results, verdict.grades);
  if (verdict.plain >= 0) add_plain(measurement, verdict, sample, verdict.lines);
  add_advice(results, verdict, verdict.lines);
  return verdict;
}

std::string db_text(double db) {
  if (std::isnan(db)) return "nan";
  if (std::isinf(db)) return db > 0 ? "exact" : "-inf";
  return fmt::format("{:.1f}", db);
}

}  // namespace mxfa::cli::sqnr
