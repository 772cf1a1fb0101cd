#include "async/async_op.h"

#include <algorithm>

namespace mxfa::emu::async {

std::vector<std::size_t> AsyncQueue::eligible() const {
  std::vector<std::size_t> result;
  std::vector<std::uint32_t> seen;
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    const std::uint32_t channel = pending_[i]->channel();
    if (channel != AsyncOp::kUnordered) {
      if (std::ranges::find(seen, channel) != seen.end()) continue;
      seen.push_back(channel);
    }
    result.push_back(i);
  }
  return result;
}

void AsyncQueue::complete(std::size_t index) {
  const std::unique_ptr<AsyncOp> op = std::move(pending_[index]);
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
  op->complete();
}

}  // namespace mxfa::emu::async
