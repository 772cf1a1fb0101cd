#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/sm100/forward/config.h"

/// What one CTA of the Blackwell forward did in the emulator: its asynchronous work, its waits, how
/// often each instruction was executed. Times are the emulator's ticks, never those of a GPU.
namespace mxfa::cli::kernel {

struct TracedLaunch {
  std::string arch = "sm_100a";
  int head_dim = 128;  ///< 64 or 128
  sm100::forward::PScale p_scale = sm100::forward::PScale::kConstant;
  bool leak_free = false;
  std::int64_t seqlen_q = 512;
  std::int64_t seqlen_k = 384;
};

/// Columns of tensor memory or bytes of shared memory.
struct Touch {
  bool writes = false;
  int begin = 0;
  int size = 0;
};

struct Operation {
  std::uint64_t begin = 0;  ///< issue
  std::uint64_t end = 0;    ///< completion
  int warp = 0;             ///< the issuer
  std::string what;         ///< "tcgen05.mma", ...
  std::string text;         ///< line and instruction
  std::vector<Touch> tensor;
  std::vector<Touch> shared;
};

struct Wait {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  int warp = 0;
  std::string what;  ///< "s_read[0]", "tcgen05.wait::ld", ...
};

struct ForwardTrace {
  std::vector<Operation> operations;                             ///< by issue
  std::vector<Wait> waits;                                       ///< by warp, by end
  std::map<int, std::map<std::string, std::uint64_t>> executed;  ///< by warp and instruction's text
  std::uint64_t end = 0;
};

/// Launches one CTA on normally distributed tensors, one head, under the policy "timed".
ForwardTrace trace_forward(const TracedLaunch& launch);

/// "softmax 0", "mma", ...
std::string role_of(int warp);
/// Whose arrival a wait for this barrier sees: a role, "copy engine" or "tensor cores".
std::string signaller_of(const std::string& wait);
/// Operand in shared memory at this offset: "sf_q[0]", "kv[3]", ...; empty where none is.
std::string shared_operand(const TracedLaunch& launch, int offset);

}  // namespace mxfa::cli::kernel
