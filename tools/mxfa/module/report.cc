#include "module/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "command.h"
#include "common/timing.h"
#include "core/parallel.h"
#include "cpu/kernels.h"
#include "dispatch/recipe_name.h"
#include "io/plot.h"
#include "module/presets.h"

namespace mxfa::cli::module {
namespace {

std::int64_t count(const Report& report, Verdict verdict) {
  return std::ranges::count(report.errors, verdict, &TensorError::verdict);
}

std::string batch_text(const Report& report) {
  const reference::CrossAttentionBatch& batch = *report.batch;
  const auto& offsets = batch.cu_seqlens_k;
  std::int32_t shortest = INT32_MAX, longest = 0;
  for (std::size_t s = 1; s < offsets.size(); ++s) {
    shortest = std::min(shortest, offsets[s] - offsets[s - 1]);
    longest = std::max(longest, offsets[s] - offsets[s - 1]);
  }
  if (offsets.size() == 1) shortest = 0;
  return fmt::format(
      "{} sequences of {} to {} keys, {} in all; {} seed queries, dim {}, {} heads of {}; seed "
      "{}\n",
      batch.options.batch, shortest, longest, batch.total_k(), batch.options.seqlen_q,
      batch.options.dim, batch.options.num_heads, batch.options.head_dim, batch.options.seed);
}

std::string machine_text(const Report& report) {
  return fmt::format(
      "CPU, {} threads, {}; MXFP8 with the {} recipe{}\n"
      "a CPU computes MXFP8 by BF16 products: these times say nothing about a GPU\n",
      core::num_threads(), cpu::kernels().name, dispatch::recipe_name(report.options.recipe),
      report.options.queries_bf16 ? ", queries in BF16" : "");
}

std::string error_table(const Report& report) {
  std::vector<std::vector<std::string>> rows{{"tensor", "SQNR dB", "bar", "verdict"}};
  for (const TensorError& error : report.errors) {
    rows.push_back({std::string(error.name),
                    error.is_zero ? "n/a" : fmt::format("{:.2f}", error.db),
                    error.is_zero ? "zero" : fmt::format("{:.1f}", error.bar),
                    std::string(verdict_name(error.verdict))});
  }
  return format_table(rows);
}

std::string summary(const Report& report) {
  std::vector<TensorError> measured;
  std::ranges::remove_copy_if(report.errors, std::back_inserter(measured), &TensorError::is_zero);
  const auto [low, high] = std::ranges::minmax_element(measured, {}, &TensorError::db);
  std::string text = fmt::format(
      "{} tensors: {} pass, {} borderline, {} fail; {:.2f} dB ({}) to {:.2f} dB ({})\n",
      report.errors.size(), count(report, Verdict::kPass), count(report, Verdict::kBorderline),
      count(report, Verdict::kFail), low->db, low->name, high->db, high->name);
  if (measured.size() < report.errors.size()) {
    text +=
        "n/a: no sequence has two keys, so these gradients are zero but for rounding; they are "
        "held to what\nrounding can leave\n";
  }
  return text;
}

std::string time_table(const Report& report) {
  const Flops flops = count_flops(*report.batch);
  std::vector<std::vector<std::string>> rows{
      {"", "forward ms", "backward ms", "step ms", "GFLOP/s", "runs"}};
  for (const StepMeasurement& step : report.steps) {
    const double forward = mxfa::bench::median(step.times.forward_ms);
    const double backward = mxfa::bench::median(step.times.backward_ms);
    rows.push_back(
        {step.precision, fmt::format("{:.1f}", forward), fmt::format("{:.1f}", backward),
         fmt::format("{:.1f}", forward + backward),
         fmt::format("{:.0f}", (flops.forward + flops.backward) / (forward + backward) / 1e6),
         fmt::format("{}", step.times.forward_ms.size())});
  }
  return format_table(rows);
}

std::int64_t documented(const StepBytes& bytes) {
  return bytes.inputs + bytes.outputs + bytes.activations + bytes.workspace;
}

std::string memory_table(const Report& report) {
  const auto mb = [](std::int64_t bytes) {
    return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e6);
  };
  std::vector<std::vector<std::string>> rows{
      {"", "inputs", "outputs", "activations", "workspace", "sum", "peak", "peak / sum"}};
  for (const StepMeasurement& step : report.steps) {
    const StepBytes& bytes = step.bytes;
    std::string peak = "unknown", ratio = "unknown";
    if (step.peak_bytes) {
      peak = mb(*step.peak_bytes);
      ratio = fmt::format(
          "{:.2f}", static_cast<double>(*step.peak_bytes) / static_cast<double>(documented(bytes)));
    }
    rows.push_back({step.precision, mb(bytes.inputs), mb(bytes.outputs), mb(bytes.activations),
                    mb(bytes.workspace), mb(documented(bytes)), peak, ratio});
  }
  return format_table(rows);
}

io::CaseRecord case_of(const Report& report) {
  const reference::CrossAttentionBatch& batch = *report.batch;
  return {.batch = batch.options.batch,
          .num_heads = batch.options.num_heads,
          .num_heads_kv = batch.options.num_heads_kv,
          .seqlen_q = batch.options.seqlen_q,
          .seqlen_k = batch.options.max_seqlen_k,
          .total_q = {},
          .total_k = batch.total_k(),
          .head_dim = batch.options.head_dim,
          .causal = false,
          .jagged = true};
}

io::Record record(const Report& report, const std::string& routine, const std::string& precision) {
  io::Record result = base_record(routine, "mxfa " + precision);
  result.shape = case_of(report);
  result.extra = {{"dim", report.batch->options.dim},
                  {"sparsity", report.batch->options.sparsity},
                  {"seed", report.batch->options.seed}};
  if (precision == "mxfp8") {
    result.extra["recipe"] = dispatch::recipe_name(report.options.recipe);
    result.extra["queries_bf16"] = report.options.queries_bf16;
  }
  result.variant.dq_accum = "fp32";
  result.variant.deterministic = true;
  return result;
}

io::Record timed(io::Record record, const std::vector<double>& ms, double flops) {
  record.timing = mxfa::bench::timing_record({.wall_ms = ms, .cpu_ms = {}});
  record.tflops = flops / record.timing->ms_median / 1e9;
  return record;
}

}  // namespace

bool Report::failed() const { return count(*this, Verdict::kFail) > 0; }

std::string report_text(const Report& report) {
  std::string text = batch_text(report) + machine_text(report);
  if (!report.errors.empty()) {
    text += "\nMXFP8 against BF16, 10 log10(sum bf16^2 / sum (bf16 - mxfp8)^2)\n";
    text += error_table(report) + summary(report);
  }
  text += "\nTime, median\n" + time_table(report);
  text += "\nMemory in MB\n" + memory_table(report);
  return text;
}

std::vector<io::Record> report_records(const Report& report) {
  const Flops flops = count_flops(*report.batch);
  std::vector<io::Record> records;
  for (const StepMeasurement& step : report.steps) {
    io::Record forward = record(report, "cross_attention_forward", step.precision);
    forward.extra["memory_bytes"] = {{"inputs", step.bytes.inputs},
                                     {"outputs", step.bytes.outputs},
                                     {"activations", step.bytes.activations},
                                     {"workspace", step.bytes.workspace}};
    if (step.peak_bytes) forward.extra["memory_bytes"]["peak"] = *step.peak_bytes;
    records.push_back(timed(forward, step.times.forward_ms, flops.forward));
    records.push_back(timed(record(report, "cross_attention_backward", step.precision),
                            step.times.backward_ms, flops.backward));
  }
  if (report.errors.empty()) return records;
  io::Record& sqnr = records.emplace_back(record(report, "cross_attention_sqnr", "mxfp8"));
  sqnr.extra["reference"] = "bf16";
  for (const TensorError& error : report.errors) {
    if (error.is_zero) continue;
    sqnr.sqnr.push_back({.tensor = std::string(error.name),
                         .db = error.db,
                         .threshold_db = error.bar,
                         .verdict = std::string(verdict_name(error.verdict))});
  }
  return records;
}

std::string report_svg(const Report& report) {
  io::BarChart chart;
  chart.title = "Error of one cross-attention step in MXFP8";
  chart.subtitle = fmt::format(
      "{} keys in {} sequences, {} recipe; against BF16, higher is better; bars with a "
      "triangle go on",
      report.batch->total_k(), report.batch->options.batch,
      dispatch::recipe_name(report.options.recipe));
  chart.x_label = "tensor";
  chart.y_label = "SQNR (dB)";
  chart.y_cap = 36;  // LSE, at 50 dB and more, would squeeze all others
  chart.series = {{.name = "MXFP8", .values = {}}, {.name = "pass bar", .values = {}}};
  for (const TensorError& error : report.errors) {
    if (error.is_zero) continue;
    chart.categories.emplace_back(error.name);
    chart.series[0].values.push_back(error.db);
    chart.series[1].values.push_back(error.bar);
  }
  return io::bar_chart_svg(chart);
}

}  // namespace mxfa::cli::module
