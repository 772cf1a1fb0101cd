#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/bars.h"
#include "core/parallel.h"
#include "core/standard_streams.h"
#include "device/head_memory.h"
#include "device/operands.h"
#include "io/json_records.h"
#include "mx/bits.h"
#include "mx/half_sums.h"
#include "mxfa/attention.h"
#include "mxfa/device.h"
#include "mxfa/error.h"
#include "reference/datasets.h"
#include "reference/recipe/recipe.h"

/// Accuracy of attention backward on a Hopper GPU, one head at a time: gradients against float64 on
/// the dequantized operands (kern) and on the BF16 inputs (f64). Bar of each: 1 dB below what the
/// recipe (reference/recipe) reaches on the same operands, for f64 on those of FP32 scores; with
/// 4096 keys also 1 dB below the figure of docs/numerics.md (sqnr_bar()). Rows of dQ and keys of dK
/// against kern: their 1% quantile and median, which have bars on normal and sink. Half scores,
/// whose sums are half, are held to the recipe with FP32 sums. All of a dense call, so small that
/// CTAs may divide the keys of the forward, and of a jagged one, in which a CTA walks all of them,
/// as in a large call. The dataset onesided is normal with 2 added to dO, and many queries of 128
/// keys.
namespace mxfa::bench {
namespace {

using reference::HeadInputs;
using reference::Matrix;
namespace recipe = reference::recipe;

struct Work {
  std::string dataset;
  std::int64_t seqlen_q, seqlen_k;
};
/// What is computed of a work.
struct Form {
  DType dq_accum = DType::kF32;
  bool half_scores = false;
  bool jagged = false;
};
constexpr Form kForms[] = {
    {DType::kF32, false, false}, {DType::kF16, false, false}, {DType::kF32, true, false},
    {DType::kF16, true, false},  {DType::kF32, false, true},  {DType::kF32, true, true},
};
struct Gradients {
  std::vector<double> dq, dk, dv;
};
struct Listed {
  double dq, dk, dv;
};
const std::map<std::string, Listed> kListedKern = {{"normal", {31.4, 31.5, 31.3}},
                                                   {"diffuse", {31.5, 31.5, 31.1}},
                                                   {"rmsnorm", {33.8, 31.3, 32.0}}};
const std::map<std::string, Listed> kListedF64 = {{"normal", {23.5, 23.6, 25.1}},
                                                  {"diffuse", {25.3, 25.3, 27.0}},
                                                  {"rmsnorm", {21.7, 19.8, 19.8}}};
constexpr std::int64_t kListedKeys = 4096;
constexpr double kSlackDb = 1.0;

std::vector<Work> all_works(std::int64_t most_keys) {
  std::vector<Work> works;
  for (const char* name : {"normal", "diffuse", "rmsnorm", "sink", "lognorm", "vbias", "dorow"}) {
    for (std::int64_t keys = 1024; keys <= most_keys; keys *= 2) {
      works.push_back({name, std::min<std::int64_t>(512, (1 << 20) / keys), keys});
    }
  }
  for (const std::int64_t queries : {4096, 16384}) {
    if (queries <= most_keys) works.push_back({"onesided", queries, 128});
  }
  return works;
}

HeadInputs inputs_of(const Work& work) {
  const bool onesided = work.dataset == "onesided";
  HeadInputs inputs = reference::make_dataset(
      onesided ? "normal" : work.dataset, {.seqlen_q = work.seqlen_q, .seqlen_k = work.seqlen_k});
  for (float& value : inputs.dout.data) {
    if (onesided) value = mx::round_bf16(value + 2.0f);
  }
  return inputs;
}

/// Both public calls, as a training step makes them.
Gradients run_on(const Device& device, const HeadInputs& in, const Form& form) {
  const std::int64_t dim = in.q.cols, rows = in.q.rows;
  const DeviceMemory q = upload_bf16(device, in.q), k = upload_bf16(device, in.k),
                     v = upload_bf16(device, in.v), dout = upload_bf16(device, in.dout);
  const DeviceMemory o = nan_memory(device, q.size_bytes()),
                     dq = nan_memory(device, q.size_bytes()),
                     dk = nan_memory(device, k.size_bytes()),
                     dv = nan_memory(device, k.size_bytes()),
                     lse = nan_memory(device, rows * sizeof(float)),
                     row_max = nan_memory(device, lse.size_bytes());
  const Sequence sequence_q(device, rows, form.jagged);
  const Sequence sequence_k(device, in.k.rows, form.jagged);
  const auto floats = [&](const DeviceMemory& memory) {
    return make_tensor(memory.data(), DType::kF32, {1, rows});
  };
  attention::Options options;
  options.device = &device;
  options.recipe = attention::native_recipe(device);
  options.softmax_scale = in.softmax_scale;
  options.dq_accum = form.dq_accum;
  options.half_scores = form.half_scores;
  attention::ForwardArgs forward;
  forward.q = sequence_q.tensor(q, dim);
  forward.k = sequence_k.tensor(k, dim);
  forward.v = sequence_k.tensor(v, dim);
  forward.cu_seqlens_q = sequence_q.cu_seqlens();
  forward.cu_seqlens_k = sequence_k.cu_seqlens();
  forward.o = sequence_q.tensor(o, dim);
  forward.lse = floats(lse);
  forward.row_max = floats(row_max);
  attention::BackwardArgs backward;
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.o = forward.o;
  backward.lse = forward.lse;
  backward.row_max = forward.row_max;
  backward.cu_seqlens_q = forward.cu_seqlens_q;
  backward.cu_seqlens_k = forward.cu_seqlens_k;
  backward.dout = sequence_q.tensor(dout, dim);
  backward.dq = sequence_q.tensor(dq, dim);
  backward.dk = sequence_k.tensor(dk, dim);
  backward.dv = sequence_k.tensor(dv, dim);
  const DeviceMemory workspace(
      device,
      static_cast<std::size_t>(std::max(attention::forward_workspace_bytes(forward, options),
                                        attention::backward_workspace_bytes(backward, options))));
  const std::span<std::byte> memory{workspace.data(), workspace.size_bytes()};
  attention::forward(forward, options, memory);
  attention::backward(backward, options, memory);
  device.synchronize();
  return {download_bf16(dq), download_bf16(dk), download_bf16(dv)};
}

template <class Result>
Gradients gradients_of(const Result& result) {
  const auto values = [](const auto& m) {
    return std::vector<double>(m.data.begin(), m.data.end());
  };
  return {values(result.dq), values(result.dk), values(result.dv)};
}

struct Wanted {
  Gradients kern, f64, recipe;
};
Wanted wanted_of(const HeadInputs& inputs, bool half_scores) {
  recipe::RecipeConfig config = recipe::RecipeConfig::hopper();
  config.dq_out = config.dkv_out = recipe::OutputFormat::kBf16;
  recipe::Operands operands = recipe::quantize_operands(inputs, config);
  if (half_scores) {
    recipe::requantize(inputs.q, device::kLoweredQ, operands.q, false, mx::kHalfSumsQ);
    recipe::requantize(inputs.k, device::kLoweredK, operands.k, true, mx::kHalfSumsK);
    recipe::requantize(inputs.v, device::kLoweredV, operands.v);
    recipe::requantize(inputs.dout, device::kLoweredDout, operands.dout, false, mx::kHalfSumsDout);
  }
  const recipe::HeadProblem problem{inputs.mask, inputs.softmax_scale};
  const HeadInputs kern = recipe::kern_inputs(operands, problem, config);
  const auto exact = [](const HeadInputs& in) {
    return gradients_of(reference::attention_backward(in, reference::attention_forward(in)));
  };
  const auto saved = recipe::recipe_forward(operands, problem, config).saved;
  return {exact(kern), exact(inputs),
          gradients_of(recipe::recipe_backward(operands, problem, saved, config))};
}

/// dB of each row, as the 1% quantile and the median; a row with a NaN is the worst.
io::Json row_quantiles(const std::vector<double>& want, const std::vector<double>& got,
                       std::int64_t cols) {
  std::vector<double> db;
  for (std::size_t row = 0; row < want.size() / cols; ++row) {
    const auto of = [&](const std::vector<double>& x) {
      return std::vector<double>(x.begin() + row * cols, x.begin() + (row + 1) * cols);
    };
    const double of_row = reference::sqnr_db(of(want), of(got));
    db.push_back(std::isnan(of_row) ? -std::numeric_limits<double>::infinity() : of_row);
  }
  std::sort(db.begin(), db.end());
  return {{"quantile_1", db[db.size() / 100]}, {"median", db[db.size() / 2]}};
}

void add_bars(io::Record& record, const std::string& reference, const Gradients& want,
              const Gradients& got, const Gradients& by_recipe,
              const std::map<std::string, Listed>& listed, const Work& work) {
  const auto found = listed.find(work.dataset);
  const bool lists = found != listed.end() && work.seqlen_k == kListedKeys;
  const auto one = [&](const char* name, std::vector<double> Gradients::*x, double Listed::*db) {
    record.sqnr.push_back(
        sqnr_bar(std::string(name) + "_" + reference, {want.*x, got.*x, by_recipe.*x},
                 lists ? std::optional(found->second.*db) : std::nullopt, kSlackDb));
  };
  one("dq", &Gradients::dq, &Listed::dq);
  one("dk", &Gradients::dk, &Listed::dk);
  one("dv", &Gradients::dv, &Listed::dv);
}

/// Bars of single rows and keys.
void add_row_bars(io::Record& record, const std::string& dataset) {
  const auto one = [&](const char* rows, const char* quantile, double least) {
    const double db = record.extra[rows][quantile].get<double>();
    record.sqnr.push_back(
        {std::string(rows) + "_" + quantile, db, least, db >= least ? "pass" : "fail"});
  };
  if (dataset == "normal") {
    one("dq_rows", "quantile_1", 28.0);
    one("dk_keys", "quantile_1", 27.0);
  }
  if (dataset == "sink") one("dk_keys", "median", 30.0);
}

io::Record record_of(const Work& work, std::int64_t dim, const Form& form, const Gradients& got,
                     const Wanted& want, const Gradients& usual_recipe) {
  io::Record record;
  record.routine = "attention_backward_sqnr";
  record.impl = form.half_scores ? "mxfa mxfp8 (half scores)" : "mxfa mxfp8";
  record.shape = one_head(work.seqlen_q, work.seqlen_k, dim);
  record.shape.jagged = form.jagged;
  record.variant.qk = "mxfp8";
  record.variant.scores = form.half_scores ? "fp16" : "fp32";
  record.variant.dq_accum = form.dq_accum == DType::kF16 ? "fp16" : "fp32";
  add_bars(record, "kern", want.kern, got, want.recipe, kListedKern, work);
  add_bars(record, "f64", want.f64, got, usual_recipe, kListedF64, work);
  record.extra["dataset"] = work.dataset;
  record.extra["dq_rows"] = row_quantiles(want.kern.dq, got.dq, dim);
  record.extra["dk_keys"] = row_quantiles(want.kern.dk, got.dk, dim);
  add_row_bars(record, work.dataset);
  return record;
}

void print(const io::Record& record) {
  fmt::print("{:<9} {:5} x {:5} {} {} {}", record.extra["dataset"].get<std::string>(),
             *record.shape.seqlen_q, *record.shape.seqlen_k,
             *record.shape.jagged ? "jagged" : "dense", record.impl, record.variant.dq_accum);
  for (const io::SqnrRecord& one : record.sqnr) {
    fmt::print("  {} {:.1f}{}", one.tensor, one.db, one.verdict == "pass" ? "" : " FAIL");
    if (!one.fixed_db || one.fixed_verdict == "pass") continue;
    fmt::print(" (fixed bar {:.1f}: {})", *one.fixed_db, one.fixed_verdict);
  }
  fmt::print("  rows {:.1f} keys {:.1f}/{:.1f}\n",
             record.extra["dq_rows"]["quantile_1"].get<double>(),
             record.extra["dk_keys"]["quantile_1"].get<double>(),
             record.extra["dk_keys"]["median"].get<double>());
}

int run(int argc, char** argv) {
  CLI::App app("Accuracy of attention backward on a Hopper GPU");
  std::string json, commit;
  DeviceOptions where;
  std::int64_t most_keys = 16384;
  app.add_option("--json", json, "write result records to this file");
  app.add_option("--commit", commit, "the commit that was built, for the records");
  app.add_option("--most-keys", most_keys, "1024 to 16384");
  app.add_option("--arch", where.emulated_arch, "the emulator as such a GPU");
  CLI11_PARSE(app, argc, argv);
  const Device device(where);
  const std::vector<Work> works = all_works(most_keys);
  std::vector<io::Record> records(std::size(kForms) * works.size());
  std::mutex device_mutex;
  core::parallel_for(std::ssize(works), [&](std::int64_t i) {
    const Work& work = works[static_cast<std::size_t>(i)];
    const HeadInputs inputs = inputs_of(work);
    const Wanted wanted[] = {wanted_of(inputs, false), wanted_of(inputs, true)};
    const std::lock_guard lock(device_mutex);
    for (std::size_t k = 0; k < std::size(kForms); ++k) {
      const Form& form = kForms[k];
      io::Record& record = records[std::size(kForms) * i + k];
      record = record_of(work, inputs.q.cols, form, run_on(device, inputs, form),
                         wanted[form.half_scores], wanted[0].recipe);
      record.device = device.name();
      record.commit = commit;
      record.date = io::utc_date();
      print(record);
    }
  });
  if (!json.empty()) io::write_records(json, records);
  return std::ranges::any_of(records, [](const io::Record& record) {
    return std::ranges::any_of(record.sqnr, [](const auto& x) { return x.verdict != "pass"; });
  });
}

}  // namespace
}  // namespace mxfa::bench

int main(int argc, char** argv) {
  try {
    return mxfa::bench::run(argc, argv);
  } catch (const mxfa::Error& error) {
    mxfa::core::print_error("backward_sqnr: {}\n", error.what());
    return error.kind() == mxfa::ErrorKind::kDevice ? 3 : 2;
  }
}
