#include <fmt/format.h>

#include "model/tensor_map.h"
#include "mx/fp8.h"
#include "support.h"

/// Asynchronous instructions on the models: TMA, bulk copies, mbarriers, cp.async, st.async, wgmma,
/// under every policy; and what goes wrong where a wait is missing.
namespace mxfa::emu::test {
namespace {

using U32 = std::uint32_t;

std::string header(const std::string& entry) {
  return ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p, .param "
         ".u64 o)\n" +
         entry;
}

class TmaGemm : public testing::Test {
 protected:
  static constexpr int kSteps = 5;  // the ring of two stages wraps more than twice
  static constexpr std::size_t kK = 128 * kSteps;

  void SetUp() override {
    std::mt19937 rng(2);
    for (auto* values : {&a_, &b_}) {
      for (std::uint8_t& v : *values) {
        v = mx::encode_e4m3(static_cast<float>(static_cast<int>(rng() % 9) - 4));
      }
    }
  }

  model::TensorMapRecord map(const std::uint8_t* data) const {
    const std::uint64_t dims[] = {kK, 64};
    const std::uint64_t strides[] = {kK};
    const U32 box[] = {128, 64};
    const U32 steps[] = {1, 1};
    model::TiledArguments arguments;
    arguments.rank = 2;
    arguments.global_address = reinterpret_cast<std::uint64_t>(data);
    arguments.global_dim = dims;
    arguments.global_strides = strides;
    arguments.box_dim = box;
    arguments.element_strides = steps;
    arguments.swizzle = 3;
    return model::encode_tiled(arguments);
  }

  /// The number of wrong results.
  int run(const std::string& ptx, const LaunchOptions& options) {
    const Module module(ptx, "tma_gemm", memory_);
    const Buffer<std::uint8_t> a(memory_, a_, "a");
    const Buffer<std::uint8_t> b(memory_, b_, "b");
    const Buffer<float> d(memory_, 64 * 64, "d");
    constexpr U32 kShared = 4 * 64 * 128 + 64 * 64 * 4;
    module.launch("tma_gemm", {{1, 1, 1}, {160, 1, 1}, {}, kShared},
                  Arguments().add(map(a.data())).add(map(b.data())).add(d.data()).add(kSteps),
                  options);
    int wrong = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      for (std::size_t j = 0; j < 64; ++j) {
        float want = 0.0f;  // small integers: exact
        for (std::size_t k = 0; k < kK; ++k) {
          want += mx::decode_e4m3(a_[i * kK + k]) * mx::decode_e4m3(b_[j * kK + k]);
        }
        wrong += d[i * 64 + j] == want ? 0 : 1;
      }
    }
    return wrong;
  }

  static std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    if (at != std::string::npos) text.replace(at, from.size(), to);
    return text;
  }

  /// Is the mutant noticed, by a fault or by wrong results, under some policy and seed?
  bool caught(const std::string& ptx) {
    Module(ptx, "mutant", memory_).entry("tma_gemm");  // a mutant is a valid program
    for (const Policy policy : kAllPolicies) {
      for (std::uint64_t seed = 0; seed < 3; ++seed) {
        LaunchOptions options;
        options.policy = policy;
        options.seed = seed;
        options.spin_budget = 1 << 20;
        options.strict = true;
        try {
          if (run(ptx, options) != 0) return true;
        } catch (const PtxError&) {
          return true;
        }
      }
    }
    return false;
  }

  GlobalMemory memory_;
  std::vector<std::uint8_t> a_ = std::vector<std::uint8_t>(64 * kK);
  std::vector<std::uint8_t> b_ = std::vector<std::uint8_t>(64 * kK);
};

TEST_F(TmaGemm, RightUnderEveryPolicy) {
  const std::string ptx = kernel_ptx("tma_gemm_sm90", "sm_90a");
  for (const Policy policy : kAllPolicies) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      LaunchOptions options;
      options.policy = policy;
      options.seed = seed;
      options.fp8 = seed == 1 ? Fp8Mode::kHopper : Fp8Mode::kExact;  // small integers fit both
      ASSERT_EQ(run(ptx, options), 0) << "policy " << static_cast<int>(policy) << " seed " << seed;
    }
  }
}

TEST_F(TmaGemm, MutantsAreCaught) {
  const std::string ptx = kernel_ptx("tma_gemm_sm90", "sm_90a");
  // The first wait loop is the producer's, on "empty"; the other ones are the consumers'.
  const std::string loop = "@P bra DONE;\nbra WAIT;";
  const std::size_t first = ptx.find(loop);
  ASSERT_NE(first, std::string::npos);
  std::string no_empty = ptx;
  std::string no_full = ptx;
  for (std::size_t at = first; at != std::string::npos; at = ptx.find(loop, at + 1)) {
    // The barrier's parity register tells nothing; what the code does after the wait does.
    const std::size_t next_load = ptx.find("expect_tx", at);
    const std::size_t next_mma = ptx.find("wgmma.fence", at);
    std::string& mutant = next_load < next_mma ? no_empty : no_full;
    mutant.replace(at, loop.size(), std::string(loop.size() - 10, ' ') + "bra DONE;\n");
  }
  EXPECT_NE(no_empty, ptx);
  EXPECT_NE(no_full, ptx);
  EXPECT_TRUE(caught(no_empty)) << "loads that do not wait for the consumers";
  EXPECT_TRUE(caught(no_full)) << "matrix units that do not wait for the loads";
  EXPECT_TRUE(caught(replaced(ptx, "cp.async.bulk.wait_group.read 0;", "")))
      << "exit without waiting for the store's reads";
  EXPECT_TRUE(caught(replaced(ptx, "bar.sync 1, 128;", ""))) << "store before all have written";
  EXPECT_TRUE(caught(replaced(ptx, "wgmma.wait_group.sync.aligned 0;", "")))
      << "registers that are read before the matrix units have written them";
  EXPECT_TRUE(caught(replaced(ptx, "@P bra DONE;\nbra WAIT;", "bra WAIT;"))) << "endless wait";
}

TEST_F(TmaGemm, WrongByteCountIsReported) {
  const std::string ptx = kernel_ptx("tma_gemm_sm90", "sm_90a");
  const std::size_t at = ptx.find("mbarrier.arrive.expect_tx");
  ASSERT_NE(at, std::string::npos);
  const std::size_t comma = ptx.find("], ", at) + 3;
  const std::size_t end = ptx.find(';', at);
  std::string more = ptx;
  more.replace(comma, end - comma, "32768");
  const std::string message = error_of([&] { run(more, {}); });
  EXPECT_TRUE(message.find("deadlock") != std::string::npos ||
              message.find("waits for bytes") != std::string::npos)
      << message;
}

TEST(Async, BulkLoadStoreAndReduce) {
  GlobalMemory memory;
  const std::string ptx = header(R"({
  .shared .align 128 .b8 s[512];
  .shared .align 8 .b8 m[8];
  .reg .b32 i, at, r; .reg .b64 in, out; .reg .pred q;
  mov.u32 i, %tid.x;
  ld.param.u64 in, [p];
  ld.param.u64 out, [o];
  setp.ne.u32 q, i, 0;
  @q bra READY;
  mbarrier.init.shared::cta.b64 [m], 1;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 512;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [in], 512, [m];
  READY:
  bar.sync 0;
  WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 q, [m], 0;
  @!q bra WAIT;
  mov.u32 at, s;
  mad.lo.u32 at, i, 4, at;
  ld.shared.u32 r, [at];
  add.u32 r, r, 1;
  st.shared.u32 [at], r;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  setp.ne.u32 q, i, 0;
  @q bra END;
  cp.async.bulk.global.shared::cta.bulk_group [out], [s], 256;
  cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [in], [s+256], 256;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
  ld.global.u32 r, [out+8];
  st.global.u32 [out+256], r;
  END:
  ret;
})");
  const Module module(ptx, "bulk", memory);
  for (const Policy policy : kAllPolicies) {
    std::vector<U32> values(128);
    for (U32 i = 0; i < 128; ++i) values[i] = 3 * i;
    const Buffer<U32> in(memory, values, "in");
    const Buffer<U32> out(memory, 65, "out");
    LaunchOptions options;
    options.policy = policy;
    module.launch("k", {{1, 1, 1}, {128, 1, 1}, {}, 0}, Arguments().add(in.data()).add(out.data()),
                  options);
    for (U32 i = 0; i < 64; ++i) {
      ASSERT_EQ(out[i], 3 * i + 1);
      ASSERT_EQ(in[i], 3 * i + 3 * (i + 64) + 1);
    }
    ASSERT_EQ(out[64], 7u);
  }
}

TEST(Async, CopyAsyncAndItsBarrier) {
  GlobalMemory memory;
  const std::string ptx = header(R"({
  .shared .align 16 .b8 s[1024];
  .shared .align 8 .b8 m[8];
  .reg .b32 i, at, r, t; .reg .b64 in, out, off; .reg .pred q;
  mov.u32 i, %tid.x;
  ld.param.u64 in, [p];
  ld.param.u64 out, [o];
  setp.ne.u32 q, i, 0;
  @!q mbarrier.init.shared::cta.b64 [m], 32;
  bar.sync 0;
  mov.u32 at, s;
  mad.lo.u32 at, i, 16, at;
  mul.wide.u32 off, i, 16;
  add.u64 in, in, off;
  cp.async.cg.shared.global [at], [in], 16, 8;
  cp.async.ca.shared.global [at+512], [in+4], 4;
  cp.async.mbarrier.arrive.noinc.shared::cta.b64 [m];
  cp.async.commit_group;
  cp.async.wait_group 0;
  ld.shared.u32 t, [at+512];
  WAIT:
  mbarrier.test_wait.parity.shared::cta.b64 q, [m], 0;
  @!q bra WAIT;
  xor.b32 at, at, 16;
  ld.shared.u32 r, [at+8];
  add.u32 t, t, r;
  ld.shared.u32 r, [at];
  add.u32 t, t, r;
  mul.wide.u32 off, i, 4;
  add.u64 out, out, off;
  st.global.u32 [out], t;
  ret;
})");
  const Module module(ptx, "copy_async", memory);
  for (const Policy policy : kAllPolicies) {
    std::vector<U32> values(128);
    for (U32 i = 0; i < 128; ++i) values[i] = 1000 + i;
    const Buffer<U32> in(memory, values, "in");
    const Buffer<U32> out(memory, 32, "out");
    LaunchOptions options;
    options.policy = policy;
    module.launch("k", {{1, 1, 1}, {32, 1, 1}, {}, 0}, Arguments().add(in.data()).add(out.data()),
                  options);
    // Own second word, the neighbour's first; its third word is past the 8 source bytes, so zero.
    for (U32 i = 0; i < 32; ++i) ASSERT_EQ(out[i], values[4 * i + 1] + values[4 * (i ^ 1u)]);
  }
}

TEST(Async, StoresAndMulticastAcrossTheCluster) {
  GlobalMemory memory;
  const std::string ptx = header(R"(.explicitcluster .reqnctapercluster 2, 1, 1 {
  .shared .align 128 .b8 s[128];
  .shared .align 16 .b8 x[16];
  .shared .align 8 .b8 m[8];
  .reg .b32 i, rank, other, at, bar, r, t; .reg .b16 both; .reg .b64 in, out, off; .reg .pred q;
  mov.u32 i, %tid.x;
  mov.u32 rank, %cluster_ctarank;
  xor.b32 other, rank, 1;
  ld.param.u64 in, [p];
  ld.param.u64 out, [o];
  setp.ne.u32 q, i, 0;
  @!q mbarrier.init.shared::cta.b64 [m], 1;
  @!q mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 136;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  @q bra WAIT;
  mov.u32 at, x;
  mapa.shared::cluster.u32 at, at, other;
  mov.u32 bar, m;
  mapa.shared::cluster.u32 bar, bar, other;
  add.u32 r, rank, 70;
  st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [at], {r, r}, [bar];
  setp.ne.u32 q, rank, 0;
  @q bra WAIT;
  mov.u16 both, 3;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
    [s], [in], 128, [m], both;
  WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 q, [m], 0;
  @!q bra WAIT;
  mov.u32 at, s;
  mad.lo.u32 at, i, 4, at;
  ld.shared.u32 r, [at];
  ld.shared.u32 t, [x+4];
  mad.lo.u32 r, t, 1000, r;
  mad.lo.u32 i, rank, 32, i;
  mul.wide.u32 off, i, 4;
  add.u64 out, out, off;
  st.global.u32 [out], r;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  ret;
})");
  const Module module(ptx, "multicast", memory);
  for (const Policy policy : kAllPolicies) {
    std::vector<U32> values(32);
    for (U32 i = 0; i < 32; ++i) values[i] = i;
    const Buffer<U32> in(memory, values, "in");
    const Buffer<U32> out(memory, 64, "out");
    LaunchOptions options;
    options.policy = policy;
    module.launch("k", {{2, 1, 1}, {32, 1, 1}, {}, 0}, Arguments().add(in.data()).add(out.data()),
                  options);
    for (U32 i = 0; i < 64; ++i) ASSERT_EQ(out[i], (i < 32 ? 71000u : 70000u) + i % 32);
  }
}

TEST(Async, MbarrierMisuse) {
  GlobalMemory memory;
  const Buffer<U32> data(memory, std::vector<U32>(64, 1), "data");
  const auto message = [&](const std::string& body) {
    return error_of([&] {
      const Module module(header("{\n.shared .align 16 .b8 m[32];\n.reg .b32 r<9>; .reg .b64 "
                                 "d<9>; .reg .pred q;\n" +
                                 body + "\nret;\n}"),
                          "t.ptx", memory);
      module.launch("k", {}, Arguments().add(data.data()).add(data.data()));
    });
  };
  const auto expect = [&](const std::string& body, const char* text) {
    const std::string got = message(body);
    EXPECT_NE(got.find(text), std::string::npos) << "no '" << text << "' in: " << got;
  };
  const std::string init = "mbarrier.init.shared::cta.b64 [m], 1;\n";
  expect("mbarrier.arrive.shared::cta.b64 _, [m];", "mbarrier");
  expect(init + init, "live");
  expect(init + "st.shared.u32 [m+4], 0;", "live mbarrier");
  expect("mbarrier.init.shared::cta.b64 [m+4], 1;", "multiple of 8");
  expect(init + "WAIT: mbarrier.try_wait.parity.shared::cta.b64 q, [m], 0;\n@!q bra WAIT;",
         "deadlock");
  expect(init + "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [m], 16;", "waits for bytes");
  expect(init +
             "ld.param.u64 d1, [p];\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 16;\n"
             "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [m+16], [d1], 16, "
             "[m];",
         "in flight");
  expect("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [m+16], [d1], 16;",
         "too few operands");
}

}  // namespace
}  // namespace mxfa::emu::test
