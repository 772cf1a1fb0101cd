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
    if (pending_[i]->ready()) result.push_back(i);
  }
  return result;
}

void AsyncQueue::complete(std::size_t index) {
  const std::unique_ptr<AsyncOp> op = std::move(pending_[index]);
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
  op->complete();
}

void GroupList::commit() {
  committed_.push_back(open());
  open_.reset();
  // Only from the front: the count of younger groups is what wait_group speaks of.
  while (committed_.size() > 1 && committed_[0]->reads == 0 && committed_[0]->writes == 0) {
    committed_.erase(committed_.begin());
  }
}

bool GroupList::done(std::uint64_t allowed, bool reads_only) const {
  if (committed_.size() <= allowed) return true;
  return std::all_of(
      committed_.begin(), committed_.end() - static_cast<std::ptrdiff_t>(allowed),
      [&](const auto& group) { return group->reads == 0 && (reads_only || group->writes == 0); });
}

std::vector<std::shared_ptr<Group>> GroupList::all() const {
  std::vector<std::shared_ptr<Group>> groups = committed_;
  if (open_) groups.push_back(open_);
  return groups;
}

}  // namespace mxfa::emu::async
