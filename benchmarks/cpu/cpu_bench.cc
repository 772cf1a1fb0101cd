#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "cpu/gemm.h"
#include "cpu/kernels.h"
#include "cpu/rmsnorm_quantize.h"
#include "cpu/units.h"
#include "io/json_records.h"
#include "mx/scale_layout.h"
#include "mxfa/attention.h"

/// Speed of the CPU backend on all cores against this machine's own ceilings, measured in the same
/// run. Each repetition is one call; the best one counts least of what else the machine does.
/// Beside wall time stands the CPU time of the process, divided by the threads: on a busy machine
/// it is the fairer of the two. cpu_bench [--json FILE] [--threads N] [Google Benchmark's options]
namespace mxfa::bench {
namespace {

constexpr int kRepetitions = 15;

/// Pseudo-random numbers with about unit variance; a benchmark needs no better ones.
std::vector<std::uint16_t> random_bf16(std::int64_t count, std::uint32_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint32_t state = seed * 2654435761u + 1u;
  for (float& value : values) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      state = state * 1664525u + 1013904223u;
      sum += static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    }
    value = sum * 1.7f;
  }
  std::vector<std::uint16_t> codes(values.size());
  cpu::kernels().round_bf16(values.data(), codes.data(), count);
  return codes;
}

struct Result {
  io::Record record;
  double flops = 0;
  double bytes = 0;
  std::vector<double> ms;
  double cpu_ms = 1e300;  ///< best, divided by the threads
};

io::Record named(const std::string& routine, const std::string& impl) {
  io::Record record;
  record.routine = routine;
  record.impl = impl;
  return record;
}

class Reporter : public benchmark::ConsoleReporter {
 public:
  explicit Reporter(std::map<std::string, Result>& results) : results_(results) {}
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const auto found = results_.find(run.run_name.function_name);
      if (found == results_.end() || run.run_type != Run::RT_Iteration) continue;
      found->second.ms.push_back(run.GetAdjustedRealTime());
      found->second.cpu_ms =
          std::min(found->second.cpu_ms, run.GetAdjustedCPUTime() / core::num_threads());
    }
    ConsoleReporter::ReportRuns(runs);
  }

 private:
  std::map<std::string, Result>& results_;
};

class Suite {
 public:
  void add(const std::string& name, Result result, const std::function<void()>& body) {
    results_[name] = std::move(result);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [body](benchmark::State& state) {
                                   for (auto _ : state) body();
                                 })
        ->Iterations(1)
        ->Repetitions(kRepetitions)
        ->UseRealTime()
        ->MeasureProcessCPUTime()
        ->Unit(benchmark::kMillisecond);
  }

  void run() {
    Reporter reporter(results_);
    benchmark::RunSpecifiedBenchmarks(&reporter);
  }

  /// Figures of the best repetition; "ceiling/..." results are what the others are held to.
  std::vector<io::Record> records() {
    std::vector<io::Record> records;
    for (auto& [name, result] : results_) {
      if (result.ms.empty()) continue;
      std::ranges::sort(result.ms);
      const double best = result.ms.front();
      io::Record& record = result.record;
      record.timing = io::TimingRecord{result.ms[result.ms.size() / 2], best, result.ms.back(),
                                       std::ssize(result.ms)};
      if (result.flops > 0) record.tflops = result.flops / best * 1e-9;
      if (result.bytes > 0) record.gbps = result.bytes / best * 1e-6;
      set_ceiling(record);
      record.device = io::cpu_name();
      record.date = io::utc_date();
      print(name, record, result);
      records.push_back(record);
    }
    return records;
  }

 private:
  static void print(const std::string& name, const io::Record& record, const Result& result) {
    std::printf("%-44s best %9.3f ms (cpu %9.3f)", name.c_str(), record.timing->ms_min,
                result.cpu_ms);
    if (result.flops > 0) std::printf("  cpu %6.1f GFLOP/s", result.flops / result.cpu_ms * 1e-6);
    if (result.bytes > 0) std::printf("  cpu %6.2f GB/s", result.bytes / result.cpu_ms * 1e-6);
    if (record.tflops) std::printf("  %7.1f GFLOP/s", *record.tflops * 1e3);
    if (record.gbps) std::printf("  %7.2f GB/s", *record.gbps);
    if (record.fraction_of_ceiling) {
      std::printf("  %.2f of %s", *record.fraction_of_ceiling, record.ceiling->name.c_str());
    }
    for (const auto& [tensor, db] : record.sqnr_db) std::printf("  %s %.2f dB", tensor.c_str(), db);
    std::printf("\n");
  }
  double best_of(const std::string& name) const {
    const auto found = results_.find(name);
    if (found == results_.end() || found->second.ms.empty()) return 0;
    return *std::ranges::min_element(found->second.ms);
  }
  void set_ceiling(io::Record& record) const {
    const bool by_bytes = !record.tflops.has_value();
    const std::string name = by_bytes ? "ceiling/copy" : "ceiling/fp32_fma";
    const double ms = best_of(name);
    if (ms == 0 || record.routine == "ceiling") return;
    const Result& ceiling = results_.at(name);
    if (by_bytes) {
      record.ceiling = io::CeilingRecord{"copy_gbps", ceiling.bytes / ms * 1e-6};
      record.fraction_of_ceiling = record.gbps.value_or(0) / record.ceiling->value;
    } else {
      record.ceiling = io::CeilingRecord{"fp32_fma_tflops", ceiling.flops / ms * 1e-9};
      record.fraction_of_ceiling = *record.tflops / record.ceiling->value;
    }
  }
  std::map<std::string, Result> results_;
};

Suite& suite() {
  static Suite instance;
  return instance;
}

/// Independent chains of FP32 multiply-adds: the best that the FP32 units can do.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("arch=x86-64-v4", "avx2,fma", "default"),
               optimize("fp-contract=fast")))
#endif
float fma_chains(std::int64_t steps) {
  constexpr int kLanes = 256;
  float sums[kLanes];
  for (int i = 0; i < kLanes; ++i) sums[i] = static_cast<float>(i);
  for (std::int64_t step = 0; step < steps; ++step) {
    for (int i = 0; i < kLanes; ++i) sums[i] = sums[i] * 0.999f + 0.5f;
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

void add_ceilings() {
  constexpr std::int64_t kSteps = 100000;
  const int threads = core::num_threads();
  Result fma;
  fma.record = named("ceiling", "fp32 multiply-add");
  fma.flops = 2.0 * 256 * kSteps * threads * 4;
  suite().add("ceiling/fp32_fma", fma, [threads] {
    core::parallel_for(threads * 4,
                       [](std::int64_t) { benchmark::DoNotOptimize(fma_chains(kSteps)); });
  });
  constexpr std::int64_t kBytes = std::int64_t{1} << 28;
  static std::vector<char> from(kBytes, 1), to(kBytes, 2);
  Result copy;
  copy.record = named("ceiling", "copy");
  copy.bytes = 2.0 * kBytes;
  suite().add("ceiling/copy", copy, [] {
    core::parallel_for(64, [](std::int64_t i) {
      std::memcpy(to.data() + i * (kBytes / 64), from.data() + i * (kBytes / 64), kBytes / 64);
    });
  });
}

struct AttentionCase {
  std::int64_t batch, heads, seqlen, dim;
  bool causal;
};

/// BF16 in and out; MXFP8 operands quantized in advance, as producers make them.
class Attention {
 public:
  Attention(const AttentionCase& c, const attention::Options& options)
      : options_(options), shape_{c.batch * c.seqlen, c.heads, c.dim} {
    options_.causal = c.causal;
    const std::int64_t rows = c.batch * c.seqlen;
    const std::int64_t elems = rows * c.heads * c.dim;
    for (std::int64_t s = 0; s <= c.batch; ++s) {
      cu_seqlens_.push_back(static_cast<std::int32_t>(s * c.seqlen));
    }
    for (std::uint32_t i = 0; i < 4; ++i) values_[i] = random_bf16(elems, i + 1);
    for (auto* out : {&o, &dq, &dk, &dv}) out->resize(static_cast<std::size_t>(elems));
    for (auto* out : {&lse_, &row_max_}) out->resize(static_cast<std::size_t>(rows * c.heads));
    for (int i = 0; i < 4; ++i) operands_[i] = operand(i);
  }

  void forward() {
    attention::forward({.q = operands_[0],
                        .k = operands_[1],
                        .v = operands_[2],
                        .cu_seqlens_q = offsets(),
                        .cu_seqlens_k = offsets(),
                        .o = output(o),
                        .lse = rows(lse_),
                        .row_max = rows(row_max_)},
                       options_);
  }
  void backward() {
    attention::backward({.q = operands_[0],
                         .k = operands_[1],
                         .v = operands_[2],
                         .cu_seqlens_q = offsets(),
                         .cu_seqlens_k = offsets(),
                         .o = output(o),
                         .lse = rows(lse_),
                         .row_max = rows(row_max_),
                         .dout = operands_[3],
                         .dq = output(dq),
                         .dk = output(dk),
                         .dv = output(dv)},
                        options_);
  }

  std::vector<std::uint16_t> o, dq, dk, dv;

 private:
  TensorView offsets() {
    return make_tensor(cu_seqlens_.data(), DType::kI32, {std::ssize(cu_seqlens_)});
  }
  TensorView rows(std::vector<float>& values) {
    return make_tensor(values.data(), DType::kF32, {shape_[1], shape_[0]});
  }
  attention::Tensor output(std::vector<std::uint16_t>& values) {
    return {make_tensor(values.data(), DType::kBF16, shape_), {}};
  }
  attention::Tensor operand(int index) {
    const TensorView values = make_tensor(values_[index].data(), DType::kBF16, shape_);
    if (options_.precision == attention::Precision::kBf16) return {values, {}};
    const BlockShape block =
        index == 3 ? attention::dout_shape(options_) : attention::operand_shape(options_);
    const QuantizeOptions quantize_options{.block_shape = block, .cu_seqlens = offsets()};
    payload_[index].resize(values_[index].size());
    const TensorView payload = make_tensor(payload_[index].data(), DType::kE4M3, shape_);
    TensorView scales = make_tensor(nullptr, DType::kE8M0, scale_shape(shape_, quantize_options));
    scales_[index].resize(static_cast<std::size_t>(scales.num_elements()));
    scales.data = scales_[index].data();
    quantize(values, payload, scales, quantize_options);
    return {payload, scales};
  }

  attention::Options options_;
  std::vector<std::int64_t> shape_;
  std::vector<std::int32_t> cu_seqlens_;
  std::vector<std::uint16_t> values_[4];
  std::vector<std::uint8_t> payload_[4], scales_[4];
  attention::Tensor operands_[4];
  std::vector<float> lse_, row_max_;
};

double sqnr_db(const std::vector<std::uint16_t>& got, const std::vector<std::uint16_t>& want) {
  const auto value = [](std::uint16_t code) {
    const std::uint32_t bits = static_cast<std::uint32_t>(code) << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return static_cast<double>(result);
  };
  double signal = 0, noise = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = value(want[i]) - value(got[i]);
    signal += value(want[i]) * value(want[i]);
    noise += error * error;
  }
  return 10 * std::log10(signal / noise);
}

void add_attention(const AttentionCase& c, const std::string& name,
                   const attention::Options& options) {
  const bool bf16 = options.precision == attention::Precision::kBf16;
  const std::string impl = bf16 ? "mxfa bf16" : "mxfa mxfp8 " + name;
  auto* const run = new Attention(c, options);  // lives as long as the registered benchmarks
  run->forward();
  run->backward();
  attention::Options baseline_options;
  baseline_options.precision = attention::Precision::kBf16;
  Attention baseline(c, baseline_options);
  baseline.forward();
  baseline.backward();
  const double scores = double(c.batch) * double(c.heads) * double(c.seqlen) * double(c.seqlen) *
                        (c.causal ? 0.5 : 1.0);
  Result result;
  result.record = named("attention_forward", impl);
  result.record.shape = {.batch = c.batch,
                         .num_heads = c.heads,
                         .num_heads_kv = c.heads,
                         .seqlen_q = c.seqlen,
                         .seqlen_k = c.seqlen,
                         .total_q = c.batch * c.seqlen,
                         .total_k = c.batch * c.seqlen,
                         .head_dim = c.dim,
                         .causal = c.causal,
                         .jagged = false};
  result.record.variant.deterministic = true;
  if (!bf16) result.record.sqnr_db = {{"o", sqnr_db(run->o, baseline.o)}};
  result.flops = 4 * scores * double(c.dim);
  const std::string suffix = "/" + name + "/b" + std::to_string(c.batch) + "h" +
                             std::to_string(c.heads) + "n" + std::to_string(c.seqlen) + "d" +
                             std::to_string(c.dim) + (c.causal ? "causal" : "");
  suite().add("attention_forward" + suffix, result, [run] { run->forward(); });
  result.record.routine = "attention_backward";
  result.record.variant.dq_accum = "fp32";
  if (!bf16) {
    result.record.sqnr_db = {{"dq", sqnr_db(run->dq, baseline.dq)},
                             {"dk", sqnr_db(run->dk, baseline.dk)},
                             {"dv", sqnr_db(run->dv, baseline.dv)}};
  }
  result.flops = 10 * scores * double(c.dim);
  suite().add("attention_backward" + suffix, result, [run] { run->backward(); });
}

void add_norm(std::int64_t rows, std::int64_t dim) {
  struct State {
    std::vector<std::uint16_t> x, weight;
    std::vector<std::uint8_t> codes, scales_dim, scales_rows;
    std::vector<float> rstd;
  };
  auto* const s = new State;
  s->x = random_bf16(rows * dim, 1);
  s->weight = random_bf16(dim, 2);
  s->codes.resize(s->x.size());
  s->scales_dim.resize(std::size_t(mx::TiledScaleLayout{rows, dim / 32}.size_bytes()));
  s->scales_rows.resize(std::size_t(mx::TiledScaleLayout{dim, (rows + 31) / 32}.size_bytes()));
  s->rstd.resize(std::size_t(rows));
  Result result;
  result.record = named("rmsnorm_quantize", "mxfa mxfp8");
  result.record.extra = {{"rows", rows}, {"dim", dim}};
  result.bytes = double(s->x.size()) * 3 + double(s->scales_dim.size() + s->scales_rows.size());
  suite().add("rmsnorm_quantize/" + std::to_string(rows) + "x" + std::to_string(dim), result, [s] {
    cpu::rmsnorm_quantize(s->x, s->weight, 1e-6f,
                          {.codes = s->codes,
                           .scales_dim = s->scales_dim,
                           .scales_rows = s->scales_rows,
                           .rstd = s->rstd});
  });
}

void add_gemm(std::int64_t tokens, std::int64_t k, std::int64_t n) {
  struct State {
    std::vector<std::uint16_t> x, w;
    std::vector<std::uint8_t> payload, scales, tiled[2];
  };
  auto* const s = new State;
  s->x = random_bf16(tokens * k, 1);
  s->w = random_bf16(n * k, 2);
  s->payload.resize(std::size_t(tokens * n));
  const std::vector<std::int64_t> shape{tokens, n / 128, 128};
  const auto view = [&](std::vector<std::uint8_t>& bytes, const QuantizeOptions& options) {
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
  Result result;
  result.record = named("gemm_quantize", "mxfa mxfp8");
  result.record.extra = {{"m", tokens}, {"n", n}, {"k", k}};
  result.flops = 2.0 * double(tokens) * double(n) * double(k);
  suite().add(
      "gemm_quantize/" + std::to_string(tokens) + "x" + std::to_string(n) + "x" + std::to_string(k),
      result, [=] {
        cpu::gemm_quantize({make_tensor(s->x.data(), DType::kBF16, {tokens, k})},
                           {make_tensor(s->w.data(), DType::kBF16, {n, k})}, {.num_heads = n / 128},
                           outputs);
      });
}

void add_all() {
  add_ceilings();
  attention::Options blackwell, hopper, bf16;
  hopper.recipe = attention::Recipe::kHopper;
  bf16.precision = attention::Precision::kBf16;
  const AttentionCase plain{1, 8, 2048, 128, false};
  add_attention(plain, "blackwell", blackwell);
  add_attention(plain, "hopper", hopper);
  add_attention(plain, "bf16", bf16);
  add_norm(65536, 512);
  add_norm(8192, 4096);
  add_gemm(16384, 384, 384);
  add_gemm(4096, 2048, 2048);
}

}  // namespace
}  // namespace mxfa::bench

int main(int argc, char** argv) {
  std::string json;
  std::vector<char*> rest{argv[0]};
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else if (std::string(argv[i]) == "--threads" && i + 1 < argc) {
      mxfa::core::set_num_threads(std::atoi(argv[++i]));
    } else {
      rest.push_back(argv[i]);
    }
  }
  int count = static_cast<int>(rest.size());
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 2;
  mxfa::bench::add_all();
  mxfa::bench::suite().run();
  const auto records = mxfa::bench::suite().records();
  if (!json.empty()) mxfa::io::write_records(json, records);
  return 0;
}
