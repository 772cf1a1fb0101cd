#include <numeric>

#include "op_harness.h"

/// Which lanes run together, and that lanes which wait for others of their warp get on.
namespace mxfa::emu::test {
namespace {

using U32 = std::uint32_t;

std::vector<U32> lane_numbers() {
  std::vector<U32> v(32);
  std::iota(v.begin(), v.end(), 0u);
  return v;
}

// An instruction of the divergence kernel has 5.7 lanes on average where lanes only meet at the
// ends of loops and branches, one to three where they do not meet.
TEST(Divergence, LanesMeetAgain) {
  std::mt19937 rng(5);
  std::vector<U32> in(4096);
  for (U32& v : in) v = rng();
  for (const std::string arch : {"sm_90a", "sm_100a"}) {
    GlobalMemory memory;
    const Module module(kernel_ptx("divergence", arch), "divergence.ptx", memory);
    const Buffer<U32> din(memory, in, "in");
    const Buffer<U32> out(memory, in.size(), "out");
    const auto arguments = Arguments().add(din.data()).add(out.data()).add(4096);
    const auto lanes = [&](bool converge) {
      LaunchOptions options;
      options.converge = converge;
      const LaunchStats stats =
          module.launch("divergence", {{32, 1, 1}, {128, 1, 1}, {}, 0}, arguments, options);
      return static_cast<double>(stats.thread_instructions) /
             static_cast<double>(stats.warp_instructions);
    };
    EXPECT_GT(lanes(true), 6.5) << arch;
    EXPECT_LT(lanes(false), 3.0) << arch;
  }
}

// Lanes of one warp take turns at a lock, several times each: those that spin at the head of the
// inner loop are many at first and few at last.
TEST(Divergence, LanesTakeTurnsAtALock) {
  const std::string ptx = R"(.version 9.0
.target sm_90a
.address_size 64
.visible .entry locks(.param .u64 out)
{
  .reg .b32 lane, round, old, value;
  .reg .b64 at;
  .reg .pred again, taken;
  .shared .align 4 .b32 lock;
  .shared .align 4 .b32 counter;
  mov.u32 lane, %tid.x;
  setp.eq.u32 taken, lane, 0;
  @taken st.shared.u32 [lock], 0;
  @taken st.shared.u32 [counter], 0;
  bar.sync 0;
  mov.u32 round, 0;
OUTER:
SPIN:
  atom.acquire.cta.shared::cta.cas.b32 old, [lock], 0, 1;
  setp.ne.u32 taken, old, 0;
  @taken bra SPIN;
  ld.shared.u32 value, [counter];
  add.u32 value, value, 1;
  st.shared.u32 [counter], value;
  atom.release.cta.shared::cta.exch.b32 old, [lock], 0;
  add.u32 round, round, 1;
  setp.lt.u32 again, round, 3;
  @again bra OUTER;
  bar.sync 0;
  ld.shared.u32 value, [counter];
  ld.param.u64 at, [out];
  st.global.u32 [at], value;
  ret;
}
)";
  for (const bool converge : {true, false}) {
    for (const Policy policy : kAllPolicies) {
      GlobalMemory memory;
      const Module module(ptx, "locks.ptx", memory);
      const Buffer<U32> out(memory, 1, "out");
      LaunchOptions options;
      options.policy = policy;
      options.converge = converge;
      options.spin_budget = 1u << 22;
      module.launch("locks", {{1, 1, 1}, {96, 1, 1}, {}, 0}, Arguments().add(out.data()), options);
      EXPECT_EQ(out[0], 288u) << static_cast<int>(policy) << " converge " << converge;
    }
  }
}

// Odd lanes of the inner loop wait for what even lanes do further on in the outer one.
TEST(Divergence, FewLanesWaitForManyOfTheOuterLoop) {
  const auto got = run_op<U32, U32>(R"({
  .reg .b32 outer, inner, wanted;
  mov.u32 d, 0;
  mov.u32 outer, 0;
OUTER:
  add.u32 wanted, a, outer;
  rem.u32 wanted, wanted, 7;
  mov.u32 inner, 0;
INNER:
  add.u32 d, d, outer;
  add.u32 inner, inner, 1;
  setp.le.u32 p, inner, wanted;
  @p bra INNER;
  add.u32 outer, outer, 1;
  setp.lt.u32 p, outer, 20;
  @p bra OUTER;
})",
                                    lane_numbers());
  for (U32 lane = 0; lane < 32; ++lane) {
    U32 want = 0;
    for (U32 outer = 0; outer < 20; ++outer) want += outer * ((lane + outer) % 7 + 1);
    EXPECT_EQ(got[lane], want) << lane;
  }
}

}  // namespace
}  // namespace mxfa::emu::test
