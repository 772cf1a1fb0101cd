#include "exec/tasks.h"

#include <fmt/format.h>

#include <cstring>

#include "mxemu/error.h"

namespace mxfa::emu::exec {
namespace {

void unwritten(Observer* observer, const char* where, const std::string& what) {
  if (observer != nullptr &&
      observer->uninitialised(nullptr, nullptr,
                              fmt::format("read of {} that nobody wrote: {}", where, what))) {
    return;
  }
  model::fault(where, "bytes that somebody wrote", what);
}

}  // namespace

void Task::complete() {
  const ObservedScope scope(info_.observer, info_.observed.get());
  try {
    if (info_.observed && info_.observed_cluster != nullptr) {
      std::vector<async::Touch> touches;
      info_.touches(touches);
      info_.observer->touches(*info_.observed_cluster, touches);
    }
    effect_();
  } catch (const PtxError&) {
    throw;
  } catch (const Error& error) {
    info_.kernel->fail(info_.line, fmt::format("{}: {}", info_.what, error.what()));
  }
}

std::string Task::describe() const {
  return fmt::format("{} of line {}: '{}'", info_.what, info_.line,
                     info_.kernel->source->line_text(info_.line));
}

mem::Region& GlobalView::region(std::uint64_t address, std::uint64_t bytes) const {
  mem::Region* region = mem::find_region(*launch_.memory, address);
  if (region == nullptr || !region->contains(address, bytes)) {
    model::fault("global address", fmt::format("{} bytes inside one buffer", bytes),
                 mem::describe_address(*launch_.memory, address));
  }
  return *region;
}

void GlobalView::read(std::uint64_t address, std::span<std::byte> out) {
  mem::Region& from = region(address, out.size());
  if (from.tracked && launch_.checks.uninitialised &&
      !from.init.all(address - from.begin, out.size())) {
    unwritten(launch_.observer, "global memory", mem::describe_address(*launch_.memory, address));
  }
  if (launch_.observer != nullptr) launch_.observer->async_global(address, out.size(), false);
  std::memcpy(out.data(), reinterpret_cast<const std::byte*>(address), out.size());
}

void GlobalView::write(std::uint64_t address, std::span<const std::byte> bytes) {
  mem::Region& to = region(address, bytes.size());
  if (!to.writable) model::fault("global memory", "a writable buffer", to.name);
  if (to.tracked) to.init.mark(address - to.begin, bytes.size());
  if (launch_.observer != nullptr) launch_.observer->async_global(address, bytes.size(), true);
  std::memcpy(reinterpret_cast<std::byte*>(address), bytes.data(), bytes.size());
}

void SharedView::check(std::uint64_t address, std::uint64_t bytes) const {
  if (!cta_.smem.contains(address, bytes)) {
    model::fault("shared offset", fmt::format("{} bytes inside {}", bytes, cta_.smem.size()),
                 std::to_string(address));
  }
  if (cta_.exited()) model::fault("shared memory", "a block that has not exited", cta_.name());
}

void SharedView::read(std::uint64_t address, std::span<std::byte> out) {
  check(address, out.size());
  if (cta_.launch.checks.uninitialised && !cta_.smem.init().all(address, out.size())) {
    unwritten(cta_.launch.observer, "shared memory",
              fmt::format("offset {}, {} bytes", address, out.size()));
  }
  Observer* observer = cta_.launch.observer;
  if (observer != nullptr) observer->async_shared(cta_, address, out.size(), false);
  std::memcpy(out.data(), cta_.smem.data() + address, out.size());
}

void SharedView::write(std::uint64_t address, std::span<const std::byte> bytes) {
  check(address, bytes.size());
  if (cta_.mbarriers.overlapping(static_cast<std::uint32_t>(address),
                                 static_cast<std::uint32_t>(bytes.size()))) {
    model::fault("shared memory", "no live mbarrier in the destination",
                 fmt::format("offset {}, {} bytes", address, bytes.size()));
  }
  cta_.smem.init().mark(address, bytes.size());
  Observer* observer = cta_.launch.observer;
  if (observer != nullptr) observer->async_shared(cta_, address, bytes.size(), true);
  std::memcpy(cta_.smem.data() + address, bytes.data(), bytes.size());
}

SharedPlace shared_place(Cta& cta, std::uint64_t address) {
  if (mem::window_tag(address) == static_cast<std::uint8_t>(mem::Window::kShared)) {
    address &= ~(std::uint64_t{0xFF} << 56);
  }
  Cta* target = (address >> 32) != 0
                    ? nullptr
                    : cta.cluster.find(static_cast<std::uint32_t>(address >> mem::kRankShift));
  if (target == nullptr) {
    model::fault("shared address", "one of a block of the cluster", fmt::format("0x{:x}", address));
  }
  return {target, static_cast<std::uint32_t>(address) & mem::kOffsetMask};
}

void update_image(const SharedPlace& barrier) {
  const std::uint64_t image = barrier.cta->mbarriers.at(barrier.offset, "mbarrier").image();
  std::memcpy(barrier.cta->smem.data() + barrier.offset, &image, sizeof(image));
}

void complete_bytes(const SharedPlace& barrier, std::uint64_t bytes) {
  if (barrier.cta->exited()) {
    model::fault("mbarrier", "a block that has not exited", barrier.cta->name());
  }
  Observer* observer = barrier.cta->launch.observer;
  if (observer != nullptr) observer->async_complete_tx(barrier);
  const bool completed =
      barrier.cta->mbarriers.at(barrier.offset, "complete_tx").complete_tx(bytes);
  if (completed && observer != nullptr) observer->mbarrier_phase(barrier);
  update_image(barrier);
  ++barrier.cta->cluster.progress.count;
}

}  // namespace mxfa::emu::exec
