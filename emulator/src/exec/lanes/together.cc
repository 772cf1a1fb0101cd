#include "exec/lanes/lane.h"

/// shfl.sync. PTX ISA 9.0, section 9.7.9.6. Values are taken from a copy, since the result may be
/// the source's row.
namespace mxfa::emu::exec::MXEMU_ISA {
namespace {

using I32 = std::int32_t;
using U32 = std::uint32_t;

enum class ShflMode { kUp, kDown, kBfly, kIdx };

/// What a lane gets from a lane that does not take part: the ISA leaves it open.
constexpr U32 kUndefined = 0xBADC0DEDu;

constexpr I32 kLaneIndex[kLanes] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

/// The lane that a lane reads, and whether that is in range: the ISA's pseudocode.
template <ShflMode kMode>
[[gnu::always_inline]] inline I32 source_lane(I32 lane, U32 b, U32 control, bool& in_range) {
  const auto value = static_cast<I32>(b & 31u);
  const auto segment = static_cast<I32>((control >> 8) & 31u);
  const I32 least = lane & segment;
  const I32 most = least | (static_cast<I32>(control & 31u) & ~segment);
  const I32 from = kMode == ShflMode::kUp     ? lane - value
                   : kMode == ShflMode::kDown ? lane + value
                   : kMode == ShflMode::kBfly ? lane ^ value
                                              : least | (value & ~segment);
  in_range = kMode == ShflMode::kUp ? from >= most : from <= most;
  return in_range ? from : lane;
}

/// d|p = a of another lane, op = {d, p, a, b, control, members}.
template <ShflMode kMode>
void shuffle(Context& c, const Inst& in, std::uint32_t mask) {
  const auto* a = c.row<const Row32>(in.op[2]);
  const auto* b = c.row<const Row32>(in.op[3]);
  const auto* control = c.row<const Row32>(in.op[4]);
  const auto* members = c.row<const Row32>(in.op[5]);
  alignas(64) Row32 from[kLanes];
  alignas(64) Row32 ranges[kLanes];
  alignas(64) Row32 takes_part[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    bool in_range = false;
    from[i] = static_cast<U32>(source_lane<kMode>(kLaneIndex[i], b[i], control[i], in_range));
    ranges[i] = in_range ? ~0u : 0u;
    takes_part[i] = ((mask & members[i]) >> from[i]) & 1u;
  }
  alignas(64) Row32 result[kLanes];
  for (int i = 0; i < kLanes; ++i) result[i] = a[from[i]];
  for (int i = 0; i < kLanes; ++i) result[i] = takes_part[i] != 0 ? result[i] : kUndefined;
  blend(c.result_row<Row32>(in.op[0]), result, mask);
  c.set_pred(in.op[1], sign_bits(ranges), mask);
}

}  // namespace

void add_together_kernels(const KernelSink& sink) {
  sink.add("shfl", "up", "", &shuffle<ShflMode::kUp>);
  sink.add("shfl", "down", "", &shuffle<ShflMode::kDown>);
  sink.add("shfl", "bfly", "", &shuffle<ShflMode::kBfly>);
  sink.add("shfl", "idx", "", &shuffle<ShflMode::kIdx>);
}

}  // namespace mxfa::emu::exec::MXEMU_ISA
