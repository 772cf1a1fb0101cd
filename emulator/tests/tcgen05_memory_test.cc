#include <algorithm>

#include "tcgen05_harness.h"

/// tcgen05.ld, .st and their waits, allocation: every shape against formulas of its own, and what
/// goes wrong.
namespace mxfa::emu::test {
namespace {

/// Register i of thread t of a warp stands for (lane, column) from the address on. Written down
/// from the table of the ISA's shapes.
struct Shape {
  const char* name;
  U32 words;  ///< registers a thread at .x1
  U32 most;   ///< largest repetition
  U32 width;  ///< columns at .x1
  U32 (*lane)(U32 t, U32 i);
  U32 (*column)(U32 t, U32 i);
};
const Shape kShapes[] = {
    {"32x32b", 1, 128, 1, [](U32 t, U32) { return t; }, [](U32, U32 i) { return i; }},
    {"16x64b", 1, 128, 2, [](U32 t, U32) { return t / 4 + 8 * (t & 1); },
     [](U32 t, U32 i) { return 2 * i + ((t >> 1) & 1); }},
    {"16x128b", 2, 64, 4, [](U32 t, U32 i) { return t / 4 + 8 * (i & 1); },
     [](U32 t, U32 i) { return 4 * (i >> 1) + (t & 3); }},
    {"16x256b", 4, 32, 8, [](U32 t, U32 i) { return t / 4 + 8 * ((i >> 1) & 1); },
     [](U32 t, U32 i) { return 8 * (i >> 2) + 2 * (t & 3) + (i & 1); }},
};

struct Case {
  const Shape& shape;
  U32 num;
  bool pack;
  U32 half;  ///< lanes 0 or 16 of the quarter
  U32 registers() const { return shape.words * num; }
  U32 base() const { return shape.width * num * (pack ? 2 : 1) >= 256 ? 0 : 24; }
  std::string address() const { return fmt::format("%taddr+{}", half * 65536 + base()); }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Shape& shape : kShapes) {
    for (U32 num = 1; num <= shape.most; num *= 2) {
      for (const bool pack : {false, true}) {
        if (pack && shape.width * num > 256) continue;
        const bool whole = shape.words == 1 && shape.width == 1;
        cases.push_back({shape, num, pack, whole || num % 4 == 0 ? 0u : 16u});
      }
    }
  }
  return cases;
}

TEST(Tcgen05Memory, LoadsOfEveryShape) {
  for (const Case& c : all_cases()) {
    const U32 count = c.registers();
    const std::vector<U32> out = run_tensor_kernel(
        tensor_kernel(fill_tensor_memory() +
                      fmt::format("  tcgen05.ld.sync.aligned.{}.x{}{}.b32 {}, [{}];\n"
                                  "  tcgen05.wait::ld.sync.aligned;\n",
                                  c.shape.name, c.num, c.pack ? ".pack::16b" : "",
                                  register_list("%w", count), c.address()) +
                      write_registers("%w", count)),
        std::size_t{128} * count);
    for (U32 thread = 0; thread < 128; ++thread) {
      for (U32 i = 0; i < count; ++i) {
        const U32 t = thread % 32;
        const U32 lane = thread / 32 * 32 + c.half + c.shape.lane(t, i);
        const U32 column = c.shape.column(t, i);
        const U32 want = c.pack ? ((c.base() + 2 * column + 1) << 16 | (c.base() + 2 * column))
                                : (lane << 16 | (c.base() + column));
        ASSERT_EQ(out[thread * count + i], want)
            << c.shape.name << ".x" << c.num << " thread " << thread << " register " << i;
      }
    }
  }
}

U32 dumped(const std::vector<U32>& out, U32 lane, U32 column) {
  return out[(column / 128 * 128 + lane) * 128 + column % 128];
}

TEST(Tcgen05Memory, StoresOfEveryShape) {
  for (const Case& c : all_cases()) {
    const U32 count = c.registers();
    std::string body = fill_tensor_memory() + "  or.b32 %r1, %tid, 0x80008000;\n";
    for (U32 i = 0; i < count; ++i) {
      body += fmt::format("  xor.b32 %w{}, %r1, {};\n", i, i << 8 | i << 24);
    }
    body += fmt::format(
                "  tcgen05.st.sync.aligned.{}.x{}{}.b32 [{}], {};\n"
                "  tcgen05.wait::st.sync.aligned;\n",
                c.shape.name, c.num, c.pack ? ".unpack::16b" : "", c.address(),
                register_list("%w", count)) +
            dump_tensor_memory();
    const std::vector<U32> out = run_tensor_kernel(tensor_kernel(body), 128 * 512);
    std::vector<U32> want(128 * 512);
    for (U32 lane = 0; lane < 128; ++lane) {
      for (U32 column = 0; column < 512; ++column) want[lane * 512 + column] = lane << 16 | column;
    }
    for (U32 thread = 0; thread < 128; ++thread) {
      for (U32 i = 0; i < count; ++i) {
        const U32 value = (thread | 0x80008000u) ^ (i << 8 | i << 24);
        const U32 lane = thread / 32 * 32 + c.half + c.shape.lane(thread % 32, i);
        const U32 column = c.shape.column(thread % 32, i);
        U32* row = &want[lane * 512 + c.base()];
        if (c.pack) {
          row[2 * column] = value & 0xFFFFu;
          row[2 * column + 1] = value >> 16;
        } else {
          row[column] = value;
        }
      }
    }
    for (U32 lane = 0; lane < 128; ++lane) {
      for (U32 column = 0; column < 512; ++column) {
        ASSERT_EQ(dumped(out, lane, column), want[lane * 512 + column])
            << c.shape.name << ".x" << c.num << " lane " << lane << " column " << column;
      }
    }
  }
}

// Two accesses of 16 lanes, `split` columns apart: the lower and the upper half of the warp.
TEST(Tcgen05Memory, SplitShape) {
  for (U32 num = 1; num <= 128; num *= 2) {
    const U32 split = num == 128 ? 200 : 3 * num + 5;
    const std::vector<U32> out = run_tensor_kernel(
        tensor_kernel(
            fill_tensor_memory() +
            fmt::format("  tcgen05.ld.sync.aligned.16x32bx2.x{}.b32 {}, [%taddr+{}], {};\n"
                        "  tcgen05.wait::ld.sync.aligned;\n"
                        "  tcgen05.st.sync.aligned.16x32bx2.x{}.b32 [%taddr], {}, {};\n"
                        "  tcgen05.wait::st.sync.aligned;\n",
                        num, register_list("%w", num), 16 * 65536 + 4, split, num, split,
                        register_list("%w", num)) +
            dump_tensor_memory()),
        128 * 512);
    for (U32 lane = 0; lane < 128; ++lane) {
      for (U32 column = 0; column < 512; ++column) {
        const bool moved =
            lane % 32 < 16 && (column < num || (column >= split && column < split + num));
        const U32 want = moved ? (lane + 16) << 16 | (column + 4) : lane << 16 | column;
        ASSERT_EQ(dumped(out, lane, column), want) << num << ": " << lane << ", " << column;
      }
    }
  }
}

TEST(Tcgen05Memory, LoadWithReduction) {
  const auto run = [](const std::string& op) {
    return run_tensor_kernel(
        tensor_kernel(fill_tensor_memory() +
                          fmt::format("  tcgen05.ld.red.sync.aligned.32x32b.x8.{} {}, %w8, "
                                      "[%taddr+5];\n  tcgen05.wait::ld.sync.aligned;\n",
                                      op, register_list("%w", 8)) +
                          write_registers("%w", 9),
                      "sm_103a"),
        128 * 9);
  };
  const std::vector<U32> most = run("max.u32");
  const std::vector<U32> least = run("min.s32");
  const std::vector<U32> floats = run("max.abs.NaN.f32");
  for (U32 t = 0; t < 128; ++t) {
    for (U32 i = 0; i < 8; ++i) ASSERT_EQ(most[t * 9 + i], t << 16 | (5 + i));
    ASSERT_EQ(most[t * 9 + 8], t << 16 | 12);
    ASSERT_EQ(least[t * 9 + 8], t << 16 | 5);
    ASSERT_EQ(floats[t * 9 + 8], t << 16 | 12) << "positive floats are in the order of their bits";
  }
}

// ---- Order and errors -------------------------------------------------------------------------

std::string message_of(const std::string& body, const LaunchOptions& options = {},
                       U32 threads = 128, const std::string& target = "sm_100a") {
  return error_of(
      [&] { run_tensor_kernel(tensor_kernel(body, target), 1 << 16, options, threads); });
}
void expect_error(const std::string& body, const char* text, const LaunchOptions& options = {}) {
  const std::string got = message_of(body, options);
  EXPECT_NE(got.find(text), std::string::npos) << "no '" << text << "' in: " << got;
}

const char kLoad[] = "  tcgen05.ld.sync.aligned.32x32b.x2.b32 {%w0, %w1}, [%taddr+8];\n";

TEST(Tcgen05Memory, RegistersAreInFlightUntilTheWait) {
  // Whatever the schedule: what counts is the missing wait.
  for (const Policy policy : kAllPolicies) {
    LaunchOptions options;
    options.policy = policy;
    const std::string fill = fill_tensor_memory();
    const char* uses = "before it is waited for (tcgen05.wait::ld)";
    expect_error(fill + kLoad + "  mov.u32 %w0, 7;\n", uses, options);
    expect_error(fill + kLoad + kLoad, uses, options);
    // Reading one register says nothing of the other.
    const std::string read = fill + kLoad + "  add.u32 %w2, %w1, 1;\n";
    expect_error(read + "  mov.u32 %w0, 7;\n", uses, options);
    // A use waits by itself, and afterwards its register is free.
    const auto out = run_tensor_kernel(
        tensor_kernel(read + "  mov.u32 %w1, 7;\n" + write_registers("%w", 3)), 128 * 3, options);
    for (U32 t = 0; t < 128; ++t) {
      ASSERT_EQ(out[3 * t + 1], 7u);
      ASSERT_EQ(out[3 * t + 2], (t << 16 | 9) + 1);
    }
  }
  // Predicated off, or on a path that waits: no use.
  const auto out = run_tensor_kernel(tensor_kernel(fill_tensor_memory() + kLoad + R"(
  setp.eq.u32 %p1, %lane, 99;
  @%p1 add.u32 %w0, %w0, 1;
  setp.lt.u32 %p2, %tid, 64;
  @%p2 bra WAIT;
  WAIT:
  tcgen05.wait::ld.sync.aligned;
)" + write_registers("%w", 2)),
                                     128 * 2);
  for (U32 t = 0; t < 128; ++t) ASSERT_EQ(out[2 * t], t << 16 | 8);
}

// The row of a register in flight is not given to another one, though nothing reads it any more.
TEST(Tcgen05Memory, LateLoadsDoNotHitOtherRegisters) {
  LaunchOptions options;
  options.policy = Policy::kLatest;
  std::string body = fill_tensor_memory() + kLoad;
  for (U32 i = 0; i < 64; ++i) body += fmt::format("  add.u32 %v{}, %tid, {};\n", i, i);
  body += "  tcgen05.wait::ld.sync.aligned;\n" + write_registers("%v", 64);
  const auto out = run_tensor_kernel(tensor_kernel(body), 128 * 64, options);
  for (U32 i = 0; i < 128 * 64; ++i) ASSERT_EQ(out[i], i / 64 + i % 64);
}

TEST(Tcgen05Memory, StoresAndLoadsNeedTheirWaits) {
  // Without wait::st between them, some schedule loads before the store.
  int stale = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    LaunchOptions options;
    options.seed = seed;
    const auto out = run_tensor_kernel(
        tensor_kernel(fill_tensor_memory() +
                      "  mov.u32 %v0, 77;\n"
                      "  tcgen05.st.sync.aligned.32x32b.x1.b32 [%taddr], {%v0};\n"
                      "  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%w0}, [%taddr];\n"
                      "  tcgen05.wait::st.sync.aligned;\n  tcgen05.wait::ld.sync.aligned;\n" +
                      write_registers("%w", 1)),
        128, options);
    stale += static_cast<int>(std::ranges::count_if(out, [](U32 v) { return v != 77; }));
  }
  EXPECT_GT(stale, 0);
}

TEST(Tcgen05Memory, LanesOfOtherWarps) {
  const std::string body = fill_tensor_memory() +
                           "  and.b32 %r2, %taddr, 0xFFFF;\n"
                           "  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%w0}, [%r2+3];\n"
                           "  tcgen05.wait::ld.sync.aligned;\n" +
                           write_registers("%w", 1);
  std::vector<std::string> warnings;
  LaunchOptions options;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  const auto out = run_tensor_kernel(tensor_kernel(body), 128, options);
  for (U32 t = 0; t < 128; ++t) ASSERT_EQ(out[t], t << 16 | 3);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("lanes of another warp"), std::string::npos) << warnings[0];
  options.strict = true;
  const std::string got = message_of(body, options);
  EXPECT_TRUE(got.find("expected 32..63 (warp 1), got 0") != std::string::npos ||
              got.find("expected 64..95 (warp 2), got 0") != std::string::npos ||
              got.find("expected 96..127 (warp 3), got 0") != std::string::npos)
      << got;
}

TEST(Tcgen05Memory, Misuse) {
  expect_error(kLoad + std::string("  tcgen05.wait::ld.sync.aligned;\n"),
               "words written since their allocation");
  expect_error("  add.u32 %taddr, %taddr, %lane;\n" + std::string(kLoad), "differs between lanes");
  expect_error(
      "  setp.eq.u32 %p1, %lane, 5;\n  @%p1 bra DONE;\n" + std::string(kLoad) + "  DONE:\n",
      "lanes wait for each other");
  expect_error("  tcgen05.ld.sync.aligned.32x32b.x2.b32 {%w0, %w1, %w2}, [%taddr];\n",
               "expected 2 registers, got 3");
  expect_error("  tcgen05.ld.sync.aligned.16x256b.x64.b32 {%w0}, [%taddr];\n", ".num");
  expect_error("  tcgen05.ld.sync.aligned.32x32b.x2.b32 {%w0, %w1}, [%taddr+511];\n",
               "allocated tensor memory");
  expect_error("  tcgen05.ld.sync.aligned.16x64b.x1.b32 {%w0}, [%taddr+524288];\n",
               "lane 0 or 16 of the quarter");
  expect_error("  tcgen05.ld.red.sync.aligned.32x32b.x2.max.u32 {%w0, %w1}, %w2, [%taddr];\n",
               "needs .target sm_103a, got sm_100a");
  expect_error("  @%p0 bra END;\n  exit;\n  END:\n", "512 columns of tensor memory allocated");
  const auto elsewhere = [](const std::string& target) {
    return message_of(kLoad, {}, 128, target);
  };
  EXPECT_NE(elsewhere("sm_90a").find("needs .target sm_100a or sm_103a, got sm_90a"),
            std::string::npos);
  // The location: file, line and text.
  EXPECT_NE(elsewhere("sm_90a").find("tcgen05.ptx:14"), std::string::npos) << elsewhere("sm_90a");
}

}  // namespace
}  // namespace mxfa::emu::test
