#include <fmt/format.h>

#include "support.h"

/// What programs do wrong is reported with the line and who did it; nothing crashes or hangs.
namespace mxfa::emu::test {
namespace {

std::string wrap(const std::string& body, const std::string& declarations = "") {
  return ".version 9.0\n.target sm_90a\n.address_size 64\n" + declarations +
         ".visible .entry k(.param .u64 p)\n{\n.reg .b32 r<20>;\n.reg .b64 d<20>;\n.reg .pred "
         "q<9>;\n" +
         ".reg .f32 f<9>;\n" + body + "\nret;\n}\n";
}

class Faults : public testing::Test {
 protected:
  void launch(const std::string& body, std::uint32_t threads = 64,
              const std::string& declarations = "", std::uint32_t shared = 0) {
    const Module module(wrap(body, declarations), "t.ptx", memory_);
    module.launch("k", {{1, 1, 1}, {threads, 1, 1}, {}, shared}, Arguments().add(buffer_.data()),
                  options_);
  }
  std::string run(const std::string& body, std::uint32_t threads = 64,
                  const std::string& declarations = "", std::uint32_t shared = 0) {
    return error_of([&] { launch(body, threads, declarations, shared); });
  }
  static void expect_text(const std::string& message, std::initializer_list<const char*> parts) {
    for (const char* part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
    }
  }
  GlobalMemory memory_;
  Buffer<std::uint32_t> buffer_{memory_, std::vector<std::uint32_t>(256, 7), "buffer"};
  LaunchOptions options_;
};

TEST_F(Faults, OutOfBounds) {
  expect_text(run("ld.param.u64 d1, [p];\nst.global.u32 [d1+1024], 1;"),
              {"t.ptx:11:", "st.global.u32 [d1+1024], 1;", "buffer", "1024", "block (0,0,0)"});
  expect_text(run("ld.param.u64 d1, [p];\nld.u32 r1, [d1+-4];"), {"outside of every buffer"});
  expect_text(run("ld.shared.u32 r1, [64];", 32, "", 64), {"shared offset 64", "64 bytes"});
  expect_text(run("mov.u64 d1, 0; ld.global.u32 r1, [d1];"), {"0x0"});
  // Only the last lane is past the end.
  expect_text(run("mov.u32 r1, %tid.x; mul.wide.u32 d2, r1, 4; ld.param.u64 d1, [p];\n"
                  "add.u64 d1, d1, d2; ld.global.u32 r2, [d1+900];",
                  32),
              {"lanes 0x80000000"});
}

TEST_F(Faults, Misaligned) {
  expect_text(run("ld.param.u64 d1, [p];\nld.global.u64 d2, [d1+4];"), {"misaligned", "8 bytes"});
  expect_text(run("ld.param.u64 d1, [p];\nld.global.v4.u32 {r1,r2,r3,r4}, [d1+8];"),
              {"misaligned", "16 bytes"});
}

TEST_F(Faults, UninitialisedReads) {
  expect_text(run("ld.shared.u32 r1, [s+8];", 32, ".shared .align 4 .b8 s[64];\n"),
              {"nobody wrote", "shared memory"});
  const Buffer<std::uint32_t> fresh(memory_, 16, "fresh");
  const std::string body = fmt::format("mov.u64 d1, {}; ld.global.u32 r1, [d1];",
                                       reinterpret_cast<std::uint64_t>(fresh.data()));
  expect_text(run(body), {"nobody wrote", "fresh"});
}

// Lanes 32 bytes apart: all are looked at together, each in its own place.
TEST_F(Faults, StridedAccesses) {
  const auto of = [](const Buffer<std::uint32_t>& buffer) {
    return fmt::format("mov.u32 r1, %tid.x; mul.wide.u32 d2, r1, 32; add.u64 d1, d2, {};\n",
                       reinterpret_cast<std::uint64_t>(buffer.data()));
  };
  launch(of(buffer_) + "ld.global.u32 r2, [d1+28]; st.global.u32 [d1], r1;", 32);
  EXPECT_EQ(buffer_[8 * 31], 31u);
  EXPECT_EQ(buffer_[8 * 31 + 1], 7u);
  expect_text(run(of(buffer_) + "ld.global.u32 r2, [d1+32];", 32),
              {"outside of every buffer", "0x80000000"});
  expect_text(run(of(buffer_) + "st.global.u32 [d1+-4], r2;", 32), {"outside of", "0x00000001"});
  const Buffer<std::uint32_t> odd(memory_, std::vector<std::uint32_t>(8 * 31 + 1, 7), "odd");
  expect_text(run(of(odd) + "st.global.v2.u32 [d1], {r1, r1};", 32),
              {"past its end", "0x80000000"});
  const Buffer<std::uint32_t> fresh(memory_, 256, "fresh");
  memory_.mark_initialised(fresh.data(), 17 * 32);
  expect_text(run(of(fresh) + "ld.global.u32 r2, [d1];", 32), {"nobody wrote", "0x00020000"});
  launch(of(fresh) + "st.global.u32 [d1], r1; ld.global.u32 r2, [d1];", 32);
}

TEST_F(Faults, ReadOnlyMemory) {
  expect_text(run("mov.u64 d1, p;\ncvta.param.u64 d1, d1; st.u32 [d1], 0;"),
              {"read-only memory 'parameters'"});
}

TEST_F(Faults, DivergentAlignedInstruction) {
  expect_text(run("mov.u32 r1, %laneid;\nsetp.lt.u32 q1, r1, 7;\n@q1 bar.sync 0;"),
              {"t.ptx:12:", "divergent", "bar.sync 0"});
  // Both sides of a branch have a barrier of their own: neither side can wait for the other.
  expect_text(run("mov.u32 r1, %laneid;\nsetp.lt.u32 q1, r1, 7;\n@q1 bra A;\nbar.sync 0;\nbra B;\n"
                  "A:\nbar.sync 0;\nB:"),
              {"wait for each other", "line 13", "line 16"});
}

TEST_F(Faults, MemberMasks) {
  expect_text(run("mov.u32 r1, %laneid;\nsetp.lt.u32 q1, r1, 7;\n"
                  "@q1 shfl.sync.idx.b32 r2, r1, 0, 31, 0xffffffff;"),
              {"member mask"});
  expect_text(run("mov.u32 r1, 1;\nshfl.sync.idx.b32 r2, r1, 0, 31, 0x0000ffff;"),
              {"not in its own member mask"});
}

TEST_F(Faults, Deadlock) {
  const std::string message = run(
      "mov.u32 r1, %warpid;\nsetp.eq.u32 q1, r1, 0;\n@q1 bar.sync 1, 64;\n@!q1 bar.sync 2, 64;");
  expect_text(message, {"deadlock", "warp 0", "warp 1", "barrier 1 (32 of 64 threads have arrived)",
                        "barrier 2", "line 12", "line 13"});
}

// Who waits for what: the loop's branch is where the warp stands.
TEST_F(Faults, DeadlockAtAnMbarrier) {
  expect_text(run("mov.u32 r1, %tid.x; setp.ne.u32 q1, r1, 0; @q1 bra READY;\n"
                  "mbarrier.init.shared::cta.b64 [b+8], 2;\n"
                  "mbarrier.arrive.expect_tx.shared::cta.b64 _, [b+8], 512;\n"
                  "READY: bar.sync 0;\n"
                  "L: mbarrier.try_wait.parity.shared::cta.b64 q1, [b+8], 0;\n@!q1 bra L;",
                  64, ".shared .align 8 .b8 b[16];\n"),
              {"deadlock",
               "warp 0, lanes 0xffffffff: waits for the mbarrier at shared offset 8 of "
               "block (0,0,0) (phase 0, 1 of 2 arrivals pending, tx-count 512)",
               "warp 1, lanes 0xffffffff: waits for the mbarrier", "mbarrier.try_wait"});
}

TEST_F(Faults, BarrierMisuse) {
  expect_text(run("bar.sync 16;"), {"barrier 16"});
  expect_text(run("bar.sync 1, 48;"), {"multiple of 32"});
  expect_text(run("mov.u32 r1, %warpid;\nsetp.eq.u32 q1, r1, 0;\n@q1 bar.sync 1, 64;\n"
                  "@!q1 bar.sync 1, 96;",
                  96),
              {"another thread count"});
}

TEST_F(Faults, EndlessLoop) {
  options_.spin_budget = 100000;
  expect_text(run("mov.u32 r1, 0;\nL:\nadd.u32 r1, r1, 1;\nbra L;"), {"endless loop", "warp 0"});
}

TEST_F(Faults, TrapAndUnknownCall) {
  expect_text(run("trap;"), {"trap", "t.ptx:10:"});
  expect_text(run("call.uni f;", 32, ".func f;\n"), {"only vprintf and __assertfail"});
}

TEST_F(Faults, WrongOperands) {
  expect_text(run("add.s32 r1, d1, r2;"), {"expected 32 bits", "register of 64"});
  expect_text(run("add.s32 r1, r2;"), {"operands"});
  expect_text(run("add.s32 r1, r2, 4294967296;"), {"does not fit 32 bits"});
  expect_text(run("add.s32 5, r2, r3;"), {"destination"});
  expect_text(run("mov.u32 r1, %nothing;"), {"unknown name %nothing"});
  expect_text(run("frobnicate.s32 r1, r2;"), {"unknown opcode", "frobnicate.s32", "t.ptx:10:"});
  expect_text(run("add.s32.rz r1, r2, r3;"), {"unknown opcode or qualifier"});
  expect_text(run("ld.shared.u32 r1, [g];", 32, ".global .u32 g;\n"), {"another state space"});
  expect_text(run("bra r1;"), {"unknown name"});
}

TEST_F(Faults, LaunchConfiguration) {
  const Module module(wrap(""), "t.ptx", memory_);
  const auto launch = [&](const LaunchConfig& config, const Arguments& arguments) {
    return error_of([&] { module.launch("k", config, arguments); });
  };
  const Arguments good = Arguments().add(buffer_.data());
  expect_text(launch({{0, 1, 1}, {32, 1, 1}, {}, 0}, good), {"grid"});
  expect_text(launch({{1, 1, 1}, {1025, 1, 1}, {}, 0}, good), {"1025"});
  expect_text(launch({{3, 1, 1}, {32, 1, 1}, {2, 1, 1}, 0}, good), {"multiple of the cluster"});
  expect_text(launch({{1, 1, 1}, {32, 1, 1}, {}, 300000}, good), {"300000"});
  expect_text(launch({}, Arguments()), {"expected 1 arguments, got 0"});
  expect_text(launch({}, Arguments().add(1)), {"expected 8 bytes, got 4"});
  expect_text(error_of([&] { module.launch("nothing", {}, good); }), {"no entry 'nothing'"});
}

TEST_F(Faults, LintListsAllUnknownOpcodes) {
  const auto findings = lint(wrap("foo.s32 r1, r2;\nadd.s32 r1, r2, r3;\nbar.baz r1;"), "t.ptx");
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].opcode, "foo.s32");
  EXPECT_EQ(findings[1].line, 12u);
  EXPECT_EQ(lint(wrap("add.s32 r1, r2, d3;"), "t.ptx").size(), 1u);
  EXPECT_TRUE(lint(wrap("add.s32 r1, r2, r3;"), "t.ptx").empty());
}

TEST_F(Faults, OverlappingBuffers) {
  std::vector<int> values(10);
  memory_.add(values.data(), 40, "one");
  expect_text(error_of([&] { memory_.add(values.data() + 5, 4, "two"); }), {"overlaps 'one'"});
  memory_.remove(values.data());
}

}  // namespace
}  // namespace mxfa::emu::test
