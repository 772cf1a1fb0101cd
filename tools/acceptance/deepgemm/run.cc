#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "model/tensor_map.h"
#include "mx/bits.h"
#include "mx/fp8.h"
#include "mxemu/experiment.h"

/// Runs kernels of DeepGEMM's FP8 GEMM for sm_100a (see the script beside this file) in the
/// emulator and compares every output with a product in double precision.
///   accept_deepgemm PTX [--check | --mutate KIND] [--seeds N] [--config I] [--m M] [--n N] [--k K]
/// --check: with the hazard checker on. --mutate: instead, takes away each wait (or arrive, ...) in
/// turn, like ptxemu mutate, and tabulates what shows it.
/// Exit status: 0 all right, 1 wrong outputs or faults, 2 usage.
namespace {

using namespace mxfa::emu;
using mxfa::emu::model::TiledArguments;

/// One instance in kernels.cu, in its order.
struct Config {
  const char* name;
  bool mn_a, mn_b;
  int granularity;
  int block_m, block_n;
  int ctas;
  bool split_m;  ///< the pair splits A's rows, not B's
  bool swap_ab;
  int swizzle_b;
};
constexpr Config kConfigs[] = {
    {"K x K, 128x128", false, false, 32, 128, 128, 1, false, false, 128},
    {"K x N, 128x128", false, true, 32, 128, 128, 1, false, false, 128},
    {"K x K, scales of 128", false, false, 128, 128, 128, 1, false, false, 128},
    {"pair, K x K, 256x128", false, false, 32, 128, 128, 2, false, false, 128},
    {"pair, M x N, 256x128", true, true, 32, 128, 128, 2, false, false, 64},
    {"pair, K x K, 256x192", false, false, 32, 128, 192, 2, false, false, 128},
    {"swapped, 64x128", false, false, 32, 64, 128, 1, false, true, 128},
    {"swapped pair, 128x256", false, false, 32, 128, 128, 2, true, true, 128},
};
constexpr std::uint32_t kSms = 4;
constexpr std::uint32_t kSharedBytes = 232448;

struct Matrix {
  int rows, k, granularity;
  bool mn_major;
  std::vector<std::uint8_t> codes;    ///< [rows][k] or [k][rows]
  std::vector<std::uint32_t> scales;  ///< [k / (4 * granularity)][padded rows], a byte a group

  int padded() const { return (rows + 3) / 4 * 4; }
  int words() const { return (k + 4 * granularity - 1) / (4 * granularity); }
  std::size_t at(int row, int i) const {
    return mn_major ? static_cast<std::size_t>(i) * static_cast<std::size_t>(rows) +
                          static_cast<std::size_t>(row)
                    : static_cast<std::size_t>(row) * static_cast<std::size_t>(k) +
                          static_cast<std::size_t>(i);
  }
  double value(int row, int i) const {
    const int group = i / granularity;
    const std::uint32_t word = scales[static_cast<std::size_t>(group / 4 * padded() + row)];
    const auto byte = static_cast<int>(word >> (8 * (group % 4)) & 0xFFu);
    return std::ldexp(static_cast<double>(mxfa::mx::decode_e4m3(codes[at(row, i)])), byte - 127);
  }
};

Matrix random_matrix(int rows, int k, int granularity, bool mn_major, std::mt19937& rng) {
  Matrix m{rows, k, granularity, mn_major, {}, {}};
  m.codes.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(k));
  for (auto& code : m.codes) {
    code = static_cast<std::uint8_t>(rng() % 0x68 | (rng() % 2) << 7);
  }
  m.scales.resize(static_cast<std::size_t>(m.words()) * static_cast<std::size_t>(m.padded()));
  for (auto& word : m.scales) {
    word = 0;
    for (int i = 0; i < 4; ++i) word |= static_cast<std::uint32_t>(123 + rng() % 8) << (8 * i);
  }
  return m;
}

struct MapSpec {
  const void* data;
  std::uint32_t type;  ///< of cuTensorMapEncodeTiled
  int elem_bytes;
  int inner, outer;
  int box_inner, box_outer;
  int swizzle;  ///< bytes
};
model::TensorMapRecord make_map(const MapSpec& spec) {
  const std::uint64_t dims[] = {static_cast<std::uint64_t>(spec.inner),
                                static_cast<std::uint64_t>(spec.outer)};
  const std::uint64_t strides[] = {static_cast<std::uint64_t>(spec.inner) *
                                   static_cast<std::uint64_t>(spec.elem_bytes)};
  const std::uint32_t box[] = {static_cast<std::uint32_t>(spec.box_inner),
                               static_cast<std::uint32_t>(spec.box_outer)};
  const std::uint32_t steps[] = {1, 1};
  TiledArguments arguments;
  arguments.data_type = spec.type;
  arguments.rank = 2;
  arguments.global_address = reinterpret_cast<std::uint64_t>(spec.data);
  arguments.global_dim = dims;
  arguments.global_strides = strides;
  arguments.box_dim = box;
  arguments.element_strides = steps;
  arguments.swizzle = spec.swizzle == 128 ? 3 : spec.swizzle == 64 ? 2 : 0;
  return model::encode_tiled(arguments);
}

template <class T>
T* upload(GlobalMemory& memory, const std::vector<T>& values, const char* name) {
  T* data = reinterpret_cast<T*>(memory.allocate(values.size() * sizeof(T), name));
  std::memcpy(data, values.data(), values.size() * sizeof(T));
  memory.mark_initialised(data, values.size() * sizeof(T));
  return data;
}

class Gemm {
 public:
  Gemm(GlobalMemory& memory, const Config& config, int m, int n, int k)
      : memory_(memory), config_(config), m_(m), n_(n) {
    std::mt19937 rng(5);
    a_ = random_matrix(m, k, config.granularity, config.mn_a, rng);
    b_ = random_matrix(n, k, config.granularity, config.mn_b, rng);
    const int load_m = config.block_m / (config.split_m ? config.ctas : 1);
    const int load_n = config.block_n / (config.split_m ? 1 : config.ctas);
    map_a_ = operand(a_, "a", load_m, 128);
    map_b_ = operand(b_, "b", load_n, config.swizzle_b);
    map_sfa_ = scales(a_, "sfa", config.block_m);
    map_sfb_ = scales(b_, "sfb", config.block_n);
    expected_.resize(static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
    multiply();
  }

  /// Wrong outputs.
  int run(const Module& module, const std::string& entry, const LaunchOptions& options) {
    const std::size_t size = expected_.size();
    auto* d = reinterpret_cast<std::uint16_t*>(memory_.allocate(size * 2, "d"));
    const std::unique_ptr<void, std::function<void(void*)>> guard(
        d, [&](void* data) { memory_.free(data); });
    const int store_m = config_.swap_ab ? 16 : config_.block_m;
    const auto map_d = make_map({d, 9, 2, n_, m_, 64, store_m, 128});
    const std::uint64_t none = 0;
    module.launch(
        entry,
        {{kSms, 1, 1}, {256, 1, 1}, {static_cast<std::uint32_t>(config_.ctas), 1, 1}, kSharedBytes},
        Arguments()
            .add(none)
            .add(m_)
            .add(n_)
            .add(a_.k)
            .add(map_a_)
            .add(map_b_)
            .add(map_sfa_)
            .add(map_sfb_)
            .add(map_d),
        options);
    int wrong = memory_.is_initialised(d, size * 2) ? 0 : 1;
    for (std::size_t i = 0; i < size; ++i) {
      const double got = static_cast<double>(mxfa::mx::decode_bf16(d[i]));
      // Half an ulp of bf16, and what FP32 sums of these terms may lose.
      const double limit = std::fabs(expected_[i].value) * 0x1p-8 + expected_[i].size * 0x1p-20;
      wrong += std::fabs(got - expected_[i].value) <= limit ? 0 : 1;
    }
    return wrong;
  }

 private:
  model::TensorMapRecord operand(const Matrix& x, const char* name, int block, int swizzle) {
    const auto* data = upload(memory_, x.codes, name);
    if (x.mn_major) return make_map({data, 0, 1, x.rows, x.k, swizzle, 128, swizzle});
    return make_map({data, 0, 1, x.k, x.rows, 128, block, swizzle});
  }
  model::TensorMapRecord scales(const Matrix& x, const char* name, int block) {
    const auto* data = upload(memory_, x.scales, name);
    return make_map({data, 3, 4, x.padded(), x.words(), block, 1, 0});
  }

  void multiply() {
    const auto values = [](const Matrix& x) {
      std::vector<double> result;
      for (int row = 0; row < x.rows; ++row) {
        for (int i = 0; i < x.k; ++i) result.push_back(x.value(row, i));
      }
      return result;
    };
    const std::vector<double> a = values(a_);
    const std::vector<double> b = values(b_);
    const auto k = static_cast<std::size_t>(a_.k);
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(n_) * k;
      const std::size_t column = i % static_cast<std::size_t>(n_) * k;
      for (std::size_t j = 0; j < k; ++j) {
        const double term = a[row + j] * b[column + j];
        expected_[i].value += term;
        expected_[i].size += std::fabs(term);
      }
    }
  }

  struct Expected {
    double value = 0;
    double size = 0;  ///< sum of the terms' magnitudes
  };
  GlobalMemory& memory_;
  const Config& config_;
  int m_, n_;
  Matrix a_, b_;
  model::TensorMapRecord map_a_, map_b_, map_sfa_, map_sfb_;
  std::vector<Expected> expected_;
};

struct Options {
  std::string ptx;
  std::string mutate;  ///< kind of what is taken away; empty: nothing
  bool check = false;
  int seeds = 20;
  int config = -1;
  int m = 400, n = 512, k = 1600;
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const auto number = [&](const char* name, int& value) {
      if (text != name || i + 1 >= argc) return false;
      value = std::atoi(argv[++i]);
      return true;
    };
    if (number("--seeds", options.seeds) || number("--config", options.config) ||
        number("--m", options.m) || number("--n", options.n) || number("--k", options.k)) {
      continue;
    }
    if (text == "--mutate" && i + 1 < argc) {
      options.mutate = argv[++i];
      continue;
    }
    options.check |= text == "--check";
    if (text == "--check") continue;
    if (!options.ptx.empty() || text[0] == '-') return false;
    options.ptx = text;
  }
  return !options.ptx.empty();
}

LaunchOptions launch_options(const Config& config) {
  LaunchOptions launch;
  launch.resident_clusters = 4;
  // Scales come in atoms of 128 rows; of narrower blocks the rest is never written, nor used.
  launch.check_uninitialised = config.block_m % 128 == 0 && config.block_n % 128 == 0;
  return launch;
}

/// The number of launches that are wrong, and of errors.
int check_config(const Experiment& experiment, const char* name) {
  const ExperimentResult result = run_experiment(experiment);
  for (const Hazard& hazard : result.report.hazards) fmt::print("{}\n", hazard.text());
  for (const FailedLaunch& failed : result.failed) {
    fmt::print("policy {} seed {}: {}\n", policy_name(failed.policy), failed.seed,
               failed.message.empty() ? "wrong outputs" : failed.message);
  }
  const auto idle = std::ranges::count(result.report.waits, 0u, &WaitCoverage::blocked);
  fmt::print("{}: {} of {} launches wrong; {} errors, {} warnings; {} of {} waits never blocked\n",
             name, result.failed.size(), result.launches, result.report.errors(),
             result.report.warnings(), idle, result.report.waits.size());
  return static_cast<int>(result.failed.size() + result.report.errors());
}

/// A GEMM as an experiment; the module that it is launched from may be a mutant.
struct GemmExperiment {
  GemmExperiment(const Options& options, GlobalMemory& memory, const std::string& text,
                 const std::string& entry, int k)
      : gemm(memory, kConfigs[options.config], options.m, options.n, k) {
    experiment.ptx = text;
    experiment.name = options.ptx;
    experiment.entry = entry;
    experiment.memory = &memory;
    experiment.options = launch_options(kConfigs[options.config]);
    experiment.seeds = static_cast<std::uint64_t>(options.seeds);
    experiment.launch = [this](const Module& module, const LaunchOptions& launch) {
      return gemm.run(module, experiment.entry, launch) == 0;
    };
  }

  Gemm gemm;
  Experiment experiment;
};

/// Of one mutant: what shows it in the first of the experiments where anything does.
MutantOutcome try_all(const std::vector<std::unique_ptr<GemmExperiment>>& gemms,
                      const std::vector<ExperimentResult>& intact, const Mutation& mutation) {
  MutantOutcome outcome;
  outcome.verdict = MutantVerdict::kNotExercised;
  for (std::size_t i = 0; i < gemms.size(); ++i) {
    const MutantOutcome next = try_mutant(gemms[i]->experiment, mutation, intact[i]);
    if (next.verdict != MutantVerdict::kNotExercised || i == 0) outcome = next;
    const bool silent = outcome.verdict == MutantVerdict::kNotExercised ||
                        outcome.verdict == MutantVerdict::kRedundant;
    if (!silent) break;
  }
  return outcome;
}

/// The number of mutants that only wrong outputs tell, which the checker has missed.
int mutate_config(const std::vector<std::unique_ptr<GemmExperiment>>& gemms, const Options& options,
                  const char* name) {
  std::vector<ExperimentResult> intact;
  for (const auto& gemm : gemms) {
    intact.push_back(run_experiment(gemm->experiment));
    if (!intact.back().clean()) return check_config(gemm->experiment, name);
  }
  int missed = 0;
  std::map<std::string, int> totals;
  const Experiment& first = gemms[0]->experiment;
  for (const Mutation& mutation : find_mutations(first.ptx, first.name, first.entry)) {
    if (mutation.kind != options.mutate) continue;
    const MutantOutcome outcome = try_all(gemms, intact, mutation);
    const std::string opcode = mutation.statement.substr(0, mutation.statement.find(' '));
    fmt::print("{:>6}  {:<22}  {:<13}  {}  {}\n", mutation.line, mutation.change,
               verdict_name(outcome.verdict), opcode.substr(0, opcode.find('[')), outcome.detail);
    std::fflush(stdout);
    ++totals[mutation.change + ", " + verdict_name(outcome.verdict)];
    missed += outcome.verdict == MutantVerdict::kWrongOutput ? 1 : 0;
  }
  for (const auto& total : totals) fmt::print("{}: {}: {}\n", name, total.first, total.second);
  return missed;
}

int experiment_of(Options options, const Module& module, GlobalMemory& memory, int index,
                  const std::string& text) {
  options.config = index;
  const std::string entry = module.entries().at(static_cast<std::size_t>(index));
  std::vector<std::unique_ptr<GemmExperiment>> gemms;
  // Another number of K blocks, modulo the ring, for the other tail of unrolled loops.
  for (const int k : {options.k, options.k + 256}) {
    gemms.push_back(std::make_unique<GemmExperiment>(options, memory, text, entry, k));
    if (options.check) return check_config(gemms[0]->experiment, kConfigs[index].name);
  }
  return mutate_config(gemms, options, kConfigs[index].name);
}

int run_config(const Options& options, const Module& module, GlobalMemory& memory, int index) {
  const Config& config = kConfigs[index];
  Gemm gemm(memory, config, options.m, options.n, options.k);
  const std::string entry = module.entries().at(static_cast<std::size_t>(index));
  int bad = 0;
  for (int policy = 0; policy <= static_cast<int>(Policy::kStarve); ++policy) {
    for (int seed = 0; seed < options.seeds; ++seed) {
      LaunchOptions launch = launch_options(config);
      launch.policy = static_cast<Policy>(policy);
      launch.seed = static_cast<std::uint64_t>(seed);
      launch.warn = [](const std::string& text) { fmt::print("warning: {}\n", text); };
      if (policy + seed > 0) launch.warn = {};
      try {
        const int wrong = gemm.run(module, entry, launch);
        if (wrong == 0) continue;
        fmt::print("{}: policy {} seed {}: {} wrong outputs\n", config.name, policy, seed, wrong);
      } catch (const mxfa::Error& error) {
        fmt::print("{}: policy {} seed {}: {}\n", config.name, policy, seed, error.what());
      }
      ++bad;
    }
  }
  fmt::print("{}: {} of {} runs wrong\n", config.name, bad, options.seeds * 5);
  return bad;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    fmt::print(stderr,
               "usage: accept_deepgemm PTX [--check | --mutate KIND] [--seeds N] [--config I] [--m "
               "M] [--n N] [--k K]\n");
    return 2;
  }
  std::ifstream file(options.ptx);
  std::stringstream text;
  text << file.rdbuf();
  GlobalMemory memory;
  try {
    const Module module(text.str(), options.ptx, memory);
    int bad = 0;
    for (int i = 0; i < static_cast<int>(std::size(kConfigs)); ++i) {
      if (options.config >= 0 && options.config != i) continue;
      const bool experiment = options.check || !options.mutate.empty();
      bad += experiment ? experiment_of(options, module, memory, i, text.str())
                        : run_config(options, module, memory, i);
    }
    return bad == 0 ? 0 : 1;
  } catch (const mxfa::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
