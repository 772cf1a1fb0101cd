#include <bit>

#include "op_harness.h"

/// Operations across lanes, atomics, matrices, calls and clusters.
namespace mxfa::emu::test {
namespace {

using U32 = std::uint32_t;

/// One warp: a[lane] in, d[lane] out.
std::vector<U32> warp_op(const std::string& instruction, const std::vector<U32>& a,
                         const std::vector<U32>& b = {}) {
  return run_op<U32, U32, U32>(instruction, a, b);
}

std::vector<U32> random_lanes(U32 seed, U32 modulus = 0) {
  std::mt19937 rng(seed);
  std::vector<U32> v(32);
  for (U32& x : v) x = modulus == 0 ? rng() : rng() % modulus;
  return v;
}

TEST(WarpOps, ShuffleByThePseudocode) {
  const std::vector<U32> a = random_lanes(1);
  const std::vector<U32> b = random_lanes(2, 32);
  for (const std::string mode : {"up", "down", "bfly", "idx"}) {
    for (const U32 control : {31u, 0u, 0x1807u, 0x100Fu, 0x1C03u}) {
      const auto got = warp_op(
          fmt::format("shfl.sync.{}.b32 d|p, a, b, {}, -1; @!p add.u32 d, d, 1;", mode, control), a,
          b);
      const int segment = static_cast<int>(control >> 8);
      const int clamp = static_cast<int>(control & 31u);
      for (int lane = 0; lane < 32; ++lane) {
        const int value = static_cast<int>(b[static_cast<std::size_t>(lane)]);
        const int max_lane = (lane & segment) | (clamp & ~segment & 31);
        const int min_lane = lane & segment;
        int j = lane;
        bool in_range = false;
        if (mode == "up") in_range = (j = lane - value) >= max_lane;
        if (mode == "down") in_range = (j = lane + value) <= max_lane;
        if (mode == "bfly") in_range = (j = lane ^ value) <= max_lane;
        if (mode == "idx") in_range = (j = min_lane | (value & ~segment & 31)) <= max_lane;
        const U32 want =
            in_range ? a[static_cast<std::size_t>(j)] : a[static_cast<std::size_t>(lane)] + 1;
        ASSERT_EQ(got[static_cast<std::size_t>(lane)], want)
            << mode << " " << control << " " << lane;
      }
    }
  }
}

TEST(WarpOps, ShuffleInPlace) {
  const std::vector<U32> a = random_lanes(8);
  const auto got = warp_op("shfl.sync.bfly.b32 a, a, 1, 31, -1; mov.b32 d, a;", a);
  for (std::size_t i = 0; i < 32; ++i) ASSERT_EQ(got[i], a[i ^ 1u]);
}

TEST(WarpOps, VotesAndMatches) {
  const std::vector<U32> a = random_lanes(3, 4);
  U32 ballot = 0;
  for (U32 i = 0; i < 32; ++i) ballot |= (a[i] == 2 ? 1u : 0u) << i;
  const std::string two = "setp.eq.u32 p, a, 2; ";
  for (const U32 v : warp_op(two + "vote.sync.ballot.b32 d, p, -1;", a)) ASSERT_EQ(v, ballot);
  const auto flag = [&](const std::string& mode, const std::string& set) {
    return warp_op(set + "vote.sync." + mode + ".pred q, p, -1; selp.u32 d, 1, 0, q;", a)[7];
  };
  EXPECT_EQ(flag("any", two), 1u);
  EXPECT_EQ(flag("all", two), 0u);
  EXPECT_EQ(flag("uni", two), 0u);
  EXPECT_EQ(flag("all", "setp.lt.u32 p, a, 4; "), 1u);
  EXPECT_EQ(flag("uni", "setp.gt.u32 p, a, 4; "), 1u);
  const auto any = warp_op("match.any.sync.b32 d, a, -1;", a);
  for (std::size_t i = 0; i < 32; ++i) {
    U32 want = 0;
    for (std::size_t j = 0; j < 32; ++j) want |= (a[i] == a[j] ? 1u : 0u) << j;
    ASSERT_EQ(any[i], want);
  }
  EXPECT_EQ(warp_op("match.all.sync.b32 d|p, a, -1; selp.u32 d, 99, 5, p;", a)[0], 5u);
  // Groups with masks of their own meet in one instruction.
  const auto groups =
      warp_op("{ .reg .b32 m; match.any.sync.b32 m, a, -1; redux.sync.add.u32 d, b, m; }", a,
              std::vector<U32>(32, 1));
  for (std::size_t i = 0; i < 32; ++i)
    ASSERT_EQ(groups[i], static_cast<U32>(std::popcount(any[i])));
  for (std::size_t i = 0; const U32 v : warp_op("elect.sync d|p, -1; selp.u32 d, 1, 0, p;", a)) {
    ASSERT_EQ(v, i++ == 0 ? 1u : 0u);
  }
}

TEST(WarpOps, Reductions) {
  const std::vector<U32> a = random_lanes(5);
  U32 sum = 0, all = ~0u, any = 0, odd = 0, high = 0;
  std::int32_t low = std::numeric_limits<std::int32_t>::max();
  for (const U32 v : a) {
    sum += v;
    all &= v;
    any |= v;
    odd ^= v;
    high = std::max(high, v);
    low = std::min(low, static_cast<std::int32_t>(v));
  }
  EXPECT_EQ(warp_op("redux.sync.add.u32 d, a, -1;", a)[3], sum);
  EXPECT_EQ(warp_op("redux.sync.and.b32 d, a, -1;", a)[3], all);
  EXPECT_EQ(warp_op("redux.sync.or.b32 d, a, -1;", a)[3], any);
  EXPECT_EQ(warp_op("redux.sync.xor.b32 d, a, -1;", a)[3], odd);
  EXPECT_EQ(warp_op("redux.sync.max.u32 d, a, -1;", a)[3], high);
  EXPECT_EQ(warp_op("redux.sync.min.s32 d, a, -1;", a)[3], static_cast<U32>(low));
  std::vector<U32> f = random_lanes(6);
  f[4] = 0x7FC00000u;
  float largest = 0.0f;
  for (const U32 v : f) {
    if (!std::isnan(std::bit_cast<float>(v)))
      largest = std::fmax(largest, std::fabs(std::bit_cast<float>(v)));
  }
  EXPECT_EQ(warp_op("redux.sync.max.abs.f32 d, a, -1;", f)[0], std::bit_cast<U32>(largest));
  EXPECT_EQ(warp_op("redux.sync.max.abs.NaN.f32 d, a, -1;", f)[0], 0x7FFFFFFFu);
}

TEST(WarpOps, DivergedWarpBarrierAndShuffle) {
  // Two halves of the warp reach bar.warp.sync at different instructions, then shuffle together.
  const auto got = warp_op(
      "mov.u32 d, %laneid; setp.lt.u32 p, d, 16; @p bra A; add.u32 a, a, 1; bar.warp.sync -1; bra "
      "B;"
      "A: add.u32 a, a, 2; bar.warp.sync -1; B: shfl.sync.bfly.b32 d, a, 16, 31, -1;",
      std::vector<U32>(32, 10));
  for (std::size_t i = 0; i < 32; ++i) ASSERT_EQ(got[i], i < 16 ? 11u : 12u);
}

TEST(WarpOps, WarpBarrierOrdersMemoryBetweenHalves) {
  GlobalMemory memory;
  // One half stores late, the other one reads behind its own barrier, earlier in the text.
  const std::string ptx = R"(.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
  .shared .align 4 .b8 s[4];
  .reg .b32 lane, v, i; .reg .b64 d; .reg .pred p;
  mov.u32 lane, %laneid;
  mov.u32 i, 0;
  setp.lt.u32 p, lane, 16;
  @p bra SLOW;
  bar.warp.sync 0xffffffff;
  ld.shared.u32 v, [s];
  ld.param.u64 d, [out];
  st.global.u32 [d], v;
  ret;
  SLOW:
  add.u32 i, i, 1;
  setp.lt.u32 p, i, 50;
  @p bra SLOW;
  st.shared.u32 [s], i;
  bar.warp.sync 0xffffffff;
  ret;
})";
  std::string swapped = ptx;
  swapped.replace(swapped.find("setp.lt.u32 p, lane, 16"), 23, "setp.ge.u32 p, lane, 16");
  for (const std::string& text : {ptx, swapped}) {
    const Module module(text, "halves", memory);
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      const Buffer<U32> out(memory, 1, "out");
      LaunchOptions options;
      options.seed = seed;
      options.converge = seed % 2 == 0;
      module.launch("k", {{1, 1, 1}, {32, 1, 1}, {}, 0}, Arguments().add(out.data()), options);
      ASSERT_EQ(out[0], 50u);
    }
  }
}

TEST(Memory, MatrixFragments) {
  GlobalMemory memory;
  const std::string ptx = R"(.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
  .shared .align 128 .b8 s[512];
  .reg .b32 lane, at, v, r<4>, t<4>; .reg .b64 d, o;
  mov.u32 lane, %laneid;
  mov.u32 at, s;
  mad.lo.u32 at, lane, 16, at;
  mul.lo.u32 v, lane, 0x01000100;
  add.u32 v, v, 0x00010000;
  st.shared.v4.u32 [at], {v, v, v, v};
  bar.warp.sync -1;
  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r0, r1, r2, r3}, [at];
  ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {t0, t1, t2, t3}, [at];
  movmatrix.sync.aligned.m8n8.trans.b16 r1, r1;
  ld.param.u64 d, [out];
  mul.wide.u32 o, lane, 16;
  add.u64 d, d, o;
  st.global.v4.u32 [d], {r0, r1, t1, t3};
  bar.warp.sync -1;
  stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [at], {t0, t1};
  ret;
})";
  const Module module(ptx, "matrix", memory);
  const Buffer<U32> out(memory, 128, "out");
  module.launch("k", {{1, 1, 1}, {32, 1, 1}, {}, 0}, Arguments().add(out.data()));
  // Element (row, column) of matrix m is row number 8m + row in each byte, plus 1 in odd columns.
  const auto element = [](U32 m, U32 row, U32 column) {
    return ((8 * m + row) << 8) + (column % 2);
  };
  for (U32 lane = 0; lane < 32; ++lane) {
    const U32 r = lane / 4;
    const U32 k = 2 * (lane % 4);
    const auto pair = [&](U32 m, bool transposed) {
      return transposed ? element(m, k + 1, r) << 16 | element(m, k, r)
                        : element(m, r, k + 1) << 16 | element(m, r, k);
    };
    ASSERT_EQ(out[4 * lane], pair(0, false)) << lane;
    ASSERT_EQ(out[4 * lane + 1], pair(1, true)) << lane;
    ASSERT_EQ(out[4 * lane + 2], pair(1, true)) << lane;
    ASSERT_EQ(out[4 * lane + 3], pair(3, true)) << lane;
  }
}

TEST(Memory, AtomicsAddUp) {
  GlobalMemory memory;
  const std::string ptx = R"(.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
  .reg .b32 i, r, c; .reg .b64 d; .reg .f32 f; .reg .b16 h; .reg .pred p;
  mov.u32 i, %tid.x;
  mov.u32 c, %ctaid.x;
  ld.param.u64 d, [out];
  atom.global.add.u32 r, [d], 1;
  red.global.max.u32 [d+4], i;
  mov.f32 f, 0f3F000000;
  atom.global.add.f32 f, [d+8], f;
  atom.global.inc.u32 r, [d+12], 6;
  red.global.or.b32 [d+16], 0x100;
  atom.global.add.u64 d, [d+24], 3;
  RETRY:
  ld.param.u64 d, [out];
  atom.acquire.gpu.global.cas.b32 r, [d+32], 0, 1;
  setp.ne.u32 p, r, 0;
  @p bra RETRY;
  ld.relaxed.gpu.global.u32 r, [d+36];
  add.u32 r, r, 2;
  st.relaxed.gpu.global.u32 [d+36], r;
  atom.release.gpu.global.exch.b32 r, [d+32], 0;
  ret;
})";
  const Module module(ptx, "atomics", memory);
  for (const int threads : {1, 2}) {
    const Buffer<U32> out(memory, std::vector<U32>(16, 0), "out");
    LaunchOptions options;
    options.threads = threads;
    module.launch("k", {{6, 1, 1}, {96, 1, 1}, {}, 0}, Arguments().add(out.data()), options);
    constexpr U32 kThreads = 6 * 96;
    EXPECT_EQ(out[0], kThreads);
    EXPECT_EQ(out[1], 95u);
    EXPECT_EQ(std::bit_cast<float>(out[2]), kThreads / 2.0f);
    EXPECT_EQ(out[3], kThreads % 7);
    EXPECT_EQ(out[4], 0x100u);
    EXPECT_EQ(out[6], 3 * kThreads);
    EXPECT_EQ(out[9], 2 * kThreads);  // a spin lock: lanes of one warp hold it one after the other
  }
}

TEST(Launch, ClusterExchangesSharedMemory) {
  GlobalMemory memory;
  const std::string ptx = R"(.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) .explicitcluster .reqnctapercluster 4, 1, 1 {
  .shared .align 4 .b8 s[128];
  .reg .b32 i, at, rank, next, c, v; .reg .b64 d, o;
  mov.u32 i, %tid.x;
  mov.u32 rank, %cluster_ctarank;
  mov.u32 c, %ctaid.x;
  mov.u32 at, s;
  mad.lo.u32 at, i, 4, at;
  mad.lo.u32 v, c, 100, i;
  st.shared.u32 [at], v;
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
  add.u32 next, rank, 1;
  and.b32 next, next, 3;
  mapa.shared::cluster.u32 at, at, next;
  ld.shared::cluster.u32 v, [at];
  ld.param.u64 d, [out];
  mad.lo.u32 i, c, 32, i;
  mul.wide.u32 o, i, 4;
  add.u64 d, d, o;
  st.global.u32 [d], v;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  ret;
})";
  const Module module(ptx, "cluster", memory);
  for (const Policy policy : kAllPolicies) {
    const Buffer<U32> out(memory, 8 * 32, "out");
    LaunchOptions options;
    options.policy = policy;
    module.launch("k", {{8, 1, 1}, {32, 1, 1}, {}, 0}, Arguments().add(out.data()), options);
    for (U32 cta = 0; cta < 8; ++cta) {
      const U32 from = cta / 4 * 4 + (cta + 1) % 4;
      for (U32 i = 0; i < 32; ++i) ASSERT_EQ(out[cta * 32 + i], from * 100 + i);
    }
  }
}

TEST(Launch, NamedBarriersAndVotes) {
  GlobalMemory memory;
  // Warps 0 and 1 produce, warps 2 and 3 consume; barrier.red counts over the block.
  const std::string ptx = R"(.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
  .shared .align 4 .b8 s[256];
  .reg .b32 i, at, v, w; .reg .b64 d, o; .reg .pred p, q, z;
  mov.u32 i, %tid.x;
  mov.u32 at, s;
  and.b32 v, i, 63;
  mad.lo.u32 at, v, 4, at;
  shr.u32 w, i, 6;
  setp.eq.u32 p, w, 0;
  @!p bra CONSUME;
  st.shared.u32 [at], i;
  bar.arrive 3, 128;
  bra JOIN;
  CONSUME:
  bar.sync 3, 128;
  ld.shared.u32 v, [at];
  JOIN:
  setp.lt.u32 q, i, 77;
  bar.red.popc.u32 w, 0, q;
  bar.red.and.pred z, 0, q;
  mad.lo.u32 v, w, 1000, v;
  @z add.u32 v, v, 1000000;
  ld.param.u64 d, [out];
  mul.wide.u32 o, i, 4;
  add.u64 d, d, o;
  st.global.u32 [d], v;
  ret;
})";
  const Module module(ptx, "barriers", memory);
  for (const Policy policy : kAllPolicies) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const Buffer<U32> out(memory, 128, "out");
      LaunchOptions options;
      options.policy = policy;
      options.seed = seed;
      module.launch("k", {{1, 1, 1}, {128, 1, 1}, {}, 0}, Arguments().add(out.data()), options);
      for (U32 i = 0; i < 128; ++i) ASSERT_EQ(out[i], 77000 + i % 64) << i;
    }
  }
}

TEST(Launch, WarpsThatExitLeaveTheBarrierToTheOthers) {
  GlobalMemory memory;
  const std::string ptx = R"(.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
  .shared .align 4 .b8 s[4];
  .reg .b32 w, v, i; .reg .b64 d; .reg .pred p;
  mov.u32 w, %warpid;
  setp.eq.u32 p, w, 2;
  @p exit;
  setp.eq.u32 p, w, 0;
  @p bra SYNC;
  mov.u32 i, 0;
  SLOW:
  add.u32 i, i, 1;
  setp.lt.u32 p, i, 300;
  @p bra SLOW;
  st.shared.u32 [s], i;
  SYNC:
  bar.sync 0;
  ld.shared.u32 v, [s];
  ld.param.u64 d, [out];
  st.global.u32 [d], v;
  ret;
})";
  const Module module(ptx, "exits", memory);
  for (const Policy policy : kAllPolicies) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const Buffer<U32> out(memory, 1, "out");
      LaunchOptions options;
      options.policy = policy;
      options.seed = seed;
      module.launch("k", {{1, 1, 1}, {96, 1, 1}, {}, 0}, Arguments().add(out.data()), options);
      ASSERT_EQ(out[0], 300u);
    }
  }
}

TEST(Launch, PrintfAndAssert) {
  GlobalMemory memory;
  const Module module(kernel_ptx("printing", "sm_90a"), "printing", memory);
  std::string text;
  LaunchOptions options;
  options.print = [&](const std::string& line) { text += line; };
  module.launch("printing", {{1, 1, 1}, {32, 1, 1}, {}, 0}, Arguments().add(3), options);
  EXPECT_NE(text.find("lane 5 of ab: 2.50 -7 c 12345678901\n"), std::string::npos) << text;
  const std::string message =
      error_of([&] { module.launch("printing", {}, Arguments().add(-1), options); });
  EXPECT_NE(message.find("n > 0"), std::string::npos) << message;
}

TEST(Launch, SameSeedSameInterleaving) {
  GlobalMemory memory;
  // The order in which warps get tickets is the interleaving itself.
  const std::string ptx = R"(.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
  .reg .b32 i, r, w; .reg .b64 d, o; .reg .pred p;
  mov.u32 w, %warpid;
  mov.u32 i, %laneid;
  ld.param.u64 d, [out];
  setp.ne.u32 p, i, 0;
  @p bra END;
  mov.u32 i, 0;
  L:
  atom.global.add.u32 r, [d], 1;
  mul.wide.u32 o, r, 4;
  add.u64 o, o, d;
  st.global.u32 [o+4], w;
  add.u32 i, i, 1;
  setp.lt.u32 p, i, 60;
  @p bra L;
  END:
  ret;
})";
  const Module module(ptx, "order", memory);
  const auto order = [&](std::uint64_t seed, Policy policy) {
    const Buffer<U32> out(memory, std::vector<U32>(1 + 8 * 60, 0), "out");
    LaunchOptions options;
    options.seed = seed;
    options.policy = policy;
    module.launch("k", {{1, 1, 1}, {256, 1, 1}, {}, 0}, Arguments().add(out.data()), options);
    return std::vector<U32>(out.data() + 1, out.data() + out.size());
  };
  EXPECT_EQ(order(1, Policy::kRandom), order(1, Policy::kRandom));
  EXPECT_NE(order(1, Policy::kRandom), order(2, Policy::kRandom));
  EXPECT_NE(order(1, Policy::kRandom), order(1, Policy::kLifo));
  // The starved warp comes last.
  const auto starved = order(3, Policy::kStarve);
  for (std::size_t i = starved.size() - 60; i < starved.size(); ++i) {
    ASSERT_EQ(starved[i], starved.back());
  }
}

}  // namespace
}  // namespace mxfa::emu::test
