#include "exec/lanes/lane.h"

/// mov between a register and its two halves; other packs are in exec/special.cc. PTX ISA 9.0,
/// section 9.7.9.3.
namespace mxfa::emu::exec::MXEMU_ISA {
namespace {

using U16 = std::uint16_t;
using U32 = std::uint32_t;
using U64 = std::uint64_t;

/// {op[0], op[1]} = the lower and the upper half of op[2].
template <class Whole, class Part>
void split(Context& c, const Inst& in, std::uint32_t mask) {
  const auto* whole = c.row<const Slot<Whole>>(in.op[2]);
  alignas(64) Slot<Part> low[kLanes];
  alignas(64) Slot<Part> high[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    low[i] = static_cast<Part>(whole[i]);
    high[i] = static_cast<Part>(whole[i] >> (8 * sizeof(Part)));
  }
  blend(c.result_row<Slot<Part>>(in.op[0]), low, mask);
  blend(c.result_row<Slot<Part>>(in.op[1]), high, mask);
}

}  // namespace

void add_pack_kernels(const KernelSink& s) {
  s.add("pack", "16x2", "",
        lane<U32(U16, U16)>([](U16 low, U16 high) { return static_cast<U32>(high) << 16 | low; }));
  s.add("pack", "32x2", "",
        lane<U64(U32, U32)>([](U32 low, U32 high) { return static_cast<U64>(high) << 32 | low; }));
  s.add("unpack", "16x2", "", &split<U32, U16>);
  s.add("unpack", "32x2", "", &split<U64, U32>);
}

}  // namespace mxfa::emu::exec::MXEMU_ISA
