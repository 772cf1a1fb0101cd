#include "kernel/tensor_lives.h"

#include <fmt/format.h>

#include <algorithm>

namespace mxfa::cli::kernel {
namespace {

constexpr int kAccumulator = 128;  // columns of S(i), O(i)

/// A life while it is being put together.
struct Draft {
  Life life;
  const Operation* last = nullptr;  ///< the last access
  bool read = false;
};

bool overlap(int a, int a_size, int b, int b_size) { return a < b + b_size && b < a + a_size; }

class Reader {
 public:
  Reader(const TracedLaunch& launch, const ForwardTrace& trace) : launch_(launch), trace_(trace) {}

  std::vector<Life> run() {
    for (const Operation& operation : trace_.operations) {
      // Reads first: an accumulating MMA reads what it goes on with.
      for (const Touch& touch : operation.tensor) {
        if (!touch.writes) read(operation, touch);
      }
      for (const Touch& touch : operation.tensor) {
        if (touch.writes) write(operation, touch);
      }
    }
    std::vector<Life> lives;
    for (Draft& draft : drafts_) {
      draft.life.reader = accessor(*draft.last);
      lives.push_back(std::move(draft.life));
    }
    return lives;
  }

 private:
  static std::string accessor(const Operation& operation) {
    return operation.what == "tcgen05.mma" ? "tensor cores" : role_of(operation.warp);
  }

  Draft* newest(int column, int size) {
    for (auto it = drafts_.rbegin(); it != drafts_.rend(); ++it) {
      if (overlap(it->life.column, it->life.width, column, size)) return &*it;
    }
    return nullptr;
  }

  static void touch(Draft& draft, const Operation& operation) {
    if (draft.last == nullptr || operation.end >= draft.last->end) draft.last = &operation;
    draft.life.end = std::max(draft.life.end, operation.end);
  }

  void read(const Operation& operation, const Touch& range) {
    Draft* const draft = newest(range.begin, range.size);
    if (draft == nullptr) return;
    touch(*draft, operation);
    draft->read = true;
  }

  std::string name_of(const Operation& operation, const Touch& range) const {
    if (operation.what == "tcgen05.cp") {
      const std::string source = shared_operand(launch_, operation.shared.front().begin);
      if (source.starts_with("sf_q")) return "SF Q";
      if (source.starts_with("sf_p")) return "SF P";
      if (source.starts_with("sf_v")) return "SF V";
      return range.begin % 8 == 4 && range.begin % kAccumulator < 8 ? "SF K" : "SF V";
    }
    if (operation.what == "tcgen05.st" && range.begin < 2 * kAccumulator) {
      return fmt::format("P({})", range.begin / kAccumulator);
    }
    return accumulator_name(range.begin);
  }

  static bool accumulates(const Operation& operation, const Touch& range) {
    return std::ranges::any_of(operation.tensor, [&](const Touch& other) {
      return !other.writes && other.begin == range.begin && other.size == range.size;
    });
  }

  void write(const Operation& operation, const Touch& range) {
    const std::string name = name_of(operation, range);
    Draft* const current = newest(range.begin, range.size);
    const bool same = current != nullptr && current->life.what == name;
    const bool goes_on = operation.what == "tcgen05.mma" ? same && accumulates(operation, range)
                                                         : operation.what == "tcgen05.st" && same &&
                                                               (name[0] == 'O' || !current->read);
    if (goes_on) return touch(*current, operation);
    Draft* const part = unread_part(operation, name);
    if (part != nullptr) {
      part->life.width = std::max(part->life.width, range.begin + range.size - part->life.column);
      return touch(*part, operation);
    }
    Draft draft;
    draft.life = {.what = name,
                  .column = range.begin,
                  .width = range.size,
                  .begin = operation.begin,
                  .end = operation.end,
                  .writer = role_of(operation.warp),
                  .reader = {},
                  .guards = guards(operation, range)};
    touch(draft, operation);
    drafts_.push_back(std::move(draft));
  }

  /// P comes in several stores.
  Draft* unread_part(const Operation& operation, const std::string& name) {
    if (operation.what != "tcgen05.st" || drafts_.empty()) return nullptr;
    for (auto it = drafts_.rbegin(); it != drafts_.rend(); ++it) {
      if (it->life.what == name) return it->read ? nullptr : &*it;
    }
    return nullptr;
  }

  std::vector<Guard> guards(const Operation& operation, const Touch& range) const {
    std::vector<Guard> result;
    std::vector<bool> covered(static_cast<std::size_t>(range.size));
    for (auto it = drafts_.rbegin(); it != drafts_.rend(); ++it) {
      const Life& older = it->life;
      bool any = false;
      for (int c = 0; c < range.size; ++c) {
        const int column = range.begin + c;
        if (covered[c] || column < older.column || column >= older.column + older.width) continue;
        covered[c] = any = true;
      }
      // Columns of an accumulator that guests took are theirs, but it was read as a whole.
      if (!any) continue;
      const Guard guard{older.what, accessor(*it->last), guard_of(operation, *it->last)};
      const bool known = std::ranges::any_of(result, [&](const Guard& other) {
        return other.before == guard.before && other.by == guard.by;
      });
      if (!known) result.push_back(guard);
    }
    return result;
  }

  std::string guard_of(const Operation& writer, const Operation& last) const {
    const auto unit = [](const Operation& operation) {
      return operation.what == "tcgen05.mma" || operation.what == "tcgen05.cp";
    };
    if (writer.warp == last.warp && unit(writer) && unit(last)) return kOrderOfIssue;
    if (role_of(writer.warp) == role_of(last.warp) && last.what == "tcgen05.ld") {
      return "tcgen05.wait::ld";
    }
    std::string role = accessor(last);
    if (role.starts_with("softmax")) role = "softmax";
    const std::string index = fmt::format("[{}]", last_stream(last));
    std::string found = kNothing;
    for (const Wait& wait : trace_.waits) {
      if (wait.end > writer.begin) break;
      if (wait.warp != writer.warp || !wait.what.ends_with(index)) continue;
      if (signaller_of(wait.what).find(role) != std::string::npos && wait.end >= last.end) {
        found = wait.what;
      }
    }
    return found;
  }
  /// Of an access to an accumulator's columns or its guests.
  static int last_stream(const Operation& operation) {
    for (const Touch& touch : operation.tensor) {
      if (touch.writes || operation.what != "tcgen05.mma") return touch.begin / kAccumulator % 2;
    }
    return 0;
  }

  static int forward_streams() { return sm100::forward::kStreams; }
  static std::string accumulator_name(int column) {
    return fmt::format("{}({})", column < forward_streams() * kAccumulator ? "S" : "O",
                       column / kAccumulator % forward_streams());
  }

  const TracedLaunch& launch_;
  const ForwardTrace& trace_;
  std::vector<Draft> drafts_;
};

}  // namespace

std::vector<Life> tensor_lives(const TracedLaunch& launch, const ForwardTrace& trace) {
  return Reader(launch, trace).run();
}

}  // namespace mxfa::cli::kernel
