#include <algorithm>
#include <cmath>

#include "mx/e8m0.h"
#include "support.h"

/// Kernels as nvcc compiles them, against host models of their own.
namespace mxfa::emu::test {
namespace {

class Kernels : public testing::TestWithParam<const char*> {
 protected:
  Module load(const std::string& name) {
    return Module(kernel_ptx(name, GetParam()), name + ".ptx", memory_);
  }
  GlobalMemory memory_;
};

TEST_P(Kernels, VectorAdd) {
  const Module module = load("vector_add");
  const std::uint32_t n = 10007;
  const auto a = random_floats(n, 1.0f, 1);
  const auto b = random_floats(n, 3.0f, 2);
  const Buffer<float> da(memory_, a, "a");
  const Buffer<float> db(memory_, b, "b");
  const Buffer<float> dc(memory_, n, "c");
  const LaunchConfig config{{(n + 255) / 256, 1, 1}, {256, 1, 1}, {}, 0};
  const auto arguments =
      Arguments().add(da.data()).add(db.data()).add(dc.data()).add(static_cast<std::int32_t>(n));
  const LaunchStats stats = module.launch("vector_add", config, arguments);
  EXPECT_TRUE(dc.written());
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(dc[i], a[i] + b[i]) << i;
  EXPECT_GT(stats.thread_instructions, 10u * n);
}

TEST_P(Kernels, BlockReduceUnderEveryPolicy) {
  const Module module = load("block_reduce");
  std::vector<float> x(5000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) - 40.0f;
  const Buffer<float> dx(memory_, x, "x");
  constexpr std::uint32_t kBlocks = 3;
  constexpr std::uint32_t kThreads = 160;
  std::vector<double> want(kBlocks, 0.0);
  for (std::size_t i = 0; i < x.size(); ++i) want[i / kThreads % kBlocks] += x[i];
  for (const Policy policy : kAllPolicies) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const Buffer<float> out(memory_, kBlocks, "out");
      LaunchOptions options;
      options.policy = policy;
      options.seed = seed;
      options.converge = seed % 2 == 0;
      module.launch(
          "block_reduce", {{kBlocks, 1, 1}, {kThreads, 1, 1}, {}, 0},
          Arguments().add(dx.data()).add(out.data()).add(static_cast<std::int32_t>(x.size())),
          options);
      // Integers this small add up exactly in any order.
      for (std::size_t i = 0; i < kBlocks; ++i) {
        ASSERT_EQ(out[i], want[i]) << "policy " << static_cast<int>(policy) << " seed " << seed;
      }
    }
  }
}

TEST_P(Kernels, RmsNormQuantize) {
  const Module module = load("rmsnorm_quantize");
  constexpr int kRows = 13;
  for (const int cols : {128, 384, 160}) {
    auto x = random_floats(static_cast<std::size_t>(kRows * cols), 2.0f, 7);
    for (int i = 0; i < cols; ++i) x[static_cast<std::size_t>(3 * cols + i)] = 0.0f;
    x[5] = 300.0f;
    const auto w = random_floats(static_cast<std::size_t>(cols), 1.0f, 8);
    const Buffer<float> dx(memory_, x, "x");
    const Buffer<float> dw(memory_, w, "weight");
    const Buffer<std::uint8_t> payload(memory_, x.size(), "payload");
    const Buffer<std::uint8_t> scales(memory_, x.size() / 32, "scales");
    const float eps = 1e-6f;
    module.launch("rmsnorm_quantize", {{(kRows + 3) / 4, 1, 1}, {128, 1, 1}, {}, 0},
                  Arguments()
                      .add(dx.data())
                      .add(dw.data())
                      .add(payload.data())
                      .add(scales.data())
                      .add(kRows)
                      .add(cols)
                      .add(eps));
    ASSERT_TRUE(payload.written() && scales.written());
    for (int row = 0; row < kRows; ++row) {
      const float* in = &x[static_cast<std::size_t>(row * cols)];
      // The order of the kernel: each lane its columns, then a butterfly over the lanes.
      float partial[32] = {};
      for (int col = 0; col < cols; ++col) {
        float& sum = partial[col / 4 % 32];
        sum = std::fma(in[col], in[col], sum);
      }
      for (int step = 16; step > 0; step >>= 1) {
        float next[32];
        for (int l = 0; l < 32; ++l) next[l] = partial[l] + partial[l ^ step];
        std::copy(next, next + 32, partial);
      }
      const float mean = partial[0] / static_cast<float>(cols);
      const float inverse = 1.0f / std::sqrt(mean + eps);
      for (int block = 0; block < cols / 32; ++block) {
        float y[32];
        float amax = 0.0f;
        for (int i = 0; i < 32; ++i) {
          const int col = 32 * block + i;
          y[i] = in[col] * inverse * w[static_cast<std::size_t>(col)];
          amax = std::fmax(amax, std::fabs(y[i]));
        }
        const std::uint8_t scale = mx::scale_from_amax<mx::E4M3>(amax, ScaleRule::kRoundUp);
        ASSERT_EQ(scales[static_cast<std::size_t>((row * cols) / 32 + block)], scale)
            << "row " << row << " block " << block;
        for (int i = 0; i < 32; ++i) {
          const auto at = static_cast<std::size_t>(row * cols + 32 * block + i);
          ASSERT_EQ(payload[at], mx::encode_scaled<mx::E4M3>(y[i], scale))
              << "row " << row << " col " << 32 * block + i;
        }
      }
    }
  }
}

std::uint32_t divergence_model(std::uint32_t x) {
  std::uint32_t hash = 2166136261u;
  if (x % 17 == 3) return x ^ 0xabcdu;
  for (std::uint32_t outer = 0; outer < x % 7 + 1; ++outer) {
    std::uint32_t y = x + outer * 2654435761u;
    for (int inner = 0; inner < 40; ++inner) {
      if ((y & 7u) == 5u) break;
      y = (y & 1u) ? y * 3u + 1u : y >> 1;
      if ((y & 15u) == 6u) continue;
      hash = (hash ^ y) * 16777619u;
      const std::uint32_t which = y % 5u;
      if (which == 0) hash += 11u;
      if (which == 1) hash ^= hash << 3;
      if (which == 2) hash = (hash >> 5) | (hash << 27);
      if (which == 2 || which == 3) hash -= y;
    }
    while (y > 1000u) {
      y /= 3u;
      hash += y;
    }
    x = hash ^ y;
  }
  return hash;
}

TEST_P(Kernels, DivergenceTorture) {
  const Module module = load("divergence");
  std::mt19937 rng(5);
  std::vector<std::uint32_t> in(2001);
  for (std::uint32_t& v : in) v = rng();
  const Buffer<std::uint32_t> din(memory_, in, "in");
  for (const bool converge : {true, false}) {
    const Buffer<std::uint32_t> out(memory_, in.size(), "out");
    LaunchOptions options;
    options.converge = converge;
    module.launch(
        "divergence", {{16, 1, 1}, {128, 1, 1}, {}, 0},
        Arguments().add(din.data()).add(out.data()).add(static_cast<std::int32_t>(in.size())),
        options);
    for (std::size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i], divergence_model(in[i])) << i << " converge " << converge;
    }
  }
}

TEST_P(Kernels, SoftmaxRow) {
  const Module module = load("softmax_row");
  constexpr std::size_t kRows = 64;
  const auto s = random_floats(kRows * 128, 4.0f, 11);
  const float scale = 0.25f;
  const Buffer<float> ds(memory_, s, "s");
  const Buffer<float> p(memory_, s.size(), "p");
  const Buffer<float> lse(memory_, kRows, "lse");
  module.launch("softmax_row", {{2, 1, 1}, {32, 1, 1}, {}, 0},
                Arguments().add(ds.data()).add(p.data()).add(lse.data()).add(scale));
  double worst_p = 0.0;
  double worst_lse = 0.0;
  for (std::size_t row = 0; row < kRows; ++row) {
    double sum = 0.0;
    for (std::size_t i = 0; i < 128; ++i) sum += std::exp(double{scale} * s[row * 128 + i]);
    worst_lse = std::fmax(worst_lse, std::fabs(lse[row] - std::log(sum)));
    for (std::size_t i = 0; i < 128; ++i) {
      const double want = std::exp(double{scale} * s[row * 128 + i]) / sum;
      worst_p = std::fmax(worst_p, std::fabs(p[row * 128 + i] / want - 1.0));
    }
  }
  EXPECT_LT(worst_p, 1.5e-6);  // relative: a few FP32 roundings of the exponent, which is below 16
  EXPECT_LT(worst_lse, 2e-6);
}

TEST_P(Kernels, SeveralThreadsGiveTheSame) {
  const Module module = load("divergence");
  std::mt19937 rng(6);
  std::vector<std::uint32_t> in(3000);
  for (std::uint32_t& v : in) v = rng();
  const Buffer<std::uint32_t> din(memory_, in, "in");
  const Buffer<std::uint32_t> out(memory_, in.size(), "out");
  LaunchOptions options;
  options.threads = 2;
  module.launch(
      "divergence", {{24, 1, 1}, {128, 1, 1}, {}, 0},
      Arguments().add(din.data()).add(out.data()).add(static_cast<std::int32_t>(in.size())),
      options);
  for (std::size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], divergence_model(in[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Arch, Kernels, testing::Values("sm_90a", "sm_100a"),
                         [](const auto& arch) { return std::string(arch.param); });

}  // namespace
}  // namespace mxfa::emu::test
