#include <cmath>

#include "model/tensor_map.h"
#include "mx/fp8.h"
#include "support.h"

/// An MXFP8 GEMM of one CTA and of pairs, under every policy and several seeds, and mutants of it;
/// clusterlaunchcontrol.
namespace mxfa::emu::test {
namespace {

using U32 = std::uint32_t;

class Mxfp8Gemm : public testing::Test {
 protected:
  static constexpr int kM = 512, kN = 256, kK = 384;  // every ring wraps more than twice

  struct Matrix {
    int rows;
    std::vector<std::uint8_t> codes;   // [rows][kK]
    std::vector<int> exponents;        // [rows][kK / 32]
    std::vector<std::uint8_t> scales;  // atoms of 128 x 4
    double value(int row, int k) const {
      return std::ldexp(static_cast<double>(mx::decode_e4m3(codes[at(row, kK, k)])),
                        exponents[at(row, kK / 32, k / 32)]);
    }
    static std::size_t at(int row, int columns, int column) {
      return static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) +
             static_cast<std::size_t>(column);
    }
  };

  static Matrix random_matrix(int rows, std::mt19937& rng) {
    Matrix m{rows, {}, {}, {}};
    m.codes.resize(static_cast<std::size_t>(rows) * kK);
    m.exponents.resize(m.codes.size() / 32);
    m.scales.resize(m.exponents.size());
    for (auto& code : m.codes) {
      code = mx::encode_e4m3(static_cast<float>(static_cast<int>(rng() % 9) - 4));
    }
    for (int row = 0; row < rows; ++row) {
      for (int block = 0; block < kK / 32; ++block) {
        const int exponent = static_cast<int>(rng() % 5) - 2;
        m.exponents[Matrix::at(row, kK / 32, block)] = exponent;
        const int atom = row / 128 * (kK / 128) + block / 4;
        m.scales[static_cast<std::size_t>(atom * 512 + row % 32 * 16 + row % 128 / 32 * 4 +
                                          block % 4)] = static_cast<std::uint8_t>(127 + exponent);
      }
    }
    return m;
  }

  void SetUp() override {
    std::mt19937 rng(3);
    a_ = random_matrix(kM, rng);
    b_ = random_matrix(kN, rng);
    want_.resize(static_cast<std::size_t>(kM) * kN);
    std::vector<double> a, b;
    for (int i = 0; i < kM * kK; ++i) a.push_back(a_.value(i / kK, i % kK));
    for (int i = 0; i < kN * kK; ++i) b.push_back(b_.value(i / kK, i % kK));
    for (std::size_t i = 0; i < want_.size(); ++i) {
      double sum = 0;  // of small numbers: exact in FP32 too
      for (std::size_t k = 0; k < kK; ++k) sum += a[i / kN * kK + k] * b[i % kN * kK + k];
      want_[i] = static_cast<float>(sum);
    }
  }

  static model::TensorMapRecord map(const void* data, U32 type, const std::uint64_t (&dims)[2],
                                    U32 bytes, const U32 (&box)[2], U32 swizzle) {
    const std::uint64_t strides[] = {dims[0] * bytes};
    const U32 steps[] = {1, 1};
    model::TiledArguments arguments;
    arguments.data_type = type;
    arguments.rank = 2;
    arguments.global_address = reinterpret_cast<std::uint64_t>(data);
    arguments.global_dim = dims;
    arguments.global_strides = strides;
    arguments.box_dim = box;
    arguments.element_strides = steps;
    arguments.swizzle = swizzle;
    return model::encode_tiled(arguments);
  }

  /// The number of wrong results.
  int run(const std::string& ptx, U32 ctas, const LaunchOptions& options) {
    const Module module(ptx, "mxfp8_gemm", memory_);
    const Buffer<std::uint8_t> a(memory_, a_.codes, "a");
    const Buffer<std::uint8_t> b(memory_, b_.codes, "b");
    const Buffer<std::uint8_t> sfa(memory_, a_.scales, "sfa");
    const Buffer<std::uint8_t> sfb(memory_, b_.scales, "sfb");
    const Buffer<float> out(memory_, want_.size(), "out");
    struct Maps {
      model::TensorMapRecord a, b, sfa, sfb;
    };
    const auto codes = [&](const std::uint8_t* data, std::uint64_t rows, U32 box) {
      return map(data, 0, {kK, rows}, 1, {128, box}, 3);
    };
    const auto atoms = [&](const std::uint8_t* data, std::uint64_t bytes) {
      return map(data, 1, {256, bytes / 512}, 2, {256, 1}, 0);
    };
    const Maps maps{codes(a.data(), kM, 128), codes(b.data(), kN, 128 / ctas),
                    atoms(sfa.data(), sfa.size()), atoms(sfb.data(), sfb.size())};
    module.launch(ctas == 1 ? "mxfp8_gemm" : "mxfp8_gemm_pair",
                  {{2, 1, 1}, {192, 1, 1}, {}, 80 * 1024},
                  Arguments()
                      .add(maps)
                      .add(out.data())
                      .add(static_cast<int>(kM / 128 / ctas))
                      .add(kN / 128)
                      .add(kK / 128),
                  options);
    int wrong = 0;
    for (std::size_t i = 0; i < want_.size(); ++i) wrong += out[i] == want_[i] ? 0 : 1;
    return wrong;
  }

  void expect_right(U32 ctas) {
    const std::string ptx = kernel_ptx("mxfp8_gemm_sm100", "sm_100a");
    for (const Policy policy : kAllPolicies) {
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        LaunchOptions options;
        options.policy = policy;
        options.seed = seed;
        options.strict = true;
        options.fp8 = seed == 1 ? Fp8Mode::kBlackwell : Fp8Mode::kExact;  // small numbers: the same
        ASSERT_EQ(run(ptx, ctas, options), 0)
            << "policy " << static_cast<int>(policy) << " seed " << seed;
      }
    }
  }

  /// Is the mutant noticed, by a fault or by wrong results, under some policy and seed?
  bool caught(const std::string& ptx, U32 ctas) {
    Module(ptx, "mutant", memory_).entry("mxfp8_gemm");  // a mutant is a valid program
    for (const Policy policy : kAllPolicies) {
      for (std::uint64_t seed = 0; seed < 3; ++seed) {
        LaunchOptions options;
        options.policy = policy;
        options.seed = seed;
        options.spin_budget = 1 << 20;
        try {
          if (run(ptx, ctas, options) != 0) return true;
        } catch (const PtxError&) {
          return true;
        }
      }
    }
    return false;
  }

  static std::string without(std::string text, const std::string& line) {
    std::size_t at = text.find(line);
    EXPECT_NE(at, std::string::npos) << line;
    for (; at != std::string::npos; at = text.find(line)) text.erase(at, line.size());
    return text;
  }

  GlobalMemory memory_;
  Matrix a_, b_;
  std::vector<float> want_;
};

TEST_F(Mxfp8Gemm, OneCta) { expect_right(1); }
TEST_F(Mxfp8Gemm, CtaPair) { expect_right(2); }

// Without wait::ld each use waits for its register, so the values are right, but nothing keeps the
// next product from the columns.
TEST_F(Mxfp8Gemm, RegistersOrderNoMemory) {
  const std::string ptx = kernel_ptx("mxfp8_gemm_sm100", "sm_100a");
  CheckReport report;
  LaunchOptions options;
  options.policy = Policy::kEarliest;
  options.check = &report;
  EXPECT_EQ(run(ptx, 1, options), 0);
  EXPECT_TRUE(report.clean());
  EXPECT_EQ(run(without(ptx, "tcgen05.wait::ld.sync.aligned;"), 1, options), 0);
  EXPECT_FALSE(report.clean());
}

TEST_F(Mxfp8Gemm, MutantsAreCaught) {
  const std::string ptx = kernel_ptx("mxfp8_gemm_sm100", "sm_100a");
  // Waits that fall through, by what comes after them. Values alone do not show every single one:
  // the hazard checker is for that.
  const std::string loop = "@P bra DONE;\nbra WAIT;";
  const std::string next[] = {"expect_tx", "tcgen05.cp", "tcgen05.ld."};
  std::string mutants[3] = {ptx, ptx, ptx};
  for (std::size_t at = ptx.find(loop); at != std::string::npos; at = ptx.find(loop, at + 1)) {
    std::size_t role = 0;
    for (std::size_t i = 1; i < 3; ++i) {
      if (ptx.find(next[i], at) < ptx.find(next[role], at)) role = i;
    }
    mutants[role].replace(at, loop.size(), std::string(loop.size() - 10, ' ') + "bra DONE;\n");
  }
  EXPECT_TRUE(caught(mutants[0], 1)) << "loads that do not wait for free stages";
  EXPECT_TRUE(caught(mutants[1], 1)) << "products that do not wait for the loads";
  EXPECT_TRUE(caught(mutants[2], 2)) << "stores that do not wait for the products";
}

// Clusters that have not begun are taken over by those that run: every block's work once.
TEST(ClusterLaunchControl, WorkStealing) {
  const std::string ptx = R"(.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 p) .explicitcluster .reqnctapercluster 2, 1, 1 {
  .shared .align 16 .b8 response[16];
  .shared .align 8 .b8 mbar[8];
  .reg .b32 %x, %y, %z, %rank, %parity, %one; .reg .b64 %out, %at; .reg .b128 %answer;
  .reg .pred %p, %q;
  ld.param.u64 %out, [p];
  mov.u32 %rank, %cluster_ctarank;
  mov.u32 %x, %ctaid.x;
  mov.u32 %y, %ctaid.y;
  mov.u32 %parity, 0;
  mbarrier.init.shared::cta.b64 [mbar], 1;
  fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  WORK:
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [mbar], 16;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  setp.eq.u32 %p, %rank, 0;
 @%p clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.multicast::cluster::all.b128
    [response], [mbar];
  mad.lo.u32 %z, %y, 8, %x;
  mul.wide.u32 %at, %z, 4;
  add.u64 %at, %out, %at;
  atom.global.add.u32 %one, [%at], 1;
  WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %q, [mbar], %parity;
  @!%q bra WAIT;
  xor.b32 %parity, %parity, 1;
  ld.shared.b128 %answer, [response];
  fence.proxy.async.shared::cta;
  clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p, %answer;
  @!%p bra DONE;
  clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%x, _, _, _}, %answer;
  clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %y, %answer;
  add.u32 %x, %x, %rank;
  bra WORK;
  DONE:
  {LAST}
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  ret;
}
)";
  GlobalMemory memory;
  const auto run = [&](std::string text, const std::string& last, const LaunchOptions& options) {
    text.replace(text.find("{LAST}"), 6, last);
    const Module module(text, "clc.ptx", memory);
    const Buffer<U32> out(memory, std::vector<U32>(24, 0), "out");
    module.launch("k", {{8, 3, 1}, {1, 1, 1}, {}, 0}, Arguments().add(out.data()), options);
    return std::vector<U32>(out.data(), out.data() + 24);
  };
  for (const Policy policy : kAllPolicies) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      LaunchOptions options;
      options.policy = policy;
      options.seed = seed;
      options.resident_clusters = 2;
      ASSERT_EQ(run(ptx, "", options), std::vector<U32>(24, 1)) << static_cast<int>(policy);
    }
  }
  const std::string asked = error_of([&] {
    run(ptx, "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %y, %answer;", {});
  });
  EXPECT_NE(asked.find("get_first_ctaid of a request that failed"), std::string::npos) << asked;
  const std::string again = error_of([&] {
    run(ptx,
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 "
        "[response], [mbar];",
        {});
  });
  EXPECT_NE(again.find("after one was seen to fail"), std::string::npos) << again;
}

}  // namespace
}  // namespace mxfa::emu::test
