#include <fmt/format.h>

#include "model/tensor_map.h"
#include "support.h"

/// tensormap.replace and tensormap.cp_fenceproxy: a kernel points a tensor map at other data, and
/// the fences without which copies may still use the map as it was.
namespace mxfa::emu::test {
namespace {

using U32 = std::uint32_t;

constexpr const char* kRelease = "fence.proxy.tensormap::generic.release.gpu;\n";
constexpr const char* kAcquire = "fence.proxy.tensormap::generic.acquire.gpu [map], 128;\n";
/// In place, in global memory.
constexpr const char* kInGlobal =
    "tensormap.replace.tile.global_address.global.b1024.b64 [map], data;\n";
/// A copy in shared memory, which then replaces the one in global memory.
constexpr const char* kInShared =
    "mov.u32 i, 0;\n"
    "COPY:\n"
    "cvt.u64.u32 at, i;\nadd.u64 at, at, map;\nld.global.b32 word, [at];\n"
    "mov.u32 to, staged;\nadd.u32 to, to, i;\nst.shared.b32 [to], word;\n"
    "add.u32 i, i, 4;\nsetp.lt.u32 q, i, 128;\n@q bra COPY;\n"
    "mov.u32 to, staged;\n"
    "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [staged], data;\n"
    "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [to], 0, 30;\n"
    "bar.warp.sync 0xffffffff;\n"
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
    "[map], [to], 128;\n";

class TensorMapEdit : public testing::Test {
 protected:
  std::string text(const std::string& edit) const {
    return ".version 9.0\n.target sm_90a\n.address_size 64\n"
           ".visible .entry k(.param .u64 m, .param .u64 d, .param .u64 o)\n{\n"
           ".reg .b64 map, data, out, at;\n.reg .b32 i, word, to;\n.reg .pred q, done;\n"
           ".shared .align 128 .b8 box[128];\n.shared .align 128 .b8 staged[128];\n"
           ".shared .align 8 .b64 full;\n"
           "ld.param.u64 map, [m];\nld.param.u64 data, [d];\nld.param.u64 out, [o];\n" +
           edit +
           "mov.u32 i, %tid.x;\nsetp.eq.u32 q, i, 0;\n"
           "@q mbarrier.init.shared::cta.b64 [full], 1;\n"
           "@q fence.mbarrier_init.release.cluster;\n"
           "@q mbarrier.arrive.expect_tx.shared::cta.b64 at, [full], 128;\n"
           "@q cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
           "[box], [map, {0}], [full];\n"
           "bar.sync 0;\n"
           "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 done, [full], 0;\n@!done bra WAIT;\n"
           "mul.lo.u32 word, i, 4;\nmov.u32 to, box;\nadd.u32 to, to, word;\n"
           "cvt.u64.u32 at, word;\nadd.u64 at, at, out;\n"
           "ld.shared.b32 word, [to];\nst.global.b32 [at], word;\nret;\n}\n";
  }

  model::TensorMapRecord map(const U32* data) const {
    const std::uint64_t dims[] = {32};
    const U32 box[] = {32}, steps[] = {1};
    model::TiledArguments arguments;
    arguments.data_type = 2;
    arguments.rank = 1;
    arguments.global_address = reinterpret_cast<std::uint64_t>(data);
    arguments.global_dim = dims;
    arguments.box_dim = box;
    arguments.element_strides = steps;
    return model::encode_tiled(arguments);
  }

  std::vector<U32> run(const std::string& edit, const LaunchOptions& options = {}) {
    const Module module(text(edit), "edit.ptx", memory_);
    const Buffer<U32> before(memory_, std::vector<U32>(32, 7), "before");
    std::vector<U32> values(32);
    for (U32 i = 0; i < 32; ++i) values[i] = 100 + i;
    const Buffer<U32> after(memory_, values, "after");
    const auto record = map(before.data());
    // Maps lie at multiples of 64 bytes; buffers do.
    const Buffer<std::byte> maps(memory_, {record.begin(), record.end()}, "map");
    const Buffer<U32> out(memory_, 32, "out");
    module.launch("k", {{1, 1, 1}, {32, 1, 1}, {}, 0},
                  Arguments().add(maps.data()).add(after.data()).add(out.data()), options);
    return {out.data(), out.data() + 32};
  }
  std::string error(const std::string& edit) {
    return error_of([&] { run(edit); });
  }

  GlobalMemory memory_;
};

TEST_F(TensorMapEdit, CopiesUseTheChangedMap) {
  for (int seed = 0; seed < 5; ++seed) {
    LaunchOptions options;
    options.seed = static_cast<std::uint64_t>(seed);
    const auto in_place = run(std::string(kInGlobal) + kRelease + kAcquire, options);
    const auto staged = run(std::string(kInShared) + kAcquire, options);
    for (U32 i = 0; i < 32; ++i) {
      EXPECT_EQ(in_place[i], 100 + i);
      EXPECT_EQ(staged[i], i < 30 ? 100 + i : 0) << "two columns are past the new end";
    }
    EXPECT_EQ(run("", options), std::vector<U32>(32, 7));
  }
}

TEST_F(TensorMapEdit, MissingFences) {
  const auto expect = [&](const std::string& edit, const char* what) {
    EXPECT_NE(error(edit).find(what), std::string::npos) << error(edit);
  };
  expect(kInGlobal, "release after its change");
  expect(std::string(kInGlobal) + kAcquire, "release after its change");
  expect(std::string(kInGlobal) + kRelease, "acquire of it by this block after its change");
  expect(std::string(kInGlobal) + kAcquire + kRelease, "acquire of it");
  expect(kInShared, "acquire of it");
  expect(std::string(kInGlobal) + kRelease + kAcquire + kInGlobal + kRelease, "acquire of it");
}

TEST_F(TensorMapEdit, WrongOperands) {
  const auto expect = [&](const std::string& edit, const char* what) {
    EXPECT_NE(error(edit).find(what), std::string::npos) << error(edit);
  };
  expect("tensormap.replace.tile.box_dim.global.b1024.b32 [map], 5, 8;\n", "ord");
  expect("tensormap.replace.tile.box_dim.global.b1024.b32 [map], 0, 500;\n", "boxDim");
  expect("tensormap.replace.tile.rank.global.b1024.b32 [map], 0, 1;\n", "operands");
  expect("tensormap.replace.tile.rank.global.b1024.b64 [map], 1;\n", "unknown opcode");
  expect("add.u64 map, map, 8;\n" + std::string(kInGlobal), "multiple of 64");
  expect("fence.proxy.tensormap::generic.acquire.gpu [map], 64;\n", "expected the size 128");
  expect("tensormap.replace.tile.global_address.global.b1024.b64 [data], map;\n", "tensor map");
}

}  // namespace
}  // namespace mxfa::emu::test
