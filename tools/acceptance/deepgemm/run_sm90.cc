#include <memory>
#include <numeric>
#include <random>

#include "common.h"
#include "mx/fp8.h"

/// Runs kernels of DeepGEMM's FP8 GEMM for sm_90a (see the script beside this file) in the emulator
/// and compares every output with a product in double precision.
///   accept_deepgemm_sm90 PTX [--check | --mutate KIND] [--seeds N] [--config I] [--m M] [--n N]
///   [--k K]
namespace {

using namespace mxfa::acceptance;

/// One instance in kernels_sm90.cu, in its order.
struct Config {
  const char* name;
  int groups;  ///< along K, each with a product of its own; tensor maps are changed between them
  int block_m;
  int ctas;
};
constexpr Config kConfigs[] = {
    {"128x128", 1, 128, 1},
    {"64x128", 1, 64, 1},
    {"pair sharing A, 128x128", 1, 128, 2},
    {"pair sharing B, 128x128", 1, 128, 2},
    {"3 groups along K, 128x128", 3, 128, 1},
};
constexpr int kBlock = 128;  // N and K, and columns that share a scale
constexpr std::uint32_t kSms = 4;
constexpr std::uint32_t kSharedBytes = 232448;

std::size_t index(int row, int pitch, int column) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(pitch) +
         static_cast<std::size_t>(column);
}

/// [rows, k] of each group, one after the other, and FP32 scales [k / 128, rows].
struct Matrix {
  int rows;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;

  Matrix(int rows_, int k, std::mt19937& rng)
      : rows(rows_), codes(index(rows_, k, 0)), scales(index(k / kBlock, rows_, 0)) {
    for (auto& code : codes) code = static_cast<std::uint8_t>(rng() % 0x68 | (rng() % 2) << 7);
    std::uniform_real_distribution<float> scale(0.0625f, 4.0f);
    for (float& value : scales) value = scale(rng);
  }
  /// Of column `i` of a group of `k` columns that begins at column `first` of all.
  double value(int row, int first, int k, int i) const {
    const std::uint8_t code = codes[index(rows, first, 0) + index(row, k, i)];
    return static_cast<double>(mxfa::mx::decode_e4m3(code)) *
           static_cast<double>(scales[index((first + i) / kBlock, rows, row)]);
  }
};

class Gemm {
 public:
  Gemm(GlobalMemory& memory, const Config& config, int m, int n, int k)
      : memory_(memory), config_(config), m_(m), n_(n), rng_(5) {
    for (int group = 0; group < config.groups; ++group) ks_.push_back(k + group * kBlock);
    const int sum_k = std::accumulate(ks_.begin(), ks_.end(), 0);
    const Matrix a(m, sum_k, rng_), b(n, sum_k, rng_);
    a_ = upload(memory, a.codes, "a");
    b_ = upload(memory, b.codes, "b");
    map_a_ = make_map({a_, 0, 1, k, m, kBlock, config.block_m, kBlock});
    map_b_ = make_map({b_, 0, 1, k, n, kBlock, kBlock, kBlock});
    map_sfa_ = scales(a, "sfa", config.block_m);
    map_sfb_ = scales(b, "sfb", kBlock);
    layout_ = upload(memory, ks_, "grouped layout");
    initial_.resize(index(config.groups * m, n, 0));
    for (float& value : initial_) value = static_cast<float>(rng_() % 2048) - 1024.0f;
    multiply(a, b);
  }

  /// Wrong outputs.
  int run(const Module& module, const std::string& entry, const LaunchOptions& options) {
    float* d = upload(memory_, initial_, "d");
    std::byte* maps = memory_.allocate(kSms * 2 * 128, "tensor maps");
    const auto free = [&](void* data) { memory_.free(data); };
    const std::unique_ptr<void, std::function<void(void*)>> guards[] = {{d, free}, {maps, free}};
    const auto map_d = make_map({d, 7, 4, n_, config_.groups * m_, kBlock, 64, 0});
    module.launch(entry,
                  {{kSms, 1, 1},
                   {static_cast<std::uint32_t>(128 + config_.block_m * 2), 1, 1},
                   {static_cast<std::uint32_t>(config_.ctas), 1, 1},
                   kSharedBytes},
                  Arguments()
                      .add(a_)
                      .add(b_)
                      .add(layout_)
                      .add(maps)
                      .add(m_)
                      .add(n_)
                      .add(std::accumulate(ks_.begin(), ks_.end(), 0))
                      .add(map_a_)
                      .add(map_b_)
                      .add(map_sfa_)
                      .add(map_sfb_)
                      .add(map_d),
                  options);
    int wrong = 0;
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      // What FP32 sums of these terms may lose.
      const double limit = expected_[i].size * 0x1p-20;
      wrong += std::fabs(static_cast<double>(d[i]) - expected_[i].value) <= limit ? 0 : 1;
    }
    return wrong;
  }

 private:
  model::TensorMapRecord scales(const Matrix& x, const char* name, int block) {
    const float* data = upload(memory_, x.scales, name);
    const int words = static_cast<int>(x.scales.size()) / x.rows;
    return make_map({data, 7, 4, x.rows, words, block, 1, 0});
  }

  void multiply(const Matrix& a, const Matrix& b) {
    int first = 0;
    for (const int k : ks_) {
      for (int row = 0; row < m_; ++row) {
        std::vector<double> terms(static_cast<std::size_t>(k));
        for (int i = 0; i < k; ++i) terms[static_cast<std::size_t>(i)] = a.value(row, first, k, i);
        for (int column = 0; column < n_; ++column) {
          Expected sum;
          sum.add(static_cast<double>(initial_[expected_.size()]));
          for (int i = 0; i < k; ++i) {
            sum.add(terms[static_cast<std::size_t>(i)] * b.value(column, first, k, i));
          }
          expected_.push_back(sum);
        }
      }
      first += k;
    }
  }

  GlobalMemory& memory_;
  const Config& config_;
  int m_, n_;
  std::mt19937 rng_;
  std::vector<int> ks_;
  std::uint8_t* a_ = nullptr;
  std::uint8_t* b_ = nullptr;
  int* layout_ = nullptr;
  model::TensorMapRecord map_a_, map_b_, map_sfa_, map_sfb_;
  std::vector<float> initial_;  ///< [groups * m, n]; products are added to it
  std::vector<Expected> expected_;
};

Case make_case(const Options& options, const Module& module, GlobalMemory& memory, int index) {
  const Config& config = kConfigs[index];
  // Groups store whole blocks of rows.
  const int m = config.groups == 1 ? options.m : (options.m + kBlock - 1) / kBlock * kBlock;
  const int k = (options.k + kBlock - 1) / kBlock * kBlock;
  const auto gemm = std::make_shared<Gemm>(memory, config, m, options.n, k);
  LaunchOptions launch;
  launch.resident_clusters = 4;
  const std::string entry = module.entries().at(static_cast<std::size_t>(index));
  return {config.name, entry, launch, [gemm, entry](const Module& own, const LaunchOptions& how) {
            return gemm->run(own, entry, how);
          }};
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, static_cast<int>(std::size(kConfigs)), make_case);
}
