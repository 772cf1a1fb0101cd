#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "exec/kernel_table.h"
#include "mxemu/emulator.h"

/// Speed of the PTX emulator on one core: thread instructions a second of CPU time of kernels that
/// nvcc compiled, without and with the hazard checker, and how long it takes to load texts of
/// thousands of lines. The rates are counted by CPU time, so that a busy machine does not change
/// them. `--isa default|avx2|avx512`, the first word where it is given, is the instruction set of
/// the lanes: the best one that the machine has, or one that other machines have.
namespace mxfa::bench {
namespace {

using emu::Arguments;
using emu::GlobalMemory;
using emu::LaunchConfig;
using emu::LaunchStats;
using emu::Module;

std::string kernel_text(const std::string& name, const std::string& arch) {
  const std::string path = std::string(MXEMU_PTX_DIR) + "/" + name + "." + arch + ".ptx";
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (text.str().empty()) throw std::runtime_error("cannot read " + path);
  return text.str();
}

template <class T>
T* make_buffer(GlobalMemory& memory, std::size_t count, const std::string& name) {
  return reinterpret_cast<T*>(memory.allocate(count * sizeof(T), name));
}

float* random_floats(GlobalMemory& memory, std::size_t count, const std::string& name) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  auto* values = make_buffer<float>(memory, count, name);
  for (std::size_t i = 0; i < count; ++i) values[i] = normal(rng);
  memory.mark_initialised(values, count * sizeof(float));
  return values;
}

/// Launches again and again, with the hazard checker on where the benchmark's argument is 1; counts
/// instructions.
void run(benchmark::State& state, const Module& module, const std::string& entry,
         const LaunchConfig& config, const Arguments& arguments) {
  double lanes = 0.0;
  double warps = 0.0;
  for (auto _ : state) {
    emu::CheckReport report;
    emu::LaunchOptions options;
    if (state.range(0) != 0) options.check = &report;
    const LaunchStats stats = module.launch(entry, config, arguments, options);
    if (!report.clean()) state.SkipWithError(report.hazards[0].text().c_str());
    lanes += static_cast<double>(stats.thread_instructions);
    warps += static_cast<double>(stats.warp_instructions);
  }
  state.counters["thread_inst/s"] = benchmark::Counter(lanes, benchmark::Counter::kIsRate);
  state.counters["warp_inst/s"] = benchmark::Counter(warps, benchmark::Counter::kIsRate);
}

void vector_add(benchmark::State& state, const std::string& arch) {
  GlobalMemory memory;
  const Module module(kernel_text("vector_add", arch), "vector_add.ptx", memory);
  const std::int32_t n = 1 << 18;
  const auto arguments = Arguments()
                             .add(random_floats(memory, n, "a"))
                             .add(random_floats(memory, n, "b"))
                             .add(make_buffer<float>(memory, n, "c"))
                             .add(n);
  run(state, module, "vector_add", {{n / 256, 1, 1}, {256, 1, 1}, {}, 0}, arguments);
}

void divergence(benchmark::State& state, const std::string& arch) {
  GlobalMemory memory;
  const Module module(kernel_text("divergence", arch), "divergence.ptx", memory);
  const std::int32_t n = 1 << 14;
  auto* in = make_buffer<std::uint32_t>(memory, n, "in");
  std::mt19937 rng(5);
  for (std::int32_t i = 0; i < n; ++i) in[i] = rng();
  memory.mark_initialised(in, n * sizeof(std::uint32_t));
  const auto arguments =
      Arguments().add(in).add(make_buffer<std::uint32_t>(memory, n, "out")).add(n);
  run(state, module, "divergence", {{n / 128, 1, 1}, {128, 1, 1}, {}, 0}, arguments);
}

void rmsnorm_quantize(benchmark::State& state, const std::string& arch) {
  GlobalMemory memory;
  const Module module(kernel_text("rmsnorm_quantize", arch), "rmsnorm_quantize.ptx", memory);
  const std::int32_t rows = 512;
  const std::int32_t cols = 1024;
  const auto arguments = Arguments()
                             .add(random_floats(memory, std::size_t{rows} * cols, "x"))
                             .add(random_floats(memory, cols, "weight"))
                             .add(make_buffer<std::uint8_t>(memory, rows * cols, "payload"))
                             .add(make_buffer<std::uint8_t>(memory, rows * cols / 32, "scales"))
                             .add(rows)
                             .add(cols)
                             .add(1e-6f);
  run(state, module, "rmsnorm_quantize", {{rows / 4, 1, 1}, {128, 1, 1}, {}, 0}, arguments);
}

void softmax_row(benchmark::State& state, const std::string& arch) {
  GlobalMemory memory;
  const Module module(kernel_text("softmax_row", arch), "softmax_row.ptx", memory);
  const std::uint32_t rows = 2048;
  const auto arguments = Arguments()
                             .add(random_floats(memory, rows * 128, "s"))
                             .add(make_buffer<float>(memory, rows * 128, "p"))
                             .add(make_buffer<float>(memory, rows, "lse"))
                             .add(0.25f);
  run(state, module, "softmax_row", {{rows / 32, 1, 1}, {32, 1, 1}, {}, 0}, arguments);
}

void block_reduce(benchmark::State& state, const std::string& arch) {
  GlobalMemory memory;
  const Module module(kernel_text("block_reduce", arch), "block_reduce.ptx", memory);
  const std::int32_t n = 1 << 18;
  const auto arguments = Arguments()
                             .add(random_floats(memory, n, "x"))
                             .add(make_buffer<float>(memory, 64, "out"))
                             .add(n);
  run(state, module, "block_reduce", {{64, 1, 1}, {256, 1, 1}, {}, 0}, arguments);
}

/// One text of many entries: each kernel, renamed, until there are enough lines.
std::string long_text(const std::string& arch, std::size_t lines, std::vector<std::string>& names) {
  const std::string kernels[] = {"softmax_row", "rmsnorm_quantize", "block_reduce", "divergence"};
  std::string all = ".version 9.0\n.target " + arch + "\n.address_size 64\n";
  std::size_t count = 3;
  for (std::size_t copy = 0; count < lines; ++copy) {
    const std::string& name = kernels[copy % std::size(kernels)];
    const std::string text = kernel_text(name, arch);
    std::string body = text.substr(text.find(".visible .entry"));
    names.push_back(name + "_" + std::to_string(copy));
    for (std::size_t at = 0; (at = body.find(name, at)) != std::string::npos;) {
      body.replace(at, name.size(), names.back());
      at += names.back().size();
    }
    for (const char c : body) count += c == '\n' ? 1 : 0;
    all += body;
  }
  return all;
}

void parse(benchmark::State& state, const std::string& arch, bool lower) {
  std::vector<std::string> names;
  const std::string text = long_text(arch, 14000, names);
  for (auto _ : state) {
    GlobalMemory memory;
    const Module module(text, "long.ptx", memory);
    if (!lower) continue;
    for (const std::string& name : names) benchmark::DoNotOptimize(module.entry(name));
  }
}

void add_all() {
  using Routine = void (*)(benchmark::State&, const std::string&);
  const std::map<std::string, Routine> routines = {{"vector_add", vector_add},
                                                   {"divergence", divergence},
                                                   {"rmsnorm_quantize", rmsnorm_quantize},
                                                   {"softmax_row", softmax_row},
                                                   {"block_reduce", block_reduce}};
  for (const std::string arch : {"sm_90a", "sm_100a"}) {
    for (const auto& [name, routine] : routines) {
      benchmark::RegisterBenchmark((name + "/" + arch).c_str(), routine, arch)
          ->ArgName("checked")
          ->Arg(0)
          ->Arg(1)
          ->Unit(benchmark::kMillisecond);
    }
    for (const bool lower : {false, true}) {
      const std::string name = lower ? "parse_and_lower_14k_lines/" : "parse_14k_lines/";
      benchmark::RegisterBenchmark((name + arch).c_str(), parse, arch, lower)
          ->Unit(benchmark::kMillisecond);
    }
  }
}

/// Takes the option out of the command line; false where it is wrong.
bool choose_isa(int& argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "--isa") return true;
  using emu::exec::Isa;
  const std::map<std::string_view, Isa> names = {
      {"default", Isa::kDefault}, {"avx2", Isa::kAvx2}, {"avx512", Isa::kAvx512}};
  const auto wanted = argc < 3 ? names.end() : names.find(argv[2]);
  if (wanted == names.end() || !emu::exec::KernelTable::limit(wanted->second)) return false;
  for (int i = 3; i < argc; ++i) argv[i - 2] = argv[i];
  argc -= 2;
  return true;
}

}  // namespace
}  // namespace mxfa::bench

int main(int argc, char** argv) {
  if (!mxfa::bench::choose_isa(argc, argv)) {
    std::fprintf(stderr,
                 "emulator_bench: --isa: expected default, avx2 or avx512, of this machine\n");
    return 2;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  mxfa::bench::add_all();
  try {
    benchmark::RunSpecifiedBenchmarks();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "emulator_bench: %s\n", error.what());
    return 2;
  }
  return 0;
}
