#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// What happened in a launch, and when: see LaunchOptions::trace. Under Policy::kTimed the unit of
/// time is one instruction of a warp, all warps go on side by side, and copies and matrix
/// instructions take nominal times; under the other policies it counts the instructions of all
/// warps one after the other, as the emulator ran them. Neither is a time on a GPU.
namespace mxfa::emu {

enum class TraceGroup : std::uint8_t {
  kMath,    ///< arithmetic and everything else
  kMemory,  ///< ld, st, atomics
  kMatrix,  ///< issues wgmma, tcgen05.mma or .cp
  kCopy,    ///< issues asynchronous copies
  kTensor,  ///< tcgen05.ld, .st; ldmatrix, stmatrix
  kSync,    ///< arrivals, fences, commits
  kWait,    ///< from an instruction that waits to the next one
  kCount
};
/// "math", "memory", ...
const char* name_of(TraceGroup group);

/// A warp busy with instructions of mostly one group, or waiting.
struct TraceSlice {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t block = 0;  ///< linear index in the grid
  std::uint32_t warp = 0;
  std::uint32_t line = 0;  ///< of the PTX text, the first instruction's
  TraceGroup group = TraceGroup::kMath;
  std::int64_t barrier = -1;  ///< a wait's mbarrier, offset in shared memory; -1: of another kind
};

/// What asynchronous work reads or writes.
struct TraceTouch {
  enum class Space : std::uint8_t { kGlobal, kShared, kTensor };
  Space space = Space::kShared;
  bool writes = false;
  std::uint64_t begin = 0;  ///< kGlobal: address, kShared: offset; kTensor: column
  std::uint64_t size = 0;   ///< bytes; kTensor: columns
  std::uint32_t lanes = 0;  ///< kTensor
};

/// Asynchronous work from its issue to its completion.
struct TraceOp {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t block = 0;
  std::uint32_t warp = 0;  ///< the issuer
  std::uint32_t line = 0;
  TraceGroup group = TraceGroup::kMath;  ///< of the instruction that issued it
  std::string what;                      ///< "tensor load", ...
  std::string text;                      ///< with the line and the instruction
  std::vector<TraceTouch> touches;
};

struct TraceReport {
  std::uint32_t max_blocks = 1;  ///< in: only blocks with a smaller index are recorded
  std::string kernel;
  std::vector<std::string> lines;  ///< of the PTX text
  std::uint32_t warps = 0;         ///< of a block
  /// By warp and line: how often it was executed, in all recorded blocks together.
  std::vector<std::vector<std::uint64_t>> executed;
  std::vector<TraceSlice> slices;
  std::vector<TraceOp> ops;
};

/// Chrome's trace format, for its viewer and others: a process for each block, a thread for each
/// warp; asynchronous work as nestable events by kind, with what it touches. Viewers pass over
/// "executed": [warp, line, how often], and "lines", the text of those lines.
std::string chrome_json(const TraceReport& report);

/// Warps that belong together, "producer" = {16, 16}.
struct TraceRole {
  std::string name;
  std::uint32_t first = 0;
  std::uint32_t last = 0;
};
/// Neighbouring warps that execute mostly the same lines, named by what they issue or mostly do.
std::vector<TraceRole> guess_roles(const TraceReport& report);

/// A picture of one block: a lane for each warp, grouped by role, and lanes of asynchronous work.
/// Warps without a role follow at the end.
std::string timeline_svg(const TraceReport& report, const std::vector<TraceRole>& roles,
                         std::uint32_t block = 0);

}  // namespace mxfa::emu
