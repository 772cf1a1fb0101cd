#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "cpu/attention_call.h"
#include "support/rng.h"

/// What a call takes beside its tensors and the workspace that it asks for.
namespace mxfa::testing {
namespace {

// Sanitizers keep memory of their own.
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// Bytes of a line of /proc/self/status, which counts kB.
std::int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (!line.starts_with(name + ":")) continue;
    std::int64_t kilobytes = 0;
    std::istringstream(line.substr(name.size() + 1)) >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}
/// Makes the peak what is in use now.
bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

/// Grows with the tensors, not with Lq x Lk, whose FP32 scores alone would be 134 MB here. The
/// bound: 1.5 times inputs, outputs and workspace, scratch of all threads counted.
TEST(CpuAttentionMemory, PeakIsInputsOutputsWorkspaceAndLittleElse) {
  constexpr std::int64_t kHeads = 8, kTokens = 2048, kDim = 128, kElems = kHeads * kTokens * kDim;
  for (const auto& mode : {all_modes()[0], all_modes()[2]}) {
    const std::int64_t before = status_bytes("VmRSS");
    ASSERT_TRUE(reset_peak());
    AttentionCall call{.num_heads = kHeads,
                       .num_heads_kv = kHeads,
                       .head_dim = kDim,
                       .cu_seqlens_q = {0, kTokens},
                       .cu_seqlens_k = {0, kTokens},
                       .q = {},
                       .k = {},
                       .v = {},
                       .dout = {},
                       .options = mode.options,
                       .o = {},
                       .lse = {},
                       .row_max = {},
                       .dq = {},
                       .dk = {},
                       .dv = {}};
    Rng rng(0);
    for (auto* values : {&call.q, &call.k, &call.v, &call.dout}) {
      values->resize(kElems);
      for (float& value : *values) value = float(rng.normal());
    }
    call.poison_all();
    const std::int64_t tensors = std::int64_t{sizeof(float)} * (8 * kElems + 2 * kHeads * kTokens);
    const std::int64_t forward_bytes =
        attention::forward_workspace_bytes(call.forward_args(), call.options);
    const std::int64_t backward_bytes =
        attention::backward_workspace_bytes(call.backward_args(), call.options);
    const std::int64_t bytes = std::max(forward_bytes, backward_bytes);
    {
      constexpr std::size_t kLine = 64;
      std::vector<std::byte> memory(static_cast<std::size_t>(bytes) + kLine);
      void* first = memory.data();
      std::size_t space = memory.size();
      std::align(kLine, static_cast<std::size_t>(bytes), first, space);
      const std::span workspace(static_cast<std::byte*>(first), static_cast<std::size_t>(bytes));
      attention::forward(call.forward_args(), call.options, workspace);
      attention::backward(call.backward_args(), call.options, workspace);
    }
    const std::int64_t wanted = tensors + bytes;
    const std::int64_t peak = status_bytes("VmHWM") - before;
    // Freed memory that the allocator kept from an earlier test may be taken again.
    EXPECT_GE(10 * peak, 9 * wanted) << mode.name << ": the measurement misses what must be there";
    EXPECT_LE(2 * peak, 3 * wanted) << mode.name;
    RecordProperty(mode.name + "_peak_over_tensors_and_workspace",
                   std::to_string(double(peak) / double(wanted)));
  }
}
#endif

}  // namespace
}  // namespace mxfa::testing
