#include "sqnr/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "command.h"
#include "io/plot.h"

namespace mxfa::cli::sqnr {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::int64_t longest(const std::vector<std::int32_t>& cu_seqlens) {
  std::int64_t length = 0;
  for (std::size_t s = 1; s < cu_seqlens.size(); ++s) {
    length = std::max<std::int64_t>(length, cu_seqlens[s] - cu_seqlens[s - 1]);
  }
  return length;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

std::string plural(std::int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string sampling_text(const Sample& sample) {
  if (sample.complete()) {
    return fmt::format("all of {}", plural(sample.units_total, "(sequence, head) unit"));
  }
  return fmt::format(
      "{} of {} (sequence, head) units{}, {:.2g} % of all scores", sample.units.size(),
      sample.units_total,
      sample.cut_units > 0 ? fmt::format(" ({} in part)", sample.cut_units) : "",
      100.0 * static_cast<double>(sample.pairs) / static_cast<double>(sample.pairs_total));
}

std::string mask_text(const attention::Mask& mask) {
  std::string text;
  const bool top_left = mask.alignment == CausalAlignment::kTopLeft;
  if (mask.causal) text += fmt::format(", causal ({})", top_left ? "top left" : "bottom right");
  if (mask.window_left >= 0 || mask.window_right >= 0) {
    text += fmt::format(", window [{}, {}]", mask.window_left, mask.window_right);
  }
  return text;
}

std::string input_text(const Input& input) {
  const attention::AttentionProblem& p = input.problem;
  return fmt::format(
      "{}: {}, {} ({} for K and V), head_dim {}, seqlen_q up to {}, seqlen_k up to {}{}, "
      "softmax_scale {:.6g}",
      input.source, plural(p.batch, "sequence"), plural(p.num_heads, "head"), p.num_heads_kv,
      p.head_dim, longest(input.cu_seqlens_q), longest(input.cu_seqlens_k), mask_text(p.mask),
      p.scale());
}

/// Breaks a line at spaces after at most 100 columns; what follows is indented a little further.
std::string wrapped(const std::string& line) {
  constexpr std::size_t kColumns = 100;
  const std::string indent(line.find_first_not_of(' ') + 2, ' ');
  std::string text;
  std::string rest = line;
  while (rest.size() > kColumns) {
    const std::size_t space = rest.rfind(' ', kColumns);
    if (space == std::string::npos || space < indent.size()) break;
    text += rest.substr(0, space) + "\n";
    rest = indent + rest.substr(space + 1);
  }
  return text + rest + "\n";
}

Rows table_rows(const Report& report, StepEnergies SchemeResult::*reference, bool with_grades) {
  std::vector<std::string> head = {"scheme"};
  for (const std::string_view name : kStepTensorNames) head.emplace_back(name);
  head.insert(head.end(), {"|LSE err|"});
  if (with_grades) head.insert(head.end(), {"matmul", "verdict"});
  Rows rows = {head};
  for (std::size_t s = 0; s < report.measurement->schemes.size(); ++s) {
    const SchemeResult& result = report.measurement->schemes[s];
    const StepEnergies& energies = result.*reference;
    std::vector<std::string> row = {result.scheme.name};
    for (const Energy& energy : energies.tensors) row.push_back(db_text(energy.db()));
    row.push_back(fmt::format("{:.2g}", energies.lse_abs_error));
    if (with_grades) {
      row.push_back(fmt::format("x{:.2f}", result.scheme.matmul_time));
      row.emplace_back(grade_name(report.verdict->grades[s].grade));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

io::CaseRecord case_of(const Input& input) {
  const attention::AttentionProblem& p = input.problem;
  return {.batch = p.batch,
          .num_heads = p.num_heads,
          .num_heads_kv = p.num_heads_kv,
          .seqlen_q = longest(input.cu_seqlens_q),
          .seqlen_k = longest(input.cu_seqlens_k),
          .total_q = input.cu_seqlens_q.back(),
          .total_k = input.cu_seqlens_k.back(),
          .head_dim = p.head_dim,
          .causal = p.mask.causal,
          .jagged = input.jagged};
}

io::Json sampling_json(const Report& report) {
  const Sample& sample = *report.sample;
  return {{"complete", sample.complete()},
          {"rule", sample.complete() ? "all" : kSamplingRule},
          {"max_pairs", report.max_pairs},
          {"units", sample.units.size()},
          {"units_total", sample.units_total},
          {"units_in_part", sample.cut_units},
          {"pairs", sample.pairs},
          {"pairs_total", sample.pairs_total}};
}

io::Json attention_json(const attention::AttentionProblem& problem) {
  const attention::Mask& mask = problem.mask;
  const bool top_left = mask.alignment == CausalAlignment::kTopLeft;
  return {{"softmax_scale", problem.scale()},
          {"causal_alignment", top_left ? "top_left" : "bottom_right"},
          {"window_left", mask.window_left},
          {"window_right", mask.window_right}};
}

io::Json db_json(const StepEnergies& energies) {
  io::Json object = io::Json::object();
  for (std::size_t t = 0; t < energies.tensors.size(); ++t) {
    object[lower(kStepTensorNames[t])] = io::number(energies.tensors[t].db());
  }
  return object;
}

io::Json worst_json(const SchemeResult& result, const Sample& sample) {
  io::Json object = io::Json::object();
  for (const Bar& bar : kBars) {
    const auto t = static_cast<std::size_t>(bar.tensor);
    const reference::HeadIndex index = sample.units[result.worst[t].unit].index;
    object[lower(kStepTensorNames[t])] = {
        {"db", io::number(result.worst[t].db)}, {"sequence", index.sequence}, {"head", index.head}};
  }
  return object;
}

io::Record scheme_record(const Report& report, std::size_t s) {
  const SchemeResult& result = report.measurement->schemes[s];
  io::Record record = base_record("attention_sqnr", "mxfa emulation " + result.scheme.name);
  record.shape = case_of(*report.input);
  record.variant = variant_of(result.scheme.config);
  for (std::size_t t = 0; t < kStepTensorNames.size(); ++t) {
    record.sqnr_db.emplace_back(lower(kStepTensorNames[t]), result.f64.tensors[t].db());
  }
  for (const Bar& bar : kBars) {
    const double db = result.f64[bar.tensor].db();
    record.sqnr.push_back({std::string(kStepTensorNames[static_cast<std::size_t>(bar.tensor)]), db,
                           bar.safe_db, grade_name(grade_of(db, bar))});
  }
  record.extra = {{"scheme", result.scheme.name},
                  {"verdict", grade_name(report.verdict->grades[s].grade)},
                  {"matmul_time", result.scheme.matmul_time},
                  {"lse_abs_error", io::number(result.f64.lse_abs_error)},
                  {"dq_overflows", result.f64.dq_overflows},
                  {"worst_unit_db", worst_json(result, *report.sample)}};
  if (report.with_kern) record.extra["sqnr_kern_db"] = db_json(result.kern);
  record.extra["source"] = report.input->source;
  record.extra["dout"] = report.input->dout ? "given" : "drawn";
  record.extra["seed"] = report.input->seed;
  record.extra["attention"] = attention_json(report.input->problem);
  record.extra["sampling"] = sampling_json(report);
  return record;
}

io::Json operand_json(const OperandDiagnostics& operand) {
  io::Json outliers = io::Json::array();
  for (const OutlierChannel& c : operand.outliers) {
    outliers.push_back({{"channel", c.channel}, {"ratio", io::number(c.ratio)}});
  }
  return {{"mean_share", io::number(operand.mean_share)},
          {"exponent_spread", operand.exponent_spread},
          {"outlier_channels", outliers}};
}

io::Record verdict_record(const Report& report) {
  const Verdict& verdict = *report.verdict;
  const Diagnostics& d = report.measurement->diagnostics;
  io::Record record = base_record("sqnr_verdict", "mxfa emulation");
  record.shape = case_of(*report.input);
  io::Json safe = io::Json::array();
  for (std::size_t s = 0; s < verdict.grades.size(); ++s) {
    if (verdict.grades[s].grade == Grade::kPass) {
      safe.push_back(report.measurement->schemes[s].scheme.name);
    }
  }
  record.extra["safe"] = safe;
  record.extra["recommended"] =
      verdict.recommended < 0
          ? io::Json(nullptr)
          : io::Json(report.measurement->schemes[static_cast<std::size_t>(verdict.recommended)]
                         .scheme.name);
  if (verdict.plain >= 0) {
    const SchemeGrade& grade = verdict.grades[static_cast<std::size_t>(verdict.plain)];
    record.extra["limiting_tensor"] = kStepTensorNames[static_cast<std::size_t>(grade.limiting)];
  }
  record.extra["text"] = verdict.lines;
  record.extra["diagnostics"] = {{"logit_std", io::number(d.logit_std)},
                                 {"logit_rms", io::number(d.logit_rms)},
                                 {"p_max_mean", io::number(d.p_max_mean)},
                                 {"one_key_row_share", io::number(d.one_key_row_share)},
                                 {"q", operand_json(d.q)},
                                 {"k", operand_json(d.k)},
                                 {"v", operand_json(d.v)},
                                 {"dout", operand_json(d.dout)}};
  return record;
}

std::string legend_text() {
  std::vector<std::string> names;
  for (const Bar& bar : kBars) {
    names.emplace_back(kStepTensorNames[static_cast<std::size_t>(bar.tensor)]);
  }
  return fmt::format(
      "verdict: from the lowest of {}: pass from {:g} dB, borderline from {:g} dB\n"
      "matmul: tensor-core time of the step against all GEMMs in FP8\n",
      fmt::join(names, ", "), kBars[0].safe_db, kBars[0].borderline_db);
}

}  // namespace

std::string report_text(const Report& report) {
  std::string text = wrapped(input_text(*report.input));
  if (!report.input->dout) {
    text += fmt::format("no dout given: drawn from N(0, 1), seed {}\n", report.input->seed);
  }
  if (report.input->dout_is_zero) text += "dout is zero: gradients were not measured\n";
  text += fmt::format("measured on {}\n", sampling_text(*report.sample));
  if (!report.sample->complete()) text += wrapped(fmt::format("sampling: {}", kSamplingRule));
  text += "\nSQNR in dB against float64 attention on the given inputs\n";
  text += format_table(table_rows(report, &SchemeResult::f64, true));
  text += legend_text();
  if (report.with_kern) {
    text += "\nSQNR in dB against float64 attention on the dequantized inputs (the kernel alone)\n";
    text += format_table(table_rows(report, &SchemeResult::kern, false));
  }
  text += "\nVERDICT\n";
  for (const std::string& line : report.verdict->lines) text += wrapped("  " + line);
  return text;
}

std::vector<io::Record> report_records(const Report& report) {
  std::vector<io::Record> records;
  for (std::size_t s = 0; s < report.measurement->schemes.size(); ++s) {
    records.push_back(scheme_record(report, s));
  }
  records.push_back(verdict_record(report));
  return records;
}

std::string report_svg(const Report& report) {
  io::BarChart chart;
  chart.title = "Error of one attention step by scheme";
  chart.subtitle = fmt::format(
      "{}; {}; against float64 attention on the given inputs, higher is better; bars with a "
      "triangle go on",
      report.input->source, sampling_text(*report.sample));
  chart.x_label = "tensor";
  chart.y_label = "SQNR (dB)";
  chart.y_cap = 60;  // far beyond what decides; BF16's S and dP would squeeze all others
  for (const std::string_view name : kStepTensorNames) chart.categories.emplace_back(name);
  for (const SchemeResult& result : report.measurement->schemes) {
    io::BarSeries& series = chart.series.emplace_back();
    series.name = result.scheme.label;
    for (const Energy& energy : result.f64.tensors) series.values.push_back(energy.db());
  }
  chart.guides = {
      {kBars[0].safe_db, fmt::format("safe {:g} dB", kBars[0].safe_db)},
      {kBars[0].borderline_db, fmt::format("borderline {:g} dB", kBars[0].borderline_db)}};
  return io::bar_chart_svg(chart);
}

}  // namespace mxfa::cli::sqnr
