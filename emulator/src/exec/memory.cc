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

template <class Slot, class T>
void load_row(const LanePointers& from, std::uint32_t mask, int offset, bool strong, Slot* row) {
  if (from.contiguous && sizeof(Slot) == sizeof(T) && !strong) {
    std::memcpy(row, from.lane[0], sizeof(T) * kLanes);
    return;
  }
  if (from.contiguous) {
    for (int i = 0; i < kLanes; ++i) {
      row[i] = static_cast<Slot>(read<T>(from.lane[0] + i * static_cast<int>(sizeof(T)), strong));
    }
    return;
  }
  if (mask == kFullMask && !strong) {
    for (int i = 0; i < kLanes; ++i) {
      row[i] = static_cast<Slot>(read<T>(from.lane[i] + offset, false));
    }
    return;
  }
  for (; mask != 0; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    row[lane] = static_cast<Slot>(read<T>(from.lane[lane] + offset, strong));
  }
}

template <class Slot, class T>
void store_row(const LanePointers& to, std::uint32_t mask, int offset, bool strong,
               const Slot* row) {
  if (to.contiguous && sizeof(Slot) == sizeof(T) && !strong) {
    std::memcpy(to.lane[0], row, sizeof(T) * kLanes);
    return;
  }
  for (; mask != 0; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    std::byte* at =
        to.contiguous ? to.lane[0] + lane * static_cast<int>(sizeof(T)) : to.lane[lane] + offset;
    write<T>(at, static_cast<T>(row[lane]), strong);
  }
}

const std::int32_t* data_rows(const Warp& warp, const Inst& in) {
  return warp.cta().launch.kernel->lists.data() + in.extra;
}

// The lanes of a vector access are contiguous as a whole, not its single elements.
void resolve_vector(Warp& warp, const Inst& in, std::uint32_t mask, std::uint32_t bytes,
                    Access access, LanePointers& out) {
  resolve(warp, in, mask, bytes * in.b, access, out);
  if (in.b == 1 || !out.contiguous) return;
  for (int i = 1; i < kLanes; ++i) {
    out.lane[i] = out.lane[0] + static_cast<std::size_t>(i) * bytes * in.b;
  }
  out.contiguous = false;
}

struct Wide16 {
  std::uint64_t part[2];
};

}  // namespace

template <int kBytes>
void load(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  LanePointers from;
  resolve_vector(warp, in, mask, kBytes, Access::kRead, from);
  const std::int32_t* rows = data_rows(warp, in);
  const bool strong = (in.c & AccessFlags::kStrong) != 0;
  if (strong) warp.note_poll();
  using U = typename ElementOf<kBytes>::Unsigned;
  using S = typename ElementOf<kBytes>::Signed;
  const bool is_signed = kBytes < 8 && (in.c & AccessFlags::kSigned) != 0;
  for (int i = 0; i < in.b; ++i) {
    const int offset = i * kBytes;
    if ((in.c & AccessFlags::kWideData) != 0) {
      auto* row = c.row<std::uint64_t>(rows[i]);
      if (is_signed) {
        load_row<std::uint64_t, S>(from, mask, offset, strong, row);
      } else {
        load_row<std::uint64_t, U>(from, mask, offset, strong, row);
      }
    } else {
      auto* row = c.row<std::uint32_t>(rows[i]);
      if (is_signed) {
        load_row<std::uint32_t, S>(from, mask, offset, strong, row);
      } else {
        load_row<std::uint32_t, U>(from, mask, offset, strong, row);
      }
    }
  }
}

template <>
void load<16>(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  LanePointers from;
  resolve_vector(warp, in, mask, 16, Access::kRead, from);
  const std::int32_t* rows = data_rows(warp, in);
  for (int i = 0; i < in.b; ++i) {
    auto* row = c.row<Wide16>(rows[i]);
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      const std::byte* at = from.contiguous ? from.lane[0] + 16 * lane : from.lane[lane] + 16 * i;
      std::memcpy(&row[lane], at, 16);
    }
  }
}

template <int kBytes>
void store(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  LanePointers to;
  resolve_vector(warp, in, mask, kBytes, Access::kWrite, to);
  const std::int32_t* rows = data_rows(warp, in);
  const bool strong = (in.c & AccessFlags::kStrong) != 0;
  using U = typename ElementOf<kBytes>::Unsigned;
  for (int i = 0; i < in.b; ++i) {
    if ((in.c & AccessFlags::kWideData) != 0) {
      store_row<std::uint64_t, U>(to, mask, i * kBytes, strong, c.row<std::uint64_t>(rows[i]));
    } else {
      store_row<std::uint32_t, U>(to, mask, i * kBytes, strong, c.row<std::uint32_t>(rows[i]));
    }
  }
  ++warp.cta().cluster.progress.count;
}

template <>
void store<16>(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  LanePointers to;
  resolve_vector(warp, in, mask, 16, Access::kWrite, to);
  const std::int32_t* rows = data_rows(warp, in);
  for (int i = 0; i < in.b; ++i) {
    const auto* row = c.row<const Wide16>(rows[i]);
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      std::byte* at = to.contiguous ? to.lane[0] + 16 * lane : to.lane[lane] + 16 * i;
      std::memcpy(at, &row[lane], 16);
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
