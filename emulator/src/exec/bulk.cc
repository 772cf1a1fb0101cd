#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "exec/access.h"
#include "exec/tasks.h"
#include "model/reduction.h"

/// cp.async.bulk in all its forms, cp.async, st.async and their groups. Loads and copies within the
/// cluster end at an mbarrier; stores and reductions first read shared memory, then write global
/// memory, as two steps, since threads may wait for either.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

/// One bulk instruction of one lane.
class BulkIssue {
 public:
  BulkIssue(Warp& warp, const Inst& in, int lane)
      : warp_(warp),
        cta_(warp.cta()),
        in_(in),
        spec_(std::bit_cast<BulkSpec>(in.imm)),
        lane_(lane) {}

  void run() {
    switch (spec_.kind) {
      case BulkKind::kLoad:
        return load();
      case BulkKind::kStore:
      case BulkKind::kReduce:
        return store();
      case BulkKind::kShared:
      case BulkKind::kReduceShared:
        return copy_shared();
      case BulkKind::kStoreAsync:
        return store_async();
    }
  }

 private:
  std::uint64_t operand(int k) const {
    return lane_value(warp_, in_.op[k], ((spec_.wide >> k) & 1u) != 0, lane_);
  }

  const std::int32_t* list() const { return cta_.launch.kernel->lists.data() + in_.extra; }

  std::array<std::int32_t, model::kMaxTensorRank> coordinates() const {
    std::array<std::int32_t, model::kMaxTensorRank> result{};
    for (std::size_t i = 0; i < spec_.rank; ++i) {
      result[i] = warp_.row<const std::int32_t>(list()[i])[lane_];
    }
    return result;
  }

  // The map is read when the instruction is issued.
  model::TensorMap tensor_map() const {
    std::array<std::byte, model::kTensorMapBytes> record;
    cta_.launch.map_edits->check_use(cta_, operand(1));
    GlobalView(cta_.launch).read(operand(1), record);
    const model::TensorMap map = model::decode_tensor_map(record);
    if (map.rank != spec_.rank) {
      model::fault("tensor map", fmt::format("rank {}", spec_.rank), map.rank);
    }
    return map;
  }

  bool reduces() const {
    return spec_.kind == BulkKind::kReduce || spec_.kind == BulkKind::kReduceShared;
  }

  Task::Info info(const char* what, OpKind kind, const SharedPlace& barrier = {}) const {
    Task::Info result{cta_.launch.kernel, in_.line, what};
    result.needs_block = kind != OpKind::kStoreWrite;
    result.may_outlive_block = kind == OpKind::kStoreRead;
    result.observer = cta_.launch.observer;
    if (result.observer != nullptr) {
      result.observed = result.observer->issue({kind, warp_, in_, lane_, barrier, reduces()});
    }
    return result;
  }

  void push(Cta& cta, Task::Info what, std::function<void()> effect) const {
    cta.async.push(std::make_unique<Task>(std::move(what), std::move(effect)));
    ++cta.cluster.progress.count;
  }

  void load() {
    const SharedPlace to = shared_place(cta_, operand(0));
    const SharedPlace barrier = shared_place(cta_, operand(2));
    if (spec_.masked == 0) {
      const bool same = to.cta == barrier.cta;
      if (!same && !(spec_.pair != 0 && to.cta->peer() == barrier.cta)) {
        model::fault(
            "mbarrier",
            spec_.pair != 0 ? "one of the destination's CTA pair" : "one of the destination's CTA",
            barrier.cta->name());
      }
      return load_to(to, barrier);
    }
    const std::uint64_t blocks = operand(4) & 0xFFFFu;
    for (std::uint64_t rest = blocks; rest != 0; rest &= rest - 1) {
      Cta* target = cta_.cluster.find(static_cast<std::uint32_t>(std::countr_zero(rest)));
      if (target == nullptr)
        model::fault("multicast mask", "blocks of the cluster", fmt::format("0x{:x}", blocks));
      load_to({target, to.offset}, {signalled(target, barrier), barrier.offset});
    }
  }

  // Of a pair, the CTA whose rank has the parity of the barrier's.
  Cta* signalled(Cta* target, const SharedPlace& barrier) const {
    const bool peer = spec_.pair != 0 && (target->rank ^ barrier.cta->rank) % 2 != 0;
    Cta* cta = peer ? target->peer() : target;
    if (cta == nullptr) model::fault("cta_group::2", "a peer CTA", target->name());
    return cta;
  }

  void load_to(const SharedPlace& to, const SharedPlace& barrier) {
    const Launch* launch = &cta_.launch;
    if (spec_.rank > 0) {
      push(*to.cta, info("tensor load", OpKind::kToBarrier, barrier),
           [launch, to, barrier, map = tensor_map(), at = coordinates(), rank = spec_.rank] {
             GlobalView global(*launch);
             SharedView shared(*to.cta);
             const auto trace =
                 model::tile_load({map, std::span(at).first(rank), global, shared, to.offset});
             complete_bytes(barrier, trace.bytes);
           });
      return;
    }
    push(*to.cta, info("bulk load", OpKind::kToBarrier, barrier),
         [launch, to, barrier, from = operand(1), bytes = operand(3)] {
           GlobalView global(*launch);
           SharedView shared(*to.cta);
           model::bulk_copy({global, from, shared, to.offset, bytes});
           complete_bytes(barrier, bytes);
         });
  }

  void copy_shared() {
    const SharedPlace to = shared_place(cta_, operand(0));
    const SharedPlace from = shared_place(cta_, operand(1));
    const SharedPlace barrier = shared_place(cta_, operand(2));
    const BulkSpec spec = spec_;
    push(cta_, info("copy within the cluster", OpKind::kToBarrier, barrier),
         [to, from, barrier, spec, bytes = operand(3)] {
           SharedView source(*from.cta);
           SharedView target(*to.cta);
           const model::BulkCopy copy{source, from.offset, target, to.offset, bytes};
           if (spec.kind == BulkKind::kShared) {
             model::bulk_copy(copy);
           } else {
             model::bulk_reduce(copy, model::ReduceTarget::kSharedCluster,
                                static_cast<model::ReduceOp>(spec.reduce_op),
                                static_cast<model::ReduceType>(spec.reduce_type));
           }
           complete_bytes(barrier, bytes);
         });
  }

  // Bytes of shared memory that the store reads, from the box's start on. Rows are at least as wide
  // as the swizzle, which exchanges chunks inside of aligned lines only.
  static std::uint64_t source_bytes(const model::TensorMap& map) {
    const std::uint64_t inner = std::uint64_t{map.box_elems(0)} *
                                static_cast<std::uint64_t>(tensor_type_bits(map.type)) / 8;
    const std::uint64_t rows = inner == 0 ? 0 : map.box_bytes() / inner;
    const std::uint64_t pitch = std::max<std::uint64_t>(inner, swizzle_width(map.swizzle));
    return (rows * pitch + 127) / 128 * 128;
  }

  static std::shared_ptr<std::vector<std::byte>> read_source(const SharedPlace& from,
                                                             std::uint64_t wanted) {
    Cta& cta = *from.cta;
    const std::uint64_t room = cta.smem.size() > from.offset ? cta.smem.size() - from.offset : 0;
    auto bytes = std::make_shared<std::vector<std::byte>>(std::min(wanted, room));
    if (Observer* observer = cta.launch.observer) {
      observer->async_shared(cta, from.offset, bytes->size(), false);
    }
    std::memcpy(bytes->data(), cta.smem.data() + from.offset, bytes->size());
    return bytes;
  }

  void store() {
    const SharedPlace from = shared_place(cta_, operand(0));
    const std::shared_ptr<async::Group> group = warp_.lane_async(lane_).bulk.open();
    ++group->reads;
    ++group->writes;
    std::function<void(model::ByteMemory&)> write =
        spec_.rank > 0 ? tensor_write(from) : plain_write(from);
    const std::uint64_t wanted = spec_.rank > 0 ? source_bytes(tensor_map()) : operand(3);
    const Task::Info later =
        info(spec_.kind == BulkKind::kStore ? "bulk store" : "bulk reduction", OpKind::kStoreWrite);
    push(cta_, info("read of a bulk store", OpKind::kStoreRead),
         [from, group, wanted, write = std::move(write), later] {
           Cta& cta = *from.cta;
           auto bytes = read_source(from, wanted);
           --group->reads;
           cta.async.push(std::make_unique<Task>(later, [from, group, bytes, write] {
             model::SpanMemory snapshot(from.offset, *bytes);
             write(snapshot);
             --group->writes;
           }));
         });
  }

  std::function<void(model::ByteMemory&)> tensor_write(const SharedPlace& from) const {
    const Launch* launch = &cta_.launch;
    return [launch, from, map = tensor_map(), at = coordinates(),
            spec = spec_](model::ByteMemory& source) {
      GlobalView global(*launch);
      const model::TileCopy copy{map, std::span(at).first(spec.rank), global, source, from.offset};
      if (spec.kind == BulkKind::kStore) {
        model::tile_store(copy);
      } else {
        model::tile_reduce(copy, static_cast<model::ReduceOp>(spec.reduce_op));
      }
    };
  }

  std::function<void(model::ByteMemory&)> plain_write(const SharedPlace& from) const {
    const Launch* launch = &cta_.launch;
    const std::uint64_t byte_mask = spec_.masked != 0 ? operand(4) : 0xFFFF;
    return [launch, from, to = operand(1), bytes = operand(3), byte_mask,
            spec = spec_](model::ByteMemory& source) {
      GlobalView global(*launch);
      const model::BulkCopy copy{source, from.offset, global, to, bytes};
      if (spec.kind == BulkKind::kReduce) {
        model::bulk_reduce(copy, model::ReduceTarget::kGlobal,
                           static_cast<model::ReduceOp>(spec.reduce_op),
                           static_cast<model::ReduceType>(spec.reduce_type));
      } else if (byte_mask == 0xFFFF) {
        model::bulk_copy(copy);
      } else {
        model::bulk_copy_masked(copy, static_cast<std::uint16_t>(byte_mask));
      }
    };
  }

  void store_async() {
    const SharedPlace to = shared_place(cta_, operand(0));
    const SharedPlace barrier = shared_place(cta_, operand(2));
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < in_.b; ++i) {
      const std::uint64_t value = lane_value(warp_, list()[i], spec_.value_bytes == 8, lane_);
      const auto* begin = reinterpret_cast<const std::byte*>(&value);
      bytes.insert(bytes.end(), begin, begin + spec_.value_bytes);
    }
    if (to.offset % bytes.size() != 0)
      model::fault("st.async address", "one aligned to its size", to.offset);
    push(*to.cta, info("st.async", OpKind::kToBarrier, barrier), [to, barrier, bytes] {
      SharedView(*to.cta).write(to.offset, bytes);
      complete_bytes(barrier, bytes.size());
    });
  }

  Warp& warp_;
  Cta& cta_;
  const Inst& in_;
  BulkSpec spec_;
  int lane_;
};

template <class Visit>
void for_lanes(std::uint32_t mask, const Visit& visit) {
  for (; mask != 0; mask &= mask - 1) visit(std::countr_zero(mask));
}

}  // namespace

void bulk_copy(Context& c, const Inst& in, std::uint32_t mask) {
  for_lanes(mask, [&](int lane) { BulkIssue(static_cast<Warp&>(c), in, lane).run(); });
}

void async_group(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  Observer* observer = warp.cta().launch.observer;
  const CopyGroup kind = in.b != 0 ? CopyGroup::kCopyAsync : CopyGroup::kBulk;
  bool done = true;
  for_lanes(mask, [&](int lane) {
    LaneAsync& state = warp.lane_async(lane);
    async::GroupList& groups = in.b != 0 ? state.copy : state.bulk;
    if (in.a == 0) {
      groups.commit();
      if (observer != nullptr) observer->group_commit(warp, lane, kind);
    } else {
      done &= groups.done(static_cast<std::uint64_t>(in.imm), in.a == 2);
    }
  });
  if (observer != nullptr && in.a != 0) {
    for_lanes(mask, [&](int lane) { observer->group_wait(warp, in, lane, kind, done); });
  }
  if (!done) warp.retry();
}

void copy_async(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  Cta& cta = warp.cta();
  const auto bytes = static_cast<std::uint64_t>(in.imm);
  for_lanes(mask, [&](int lane) {
    const SharedPlace to = shared_place(cta, lane_value(c, in.op[0], (in.b & 1u) != 0, lane));
    const std::uint64_t from = lane_value(c, in.op[1], (in.b & 2u) != 0, lane);
    // Bytes past the source size are zeros.
    const std::uint64_t given =
        in.op[3] == ir::kNoOperand ? bytes : lane_value(c, in.op[3], false, lane);
    if (given > bytes || to.offset % bytes != 0 || (given != 0 && from % bytes != 0)) {
      warp.fail(in, 1u << lane, "cp.async: misaligned address, or more source bytes than its size");
    }
    const std::shared_ptr<async::Group> group = warp.lane_async(lane).copy.open();
    ++group->writes;
    const Launch* launch = &cta.launch;
    Task::Info info{launch->kernel, in.line, "cp.async"};
    info.observer = launch->observer;
    if (info.observer != nullptr) {
      info.observed = info.observer->issue(
          {OpKind::kCopy, warp, in, lane, {}, false, lane == std::countr_zero(mask)});
    }
    cta.async.push(std::make_unique<Task>(std::move(info), [launch, to, from, bytes, given, group] {
      std::vector<std::byte> data(bytes);
      if (given != 0) GlobalView(*launch).read(from, std::span(data).first(given));
      SharedView(*to.cta).write(to.offset, data);
      --group->writes;
    }));
  });
  ++cta.cluster.progress.count;
}

void copy_async_arrive(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  Cta& cta = warp.cta();
  std::uint64_t address[kLanes];
  lane_addresses(warp, in, address);
  for_lanes(mask, [&](int lane) {
    const SharedPlace place = shared_place(cta, address[lane]);
    if (in.b == 0) {
      place.cta->mbarriers.at(place.offset, "cp.async.mbarrier.arrive").increment_pending();
    }
    const auto groups = warp.lane_async(lane).copy.all();
    Observer* observer = cta.launch.observer;
    const ObservedOpPtr observed =
        observer == nullptr ? nullptr
                            : observer->copies_arrive({warp, in, 1u << lane, place, false});
    cta.async.push(std::make_unique<Task>(
        Task::Info{cta.launch.kernel, in.line, "cp.async.mbarrier.arrive",
                   async::AsyncOp::kUnordered, true},
        [place, observer, observed] {
          if (observer != nullptr) observer->copies_arrived(*observed, place);
          const auto arrival =
              place.cta->mbarriers.at(place.offset, "cp.async.mbarrier.arrive").arrive();
          if (observer != nullptr && arrival.completed) observer->mbarrier_phase(place);
          update_image(place);
        },
        // Later operations of a group that is still open are waited for as well: never too early.
        [groups] {
          for (const auto& group : groups) {
            if (group->writes != 0) return false;
          }
          return true;
        }));
  });
  ++cta.cluster.progress.count;
}

}  // namespace mxfa::emu::exec
