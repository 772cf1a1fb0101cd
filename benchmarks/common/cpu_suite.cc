#include "common/cpu_suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "common/cpu_attention.h"
#include "common/operands.h"
#include "core/check.h"
#include "core/parallel.h"
#include "cpu/gemm.h"
#include "cpu/rmsnorm_quantize.h"
#include "mx/scale_layout.h"
#include "mxfa/quantize.h"

namespace mxfa::bench {
namespace {

io::Record named(std::string routine, std::string impl) {
  io::Record record;
  record.routine = std::move(routine);
  record.impl = std::move(impl);
  return record;
}

bool wanted(const CpuOptions& options, std::string_view routine) {
  return options.routines.empty() || std::find(options.routines.begin(), options.routines.end(),
                                               routine) != options.routines.end();
}

/// Forward and backward of one case in each precision asked for, in turns.
std::vector<Benchmark> attention_benchmarks(const AttentionCase& c, const CpuOptions& options) {
  std::vector<Benchmark> benchmarks;
  const auto add = [&](attention::Precision precision, const char* impl) {
    attention::Options call{.precision = precision, .recipe = options.recipe};
    const auto run = std::make_shared<CpuAttention>(c, call);
    run->forward();  // the backward reads its outputs
    run->backward();
    io::Record record = named("attention_forward", impl);
    record.shape = c.record();
    record.variant.deterministic = true;
    if (precision == attention::Precision::kMxfp8) {
      record.variant.block_shape = block_shape_name(attention::operand_shape(call));
    }
    const auto measured = std::make_shared<std::vector<std::pair<std::string, double>>>();
    const auto of = [run, measured](const std::vector<std::string>& tensors) {
      if (measured->empty()) *measured = run->accuracy();
      auto all = *measured;
      std::erase_if(all, [&](const auto& entry) {
        return std::find(tensors.begin(), tensors.end(), entry.first) == tensors.end();
      });
      return all;
    };
    if (wanted(options, "attention_forward")) {
      benchmarks.push_back({.label = c.name,
                            .record = record,
                            .flops = c.forward_flops(),
                            .bytes = 0,
                            .body = [run] { run->forward(); },
                            .accuracy = [of] { return of({"o"}); }});
    }
    if (wanted(options, "attention_backward")) {
      record.routine = "attention_backward";
      record.variant.dq_accum = "fp32";
      benchmarks.push_back({.label = c.name,
                            .record = record,
                            .flops = c.backward_flops(),
                            .bytes = 0,
                            .body = [run] { run->backward(); },
                            .accuracy =
                                [of] {
                                  return of({"dq", "dk", "dv"});
                                }});
    }
  };
  if (options.mxfp8) add(attention::Precision::kMxfp8, "mxfa mxfp8");
  if (options.bf16) add(attention::Precision::kBf16, "mxfa bf16");
  return benchmarks;
}

Benchmark quantize_benchmark(std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
  struct State {
    Values<std::uint16_t> x;
    Values<std::uint8_t> payload, scales;
    TensorView x_view, payload_view, scales_view;
  };
  const auto s = std::make_shared<State>();
  const std::vector<std::int64_t> shape{tokens, heads, dim};
  s->x = random_bf16(tokens * heads * dim, 1);
  s->payload.resize(s->x.size());
  s->scales_view = make_tensor(nullptr, DType::kE8M0, scale_shape(shape, {}));
  s->scales.resize(static_cast<std::size_t>(s->scales_view.num_elements()));
  s->scales_view.data = s->scales.data();
  s->x_view = make_tensor(s->x.data(), DType::kBF16, shape);
  s->payload_view = make_tensor(s->payload.data(), DType::kE4M3, shape);
  Benchmark benchmark{.label = fmt::format("{}x{}x{}", tokens, heads, dim),
                      .record = named("quantize", "mxfa mxfp8"),
                      .flops = 0,
                      .bytes = double(s->x.size()) * 3 + double(s->scales.size()),
                      .body = [s] { quantize(s->x_view, s->payload_view, s->scales_view, {}); }};
  benchmark.record.extra = {{"tokens", tokens}, {"num_heads", heads}, {"head_dim", dim}};
  return benchmark;
}

Benchmark norm_benchmark(std::int64_t rows, std::int64_t dim) {
  struct State {
    Values<std::uint16_t> x, weight;
    Values<std::uint8_t> codes, scales_dim, scales_rows;
    Values<float> rstd;
  };
  const auto s = std::make_shared<State>();
  s->x = random_bf16(rows * dim, 1);
  s->weight = random_bf16(dim, 2);
  s->codes.resize(s->x.size());
  s->scales_dim.resize(std::size_t(mx::TiledScaleLayout{rows, dim / 32}.size_bytes()));
  s->scales_rows.resize(std::size_t(mx::TiledScaleLayout{dim, (rows + 31) / 32}.size_bytes()));
  s->rstd.resize(std::size_t(rows));
  Benchmark benchmark{
      .label = fmt::format("{}x{}", rows, dim),
      .record = named("rmsnorm_quantize", "mxfa mxfp8"),
      .flops = 0,
      .bytes = double(s->x.size()) * 3 + double(s->scales_dim.size() + s->scales_rows.size()),
      .body = [s] {
        cpu::rmsnorm_quantize(s->x, s->weight, 1e-6f,
                              {.codes = s->codes,
                               .scales_dim = s->scales_dim,
                               .scales_rows = s->scales_rows,
                               .rstd = s->rstd});
      }};
  benchmark.record.extra = {{"rows", rows}, {"dim", dim}};
  return benchmark;
}

Benchmark gemm_benchmark(std::int64_t tokens, std::int64_t k, std::int64_t n) {
  struct State {
    Values<std::uint16_t> x, w;
    Values<std::uint8_t> payload, scales, tiled[2];
  };
  const auto s = std::make_shared<State>();
  s->x = random_bf16(tokens * k, 1);
  s->w = random_bf16(n * k, 2);
  s->payload.resize(std::size_t(tokens * n));
  const std::vector<std::int64_t> shape{tokens, n / 128, 128};
  const auto view = [&](Values<std::uint8_t>& bytes, const QuantizeOptions& options) {
    TensorView scales = make_tensor(nullptr, DType::kE8M0, scale_shape(shape, options));
    bytes.resize(std::size_t(scales.num_elements()));
    scales.data = bytes.data();
    return scales;
  };
  const cpu::GemmQuantizeOutputs outputs{
      .payload = make_tensor(s->payload.data(), DType::kE4M3, shape),
      .scales = view(s->scales, {}),
      .tiled_dim = view(s->tiled[0], {.layout = ScaleLayout::kTiled128x4}),
      .tiled_tokens = view(s->tiled[1],
                           {.layout = ScaleLayout::kTiled128x4, .scale_axis = ScaleAxis::kTokens})};
  Benchmark benchmark{.label = fmt::format("{}x{}x{}", tokens, n, k),
                      .record = named("gemm_quantize", "mxfa mxfp8"),
                      .flops = 2.0 * double(tokens) * double(n) * double(k),
                      .bytes = 0,
                      .body = [=] {
                        cpu::gemm_quantize({make_tensor(s->x.data(), DType::kBF16, {tokens, k})},
                                           {make_tensor(s->w.data(), DType::kBF16, {n, k})},
                                           {.num_heads = n / 128}, outputs);
                      }};
  benchmark.record.extra = {{"m", tokens}, {"n", n}, {"k", k}};
  return benchmark;
}

void check_routines(const CpuOptions& options) {
  for (const std::string& routine : options.routines) {
    core::expect(std::find(std::begin(kCpuRoutines), std::end(kCpuRoutines), routine) !=
                     std::end(kCpuRoutines),
                 "routines", fmt::format("of {}", fmt::join(kCpuRoutines, ", ")),
                 fmt::format("'{}'", routine));
  }
}

}  // namespace

std::vector<Group> cpu_groups(const CpuOptions& options) {
  check_routines(options);
  std::vector<Group> groups;
  for (const AttentionCase& c : preset(options.preset, Scale::kCpu)) {
    if (!wanted(options, "attention_forward") && !wanted(options, "attention_backward")) continue;
    groups.push_back({c.name, [=] { return attention_benchmarks(c, options); }});
  }
  if (!options.mxfp8) return groups;
  const auto add = [&](const char* routine, auto make) {
    if (wanted(options, routine)) groups.push_back({routine, make});
  };
  add("quantize", [] {
    return std::vector{quantize_benchmark(65536, 4, 128), quantize_benchmark(16384, 8, 64)};
  });
  add("rmsnorm_quantize", [] {
    return std::vector{norm_benchmark(65536, 512), norm_benchmark(8192, 4096)};
  });
  add("gemm_quantize", [] {
    return std::vector{gemm_benchmark(16384, 384, 384), gemm_benchmark(4096, 2048, 2048)};
  });
  return groups;
}

io::Record finished(const Benchmark& benchmark, const Samples& samples,
                    const CpuCeilings& ceilings) {
  io::Record record = benchmark.record;
  record.timing = timing_record(samples);
  const double ms = record.timing->ms_median;
  if (benchmark.flops > 0) {
    record.tflops = benchmark.flops / ms * 1e-9;
    const bool amx =
        ceilings.bf16_matrix.has_value() && ceilings.bf16_matrix->name == "amx_bf16_tflops";
    record.ceiling =
        amx ? io::CeilingRecord{ceilings.bf16_matrix->name, ceilings.bf16_matrix->tflops}
            : io::CeilingRecord{"fp32_fma_tflops", ceilings.fp32_fma_tflops};
    record.fraction_of_ceiling = *record.tflops / record.ceiling->value;
  } else {
    record.gbps = benchmark.bytes / ms * 1e-6;
    record.ceiling = io::CeilingRecord{"copy_gbps", ceilings.copy_gbps};
    record.fraction_of_ceiling = *record.gbps / record.ceiling->value;
  }
  if (benchmark.accuracy) record.sqnr_db = benchmark.accuracy();
  record.extra["threads"] = core::num_threads();
  record.extra["cpu_ms_per_thread"] = median(samples.cpu_ms) / core::num_threads();
  return record;
}

std::vector<io::Record> ceiling_records(const CpuCeilings& ceilings) {
  std::vector<io::Record> records;
  const auto add = [&](const std::string& impl) -> io::Record& {
    records.push_back(named("ceiling", impl));
    records.back().extra = {{"threads", core::num_threads()}};
    return records.back();
  };
  add("fp32_fma").tflops = ceilings.fp32_fma_tflops;
  if (ceilings.bf16_matrix) {
    std::string name = ceilings.bf16_matrix->name;
    name.resize(name.size() - std::string_view("_tflops").size());
    add(name).tflops = ceilings.bf16_matrix->tflops;
  }
  add("copy").gbps = ceilings.copy_gbps;
  return records;
}

}  // namespace mxfa::bench
