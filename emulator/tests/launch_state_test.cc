#include <fmt/format.h>

#include <cmath>

#include "support.h"

/// What a launch carries along: registers that warpgroups trade, indexed branches, perturbed
/// approximate functions.
namespace mxfa::emu::test {
namespace {

using U32 = std::uint32_t;

std::string entry(const std::string& directives, const std::string& body) {
  return ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p, .param "
         ".u64 o) " +
         directives + "\n{\n.reg .b32 r<9>;\n.reg .b64 d<9>;\n.reg .f32 f<9>;\n.reg .pred q<9>;\n" +
         body + "ret;\n}\n";
}

// Warps 0 to `consumers` - 1 want `more`, the others give up what exceeds `fewer`.
std::string trade(const std::string& directives, int consumers, int more, int fewer) {
  return entry(directives, fmt::format("mov.u32 r1, %tid.x;\nsetp.ge.u32 q1, r1, {};\n@q1 bra B;\n"
                                       "setmaxnreg.inc.sync.aligned.u32 {};\nbra E;\n"
                                       "B:\nsetmaxnreg.dec.sync.aligned.u32 {};\nE:\n",
                                       consumers * 32, more, fewer));
}

std::string run_trade(const std::string& text, U32 threads, Policy policy = Policy::kRandom) {
  GlobalMemory memory;
  LaunchOptions options;
  options.policy = policy;
  try {
    const Module module(text, "trade.ptx", memory);
    module.launch("k", {{1, 1, 1}, {threads, 1, 1}, {}, 0},
                  Arguments().add(std::uint64_t{0}).add(std::uint64_t{0}), options);
  } catch (const PtxError& error) {
    return error.what();
  }
  return "";
}

TEST(MaxRegisters, WithinTheLaunch) {
  for (const Policy policy : kAllPolicies) {
    EXPECT_EQ(run_trade(trade(".maxntid 640", 16, 112, 24), 640, policy), "");
    EXPECT_EQ(run_trade(trade(".maxntid 384", 8, 240, 24), 384, policy), "");
    EXPECT_EQ(run_trade(trade(".maxntid 512", 12, 160, 32), 512, policy), "");
  }
}

// 16 x 120 + 4 x 24 of a block launched with 20 x 96 stops a GPU.
TEST(MaxRegisters, MoreThanTheLaunchHasWaitsForEver) {
  const std::string message = run_trade(trade(".maxntid 640", 16, 120, 24), 640);
  for (const char* part : {"deadlock", "waits for 120 registers a thread: it has 96",
                           "20 warps x 96", "setmaxnreg.inc.sync.aligned.u32 120"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  // 17 warps count as 20.
  EXPECT_NE(run_trade(trade(".maxntid 544", 16, 112, 40), 544), "");
  EXPECT_EQ(run_trade(trade(".maxntid 256 .minnctapersm 2", 4, 152, 104), 256), "");
  EXPECT_NE(run_trade(trade(".maxntid 256 .minnctapersm 2", 4, 160, 104), 256), "");
  EXPECT_EQ(run_trade(trade(".maxntid 256 .maxnreg 64", 4, 104, 24), 256), "");
  EXPECT_NE(run_trade(trade(".maxntid 256 .maxnreg 64", 4, 112, 24), 256), "");
}

TEST(IndexedBranch, EveryTargetAndGuards) {
  GlobalMemory memory;
  const std::string body =
      "ld.param.u64 d1, [o];\nmov.u32 r1, %tid.x;\nmul.wide.u32 d2, r1, 4;\nadd.u64 d1, d1, d2;\n"
      "rem.u32 r2, r1, 5;\nsetp.ge.u32 q1, r2, 3;\nmov.u32 r3, 1000;\n"
      "T: .branchtargets A, B, C, A;\n"
      "@!q1 brx.idx r2, T;\nadd.u32 r3, r3, 7;\nbra END;\n"
      "A: add.u32 r3, r3, 1;\nbra END;\nB: add.u32 r3, r3, 2;\n"
      "C: add.u32 r3, r3, 4;\nEND:\nst.global.u32 [d1], r3;\n";
  const Module module(entry("", body), "brx.ptx", memory);
  for (const bool converge : {true, false}) {
    const Buffer<U32> out(memory, 64, "out");
    LaunchOptions options;
    options.converge = converge;
    module.launch("k", {{1, 1, 1}, {64, 1, 1}, {}, 0},
                  Arguments().add(std::uint64_t{0}).add(out.data()), options);
    const U32 want[] = {1001, 1006, 1004, 1007, 1007};
    for (U32 i = 0; i < 64; ++i) EXPECT_EQ(out[i], want[i % 5]) << i;
  }
}

TEST(IndexedBranch, WrongUse) {
  GlobalMemory memory;
  const auto error = [&](const std::string& body) {
    return error_of([&] {
      const Module module(entry("", body), "brx.ptx", memory);
      module.launch("k", {{1, 1, 1}, {32, 1, 1}, {}, 0},
                    Arguments().add(std::uint64_t{0}).add(std::uint64_t{0}));
    });
  };
  const auto expect = [&](const std::string& body, const char* what) {
    EXPECT_NE(error(body).find(what), std::string::npos) << error(body);
  };
  expect("mov.u32 r1, 2;\nT: .branchtargets A, A;\nbrx.idx.uni r1, T;\nA:\n", "no entry 2");
  expect("brx.idx r1, T;\nA:\n", "unknown name 'T'");
  expect("T: .branchtargets A, Z;\nbrx.idx r1, T;\nA:\n", "unknown name 'Z'");
  expect("T: .branchtargets A;\nT: .branchtargets A;\nA:\n", "declared twice");
  expect("T: .branchtargets A;\nbrx.idx r1, T, r2;\nA:\n", "list of targets");
}

class Perturbed : public testing::Test {
 protected:
  std::vector<float> run(const std::string& operation, const LaunchOptions& options) {
    const std::string body =
        "ld.param.u64 d1, [p];\nld.param.u64 d3, [o];\nmov.u32 r1, %tid.x;\nmul.wide.u32 d2, r1, "
        "4;\nadd.u64 d1, d1, d2;\nadd.u64 d3, d3, d2;\nld.global.f32 f1, [d1];\n" +
        operation + " f2, f1" + (operation.starts_with("div") ? ", 0f40400000" : "") +
        ";\nst.global.f32 [d3], f2;\n";
    const Module module(entry("", body), "perturb.ptx", memory_);
    const Buffer<float> in(memory_, values_, "in");
    const Buffer<float> out(memory_, values_.size(), "out");
    module.launch("k", {{1, 1, 1}, {256, 1, 1}, {}, 0}, Arguments().add(in.data()).add(out.data()),
                  options);
    return {out.data(), out.data() + out.size()};
  }
  void SetUp() override {
    for (std::size_t i = 0; i < 256; ++i) values_.push_back(0.5f + static_cast<float>(i) / 191.0f);
  }
  GlobalMemory memory_;
  std::vector<float> values_;
};

TEST_F(Perturbed, ApproximateResultsMoveWithinTheirBound) {
  LaunchOptions plain, moved, other;
  moved.perturb = other.perturb = true;
  moved.seed = 1;
  other.seed = 2;
  for (const char* operation : {"ex2.approx.ftz.f32", "lg2.approx.f32", "rcp.approx.ftz.f32",
                                "rsqrt.approx.f32", "sqrt.approx.f32", "tanh.approx.f32",
                                "sin.approx.f32", "div.full.f32", "div.approx.ftz.f32"}) {
    const auto want = run(operation, plain);
    const auto got = run(operation, moved);
    EXPECT_NE(want, got) << operation;
    EXPECT_EQ(got, run(operation, moved)) << operation;
    EXPECT_NE(got, run(operation, other)) << operation;
    const float bound = std::string_view(operation).starts_with("tanh") ? 0x1p-10f : 0x1p-20f;
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(want[i], got[i], bound * std::fmax(1.0f, std::fabs(want[i]))) << operation;
    }
  }
  for (const char* exact : {"rcp.rn.f32", "sqrt.rn.ftz.f32", "div.rn.f32", "neg.f32"}) {
    EXPECT_EQ(run(exact, plain), run(exact, moved)) << exact;
  }
}

}  // namespace
}  // namespace mxfa::emu::test
