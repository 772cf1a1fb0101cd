#include "ir/flow_graph.h"

namespace mxfa::emu::ir {
namespace {

bool ends_block(const Inst& in) { return in.flow == Flow::kBranch || in.flow == Flow::kExit; }

}  // namespace

std::vector<BasicBlock> basic_blocks(std::span<const Inst> code) {
  std::vector<bool> leader(code.size() + 1, false);
  leader[0] = true;
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (!ends_block(code[i])) continue;
    leader[i + 1] = true;
    if (code[i].flow == Flow::kBranch) leader[static_cast<std::size_t>(code[i].imm)] = true;
  }
  std::vector<BasicBlock> blocks;
  std::vector<std::uint32_t> block_of(code.size() + 1, 0);
  for (std::uint32_t i = 0; i < code.size(); ++i) {
    if (leader[i]) blocks.emplace_back().begin = i;
    blocks.back().end = i + 1;
    block_of[i] = static_cast<std::uint32_t>(blocks.size() - 1);
  }
  for (std::uint32_t b = 0; b < blocks.size(); ++b) {
    const Inst& last = code[blocks[b].end - 1];
    if (last.flow == Flow::kBranch) {
      blocks[b].next.push_back(block_of[static_cast<std::size_t>(last.imm)]);
    }
    // An unguarded branch or exit does not fall through; taking it for a path is only pessimistic.
    if (b + 1 < blocks.size()) blocks[b].next.push_back(b + 1);
  }
  return blocks;
}

void mark_outer_loops(std::span<Inst> code) {
  // Branches back that stand further on, the nearest last; those whose target is not below the
  // target of a nearer one cannot end a loop around anything before it.
  std::vector<const Inst*> further;
  for (std::size_t i = code.size(); i-- > 0;) {
    Inst& in = code[i];
    if (in.flow != Flow::kBranch || in.imm > static_cast<std::int64_t>(i)) continue;
    while (!further.empty() && further.back()->imm >= in.imm) further.pop_back();
    if (!further.empty()) {
      in.extra = static_cast<std::uint32_t>(further.back() - code.data()) + 1;
    }
    further.push_back(&in);
  }
}

}  // namespace mxfa::emu::ir
