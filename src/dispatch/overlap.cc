#include "dispatch/overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "dispatch/refuse.h"

namespace mxfa::dispatch {
namespace {

/// Runs of `run` bytes, one at each combination of multiples of the strides, from `begin` on.
struct Runs {
  struct Dim {
    std::int64_t stride, extent;
  };
  std::int64_t begin = 0;  ///< an address, or relative to one
  std::int64_t run = 0;
  int rank = 0;
  std::array<Dim, kMaxRank> dims{};  ///< strides above 0, the largest first

  /// Bytes from the first to the last.
  std::int64_t span() const {
    std::int64_t reach = run;
    for (int i = 0; i < rank; ++i) reach += (dims[i].extent - 1) * dims[i].stride;
    return reach;
  }
  /// What lies at multiple `index` of the largest stride.
  Runs inner(std::int64_t index) const {
    Runs part{.begin = begin + index * dims[0].stride, .run = run, .rank = rank - 1};
    std::copy_n(dims.begin() + 1, part.rank, part.dims.begin());
    return part;
  }
};

Runs runs_of(const TensorView& tensor) {
  Runs runs{.begin = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.data)),
            .run = static_cast<std::int64_t>(dtype_size(tensor.dtype))};
  for (int i = 0; i < tensor.rank; ++i) {
    const std::int64_t stride = tensor.strides[i] * runs.run;
    if (tensor.shape[i] == 1 || stride == 0) continue;
    if (stride < 0) runs.begin += (tensor.shape[i] - 1) * stride;
    int at = runs.rank++;
    for (; at > 0 && runs.dims[at - 1].stride < std::abs(stride); --at) {
      runs.dims[at] = runs.dims[at - 1];
    }
    runs.dims[at] = {std::abs(stride), tensor.shape[i]};
  }
  while (runs.rank > 0 && runs.dims[runs.rank - 1].stride == runs.run) {
    runs.run *= runs.dims[--runs.rank].extent;
  }
  return runs;
}

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

struct Search {
  int left = 256;  ///< comparisons

  /// Whether runs of both meet; false, too, where `left` has become negative.
  bool meet(const Runs& a, const Runs& b) {
    if (a.begin + a.span() <= b.begin || b.begin + b.span() <= a.begin) return false;
    if (a.rank == 0 && b.rank == 0) return true;
    if (--left < 0) return false;
    if (b.rank == 0 || (a.rank > 0 && a.dims[0].stride > b.dims[0].stride)) return step(a, b);
    if (a.rank == 0 || b.dims[0].stride > a.dims[0].stride) return step(b, a);
    return step_both(a, b);
  }

  /// The parts of `a` that reach into `b`.
  bool step(const Runs& a, const Runs& b) {
    const std::int64_t stride = a.dims[0].stride;
    const std::int64_t reach = a.inner(0).span();
    const std::int64_t first =
        std::max<std::int64_t>(0, floor_div(b.begin - a.begin - reach, stride) + 1);
    const std::int64_t end =
        std::min(a.dims[0].extent, floor_div(b.begin + b.span() - a.begin - 1, stride) + 1);
    for (std::int64_t i = first; i < end && left >= 0; ++i) {
      if (meet(a.inner(i), b)) return true;
    }
    return false;
  }

  /// Of one stride: parts are as far from each other as their numbers, so one part of each for
  /// each difference stands for all.
  bool step_both(const Runs& a, const Runs& b) {
    const std::int64_t stride = a.dims[0].stride;
    const Runs part_a = a.inner(0), part_b = b.inner(0);
    const std::int64_t distance = b.begin - a.begin;
    // Differences k with distance + k * stride between -span(b) and span(a).
    const std::int64_t first =
        std::max(1 - a.dims[0].extent, floor_div(-part_b.span() - distance, stride) + 1);
    const std::int64_t end =
        std::min(b.dims[0].extent, floor_div(part_a.span() - distance - 1, stride) + 1);
    for (std::int64_t k = first; k < end && left >= 0; ++k) {
      Runs moved = part_b;
      moved.begin += k * stride;
      if (meet(part_a, moved)) return true;
    }
    return false;
  }
};

}  // namespace

std::optional<bool> share_memory(const TensorView& a, const TensorView& b) {
  Search search;
  if (search.meet(runs_of(a), runs_of(b))) return true;
  if (search.left < 0) return std::nullopt;
  return false;
}

void Overlaps::add(const TensorView& tensor, std::string_view name, bool scales, bool output) {
  if (tensor.rank == 0) return;
  const auto size = static_cast<std::int64_t>(dtype_size(tensor.dtype));
  std::int64_t before = 0, behind = 0;  // of the first element, in elements
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] == 0) return;
    const std::int64_t steps = (tensor.shape[i] - 1) * tensor.strides[i];
    (steps < 0 ? before : behind) += steps;
  }
  const auto first = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.data));
  entries_.push_back({.tensor = &tensor,
                      .name = name,
                      .scales = scales,
                      .output = output,
                      .begin = first + before * size,
                      .end = first + (behind + 1) * size});
}
void Overlaps::input(const TensorView& tensor, std::string_view name) {
  add(tensor, name, false, false);
}
void Overlaps::input(const Tensor& tensor, std::string_view name) {
  add(tensor.values, name, false, false);
  add(tensor.scales, name, true, false);
}
void Overlaps::output(const TensorView& tensor, std::string_view name) {
  add(tensor, name, false, true);
}
void Overlaps::output(const Tensor& tensor, std::string_view name) {
  add(tensor.values, name, false, true);
  add(tensor.scales, name, true, true);
}
void Overlaps::workspace(std::span<std::byte> memory) {
  if (memory.empty()) return;
  workspace_ = make_tensor(memory.data(), DType::kU8, {std::ssize(memory)});
  output(workspace_, "workspace");
}

void Overlaps::check() const {
  for (std::size_t i = 1; i < entries_.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Entry &late = entries_[i], &early = entries_[j];
      if (late.end <= early.begin || early.end <= late.begin) continue;
      if (!(late.output || early.output)) continue;
      if (share_memory(*late.tensor, *early.tensor) != true) continue;
      const Entry &out = early.output ? early : late, &other = early.output ? late : early;
      const auto suffix = [](const Entry& entry) { return entry.scales ? ".scales" : ""; };
      refuse(fmt::format("{}{}", out.name, suffix(out)),
             "memory that no other tensor of the call has",
             fmt::format("some of {}{}'s", other.name, suffix(other)));
    }
  }
}

void check_overlaps(const attention::ForwardArgs& args, std::span<std::byte> workspace) {
  Overlaps tensors;
  tensors.input(args.q, "q");
  tensors.input(args.k, "k");
  tensors.input(args.v, "v");
  tensors.input(args.cu_seqlens_q, "cu_seqlens_q");
  tensors.input(args.cu_seqlens_k, "cu_seqlens_k");
  tensors.output(args.o, "o");
  tensors.output(args.lse, "lse");
  tensors.output(args.row_max, "row_max");
  tensors.workspace(workspace);
  tensors.check();
}

void check_overlaps(const attention::BackwardArgs& args, std::span<std::byte> workspace) {
  Overlaps tensors;
  tensors.input(args.q, "q");
  tensors.input(args.k, "k");
  tensors.input(args.v, "v");
  tensors.input(args.cu_seqlens_q, "cu_seqlens_q");
  tensors.input(args.cu_seqlens_k, "cu_seqlens_k");
  tensors.input(args.o, "o");
  tensors.input(args.lse, "lse");
  tensors.input(args.row_max, "row_max");
  tensors.input(args.dout, "dout");
  tensors.output(args.dq, "dq");
  tensors.output(args.dk, "dk");
  tensors.output(args.dv, "dv");
  tensors.output(args.dk_tiled.head_dim, "dk_tiled.head_dim");
  tensors.output(args.dk_tiled.tokens, "dk_tiled.tokens");
  tensors.output(args.dv_tiled.head_dim, "dv_tiled.head_dim");
  tensors.output(args.dv_tiled.tokens, "dv_tiled.tokens");
  tensors.output(args.delta, "delta");
  tensors.output(args.dq_seq, "dq_seq");
  tensors.output(args.dq_overflows, "dq_overflows");
  tensors.workspace(workspace);
  tensors.check();
}

}  // namespace mxfa::dispatch
