#pragma once

#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "exec/machine.h"
#include "mxemu/trace.h"

namespace mxfa::emu::trace {

/// Records a launch that runs on one host thread. The warps execute a copy of the code whose
/// handlers tell the tracer and then do their work, so that nothing is slower where nobody traces.
class Tracer {
 public:
  Tracer(exec::Launch& launch, TraceReport& report);
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // From the scheduler.
  /// The warp's next instruction is executed at `time`, the ones after it a unit later each.
  void begin_run(std::uint64_t time) { now_ = time; }
  void issue(const async::AsyncOp& op, const exec::Cta& cta, std::uint64_t time);
  void complete(const async::AsyncOp& op, std::uint64_t time);

  /// An instruction is about to be executed; returns its own handler.
  ir::ExecFn executed(exec::Warp& warp, const ir::Inst& in, std::uint32_t mask);
  /// Writes the report.
  void finish();

 private:
  struct Instruction {
    std::uint64_t time;
    std::uint32_t line;
    TraceGroup group;
    std::int64_t barrier = -1;
  };
  /// What a warp has been doing since `begin`.
  struct WarpState {
    bool started = false;
    bool waiting = false;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint32_t line = 0;
    std::int64_t barrier = -1;
    std::uint32_t counts[static_cast<std::size_t>(TraceGroup::kCount)] = {};
    std::vector<Instruction> tail;  ///< after a wait: the loop around it, or what follows it
  };
  using WarpKey = std::pair<std::uint32_t, std::uint32_t>;  ///< block, warp

  std::uint32_t block_of(const exec::Cta& cta) const;
  void add(const WarpKey& key, WarpState& state, const Instruction& instruction);
  void add_busy(const WarpKey& key, WarpState& state, const Instruction& instruction);
  void flush(const WarpKey& key, WarpState& state);

  exec::Launch& launch_;
  TraceReport& report_;
  const ir::Inst* original_;
  std::vector<ir::Inst> code_;
  std::vector<TraceGroup> groups_;  ///< by instruction
  std::vector<bool> on_mbarrier_;   ///< likewise
  std::map<WarpKey, WarpState> warps_;
  std::unordered_map<const async::AsyncOp*, std::size_t> open_;  ///< in TraceReport::ops
  std::uint64_t now_ = 0;
};

}  // namespace mxfa::emu::trace
