#include "model/tensor_map.h"

#include <fmt/format.h>

#include <array>
#include <bit>

#include "exec/handlers.h"
#include "exec/tasks.h"
#include "mem/shared.h"
#include "model/fault.h"

/// tensormap.replace, tensormap.cp_fenceproxy and the fences of their proxy. PTX ISA 9.0, sections
/// 9.7.9.26, 9.7.9.27 and 9.7.13.4.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;
using Record = std::array<std::byte, model::kTensorMapBytes>;

std::uint64_t value_of(const Context& c, const Inst& in, int k, std::uint8_t wide, int lane) {
  return lane_value(c, in.op[k], (wide & (1u << k)) != 0, lane);
}

bool in_shared(MapSpace space, std::uint64_t address) {
  return space == MapSpace::kShared ||
         (space == MapSpace::kGeneric &&
          mem::window_tag(address) == static_cast<std::uint8_t>(mem::Window::kShared));
}

void check_alignment(std::uint64_t address) {
  if (address % 64 != 0) {
    model::fault("tensor map address", "a multiple of 64", fmt::format("{:#x}", address));
  }
}

}  // namespace

void TensorMapEdits::change(std::uint64_t map, std::uint32_t line, bool released) {
  const std::lock_guard lock(mutex_);
  Change& last = changes_[map];
  last = {last.number + 1, line, released};
  any_ = true;
}

void TensorMapEdits::release() {
  if (!any_) return;
  const std::lock_guard lock(mutex_);
  for (auto& [map, change] : changes_) change.released = true;
}

void TensorMapEdits::acquire(Cta& cta, std::uint64_t map) {
  if (!any_) return;
  const std::lock_guard lock(mutex_);
  const auto it = changes_.find(map);
  if (it != changes_.end() && it->second.released) cta.acquired_maps[map] = it->second.number;
}

void TensorMapEdits::check_use(const Cta& cta, std::uint64_t map) {
  if (!any_) return;
  const std::lock_guard lock(mutex_);
  const auto it = changes_.find(map);
  if (it == changes_.end()) return;
  const auto acquired = cta.acquired_maps.find(map);
  if (acquired != cta.acquired_maps.end() && acquired->second == it->second.number) return;
  model::fault("tensor map",
               it->second.released
                   ? "fence.proxy.tensormap::generic.acquire of it by this block after its change"
                   : "fence.proxy.tensormap::generic.release after its change",
               fmt::format("a use of the map changed at line {}", it->second.line));
}

void replace_tensor_map(Context& c, const Inst& in, std::uint32_t mask) {
  auto& warp = static_cast<Warp&>(c);
  Cta& cta = warp.cta();
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint64_t address = value_of(c, in, 0, in.b, lane);
    check_alignment(address);
    const bool shared = in_shared(static_cast<MapSpace>(in.c), address);
    const SharedPlace place = shared ? shared_place(cta, address) : SharedPlace{};
    Record record;
    if (shared) {
      SharedView(*place.cta).read(place.offset, record);
    } else {
      GlobalView(cta.launch).read(address, record);
    }
    model::replace_field(record, static_cast<model::TensorMapField>(in.a),
                         static_cast<std::uint32_t>(in.imm), value_of(c, in, 1, in.b, lane));
    if (shared) {
      SharedView(*place.cta).write(place.offset, record);
    } else {
      GlobalView(cta.launch).write(address, record);
      cta.launch.map_edits->change(address, in.line, false);
    }
  }
  ++cta.cluster.progress.count;
}

// By the warp as a whole: all lanes have the same addresses.
void copy_tensor_map(Context& c, const Inst& in, std::uint32_t mask) {
  auto& warp = static_cast<Warp&>(c);
  Cta& cta = warp.cta();
  const int lane = std::countr_zero(mask);
  const std::uint64_t to = value_of(c, in, 0, in.b, lane);
  const SharedPlace from = shared_place(cta, value_of(c, in, 1, in.b, lane));
  check_alignment(to);
  Record record;
  SharedView(*from.cta).read(from.offset, record);
  GlobalView(cta.launch).write(to, record);
  cta.launch.map_edits->change(to, in.line, true);
  ++cta.cluster.progress.count;
}

void fence_tensor_map(Context& c, const Inst& in, std::uint32_t mask) {
  auto& warp = static_cast<Warp&>(c);
  fence(c, in, mask);
  TensorMapEdits& edits = *warp.cta().launch.map_edits;
  if (in.op[0] == ir::kNoOperand) return edits.release();
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    edits.acquire(warp.cta(), lane_value(c, in.op[0], in.c != 0, lane));
  }
}

}  // namespace mxfa::emu::exec
