#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "reference/cross_attention.h"
#include "support/compare.h"

namespace mxfa::reference {
namespace {

/// Lines "name rows cols values...", as tools/golden/make_module_golden.py writes them.
std::map<std::string, Matrix<double>> read_golden(const std::string& path) {
  std::map<std::string, Matrix<double>> tensors;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, number;
    std::int64_t rows = 0, cols = 0;
    words >> name >> rows >> cols;
    Matrix<double> tensor(rows, cols);
    for (double& value : tensor.data) {
      words >> number;
      value = std::strtod(number.c_str(), nullptr);
    }
    EXPECT_TRUE(words) << name << ": fewer values than " << rows << " x " << cols;
    tensors[name] = tensor;
  }
  return tensors;
}

/// All 24 tensors against automatic differentiation by another library.
TEST(CrossAttentionGolden, EveryTensorMatchesAutomaticDifferentiation) {
  auto golden = read_golden(MXFA_TEST_DATA_DIR "/cross_attention_golden.txt");
  ASSERT_EQ(golden.size(), 33u);
  const std::vector<std::int32_t> cu_seqlens_k{0, 4, 4, 9};
  const CrossAttentionResult got =
      cross_attention({.num_heads = 4,
                       .num_heads_kv = 2,
                       .head_dim = 8,
                       .eps = 1e-3,
                       .cu_seqlens_k = cu_seqlens_k,
                       .seeds = golden["seeds"],
                       .kv = golden["kv"],
                       .seed_norm_weight = golden["seed_norm_weight"].data,
                       .kv_norm_weight = golden["kv_norm_weight"].data,
                       .wq = golden["wq"],
                       .wk = golden["wk"],
                       .wv = golden["wv"],
                       .wo = golden["wo"],
                       .dy = golden["dy"]});
  for (const auto& [name, member] : kCrossAttentionTensors) {
    const Matrix<double>& want = golden[std::string(name)];
    const Matrix<double>& tensor = got.*member;
    EXPECT_EQ(tensor.rows, want.rows) << name;
    EXPECT_EQ(tensor.cols, want.cols) << name;
    EXPECT_TRUE(testing::expect_close(tensor.data, want.data, {.limit = 1e-13},
                                      {.label = std::string(name), .cols = want.cols}));
  }
}

}  // namespace
}  // namespace mxfa::reference
