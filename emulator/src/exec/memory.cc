#include <bit>
#include <cstring>

#include "exec/access.h"

/// ld and st of all widths, and the vectors of them. PTX ISA 9.0, section 9.7.9.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

template <int kBytes>
struct ElementOf;
template <>
struct ElementOf<1> {
  using Unsigned = std::uint8_t;
  using Signed = std::int8_t;
};
template <>
struct ElementOf<2> {
  using Unsigned = std::uint16_t;
  using Signed = std::int16_t;
};
template <>
struct ElementOf<4> {
  using Unsigned = std::uint32_t;
  using Signed = std::int32_t;
};
template <>
struct ElementOf<8> {
  using Unsigned = std::uint64_t;
  using Signed = std::int64_t;
};

template <class T>
T read(const std::byte* from, bool strong) {
  if (strong) return __atomic_load_n(reinterpret_cast<const T*>(from), __ATOMIC_ACQUIRE);
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
void write(std::byte* to, T value, bool strong) {
  if (strong) {
    __atomic_store_n(reinterpret_cast<T*>(to), value, __ATOMIC_RELEASE);
  } else {
    std::memcpy(to, &value, sizeof(T));
  }
}

/// Where the elements of an access lie: of a vector access, `offset` bytes into what each lane has.
struct Places {
  const LanePointers& at;
  int stride;  ///< bytes that a lane has, one lane behind the other where `at` is contiguous
  int offset = 0;

  std::byte* lane(int i) const {
    return (at.contiguous ? at.lane[0] + i * stride : at.lane[i]) + offset;
  }
};

template <class Slot, class T>
void load_row(const Places& from, std::uint32_t mask, bool strong, Slot* row) {
  if (strong) {
    for (; mask != 0; mask &= mask - 1) {
      const int lane = std::countr_zero(mask);
      row[lane] = static_cast<Slot>(read<T>(from.lane(lane), true));
    }
  } else if (from.at.contiguous && from.stride == sizeof(T)) {
    const std::byte* first = from.lane(0);
    MXEMU_INDEPENDENT_LANES
    for (int i = 0; i < kLanes; ++i) {
      row[i] = static_cast<Slot>(read<T>(first + i * static_cast<int>(sizeof(T)), false));
    }
  } else if (mask == kFullMask) {
    for (int i = 0; i < kLanes; ++i) row[i] = static_cast<Slot>(read<T>(from.lane(i), false));
  } else {
    for (; mask != 0; mask &= mask - 1) {
      const int lane = std::countr_zero(mask);
      row[lane] = static_cast<Slot>(read<T>(from.lane(lane), false));
    }
  }
}

template <class Slot, class T>
void store_row(const Places& to, std::uint32_t mask, bool strong, const Slot* row) {
  if (to.at.contiguous && to.stride == sizeof(T) && !strong) {
    std::byte* first = to.lane(0);
    MXEMU_INDEPENDENT_LANES
    for (int i = 0; i < kLanes; ++i) {
      write<T>(first + i * static_cast<int>(sizeof(T)), static_cast<T>(row[i]), false);
    }
    return;
  }
  for (; mask != 0; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    write<T>(to.lane(lane), static_cast<T>(row[lane]), strong);
  }
}

/// Four 4-byte elements a lane, one lane behind the other: as vectors.
void load_quads(const std::byte* first, const Context& c, const std::int32_t* rows) {
  const auto* from = reinterpret_cast<const std::uint32_t*>(first);
  auto* x = c.result_row<std::uint32_t>(rows[0]);
  auto* y = c.result_row<std::uint32_t>(rows[1]);
  auto* z = c.result_row<std::uint32_t>(rows[2]);
  auto* w = c.result_row<std::uint32_t>(rows[3]);
  MXEMU_INDEPENDENT_LANES
  for (int i = 0; i < kLanes; ++i) {
    x[i] = from[4 * i];
    y[i] = from[4 * i + 1];
    z[i] = from[4 * i + 2];
    w[i] = from[4 * i + 3];
  }
}

void store_quads(std::byte* first, const Context& c, const std::int32_t* rows) {
  auto* to = reinterpret_cast<std::uint32_t*>(first);
  const auto* x = c.row<const std::uint32_t>(rows[0]);
  const auto* y = c.row<const std::uint32_t>(rows[1]);
  const auto* z = c.row<const std::uint32_t>(rows[2]);
  const auto* w = c.row<const std::uint32_t>(rows[3]);
  MXEMU_INDEPENDENT_LANES
  for (int i = 0; i < kLanes; ++i) {
    to[4 * i] = x[i];
    to[4 * i + 1] = y[i];
    to[4 * i + 2] = z[i];
    to[4 * i + 3] = w[i];
  }
}

bool are_quads(const Inst& in, const LanePointers& at, int bytes) {
  constexpr std::uint8_t kOther = AccessFlags::kWideData | AccessFlags::kStrong;
  return at.contiguous && bytes == 4 && in.b == 4 && (in.c & kOther) == 0;
}

const std::int32_t* data_rows(const Warp& warp, const Inst& in) {
  return warp.cta().launch.kernel->lists.data() + in.extra;
}

struct Wide16 {
  std::uint64_t part[2];
};

}  // namespace

template <int kBytes>
void load(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  LanePointers at;
  resolve(warp, in, mask, kBytes * std::uint32_t{in.b}, Access::kRead, at);
  const std::int32_t* rows = data_rows(warp, in);
  if (are_quads(in, at, kBytes)) return load_quads(at.lane[0], c, rows);
  const bool strong = (in.c & AccessFlags::kStrong) != 0;
  if (strong) warp.note_poll();
  using U = typename ElementOf<kBytes>::Unsigned;
  using S = typename ElementOf<kBytes>::Signed;
  const bool is_signed = kBytes < 8 && (in.c & AccessFlags::kSigned) != 0;
  Places from{at, kBytes * in.b};
  for (int i = 0; i < in.b; ++i, from.offset += kBytes) {
    if ((in.c & AccessFlags::kWideData) != 0) {
      auto* row = c.row<std::uint64_t>(rows[i]);
      if (is_signed) {
        load_row<std::uint64_t, S>(from, mask, strong, row);
      } else {
        load_row<std::uint64_t, U>(from, mask, strong, row);
      }
    } else {
      auto* row = c.row<std::uint32_t>(rows[i]);
      if (is_signed) {
        load_row<std::uint32_t, S>(from, mask, strong, row);
      } else {
        load_row<std::uint32_t, U>(from, mask, strong, row);
      }
    }
  }
}

template <>
void load<16>(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  LanePointers at;
  resolve(warp, in, mask, 16 * std::uint32_t{in.b}, Access::kRead, at);
  const std::int32_t* rows = data_rows(warp, in);
  Places from{at, 16 * in.b};
  for (int i = 0; i < in.b; ++i, from.offset += 16) {
    auto* row = c.row<Wide16>(rows[i]);
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      std::memcpy(&row[lane], from.lane(lane), 16);
    }
  }
}

template <int kBytes>
void store(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  LanePointers at;
  resolve(warp, in, mask, kBytes * std::uint32_t{in.b}, Access::kWrite, at);
  const std::int32_t* rows = data_rows(warp, in);
  ++warp.cta().cluster.progress.count;
  if (are_quads(in, at, kBytes)) return store_quads(at.lane[0], c, rows);
  const bool strong = (in.c & AccessFlags::kStrong) != 0;
  using U = typename ElementOf<kBytes>::Unsigned;
  Places to{at, kBytes * in.b};
  for (int i = 0; i < in.b; ++i, to.offset += kBytes) {
    if ((in.c & AccessFlags::kWideData) != 0) {
      store_row<std::uint64_t, U>(to, mask, strong, c.row<std::uint64_t>(rows[i]));
    } else {
      store_row<std::uint32_t, U>(to, mask, strong, c.row<std::uint32_t>(rows[i]));
    }
  }
}

template <>
void store<16>(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  LanePointers at;
  resolve(warp, in, mask, 16 * std::uint32_t{in.b}, Access::kWrite, at);
  const std::int32_t* rows = data_rows(warp, in);
  Places to{at, 16 * in.b};
  for (int i = 0; i < in.b; ++i, to.offset += 16) {
    const auto* row = c.row<const Wide16>(rows[i]);
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      std::memcpy(to.lane(lane), &row[lane], 16);
    }
  }
  ++warp.cta().cluster.progress.count;
}

template void load<1>(Context&, const Inst&, std::uint32_t);
template void load<2>(Context&, const Inst&, std::uint32_t);
template void load<4>(Context&, const Inst&, std::uint32_t);
template void load<8>(Context&, const Inst&, std::uint32_t);
template void store<1>(Context&, const Inst&, std::uint32_t);
template void store<2>(Context&, const Inst&, std::uint32_t);
template void store<4>(Context&, const Inst&, std::uint32_t);
template void store<8>(Context&, const Inst&, std::uint32_t);

}  // namespace mxfa::emu::exec
