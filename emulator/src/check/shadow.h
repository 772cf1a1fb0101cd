#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "check/vector_clock.h"
#include "check/warp_clock.h"

/// Shadow memory: for each piece of memory the accesses that a later one must come after.
namespace mxfa::emu::check {

/// One access to up to four neighbouring units: 4-byte words, or bytes where words are shared, or
/// eights of the lanes of a column of tensor memory.
struct AccessRecord {
  static constexpr std::uint8_t kAsyncProxy = 1;
  static constexpr std::uint8_t kStrong = 2;        ///< atomic, relaxed, volatile, ...
  static constexpr std::uint8_t kCtaScope = 4;      ///< strong within its block only
  static constexpr std::uint8_t kLaneSet = 8;       ///< `lanes` is a mask of lanes for every unit
  static constexpr std::uint8_t kNoLanes = 16;      ///< `lanes` is who issued: warp | lane << 16
  static constexpr std::uint8_t kTogether = 32;     ///< the lanes of the set did it together
  static constexpr std::uint8_t kAccumulator = 64;  ///< `lanes` names it, see TensorAccessor

  std::uint32_t cluster = 0;
  Clock clock = 0;
  std::uint32_t lanes = 0;  ///< five bits a unit, or what the flags say
  std::uint32_t line = 0;   ///< of the PTX text
  AgentId agent = kNoAgent;
  std::uint8_t units = 0;  ///< bit mask
  std::uint8_t flags = kNoLanes;

  bool has(std::uint8_t flag) const { return (flags & flag) != 0; }
  /// The lanes that touched the unit.
  std::uint32_t lane_mask(int unit) const {
    if (has(kNoLanes)) return 0;
    return has(kLaneSet) ? lanes : 1u << ((lanes >> (5 * unit)) & 31u);
  }
};

/// Lane number in the code of each unit in the mask.
inline std::uint32_t lane_code(std::uint32_t lane, std::uint32_t units) {
  constexpr std::uint32_t kSpread[16] = {0x0,    0x1,    0x20,   0x21,   0x400,  0x401,
                                         0x420,  0x421,  0x8000, 0x8001, 0x8020, 0x8021,
                                         0x8400, 0x8401, 0x8420, 0x8421};
  return lane * kSpread[units & 15u];
}

enum class Order : std::uint8_t {
  kOrdered,
  kUnordered,
  kUnfenced,         ///< ordered, but through no proxy fence
  kUnfencedByOwner,  ///< a proxy fence, but not by the thread whose access it is
  kExecutionOrder,   ///< only a relaxed cluster barrier, which orders no memory
  kIssueOrder,       ///< only the order in which one thread has issued its tcgen05 work
  kNoBeforeFence,    ///< ordered, but for tcgen05.fence::before_thread_sync
  kNoAfterFence,     ///< ordered, but for tcgen05.fence::after_thread_sync
};

/// Whoever makes an access now, with what it knows of earlier ones.
class Accessor {
 public:
  virtual Order order(const AccessRecord& earlier, const AccessRecord& now,
                      std::uint8_t overlap) const = 0;

  const VectorClock* sure = nullptr;  ///< what this covers comes before, without further questions
  bool async_proxy = false;           ///< but for a proxy fence after accesses of the other proxy
  AgentId threads = kNoAgent;         ///< of a thread's own access: what the lane did itself
  bool knows_home_only = false;       ///< nothing that other clusters did comes before

 protected:
  ~Accessor() = default;
};

/// Of shared or global memory.
class MemoryAccessor final : public Accessor {
 public:
  MemoryAccessor(const Knowledge& knows, const AgentTables& tables, Space of, bool is_async)
      : space(of), knowledge(&knows), agents(&tables) {
    sure = &knows.known;
    async_proxy = is_async;
    knows_home_only = knows.known.home_only() && knows.executed.home_only();
  }
  /// An access by a thread of the warp itself: program order counts.
  MemoryAccessor(const Knowledge& knows, const AgentTables& tables, Space of, const WarpClock& own)
      : MemoryAccessor(knows, tables, of, false) {
    warp = &own;
    threads = own.threads();
  }
  Order order(const AccessRecord& earlier, const AccessRecord& now,
              std::uint8_t overlap) const override;

  const Knowledge& knows() const { return *knowledge; }

  Space space;

 private:
  const Knowledge* knowledge;
  const AgentTables* agents;
  const WarpClock* warp = nullptr;
  bool same_lane(const AccessRecord& earlier, const AccessRecord& now, std::uint8_t overlap) const;
  bool knows(const VectorClock& clock, const AccessRecord& earlier, std::uint8_t overlap) const;
};

/// Of tensor memory, PTX ISA 9.0, section 9.7.16.6. In records of tcgen05.mma, `lanes` names the
/// accumulator and shape; of cp it is 0.
class TensorAccessor final : public Accessor {
 public:
  TensorAccessor(const TensorOrder& behind, const Knowledge& knows, const AgentTables& tables)
      : order_(&behind), knowledge_(&knows), agents_(&tables) {
    sure = &behind.complete;
  }
  Order order(const AccessRecord& earlier, const AccessRecord& now,
              std::uint8_t overlap) const override;

  std::uint32_t warp = 0;  ///< whose loads and stores have been waited for:
  Clock loads_done = 0;
  Clock stores_done = 0;
  bool synchronous = false;  ///< dealloc: needs no tcgen05 fences

 private:
  bool knows(const VectorClock& clock, const AccessRecord& earlier) const;
  bool pipelined(const AccessRecord& earlier, const AccessRecord& now) const;

  const TensorOrder* order_;
  const Knowledge* knowledge_;
  const AgentTables* agents_;
};

/// Where conflicts go.
class ConflictSink {
 public:
  struct Conflict {
    const AccessRecord& first;
    const AccessRecord& second;
    bool first_writes;
    bool second_writes;
    Order order;
    std::uint64_t address;  ///< of the first byte; in tensor memory column * 128 + lane
    std::uint32_t bytes;    ///< or lanes
  };
  virtual void conflict(const Conflict& conflict) = 0;
  /// Do strong accesses of these two count as ordered, by their scopes?
  virtual bool morally_strong(const AccessRecord& a, const AccessRecord& b) const = 0;

 protected:
  ~ConflictSink() = default;
};

/// The state of 16 bytes, or of the fine granule of 4 bytes: the last write, the reads since.
struct Granule {
  AccessRecord write;
  AccessRecord read;
  std::uint32_t extra = 0;  ///< more of them, in Shadow::extras_
};

class Shadow {
 public:
  explicit Shadow(ConflictSink& sink) : sink_(sink) { extras_.emplace_back(); }

  struct Touch {
    const Accessor& by;
    AccessRecord record;  ///< units and lanes are those of the granule at hand
    bool write = false;
    std::uint64_t address = 0;  ///< of the granule
  };
  /// Units are the four words of the granule.
  void touch(Granule& granule, const Touch& t) { touch_units(granule, t, 4); }
  /// Units are the eights of lanes of a lane quarter in one column.
  void touch_lanes(Granule& granule, const Touch& t) { touch_units(granule, t, 8); }
  /// As if nothing had touched it.
  void forget(Granule& granule);
  /// Units are the bytes of word `word`.
  void touch_bytes(Granule& granule, std::uint32_t word, const Touch& t);

 private:
  /// So many concurrent reads of a granule are each compared with a new one.
  static constexpr std::size_t kFewReads = 4;

  struct Extra {
    std::vector<AccessRecord> writes;
    std::vector<AccessRecord> reads;
    std::size_t prune_at = kFewReads;  ///< reads that are too many to be kept as they come
    bool split = false;
    std::array<Granule, 4> fine;
  };

  void touch_units(Granule& granule, const Touch& t, std::uint32_t unit_bytes);
  void touch_slow(Granule& granule, const Touch& t, std::uint32_t unit_bytes);
  void touch_split(Granule& granule, const Touch& t);
  void check(const AccessRecord& earlier, bool earlier_writes, const Touch& t,
             std::uint32_t unit_bytes);
  static bool by_same_threads(const AccessRecord& earlier, const Touch& t);
  static bool clearly_ordered(const AccessRecord& earlier, const Touch& t);
  static bool covered(const AccessRecord& write, std::uint8_t read, const Touch& t);
  void insert_write(Granule& granule, const Touch& t);
  void insert_read(Granule& granule, const Touch& t);
  static bool repeats(const AccessRecord& earlier, const AccessRecord& now);
  bool outdated(const AccessRecord& earlier, const Touch& t) const;
  void prune_reads(Extra& extra, const Touch& t);
  Extra& extra_of(Granule& granule);
  void drop_extra(Granule& granule);

  ConflictSink& sink_;
  std::vector<std::unique_ptr<Extra>> extras_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> seen_;  ///< of prune_reads()
};

/// Granules of shared memory, by offset.
class FlatGranules {
 public:
  explicit FlatGranules(std::uint64_t bytes) : granules_(bytes / 16 + 1) {}
  Granule& at(std::uint64_t address) { return granules_[address / 16]; }

 private:
  std::vector<Granule> granules_;
};

/// Granules of tensor memory: by column and lane quarter.
class TensorGranules {
 public:
  Granule& at(std::uint32_t column, std::uint32_t quarter) {
    if (granules_.empty()) granules_.resize(4 * 512);
    return granules_[column * 4 + quarter];
  }

 private:
  std::vector<Granule> granules_;
};

/// Granules of global memory: pages come into being when they are touched.
class PagedGranules {
 public:
  Granule& at(std::uint64_t address) {
    const std::uint64_t page = address / kPageBytes;
    Recent& recent = recent_[page % kRecent];
    if (page != recent.page) {
      auto& slot = pages_[page];
      if (!slot) slot = std::make_unique<Page>();
      recent = {page, slot.get()};
    }
    return (*recent.granules)[address / 16 % kPageGranules];
  }

 private:
  static constexpr std::size_t kRecent = 64;  ///< the rows of a warp's lanes, one page each
  static constexpr std::uint64_t kPageBytes = 4096;
  static constexpr std::uint64_t kPageGranules = kPageBytes / 16;
  using Page = std::array<Granule, kPageGranules>;
  struct Recent {
    std::uint64_t page = UINT64_MAX;
    Page* granules = nullptr;
  };
  std::unordered_map<std::uint64_t, std::unique_ptr<Page>> pages_;
  std::array<Recent, kRecent> recent_;
};

}  // namespace mxfa::emu::check
