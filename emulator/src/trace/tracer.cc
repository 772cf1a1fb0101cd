#include "trace/tracer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string_view>

#include "exec/access.h"
#include "exec/tasks.h"

namespace mxfa::emu::trace {
namespace {

/// A busy stretch ends when the warp was not run for so long, or after so many instructions.
constexpr std::uint64_t kMaxGap = 8;
constexpr std::uint64_t kMaxBusy = 256;
/// Instructions of the loop around a wait: at most so many between two polls.
constexpr std::size_t kPollLoop = 10;

struct Prefix {
  std::string_view text;
  TraceGroup group;
};
// The first that fits counts.
constexpr Prefix kPrefixes[] = {
    {"mbarrier.try_wait", TraceGroup::kWait},
    {"mbarrier.test_wait", TraceGroup::kWait},
    {"bar.sync", TraceGroup::kWait},
    {"bar.red", TraceGroup::kWait},
    {"bar.warp", TraceGroup::kSync},
    {"barrier.sync", TraceGroup::kWait},
    {"barrier.cta.sync", TraceGroup::kWait},
    {"barrier.cluster.wait", TraceGroup::kWait},
    {"cp.async.bulk.wait", TraceGroup::kWait},
    {"cp.async.wait", TraceGroup::kWait},
    {"cp.async.bulk.commit", TraceGroup::kSync},
    {"cp.async.commit", TraceGroup::kSync},
    {"cp.async.mbarrier", TraceGroup::kSync},
    {"wgmma.wait", TraceGroup::kWait},
    {"tcgen05.wait", TraceGroup::kWait},
    {"griddepcontrol.wait", TraceGroup::kWait},
    {"nanosleep", TraceGroup::kWait},
    {"wgmma.mma", TraceGroup::kMatrix},
    {"tcgen05.mma", TraceGroup::kMatrix},
    {"tcgen05.cp", TraceGroup::kMatrix},
    {"mma.", TraceGroup::kMatrix},
    {"cp.", TraceGroup::kCopy},
    {"st.async", TraceGroup::kCopy},
    {"red.async", TraceGroup::kCopy},
    {"tcgen05.ld", TraceGroup::kTensor},
    {"tcgen05.st", TraceGroup::kTensor},
    {"ldmatrix", TraceGroup::kTensor},
    {"stmatrix", TraceGroup::kTensor},
    {"mbarrier", TraceGroup::kSync},
    {"bar", TraceGroup::kSync},
    {"fence", TraceGroup::kSync},
    {"membar", TraceGroup::kSync},
    {"wgmma", TraceGroup::kSync},
    {"tcgen05", TraceGroup::kSync},
    {"elect", TraceGroup::kSync},
    {"ld", TraceGroup::kMemory},
    {"st", TraceGroup::kMemory},
    {"atom", TraceGroup::kMemory},
    {"red.", TraceGroup::kMemory},
};

std::string_view skip_blanks(std::string_view text) {
  const std::size_t at = text.find_first_not_of(" \t{");
  return at == std::string_view::npos ? std::string_view{} : text.substr(at);
}

TraceGroup group_of(std::string_view line) {
  line = skip_blanks(line);
  if (line.starts_with("@")) {
    line = skip_blanks(line.substr(std::min(line.find_first_of(" \t"), line.size())));
  }
  const auto* it = std::ranges::find_if(
      kPrefixes, [&](const Prefix& prefix) { return line.starts_with(prefix.text); });
  return it == std::end(kPrefixes) ? TraceGroup::kMath : it->group;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::vector<TraceTouch> touches_of(const async::AsyncOp& op) {
  std::vector<async::Touch> touches;
  op.touches(touches);
  std::vector<TraceTouch> result;
  for (const async::Touch& touch : touches) {
    if (touch.space == async::Touch::Space::kTensor) {
      result.push_back({TraceTouch::Space::kTensor, touch.writes, touch.words.column,
                        touch.words.columns, touch.words.lanes});
      continue;
    }
    const auto space = touch.space == async::Touch::Space::kShared ? TraceTouch::Space::kShared
                                                                   : TraceTouch::Space::kGlobal;
    result.push_back({space, touch.writes, touch.bytes.begin, touch.bytes.size, 0});
  }
  return result;
}

// Stands in for every handler; Launch::tracer knows the instruction's own.
void traced(exec::Context& c, const ir::Inst& in, std::uint32_t mask) {
  auto& warp = static_cast<exec::Warp&>(c);
  warp.cta().launch.tracer->executed(warp, in, mask)(c, in, mask);
}

}  // namespace

Tracer::Tracer(exec::Launch& launch, TraceReport& report)
    : launch_(launch), report_(report), original_(launch.code) {
  const ir::Kernel& kernel = *launch.kernel;
  report_.kernel = kernel.name;
  report_.lines = split_lines(kernel.source->text);
  report_.warps = static_cast<std::uint32_t>((exec::volume(launch.block) + 31) / 32);
  report_.executed.assign(report_.warps, std::vector<std::uint64_t>(report_.lines.size() + 1));
  report_.slices.clear();
  report_.ops.clear();
  code_.assign(original_, original_ + kernel.code.size());
  for (ir::Inst& in : code_) {
    if (in.exec != nullptr) in.exec = &traced;
    const bool known = in.line >= 1 && in.line <= report_.lines.size();
    groups_.push_back(known ? group_of(report_.lines[in.line - 1]) : TraceGroup::kMath);
    on_mbarrier_.push_back(groups_.back() == TraceGroup::kWait &&
                           report_.lines[in.line - 1].find("mbarrier.") != std::string::npos);
  }
  launch.code = code_.data();
  launch.tracer = this;
}

std::uint32_t Tracer::block_of(const exec::Cta& cta) const {
  return cta.ctaid[0] + launch_.grid[0] * (cta.ctaid[1] + launch_.grid[1] * cta.ctaid[2]);
}

ir::ExecFn Tracer::executed(exec::Warp& warp, const ir::Inst& in, std::uint32_t mask) {
  const auto index = static_cast<std::size_t>(&in - code_.data());
  const std::uint32_t block = block_of(warp.cta());
  if (block < report_.max_blocks) {
    const WarpKey key{block, warp.index()};
    std::int64_t barrier = -1;
    if (on_mbarrier_[index] && mask != 0) {
      std::uint64_t address[exec::kLanes] = {};
      exec::lane_addresses(warp, in, address);
      barrier = exec::shared_place(warp.cta(), address[std::countr_zero(mask)]).offset;
    }
    add(key, warps_[key], {now_, in.line, groups_[index], barrier});
    std::vector<std::uint64_t>& lines = report_.executed[warp.index()];
    if (in.line < lines.size()) ++lines[in.line];
  }
  ++now_;
  return original_[index].exec;
}

void Tracer::add(const WarpKey& key, WarpState& state, const Instruction& instruction) {
  if (instruction.group == TraceGroup::kWait) {
    const bool again =
        state.waiting && state.line == instruction.line && state.barrier == instruction.barrier;
    if (again) {
      state.tail.clear();
      return;
    }
    flush(key, state);
    flush(key, state);  // what followed the wait before
    state.started = state.waiting = true;
    state.begin = instruction.time;
    state.line = instruction.line;
    state.barrier = instruction.barrier;
    return;
  }
  if (!state.waiting) return add_busy(key, state, instruction);
  state.tail.push_back(instruction);
  if (state.tail.size() > kPollLoop) flush(key, state);
}

void Tracer::add_busy(const WarpKey& key, WarpState& state, const Instruction& instruction) {
  const bool goes_on = state.started && instruction.time <= state.end + kMaxGap &&
                       instruction.time - state.begin < kMaxBusy;
  if (!goes_on) {
    flush(key, state);
    state.started = true;
    state.begin = instruction.time;
    state.line = instruction.line;
  }
  state.end = instruction.time + 1;
  ++state.counts[static_cast<std::size_t>(instruction.group)];
}

// Closes what the warp was doing. Issues of asynchronous work name a stretch however few they are.
void Tracer::flush(const WarpKey& key, WarpState& state) {
  if (!state.started) return;
  TraceSlice slice{state.begin, state.end,         key.first,    key.second,
                   state.line,  TraceGroup::kWait, state.barrier};
  const std::vector<Instruction> tail = std::move(state.tail);
  if (state.waiting) {
    slice.end = tail.empty() ? std::max(state.begin + 1, now_) : tail.front().time;
  } else {
    const auto count = [&](TraceGroup group) {
      return state.counts[static_cast<std::size_t>(group)];
    };
    const auto* most = std::ranges::max_element(state.counts);
    slice.group = count(TraceGroup::kMatrix) > 0 ? TraceGroup::kMatrix
                  : count(TraceGroup::kCopy) > 0
                      ? TraceGroup::kCopy
                      : static_cast<TraceGroup>(most - std::begin(state.counts));
  }
  if (slice.end > slice.begin) report_.slices.push_back(slice);
  state = {};
  for (const Instruction& instruction : tail) add_busy(key, state, instruction);
}

void Tracer::issue(const async::AsyncOp& op, const exec::Cta& cta, std::uint64_t time) {
  const std::uint32_t block = block_of(cta);
  if (block >= report_.max_blocks) return;
  open_[&op] = report_.ops.size();
  const std::uint32_t line = op.line();
  const bool known = line >= 1 && line <= report_.lines.size();
  const std::string text =
      fmt::format("line {}: {}", line, known ? skip_blanks(report_.lines[line - 1]) : "");
  const TraceGroup group = known ? group_of(report_.lines[line - 1]) : TraceGroup::kMath;
  report_.ops.push_back({time, time, block, op.issuer().warp, line, group, std::string(op.what()),
                         text, touches_of(op)});
}

void Tracer::complete(const async::AsyncOp& op, std::uint64_t time) {
  const auto it = open_.find(&op);
  if (it == open_.end()) return;
  TraceOp& recorded = report_.ops[it->second];
  recorded.end = std::max(time, recorded.begin + 1);
  open_.erase(it);
}

void Tracer::finish() {
  for (auto& [key, state] : warps_) {
    flush(key, state);
    flush(key, state);  // what followed a wait
  }
  for (const auto& [op, index] : open_) report_.ops[index].end = now_;
  open_.clear();
}

}  // namespace mxfa::emu::trace
