#include "tcgen05_mma_harness.h"

/// Which tcgen05 work is ordered: within a thread, across threads by fences, by commits; and what
/// happens where it is not. Allocation that blocks, SMs that are shared, misuse.
namespace mxfa::emu::test {
namespace {

constexpr std::uint64_t kAtom = 0x0000400800000000;
constexpr U32 kOperand = 16 * 1024, kScales1 = 128 * 1024, kScales2 = 129 * 1024;
constexpr U32 kD = 256;

/// Shared memory with ones for A and B (128 rows of 128 bytes) and two scale atoms: 1 and 4.
std::vector<std::uint8_t> ones_and_scales() {
  std::vector<std::uint8_t> smem(kSharedBytes, 0x38);
  std::fill_n(smem.begin() + kScales1, 512, std::uint8_t{127});
  std::fill_n(smem.begin() + kScales2, 512, std::uint8_t{129});
  return smem;
}
std::string copy_scales(U32 column, U32 atom) {
  return fmt::format(
      "  mov.b64 %d0, {};\n  tcgen05.cp.cta_group::1.32x128b.warpx4 [%tmem+{}], %d0;\n",
      kAtom | atom >> 4, column);
}
/// D (at `d`) = or += A * B with the scales at column 0, times the scales at column 4.
std::string multiply(U32 d, bool accumulate, const std::string& qualifier = "") {
  return fmt::format(R"(  mov.b64 %d2, {};
  mov.u32 %r3, {};
  setp.ne.u32 %p1, {}, 0;
  tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale{} [%tmem+{}], %d2, %d2, %r3,
    [%tmem], [%tmem+4], %p1;
)",
                     0x4000404000000000 | kOperand >> 4, 0x08820000 | 16u / 8 << 17,
                     accumulate ? 1 : 0, qualifier, d);
}

struct Outcome {
  std::string error;
  U32 wrong = 0;  ///< accumulators that differ from `want`
};
Outcome outcome(const PairKernel& kernel, float want, const LaunchOptions& options) {
  Outcome result;
  try {
    const auto images = run_pair(kernel, {ones_and_scales()}, options);
    for (U32 lane = 0; lane < 128; ++lane) {
      for (U32 n = 0; n < 16; ++n) {
        result.wrong += images[0][lane * 512 + kD + n] == std::bit_cast<U32>(want) ? 0 : 1;
      }
    }
  } catch (const PtxError& error) {
    result.error = error.what();
  }
  return result;
}
template <class Visit>
void for_schedules(const Visit& visit) {
  for (const Policy policy : kAllPolicies) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      LaunchOptions options;
      options.policy = policy;
      options.seed = seed;
      options.spin_budget = 1 << 20;
      visit(options);
    }
  }
}
void expect_right(const PairKernel& kernel, float want) {
  for_schedules([&](const LaunchOptions& options) {
    const Outcome result = outcome(kernel, want, options);
    EXPECT_EQ(result.error, "");
    EXPECT_EQ(result.wrong, 0u) << "policy " << static_cast<int>(options.policy) << " seed "
                                << options.seed;
  });
}
void expect_caught(const PairKernel& kernel, float want) {
  int caught = 0;
  for_schedules([&](const LaunchOptions& options) {
    const Outcome result = outcome(kernel, want, options);
    caught += result.wrong != 0 || !result.error.empty() ? 1 : 0;
  });
  EXPECT_GT(caught, 0);
}

TEST(Tcgen05Order, OneThreadIsInOrder) {
  PairKernel kernel;
  // 32 * 1, + 32 * 16, + 32 * 4: each mma with the scales that were copied last.
  kernel.issue = copy_scales(0, kScales1) + copy_scales(4, kScales1) + multiply(kD, false) +
                 copy_scales(0, kScales2) + copy_scales(4, kScales2) + multiply(kD, true) +
                 copy_scales(4, kScales1) + multiply(kD, true);
  expect_right(kernel, 32.0f * (1 + 16 + 4));
}

TEST(Tcgen05Order, FencesOrderTheWorkOfTwoThreads) {
  const std::string arrive = fmt::format(
      "  tcgen05.fence::before_thread_sync;\n  mbarrier.arrive.shared::cta.b64 _, [smem+{}];\n",
      kSecondBarrier);
  const std::string wait = fmt::format(R"(  WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [smem+{}], 0;
  @!%p1 bra WAIT;
  tcgen05.fence::after_thread_sync;
)",
                                       kSecondBarrier);
  const auto without = [](std::string text, const std::string& line) {
    const std::size_t at = text.find(line);
    return text.erase(at, line.size());
  };
  PairKernel kernel;
  kernel.second = copy_scales(0, kScales1) + copy_scales(4, kScales2) + arrive;
  kernel.issue = wait + multiply(kD, false);
  expect_right(kernel, 32.0f * 4);
  PairKernel no_before = kernel;
  no_before.second = without(kernel.second, "  tcgen05.fence::before_thread_sync;\n");
  expect_caught(no_before, 32.0f * 4);
  PairKernel no_after = kernel;
  no_after.issue = without(kernel.issue, "  tcgen05.fence::after_thread_sync;\n");
  expect_caught(no_after, 32.0f * 4);
}

TEST(Tcgen05Order, CommitTracksItsOwnThreadOnly) {
  // Thread 32 multiplies, thread 0 commits: nothing waits for the product.
  PairKernel kernel;
  kernel.second = copy_scales(0, kScales1) + copy_scales(4, kScales1) + multiply(kD, false);
  kernel.issue = "";
  expect_caught(kernel, 32.0f);
}

TEST(Tcgen05Order, Collectors) {
  PairKernel kernel;
  const std::string scales = copy_scales(0, kScales1) + copy_scales(4, kScales1);
  kernel.issue = scales + multiply(kD, false, ".collector::a::fill") +
                 multiply(kD, true, ".collector::a::use") +
                 multiply(kD, true, ".collector::a::lastuse");
  expect_right(kernel, 96.0f);
  kernel.issue += multiply(kD, true, ".collector::a::use");
  const std::string message = outcome(kernel, 96.0f, {}).error;
  EXPECT_NE(message.find("collector::a::use without a collector::a::fill"), std::string::npos)
      << message;
}

TEST(Tcgen05Order, WorkInFlightAtTheEnd) {
  const std::string text = tensor_kernel(R"(
  setp.ne.u32 %p1, %tid, 0;
  @%p1 bra DONE;
  mov.b64 %d0, 0x0000400800000000;
  tcgen05.cp.cta_group::1.32x128b.warpx4 [%taddr], %d0;
  DONE:
)");
  LaunchOptions options;
  options.policy = Policy::kLatest;
  const std::string message = error_of([&] { run_tensor_kernel(text, 128, options); });
  EXPECT_NE(message.find("exits with asynchronous work in flight: tcgen05.cp of line"),
            std::string::npos)
      << message;
}

// ---- Misuse of mma ------------------------------------------------------------------------------

std::string mma_message(const std::string& issue) {
  PairKernel kernel;
  kernel.issue = copy_scales(0, kScales1) + copy_scales(4, kScales1) + issue;
  return outcome(kernel, 0, {}).error;
}
void expect_message(const std::string& issue, const char* text) {
  const std::string got = mma_message(issue);
  EXPECT_NE(got.find(text), std::string::npos) << "no '" << text << "' in: " << got;
}
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(Tcgen05Mma, Misuse) {
  const std::string good = multiply(kD, false);
  ASSERT_EQ(mma_message(good), "");
  const std::string idesc = fmt::format("mov.u32 %r3, {};", 0x08820000 | 16u / 8 << 17);
  const auto with_idesc = [&](U32 bits) {
    return replaced(good, idesc, fmt::format("mov.u32 %r3, {};", bits));
  };
  const U32 bits = 0x08820000 | 16u / 8 << 17;
  expect_message(with_idesc(bits | 1u << 2), "not modelled: sparsity");
  expect_message(with_idesc(bits | 1u << 3), "bits 3:3 (integer saturation)");
  expect_message(with_idesc(bits | 1u << 6), "bits 6:6 (reserved)");
  expect_message(with_idesc(bits & ~(1u << 23)), "scale type: expected 1 (UE8M0), got 0");
  expect_message(with_idesc(bits | 2u << 7), "format of A");
  expect_message(with_idesc(bits & ~(0x1Fu << 24)), "descriptor M");
  expect_message(with_idesc(bits & ~(0x3Fu << 17)), "descriptor N");
  expect_message(with_idesc(bits | 1u << 31), "K size");
  expect_message(replaced(good, "[%tmem+256]", "[%tmem+0]"), "A and scales apart from D");
  expect_message(replaced(good, "[%tmem+4], %p1", "[%tmem+3], %p1"), "an even column");
  expect_message(replaced(with_idesc(bits | 3u << 4), "[%tmem+4], %p1", "[%tmem+12], %p1"),
                 "the same in all lane quarters");
  expect_message(replaced(good, "kind::mxf8f6f4.block_scale", "kind::mxf8f6f4"),
                 "unknown opcode or qualifier");
  expect_message(replaced(good, "kind::mxf8f6f4.block_scale", "kind::mxf4.block_scale"),
                 "unknown opcode or qualifier");
  expect_message(replaced(good, "[%tmem], [%tmem+4], ", ""), "operands, got 5");
  expect_message(replaced(good, "cta_group::1", "cta_group::2"), "uses cta_group::1");
  expect_message("  mov.b64 %d2, 0x4000404000000000;\n  add.u64 %d2, %d2, 8;\n" +
                     replaced(good, "mov.b64 %d2", "mov.b64 %d3"),
                 "row 0 of the swizzle's pattern");
}

TEST(Tcgen05Mma, NarrowContainersHaveNoOtherBits) {
  const std::string a_in_tmem =
      replaced(replaced(multiply(kD, false), "%d2, %d2, %r3", "[%tmem+16], %d2, %r3"),
               fmt::format("mov.u32 %r3, {};", 0x08820000 | 16u / 8 << 17),
               fmt::format("mov.u32 %r3, {};", 0x08820000 | 16u / 8 << 17 | 5u << 7));
  expect_message(a_in_tmem, "e2m1 in tensor memory: expected bytes with no bits outside of 0x3c");
}

// ---- Allocation --------------------------------------------------------------------------------

/// k(out): warps 0 and 1 run `first` and `second`; `%t` is free for addresses.
std::string alloc_kernel(const std::string& first, const std::string& second, U32 ctas = 1) {
  return fmt::format(R"(.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 p) .explicitcluster .reqnctapercluster {}, 1, 1
{{
  .shared .align 16 .b8 slot[32];
  .reg .b32 %warp, %t, %u, %rank; .reg .b64 %out, %off; .reg .pred %p, %q;
  ld.param.u64 %out, [p];
  mov.u32 %warp, %tid.x;
  shr.u32 %warp, %warp, 5;
  mov.u32 %rank, %ctaid.x;
  mul.wide.u32 %off, %rank, 4;
  add.u64 %out, %out, %off;
  setp.ne.u32 %p, %warp, 0;
  @%p bra SECOND;
{}
  bra END;
  SECOND:
{}
  END:
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  ret;
}}
)",
                     ctas, first, second);
}
std::string take(U32 columns, const char* slot = "slot", U32 group = 1) {
  return fmt::format(
      "  tcgen05.alloc.cta_group::{0}.sync.aligned.shared::cta.b32 [{1}], {2};\n"
      "  ld.shared.u32 %t, [{1}];\n",
      group, slot, columns);
}
std::string give(U32 columns, U32 group = 1) {
  return fmt::format("  tcgen05.dealloc.cta_group::{}.sync.aligned.b32 %t, {};\n", group, columns);
}
std::vector<U32> run_alloc(const std::string& ptx, U32 ctas, const LaunchOptions& options) {
  GlobalMemory memory;
  const Module module(ptx, "alloc.ptx", memory);
  const Buffer<U32> out(memory, std::vector<U32>(64, 99), "out");
  module.launch("k", {{ctas, 1, 1}, {64, 1, 1}, {}, 0}, Arguments().add(out.data()), options);
  return {out.data(), out.data() + 64};
}

TEST(Tcgen05Alloc, BlocksUntilThereIsRoom) {
  const std::string ptx = alloc_kernel(take(512) + "  st.global.u32 [%out], %t;\n" + give(512),
                                       take(512, "slot+4") + give(512));
  for_schedules(
      [&](const LaunchOptions& options) { EXPECT_EQ(run_alloc(ptx, 1, options)[0], 0u); });
  const std::string message =
      error_of([&] { run_alloc(alloc_kernel(take(512), take(512, "slot+4")), 1, {}); });
  EXPECT_NE(message.find("deadlock"), std::string::npos) << message;
  EXPECT_NE(message.find("tcgen05.alloc"), std::string::npos) << message;
}

TEST(Tcgen05Alloc, ClustersShareAnSm) {
  const std::string hold = take(256) + "  st.global.u32 [%out], %t;\n  nanosleep.u32 100;\n" +
                           give(256) +
                           "  tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n";
  int moved = 0;
  for_schedules([&](LaunchOptions options) {
    options.clusters_per_sm = 2;
    const auto out = run_alloc(alloc_kernel(hold, ""), 8, options);
    for (U32 i = 0; i < 8; ++i) {
      EXPECT_TRUE(out[i] == 0 || out[i] == 256) << out[i];
      moved += out[i] == 256 ? 1 : 0;
    }
    // Each has an SM of its own.
    options.clusters_per_sm = 1;
    const auto alone = run_alloc(alloc_kernel(hold, ""), 8, options);
    for (U32 i = 0; i < 8; ++i) EXPECT_EQ(alone[i], 0u);
  });
  EXPECT_GT(moved, 0);
  // Two that want everything take turns.
  const std::string all = take(512) + "  st.global.u32 [%out], %t;\n" + give(512);
  LaunchOptions options;
  options.clusters_per_sm = 2;
  const auto out = run_alloc(alloc_kernel(all, ""), 8, options);
  for (U32 i = 0; i < 8; ++i) EXPECT_EQ(out[i], 0u);
}

TEST(Tcgen05Alloc, PairsAllocateTogether) {
  const std::string pair = take(128, "slot", 2) + "  mov.u32 %u, %t;\n" + take(64, "slot+4", 2) +
                           "  st.global.u32 [%out], %t;\n" + give(64, 2) + "  mov.u32 %t, %u;\n" +
                           give(128, 2) +
                           "  tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;\n";
  for_schedules([&](const LaunchOptions& options) {
    const auto out = run_alloc(alloc_kernel(pair, "", 2), 4, options);
    for (U32 i = 0; i < 4; ++i) EXPECT_EQ(out[i], 128u);
  });
  const auto message = [&](const std::string& first, const std::string& second, U32 ctas) {
    return error_of([&] { run_alloc(alloc_kernel(first, second, ctas), ctas, {}); });
  };
  EXPECT_NE(message(take(64, "slot", 2), "", 1).find("without a peer CTA"), std::string::npos);
  const std::string differ =
      "  shl.b32 %u, 32, %rank;\n"
      "  tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], %u;\n";
  EXPECT_NE(message(differ, "", 2).find("another number of columns"), std::string::npos);
}

TEST(Tcgen05Alloc, Misuse) {
  const auto expect = [](const std::string& body, const char* text) {
    const std::string got = error_of([&] { run_alloc(alloc_kernel(body, ""), 1, {}); });
    EXPECT_NE(got.find(text), std::string::npos) << "no '" << text << "' in: " << got;
  };
  expect(take(48), "a power of two in 32..512, got 48");
  expect(take(32) + take(64, "slot+4"), "at most the 32 of an earlier one");
  expect(take(32) + give(64), "the base and the columns of a live allocation");
  expect(take(32) + give(32) + give(32), "the base and the columns of a live allocation");
  expect(take(32), "exits with 32 columns of tensor memory allocated");
  expect("  tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n" + take(32),
         "after relinquish_alloc_permit");
  expect(take(32) + take(32, "slot+6"), "aligned address");
  expect(take(32) + give(32, 2), "cta_group::2 in a kernel that uses cta_group::1");
}

}  // namespace
}  // namespace mxfa::emu::test
