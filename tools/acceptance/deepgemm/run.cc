#include <memory>
#include <random>

#include "common.h"
#include "mx/bits.h"
#include "mx/fp8.h"

/// Runs kernels of DeepGEMM's FP8 GEMM for sm_100a (see the script beside this file) in the
/// emulator and compares every output with a product in double precision.
///   accept_deepgemm PTX [--check | --mutate KIND] [--seeds N] [--config I] [--m M] [--n N] [--k K]
namespace {

using namespace mxfa::acceptance;

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
        expected_[i].add(a[row + j] * b[column + j]);
      }
    }
  }

  GlobalMemory& memory_;
  const Config& config_;
  int m_, n_;
  Matrix a_, b_;
  model::TensorMapRecord map_a_, map_b_, map_sfa_, map_sfb_;
  std::vector<Expected> expected_;
};

Case make_case(const Options& options, const Module& module, GlobalMemory& memory, int index) {
  const Config& config = kConfigs[index];
  const auto gemm = std::make_shared<Gemm>(memory, config, options.m, options.n, options.k);
  LaunchOptions launch;
  launch.resident_clusters = 4;
  // Scales come in atoms of 128 rows; of narrower blocks the rest is never written, nor used.
  launch.check_uninitialised = config.block_m % 128 == 0 && config.block_n % 128 == 0;
  const std::string entry = module.entries().at(static_cast<std::size_t>(index));
  return {config.name, entry, launch, [gemm, entry](const Module& own, const LaunchOptions& how) {
            return gemm->run(own, entry, how);
          }};
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, static_cast<int>(std::size(kConfigs)), make_case);
}
