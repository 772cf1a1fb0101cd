#include "model/wgmma.h"

#include <fmt/format.h>

#include <bit>

#include "exec/handlers.h"
#include "exec/tasks.h"

/// wgmma: four warps issue an instruction together, the matrix unit of the warpgroup works through
/// them in order. Operands are read and results written when an instruction completes: the latest
/// moment that the ISA allows. PTX ISA 9.0, section 9.7.15.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

constexpr std::uint32_t kWarps = 4;

std::uint64_t uniform64(const Warp& warp, const Inst& in, std::int32_t row, const char* what) {
  const auto* values = warp.row<const std::uint64_t>(row);
  for (int lane = 1; lane < kLanes; ++lane) {
    if (values[lane] != values[0]) {
      warp.fail(in, kFullMask, fmt::format("{} differs between lanes", what));
    }
  }
  return values[0];
}

model::WgmmaOp decode(const WgmmaSpec& spec, bool scale_d) {
  const auto has = [&](std::uint8_t flag) { return (spec.flags & flag) != 0; };
  model::WgmmaOp op;
  op.a = static_cast<model::WgmmaType>(spec.a);
  op.b = static_cast<model::WgmmaType>(spec.b);
  op.d = static_cast<model::AccumulatorType>(spec.d);
  op.n = std::uint32_t{spec.n8} * 8;
  op.scale_d = scale_d;
  op.negate_a = has(WgmmaSpec::kNegateA);
  op.negate_b = has(WgmmaSpec::kNegateB);
  op.major_a = has(WgmmaSpec::kTransposeA) ? model::Major::kMN : model::Major::kK;
  op.major_b = has(WgmmaSpec::kTransposeB) ? model::Major::kMN : model::Major::kK;
  op.saturate = has(WgmmaSpec::kSaturate);
  return op;
}

void check_sources(Cta& cta, const std::vector<model::ByteRange>& ranges) {
  Observer* observer = cta.launch.observer;
  if (observer == nullptr && !cta.launch.checks.uninitialised) return;
  for (const model::ByteRange& range : ranges) {
    if (observer != nullptr) observer->async_shared(cta, range.begin, range.size, false);
    if (!cta.launch.checks.uninitialised || cta.smem.init().all(range.begin, range.size)) continue;
    const std::string what = fmt::format("offset {}, {} bytes", range.begin, range.size);
    if (observer != nullptr &&
        observer->uninitialised(nullptr, nullptr,
                                "wgmma operand in shared memory that nobody wrote: " + what)) {
      continue;
    }
    model::fault("wgmma operand in shared memory", "bytes that somebody wrote", what);
  }
}

model::MatrixDescriptor descriptor(const Cta& cta, const WgmmaIssue& issue, std::uint64_t bits) {
  model::MatrixDescriptor result = model::decode_wgmma_descriptor(bits);
  if (!result.starts_inside_pattern() || cta.launch.checks.strict) return result;
  result.inner_start = true;
  cta.launch.warnings->give(
      "wgmma start",
      fmt::format("{}:{}: wgmma with a start address inside of the swizzle's pattern and base "
                  "offset 0 (the swizzle follows the address bits)",
                  cta.launch.kernel->source->name, issue.inst->line));
  return result;
}

void execute(Cta& cta, const WgmmaIssue& issue) {
  const auto spec = std::bit_cast<WgmmaSpec>(issue.inst->imm);
  const model::WgmmaOp op = decode(spec, issue.scale_d);
  model::WgmmaOperands operands;
  if ((spec.flags & WgmmaSpec::kRegistersA) == 0) {
    operands.a = descriptor(cta, issue, issue.descriptor_a);
  }
  operands.b = descriptor(cta, issue, issue.descriptor_b);
  operands.smem = std::span<const std::byte>(cta.smem.data(), cta.smem.size());
  const std::vector<const std::uint32_t*> a(issue.a.begin(), issue.a.end());
  operands.a_regs = a;
  check_sources(cta, model::wgmma_smem_ranges(op, operands));
  const std::vector<const std::uint32_t*> d(issue.d.begin(), issue.d.end());
  model::wgmma(op, operands, cta.mma, d, issue.d);
}

/// The issue that this warp's next instruction belongs to.
WgmmaIssue& join(Warp& warp, const Inst& in, Warpgroup& group) {
  const std::uint64_t number = warp.wgmma.issued;
  const std::size_t index = number - group.formed;
  while (group.partial.size() <= index) group.partial.emplace_back();
  WgmmaIssue& issue = group.partial[index];
  if (issue.inst != nullptr && issue.inst != &in) {
    warp.fail(in, kFullMask,
              fmt::format("the warps of a warpgroup execute different wgmma, the "
                          "other one at line {}",
                          issue.inst->line));
  }
  issue.inst = &in;
  return issue;
}

}  // namespace

void wgmma_mma(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  Cta& cta = warp.cta();
  const std::uint32_t number = warp.index() / kWarps;
  if (number >= cta.warpgroups.size() || mask != kFullMask) {
    warp.fail(in, mask, "wgmma needs four whole warps");
  }
  Warpgroup& group = cta.warpgroups[number];
  WgmmaIssue& issue = join(warp, in, group);
  ++warp.wgmma.issued;
  const auto spec = std::bit_cast<WgmmaSpec>(in.imm);
  const bool registers = (spec.flags & WgmmaSpec::kRegistersA) != 0;
  const std::uint32_t scale = c.pred(in.op[2]);
  if (scale != 0 && scale != kFullMask) warp.fail(in, mask, "scale-d differs between lanes");
  issue.scale_d = scale != 0;
  if (!registers) issue.descriptor_a = uniform64(warp, in, in.op[0], "the descriptor of A");
  issue.descriptor_b = uniform64(warp, in, in.op[1], "the descriptor of B");
  const std::uint32_t member = warp.index() % kWarps;
  const std::int32_t* rows = cta.launch.kernel->lists.data() + in.extra;
  const std::size_t count = in.b;
  issue.d.resize(count * kWarps);
  issue.a.resize(registers ? 4 * kWarps : 0);
  const HeldRegisters::Holder holder{ir::RegisterOwner::kWgmma, in.line, warp.wgmma.issued - 1};
  for (std::size_t i = 0; i < count; ++i) {
    issue.d[member * count + i] = c.row<std::uint32_t>(rows[i]);
    warp.held.hold(rows[i], holder);
  }
  for (std::size_t i = 0; registers && i < 4; ++i) {
    issue.a[member * 4 + i] = c.row<std::uint32_t>(rows[count + i]);
    warp.held.hold(rows[count + i], holder);
  }
  issue.warps |= 1u << member;
  Observer* observer = cta.launch.observer;
  if (observer != nullptr) issue.observed = observer->wgmma_issue(warp, in, issue.observed);
  ++cta.cluster.progress.count;
  if (issue.warps != 0xFu) return;
  Task::Info info{cta.launch.kernel, in.line, "wgmma", 1 + number};
  info.observer = observer;
  info.observed = issue.observed;
  cta.async.push(std::make_unique<Task>(std::move(info), [&cta, &group, work = std::move(issue)] {
    execute(cta, work);
    ++group.completed;
  }));
  group.partial.erase(group.partial.begin());
  ++group.formed;
}

void wgmma_group(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  Cta& cta = warp.cta();
  const std::uint32_t number = warp.index() / kWarps;
  if (number >= cta.warpgroups.size()) warp.fail(in, mask, "wgmma needs four whole warps");
  WarpWgmma& state = warp.wgmma;
  Observer* observer = cta.launch.observer;
  if (in.a == 0 && observer != nullptr) observer->wgmma_fence(warp, in);
  if (in.a == 1) state.commits.push_back(state.issued);
  if (in.a != 2) return;
  const auto allowed = static_cast<std::size_t>(in.imm);
  if (state.commits.size() <= allowed) return;
  const std::uint64_t wanted = state.commits[state.commits.size() - 1 - allowed];
  const bool done = cta.warpgroups[number].completed >= wanted;
  if (observer != nullptr) observer->wgmma_wait(warp, in, done, wanted);
  if (!done) return warp.retry();
  warp.held.release(ir::RegisterOwner::kWgmma, wanted);
  // Groups that are done are not asked about again.
  state.commits.erase(state.commits.begin(),
                      state.commits.end() - static_cast<std::ptrdiff_t>(allowed));
}

}  // namespace mxfa::emu::exec
