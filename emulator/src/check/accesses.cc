#include <algorithm>
#include <bit>

#include "check/checker.h"
#include "exec/handlers.h"

/// What threads access by themselves: ld, st, atomics, ldmatrix, stmatrix.
namespace mxfa::emu::check {

using exec::AccessFlags;

/// One instruction of the lanes of one group.
class ThreadAccessCheck {
 public:
  ThreadAccessCheck(Checker& checker, const exec::Observer::ThreadAccess& access,
                    const WarpClock::Group& group, const WarpState& warp)
      : checker_(checker),
        access_(access),
        own_(checker.state(access.warp.cta().cluster)),
        lanes_(group.mask & access.mask),
        by_(group.knowledge, checker.agents_, Space::kShared, warp.clock),
        touch_{by_, {}, access.access != exec::Access::kRead, 0},
        unit_log2_(access.bytes < 4 ? 0 : 2) {
    AccessRecord& record = touch_.record;
    record.cluster = own_.index;
    record.clock = warp.clock.now();
    record.line = access.in.line;
    record.agent = warp.clock.threads();
    record.flags = 0;
    if ((access.in.c & AccessFlags::kStrong) != 0) {
      record.flags |= AccessRecord::kStrong;
      if ((access.in.c & AccessFlags::kCtaScope) != 0) record.flags |= AccessRecord::kCtaScope;
    }
  }

  // Lanes that touch the same bytes form a set; the others are packed by granule.
  void run() {
    if (run_dense()) return;
    if (!place_together()) place_apart();
    const bool ascending = is_ascending();
    for (std::uint32_t rest = lanes_; rest != 0;) {
      const int lane = std::countr_zero(rest);
      rest &= rest - 1;
      if (ranks_[lane] == kNone) continue;
      std::uint32_t same = 1u << lane;
      if (!ascending) {
        for (std::uint32_t others = rest; others != 0; others &= others - 1) {
          const int other = std::countr_zero(others);
          if (addresses_[other] == addresses_[lane] && ranks_[other] == ranks_[lane]) {
            same |= 1u << other;
          }
        }
        rest &= ~same;
      }
      add(lane, same, same == 1u << lane);
    }
    flush();
  }

 private:
  static constexpr std::int32_t kGlobal = -1;
  static constexpr std::int32_t kNone = -2;
  static constexpr std::int32_t kUnknown = -3;

  template <class Visit>
  void for_lanes(const Visit& visit) const {
    for (std::uint32_t rest = lanes_; rest != 0; rest &= rest - 1) visit(std::countr_zero(rest));
  }

  const std::byte* pointer(int lane) const {
    const exec::LanePointers& at = access_.at;
    return at.contiguous ? at.lane[0] + static_cast<std::size_t>(lane) * access_.bytes
                         : at.lane[lane];
  }

  std::uint64_t own_smem() const {
    return reinterpret_cast<std::uint64_t>(access_.warp.cta().smem.data());
  }

  // Of everything from `low` to `high`: the block's own shared memory, or the buffer that the warp
  // used last. kUnknown: neither.
  std::int32_t rank_of(std::uint64_t low, std::uint64_t high) const {
    exec::Cta& cta = access_.warp.cta();
    if (low >= own_smem() && high - own_smem() < cta.smem.size()) {
      return static_cast<std::int32_t>(cta.rank);
    }
    const mem::Region* region = access_.warp.last_region;
    if (region == nullptr || !region->contains(low, 1) || !region->contains(high, 1)) {
      return kUnknown;
    }
    return region->writable ? kGlobal : kNone;
  }

  // All lanes, one behind the other from the start of a granule: each granule at once. False where
  // it is not so.
  bool run_dense() {
    const std::uint32_t bytes = access_.bytes;
    if (!access_.at.contiguous || lanes_ != exec::kFullMask) return false;
    if (bytes != 4 && bytes != 8 && bytes != 16) return false;
    const auto low = reinterpret_cast<std::uint64_t>(access_.at.lane[0]);
    const std::uint64_t size = std::uint64_t{kLanes} * bytes;
    const std::int32_t rank = rank_of(low, low + size - 1);
    const std::uint64_t begin = low - (rank >= 0 ? own_smem() : 0);
    if (rank == kUnknown || begin % 16 != 0) return false;
    if (rank == kNone) return true;
    enter(rank);
    const std::uint32_t lanes = 16 / bytes;  // of a granule
    std::uint32_t code = 0;
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      code |= lane_code(lane, ((1u << bytes / 4) - 1) << lane * bytes / 4);
    }
    for (std::uint64_t at = 0; at < size; at += 16) {
      begin_ = begin + at;
      units_ = 0xF;
      code_ = code;
      flush();
      code += lane_code(lanes, 0xF);
    }
    return true;
  }

  bool place_together() {
    std::uint64_t low = UINT64_MAX;
    std::uint64_t high = 0;
    for_lanes([&](int lane) {
      const auto address = reinterpret_cast<std::uint64_t>(pointer(lane));
      addresses_[lane] = address;
      low = std::min(low, address);
      high = std::max(high, address);
    });
    const std::int32_t rank = rank_of(low, high);
    if (rank == kUnknown) return false;
    const std::uint64_t base = rank >= 0 ? own_smem() : 0;
    for_lanes([&](int lane) {
      addresses_[lane] -= base;
      ranks_[lane] = rank;
    });
    return true;
  }

  void place_apart() {
    for_lanes([&](int lane) { place(lane, pointer(lane)); });
  }

  void place(int lane, const std::byte* pointer) {
    exec::Cta& cta = access_.warp.cta();
    for (const auto& block : cta.cluster.ctas) {
      const auto offset = static_cast<std::uint64_t>(pointer - block->smem.data());
      if (offset >= block->smem.size()) continue;
      addresses_[lane] = offset;
      ranks_[lane] = static_cast<std::int32_t>(block->rank);
      return;
    }
    ranks_[lane] = kNone;
    if (access_.warp.is_local(pointer)) return;
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    const mem::Region* region = access_.warp.last_region;
    if (region == nullptr || !region->contains(address, 1)) {
      region = mem::find_region(*checker_.launch_.memory, address);
    }
    if (region == nullptr || !region->writable) return;
    addresses_[lane] = address;
    ranks_[lane] = kGlobal;
  }

  // Each lane behind the one before it: no two touch the same bytes.
  bool is_ascending() const {
    std::uint64_t next = 0;
    bool ascending = true;
    for_lanes([&](int lane) {
      ascending &= addresses_[lane] >= next;
      next = addresses_[lane] + access_.bytes;
    });
    return ascending;
  }

  // Four units, of four bytes each or of one, have one record.
  void add(int lane, std::uint32_t same, bool alone) {
    const std::uint64_t end = addresses_[lane] + access_.bytes;
    const std::uint32_t line_log2 = unit_log2_ + 2;
    for (std::uint64_t at = addresses_[lane]; at < end;) {
      const std::uint64_t begin = at >> line_log2 << line_log2;
      const std::uint64_t next = std::min(begin + (1u << line_log2), end);
      const auto first = static_cast<std::uint32_t>((at - begin) >> unit_log2_);
      const auto count = static_cast<std::uint32_t>((next - at) >> unit_log2_);
      const auto units = static_cast<std::uint8_t>(((1u << count) - 1) << first);
      const bool fits =
          begin == begin_ && ranks_[lane] == rank_ && (units_ & units) == 0 && alone && set_ == 0;
      if (!fits) {
        flush();
        begin_ = begin;
        if (ranks_[lane] != rank_) enter(ranks_[lane]);
      }
      units_ |= units;
      if (alone) {
        code_ |= lane_code(static_cast<std::uint32_t>(lane), units);
      } else {
        set_ = same;
      }
      at = next;
    }
  }

  // What follows is in the shared memory of this block, or global.
  void enter(std::int32_t rank) {
    rank_ = rank;
    by_.space = rank == kGlobal ? Space::kGlobal : Space::kShared;
    checker_.space_ = by_.space;
    smem_ = nullptr;
    if (rank == kGlobal) return;
    checker_.conflict_cluster_ = own_.index;
    checker_.conflict_rank_ = static_cast<std::uint32_t>(rank);
    smem_ = &own_.blocks[static_cast<std::size_t>(rank)].smem;
  }

  void flush() {
    if (units_ == 0) return;
    AccessRecord& record = touch_.record;
    record.units = units_;
    record.lanes = set_ != 0 ? set_ : code_;
    record.flags = static_cast<std::uint8_t>((record.flags & ~AccessRecord::kLaneSet) |
                                             (set_ != 0 ? AccessRecord::kLaneSet : 0));
    touch_.address = begin_ & ~std::uint64_t{15};
    Granule& granule = smem_ != nullptr ? smem_->at(begin_) : checker_.global_.at(begin_);
    if (touch_.write && set_ != 0 && !record.has(AccessRecord::kStrong)) {
      checker_.same_address(record);
    }
    if (smem_ == nullptr && checker_.grids_matter()) touch_grid();
    if (unit_log2_ != 0) {
      checker_.shadow_.touch(granule, touch_);
    } else {
      checker_.shadow_.touch_bytes(granule, static_cast<std::uint32_t>(begin_ % 16 / 4), touch_);
    }
    units_ = 0;
    code_ = 0;
    set_ = 0;
  }

  void touch_grid() const {
    for (std::uint32_t unit = 0; unit < 4; ++unit) {
      if (((units_ >> unit) & 1u) == 0) continue;
      checker_.touch_grid({by_.knows(), touch_.record, begin_ + (std::uint64_t{unit} << unit_log2_),
                           1u << unit_log2_, touch_.write});
    }
  }

  Checker& checker_;
  const exec::Observer::ThreadAccess& access_;
  ClusterState& own_;
  std::uint32_t lanes_;
  MemoryAccessor by_;
  Shadow::Touch touch_;
  std::uint32_t unit_log2_;
  std::uint64_t addresses_[kLanes];  ///< offset in shared memory, or global
  std::int32_t ranks_[kLanes];       ///< block of shared memory, kGlobal, or not of interest
  // What has been added and not flushed:
  std::uint64_t begin_ = 0;
  std::int32_t rank_ = kNone;
  FlatGranules* smem_ = nullptr;
  std::uint8_t units_ = 0;
  std::uint32_t code_ = 0;
  std::uint32_t set_ = 0;
};

void Checker::access(const ThreadAccess& access) {
  const auto space = static_cast<exec::MemorySpace>(access.in.a);
  if (space == exec::MemorySpace::kLocal || space == exec::MemorySpace::kParam ||
      space == exec::MemorySpace::kConst) {
    return;
  }
  WarpState& own = state(access.warp);
  check_started(access);
  for (std::size_t i = 0; i < own.clock.groups().size(); ++i) {
    const WarpClock::Group& group = own.clock.groups()[i];
    if ((group.mask & access.mask) == 0) continue;
    ThreadAccessCheck(*this, access, group, own).run();
  }
  if ((access.in.c & AccessFlags::kStrong) != 0) strong_accesses(access);
}

// Another block's shared memory exists only while that block runs.
void Checker::check_started(const ThreadAccess& access) {
  exec::Cta& cta = access.warp.cta();
  ClusterState& cluster = state(cta.cluster);
  if (cluster.blocks.size() == 1) return;
  const WarpState& own = cluster.warp(access.warp);
  for (std::uint32_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::byte* pointer = access.at.contiguous
                                   ? access.at.lane[0] + lane * static_cast<int>(access.bytes)
                                   : access.at.lane[lane];
    for (const auto& block : cta.cluster.ctas) {
      if (block.get() == &cta ||
          static_cast<std::uint64_t>(pointer - block->smem.data()) >= block->smem.size()) {
        continue;
      }
      const Knowledge& knows = own.clock.group_of(static_cast<std::uint32_t>(lane)).knowledge;
      if (knows.known.at(cluster.agents.of(AgentKind::kStart, block->rank)) > 0) continue;
      const Findings::Key key{Rule::kClusterStart, 0, access.in.line, 0};
      if (findings_.repeat(key)) return;
      Findings::Finding finding;
      finding.second = {access.in.line, who(access.warp, 1u << lane),
                        "access to the shared memory of " + cta_name(cluster.index, block->rank)};
      finding.missing = "a cluster barrier at the start of the kernel";
      findings_.add(key, std::move(finding));
      return;
    }
  }
}

bool Checker::in_scope(const SyncLocation& location, const ThreadAccess& access) const {
  const bool cta_scope = (access.in.c & AccessFlags::kCtaScope) != 0;
  return (!location.cta_scope && !cta_scope) || location.cta == &access.warp.cta();
}

void Checker::strong_accesses(const ThreadAccess& access) {
  for (std::uint32_t rest = access.mask; rest != 0;) {
    const auto pointer = [&](int lane) {
      return access.at.contiguous ? access.at.lane[0] + lane * static_cast<int>(access.bytes)
                                  : access.at.lane[lane];
    };
    const std::byte* first = pointer(std::countr_zero(rest));
    std::uint32_t lanes = 0;
    for (std::uint32_t others = rest; others != 0; others &= others - 1) {
      const int lane = std::countr_zero(others);
      if (pointer(lane) == first) lanes |= 1u << lane;
    }
    rest &= ~lanes;
    strong_access(access, lanes, reinterpret_cast<std::uint64_t>(first));
  }
}

// Release and acquire patterns of section 8.8, by the address that they meet at.
void Checker::strong_access(const ThreadAccess& access, std::uint32_t lanes, std::uint64_t key) {
  const auto has = [&](std::uint8_t flag) { return (access.in.c & flag) != 0; };
  WarpState& own = state(access.warp);
  const bool reads = access.access != exec::Access::kWrite;
  const bool writes = access.access != exec::Access::kRead;
  // A reduction reads, but forms no acquire pattern (8.11.1).
  const bool reduction =
      access.access == exec::Access::kReadWrite && access.in.op[0] == ir::kNoOperand;
  const auto found = locations_.find(key);
  if (reads && !reduction && found != locations_.end() && in_scope(found->second, access)) {
    if (has(AccessFlags::kAcquire)) {
      own.clock.acquire(lanes, found->second.released);
    } else {
      own.clock.observe(lanes, found->second.released);
    }
  }
  if (!writes) return;
  const bool releases = has(AccessFlags::kRelease);
  const bool fenced = own.clock.has_fenced_release(lanes);
  if (!releases && !fenced) {
    if (!reads && found != locations_.end()) locations_.erase(found);
    return;
  }
  const std::uint32_t home = state(access.warp.cta().cluster).index;
  // A plain store ends what was released before; read-modify-writes go on with it.
  if (!reads && found != locations_.end()) locations_.erase(found);
  SyncLocation& at = locations_.try_emplace(key, home).first->second;
  if (releases) {
    own.clock.release(lanes, access.warp.live(), at.released);
  } else {
    own.clock.release_fenced(lanes, access.warp.live(), at.released);
  }
  at.cta_scope = has(AccessFlags::kCtaScope) || (!releases && own.clock.fence_is_cta(lanes));
  at.cta = &access.warp.cta();
}

}  // namespace mxfa::emu::check
