#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support.h"

/// PTX texts of tcgen05 tests: one CTA of four warps (or more), which owns all of tensor memory.
namespace mxfa::emu::test {

using U32 = std::uint32_t;

/// "{%a0, %a1, ...}"
inline std::string register_list(const std::string& prefix, U32 count) {
  std::string list = "{";
  for (U32 i = 0; i < count; ++i) list += fmt::format("{}{}{}", i == 0 ? "" : ", ", prefix, i);
  return list + "}";
}

/// A kernel k(out) whose body finds: %tid, %warp and %lane; %taddr, the base of 512 columns with
/// the lanes of its warp; %out, the buffer.
inline std::string tensor_kernel(const std::string& body, const std::string& target = "sm_100a") {
  return ".version 9.0\n.target " + target + R"(
.address_size 64
.visible .entry k(.param .u64 p) {
  .shared .align 16 .b8 base[16];
  .reg .b32 %tid, %warp, %lane, %taddr, %r<8>; .reg .b64 %out, %d<8>; .reg .pred %p<4>;
  .reg .b32 %v<256>, %w<256>;
  mov.u32 %tid, %tid.x;
  shr.u32 %warp, %tid, 5;
  and.b32 %lane, %tid, 31;
  ld.param.u64 %out, [p];
  setp.ne.u32 %p0, %warp, 0;
  @%p0 bra ALLOCATED;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [base], 512;
  ALLOCATED:
  bar.sync 0;
  ld.shared.u32 %taddr, [base];
  and.b32 %r0, %warp, 3;
  shl.b32 %r0, %r0, 21;
  add.u32 %taddr, %taddr, %r0;
)" + body +
         R"(
  bar.sync 0;
  @%p0 bra FREED;
  ld.shared.u32 %taddr, [base];
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %taddr, 512;
  FREED:
  ret;
}
)";
}

/// Every word of the warp's quarter becomes lane << 16 | column, by 32x32b stores.
inline std::string fill_tensor_memory() {
  std::string text =
      "  shr.u32 %r1, %taddr, 16;\n  add.u32 %r1, %r1, %lane;\n"
      "  shl.b32 %r1, %r1, 16;\n";
  for (U32 first = 0; first < 512; first += 128) {
    for (U32 i = 0; i < 128; ++i) text += fmt::format("  or.b32 %v{}, %r1, {};\n", i, first + i);
    text += fmt::format("  tcgen05.st.sync.aligned.32x32b.x128.b32 [%taddr+{}], {};\n", first,
                        register_list("%v", 128));
  }
  return text + "  tcgen05.wait::st.sync.aligned;\n";
}

/// Writes `count` registers a thread to out[tid * count + i].
inline std::string write_registers(const std::string& prefix, U32 count, U32 first = 0) {
  std::string text =
      fmt::format("  mul.wide.u32 %d0, %tid, {};\n  add.u64 %d0, %out, %d0;\n", 4 * count);
  for (U32 i = 0; i < count; ++i) {
    text +=
        fmt::format("  st.global.u32 [%d0+{}], {}{};\n", 4 * (first * 128 * count + i), prefix, i);
  }
  return text;
}

/// All of tensor memory, by 32x32b loads of 128 columns: out[chunk][thread][column].
inline std::string dump_tensor_memory(U32 first_column = 0) {
  std::string text;
  for (U32 chunk = first_column / 128; chunk < 4; ++chunk) {
    text += fmt::format(
                "  tcgen05.ld.sync.aligned.32x32b.x128.b32 {}, [%taddr+{}];\n"
                "  tcgen05.wait::ld.sync.aligned;\n",
                register_list("%v", 128), 128 * chunk) +
            write_registers("%v", 128, chunk);
  }
  return text;
}

/// Runs `ptx` with one block and returns the output.
inline std::vector<U32> run_tensor_kernel(const std::string& ptx, std::size_t size,
                                          const LaunchOptions& options = {}, U32 threads = 128) {
  GlobalMemory memory;
  const Module module(ptx, "tcgen05.ptx", memory);
  const Buffer<U32> out(memory, std::vector<U32>(size, 0xFFFFFFFFu), "out");
  module.launch("k", {{1, 1, 1}, {threads, 1, 1}, {}, 0}, Arguments().add(out.data()), options);
  return {out.data(), out.data() + size};
}

}  // namespace mxfa::emu::test
