#include "reference/datasets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mx/bits.h"
#include "mxfa/error.h"

namespace mxfa::reference {
namespace {

struct Moments {
  double mean = 0;
  double std = 0;
  double fourth = 0;  ///< central, in units of std^4
};

template <class Range>
Moments moments_of(const Range& values) {
  Moments result;
  const double count = static_cast<double>(values.size());
  for (const double value : values) result.mean += value / count;
  double second = 0;
  double fourth = 0;
  for (const double value : values) {
    const double square = (value - result.mean) * (value - result.mean);
    second += square / count;
    fourth += square * square / count;
  }
  result.std = std::sqrt(second);
  result.fourth = fourth / (second * second);
  return result;
}

std::vector<double> column(const Matrix<float>& x, std::int64_t index) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < x.rows; ++i) values.push_back(x(i, index));
  return values;
}
std::vector<double> column(const Matrix<double>& x, std::int64_t index) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < x.rows; ++i) values.push_back(x(i, index));
  return values;
}
double row_rms(const Matrix<float>& x, std::int64_t index) {
  double sum = 0;
  for (const float value : x.row(index)) sum += double(value) * value;
  return std::sqrt(sum / static_cast<double>(x.cols));
}
std::vector<double> log2_row_rms(const Matrix<float>& x) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < x.rows; ++i) values.push_back(std::log2(row_rms(x, i)));
  return values;
}
double mean_of_largest_p(const Matrix<double>& p) {
  double sum = 0;
  for (std::int64_t i = 0; i < p.rows; ++i) sum += *std::ranges::max_element(p.row(i));
  return sum / static_cast<double>(p.rows);
}

HeadInputs small(std::string_view name, std::uint64_t seed = 1) {
  return make_dataset(name, {.seqlen_q = 256, .seqlen_k = 1024, .head_dim = 128, .seed = seed});
}
double logit_std(const HeadInputs& inputs) {
  return moments_of(attention_forward(inputs).s.data).std;
}

TEST(Datasets, EveryNameGivesBf16ValuesOfTheAskedShape) {
  for (const std::string& name : dataset_names()) {
    const HeadInputs x = make_dataset(name, {.seqlen_q = 40, .seqlen_k = 72, .head_dim = 96});
    EXPECT_EQ(x.softmax_scale, 1.0 / std::sqrt(96.0)) << name;
    EXPECT_EQ(x.q.rows, 40) << name;
    EXPECT_EQ(x.dout.rows, 40) << name;
    EXPECT_EQ(x.k.rows, 72) << name;
    EXPECT_EQ(x.v.rows, 72) << name;
    for (const Matrix<float>* tensor : {&x.q, &x.k, &x.v, &x.dout}) {
      EXPECT_EQ(tensor->cols, 96) << name;
      EXPECT_EQ(static_cast<std::int64_t>(tensor->data.size()), tensor->rows * 96) << name;
      const auto not_bf16 = std::ranges::find_if(tensor->data, [](float value) {
        return !mx::is_finite(value) || mx::round_bf16(value) != value;
      });
      EXPECT_EQ(not_bf16, tensor->data.end()) << name << " holds " << *not_bf16;
    }
  }
}

TEST(Datasets, DegenerateSizesAreValid) {
  for (const std::string& name : dataset_names()) {
    for (const std::int64_t seqlen_q : {0, 1}) {
      for (const std::int64_t seqlen_k : {0, 1, 2, 9}) {
        const HeadInputs x =
            make_dataset(name, {.seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .head_dim = 8});
        EXPECT_EQ(x.q.rows, seqlen_q) << name;
        EXPECT_EQ(x.v.rows, seqlen_k) << name;
        for (const Matrix<float>* tensor : {&x.q, &x.k, &x.v, &x.dout}) {
          EXPECT_TRUE(std::ranges::all_of(tensor->data, mx::is_finite))
              << name << " " << seqlen_q << " x " << seqlen_k;
        }
      }
    }
  }
}

TEST(Datasets, SameSeedSameBitsOtherSeedOtherBits) {
  for (const std::string& name : dataset_names()) {
    const DatasetOptions options{.seqlen_q = 16, .seqlen_k = 48, .head_dim = 64, .seed = 7};
    DatasetOptions other = options;
    other.seed = 8;
    const HeadInputs x = make_dataset(name, options);
    EXPECT_EQ(x.k.data, make_dataset(name, options).k.data) << name;
    EXPECT_NE(x.k.data, make_dataset(name, other).k.data) << name;
    EXPECT_NE(x.q.data, make_dataset(name, other).q.data) << name;
  }
}

// Pins the streams: files of figures name a seed, so the draws must never change.
TEST(Datasets, FirstValuesOfSeedZero) {
  const HeadInputs x = make_dataset("normal", {.seqlen_q = 1, .seqlen_k = 1, .head_dim = 8});
  const std::vector<float> q = {0.041259765625f, 0.11279296875f,   -0.9375f,      -0.470703125f,
                                1.015625f,       -0.045654296875f, -0.349609375f, 0.84375f};
  const std::vector<float> k = {-1.7109375f, 0.1865234375f, -1.671875f,     -0.298828125f,
                                0.8046875f,  0.6484375f,    -0.2470703125f, 1.2734375f};
  EXPECT_EQ(x.q.data, q);
  EXPECT_EQ(x.k.data, k);
}

TEST(Datasets, QueriesDoNotDependOnTheNumberOfKeys) {
  DatasetOptions options{.seqlen_q = 16, .seqlen_k = 32, .head_dim = 64, .seed = 3};
  const HeadInputs x = make_dataset("normal", options);
  options.seqlen_k = 80;
  const HeadInputs longer = make_dataset("normal", options);
  EXPECT_EQ(x.q.data, longer.q.data);
  EXPECT_EQ(x.dout.data, longer.dout.data);
  EXPECT_TRUE(std::equal(x.k.data.begin(), x.k.data.end(), longer.k.data.begin()));
}

TEST(Datasets, BadRequestsAreNamed) {
  const auto message = [](std::string_view name, const DatasetOptions& options) {
    try {
      make_dataset(name, options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message("norml", {}).find("dataset: expected one of normal, diffuse"),
            std::string::npos);
  for (const char* name : {"", "dom", "dom0", "dom1", "dom1.5", "dom-0.5", "dom0.5x", "domnan"}) {
    EXPECT_NE(message(name, {}).find("dataset:"), std::string::npos) << name;
  }
  EXPECT_NE(message("normal", {.seqlen_q = -1}).find("seqlen_q: expected"), std::string::npos);
  EXPECT_NE(message("normal", {.seqlen_k = 1 << 21}).find("seqlen_k: expected"), std::string::npos);
  EXPECT_NE(message("normal", {.head_dim = 4}).find("head_dim: expected"), std::string::npos);
  EXPECT_EQ(message("dom0.25", {.seqlen_q = 2, .seqlen_k = 2}), "no error");
}

TEST(Datasets, NormalIsNormal) {
  const HeadInputs x = small("normal");
  for (const Matrix<float>* tensor : {&x.q, &x.k, &x.v, &x.dout}) {
    const Moments m = moments_of(tensor->data);
    EXPECT_NEAR(m.mean, 0, 0.02);
    EXPECT_NEAR(m.std, 1, 0.01);
    EXPECT_NEAR(m.fourth, 3, 0.1);
  }
  EXPECT_NEAR(logit_std(x), 1, 0.02);
  // Independent tensors: the correlation of 2^15 pairs has std 2^-7.5.
  const auto correlation = [](const Matrix<float>& a, const Matrix<float>& b) {
    return std::inner_product(a.data.begin(), a.data.begin() + 32768, b.data.begin(), 0.0) / 32768;
  };
  EXPECT_NEAR(correlation(x.q, x.k), 0, 0.02);
  EXPECT_NEAR(correlation(x.k, x.v), 0, 0.02);
  EXPECT_NEAR(correlation(x.q, x.dout), 0, 0.02);
}

TEST(Datasets, LogitsHaveTheStatedSpread) {
  EXPECT_NEAR(logit_std(small("diffuse")), 0.25, 0.01);
  EXPECT_NEAR(logit_std(small("peaky")), 5, 0.1);
  EXPECT_NEAR(logit_std(small("rmsnorm")), 2.7, 0.02);
  EXPECT_NEAR(logit_std(small("outchan")), 3, 0.02);
  EXPECT_NEAR(logit_std(small("vbias")), 0.5, 0.02);
  EXPECT_NEAR(logit_std(small("realign")), 2, 0.02);
}

TEST(Datasets, RmsnormKeysAndValuesHaveAMean) {
  const HeadInputs x = small("rmsnorm");
  for (const Matrix<float>* tensor : {&x.k, &x.v}) {
    double mean_energy = 0;
    for (std::int64_t c = 0; c < 128; ++c) {
      const double mean = moments_of(column(*tensor, c)).mean;
      mean_energy += mean * mean;
    }
    double energy = 0;
    for (const float value : tensor->data) energy += double(value) * value;
    EXPECT_NEAR(mean_energy / (energy / 1024), 0.17, 0.06);
  }
  EXPECT_NEAR(mean_of_largest_p(attention_forward(x).p), 0.15, 0.05);
}

TEST(Datasets, OutlierChannelsLieApartInQAndK) {
  const HeadInputs x = small("outchan");
  const double q_scale = moments_of(x.q.data).std;
  std::set<std::int64_t> in_q, in_k;
  for (std::int64_t c = 0; c < 128; ++c) {
    const double k_std = moments_of(column(x.k, c)).std;
    if (k_std > 10) {
      in_k.insert(c);
      EXPECT_TRUE(k_std > 18 && k_std < 54) << k_std;
    }
    if (moments_of(column(x.q, c)).std > 2 * q_scale) in_q.insert(c);
  }
  EXPECT_EQ(in_k.size(), 3u);
  EXPECT_EQ(in_q.size(), 3u);
  for (const std::int64_t c : in_k) EXPECT_FALSE(in_q.contains(c)) << c;
}

TEST(Datasets, KbiasChannelsKeepTheirSign) {
  const HeadInputs x = small("kbias");
  int biased = 0;
  for (std::int64_t c = 0; c < 128; ++c) {
    const std::vector<double> values = column(x.k, c);
    const Moments m = moments_of(values);
    if (std::abs(m.mean) < 1) continue;
    ++biased;
    EXPECT_TRUE(std::abs(m.mean) > 44 && std::abs(m.mean) < 51) << m.mean;
    EXPECT_NEAR(m.std, 4, 0.4);
    for (const double value : values) EXPECT_GT(value * m.mean, 0);
  }
  EXPECT_EQ(biased, 4);
}

TEST(Datasets, SinkTakesHalfOfPWithTinyV) {
  const HeadInputs x = small("sink");
  const std::vector<double> p = column(attention_forward(x).p, 0);
  EXPECT_NEAR(moments_of(p).mean, 0.5, 0.07);
  EXPECT_LT(*std::ranges::min_element(p), 0.15);
  EXPECT_GT(*std::ranges::max_element(p), 0.9);
  EXPECT_LT(row_rms(x.v, 0), 0.07);
  const std::vector<double> v_rms = log2_row_rms(x.v);
  EXPECT_EQ(std::ranges::count_if(v_rms, [](double log2) { return log2 > 4; }), 4);
}

TEST(Datasets, LognormRowsSpanSixBinades) {
  const HeadInputs x = small("lognorm");
  for (const Matrix<float>* tensor : {&x.q, &x.k, &x.v, &x.dout}) {
    const std::vector<double> log2 = log2_row_rms(*tensor);
    const Moments m = moments_of(log2);
    EXPECT_NEAR(m.mean, 0, 0.15);
    EXPECT_NEAR(m.std, 1, 0.1);
    EXPECT_LT(*std::ranges::max_element(log2), 3.4);
    EXPECT_GT(*std::ranges::min_element(log2), -3.4);
  }
}

TEST(Datasets, DorowSpansTenBinadesAndStaysSmall) {
  const HeadInputs x = small("dorow");
  const std::vector<double> log2 = log2_row_rms(x.dout);
  EXPECT_NEAR(moments_of(log2).mean, std::log2(1e-4), 0.4);
  EXPECT_NEAR(moments_of(log2).std, 10.0 / 6.0, 0.2);
}

TEST(Datasets, VbiasMeanIsTwiceTheSpread) {
  const HeadInputs x = small("vbias");
  std::vector<double> means;
  for (std::int64_t c = 0; c < 128; ++c) {
    const Moments m = moments_of(column(x.v, c));
    EXPECT_NEAR(m.std, 1, 0.1);
    means.push_back(m.mean);
  }
  EXPECT_NEAR(moments_of(means).std, 2, 0.4);
}

TEST(Datasets, RealignBlocksSpanTwelveBinades) {
  const HeadInputs x = small("realign");
  for (const Matrix<float>* tensor : {&x.k, &x.v}) {
    std::vector<double> log2;
    for (std::int64_t j = 0; j < tensor->rows; ++j) {
      for (std::int64_t c = 0; c < 128; c += 32) {
        float amax = 0;
        for (const float value : tensor->row(j).subspan(c, 32)) {
          amax = std::max(amax, std::abs(value));
        }
        log2.push_back(std::log2(amax));
      }
    }
    EXPECT_NEAR(moments_of(log2).std, 12 / std::sqrt(12.0), 0.15);
    const auto [low, high] = std::ranges::minmax(log2);
    EXPECT_TRUE(high - low > 11.5 && high - low < 14.5) << high - low;
    EXPECT_NEAR(moments_of(tensor->data).std, 1, 0.01);
  }
}

TEST(Datasets, TiedKeysRepeatAndValuesHaveOneSign) {
  for (const bool interleaved : {false, true}) {
    const HeadInputs x = small(interleaved ? "tiedmix" : "tiedblk");
    std::set<std::vector<float>> distinct;
    for (std::int64_t j = 0; j < 1024; ++j) {
      distinct.emplace(x.k.row(j).begin(), x.k.row(j).end());
      const std::int64_t twin = interleaved ? j % 8 : j / 128 * 128;
      EXPECT_TRUE(std::ranges::equal(x.k.row(j), x.k.row(twin))) << j;
    }
    EXPECT_EQ(distinct.size(), 8u);
    EXPECT_LE(*std::ranges::max_element(x.v.data), 0);
    EXPECT_NEAR(moments_of(x.v.data).mean, -std::sqrt(2 / std::numbers::pi), 0.01);
  }
}

TEST(Datasets, DominantKeyHoldsItsMassInEveryRow) {
  for (const auto& [name, mass] : {std::pair{"dom0.5", 0.5}, std::pair{"dom0.99", 0.99}}) {
    const Matrix<double> p = attention_forward(small(name)).p;
    const std::int64_t key = std::ranges::max_element(p.row(0)) - p.row(0).begin();
    for (std::int64_t i = 0; i < p.rows; ++i) {
      // BF16 rounding of Q and K moves the logit by a few hundredths.
      EXPECT_NEAR(p(i, key), mass, 0.1 * mass * (1 - mass)) << name << " row " << i;
    }
  }
}

TEST(Datasets, CreepingLogitsRiseByTwelve) {
  const Matrix<double> s = attention_forward(small("creep")).s;
  double first = 0;
  double last = 0;
  for (std::int64_t i = 0; i < s.rows; ++i) {
    for (std::int64_t j = 0; j < 64; ++j) {
      first += s(i, j) / static_cast<double>(64 * s.rows);
      last += s(i, s.cols - 1 - j) / static_cast<double>(64 * s.rows);
    }
  }
  EXPECT_NEAR(last - first, 12.0 * 960 / 1023, 0.5);
}

}  // namespace
}  // namespace mxfa::reference
