#pragma once

#include <cstdint>

#include "exec/context.h"
#include "exec/soft_float.h"

namespace mxfa::emu::exec {

enum class ConvertShape : std::uint8_t {
  kOne,   ///< d = cvt(a)
  kJoin,  ///< two sources into one register: the first one in the upper half
  kEach,  ///< packed register to packed register, two elements
  kFour,  ///< four sources and random bits into one register: the first one on top
};

/// Everything that a conversion depends on; travels in Inst::imm.
struct ConvertSpec {
  NumberFormat from = NumberFormat::kU32;
  NumberFormat to = NumberFormat::kU32;
  Rounding mode = Rounding::kNearestEven;
  ConvertShape shape = ConvertShape::kOne;
  std::uint8_t flags = 0;
  std::uint8_t from_slot = 4;  ///< bytes of a lane in the source row: 4 or 8
  std::uint8_t to_slot = 4;
  std::uint8_t unused = 0;

  static constexpr std::uint8_t kFlush = 1;
  static constexpr std::uint8_t kSaturate = 2;  ///< .sat
  static constexpr std::uint8_t kFinite = 4;    ///< .satfinite
  static constexpr std::uint8_t kRelu = 8;
  static constexpr std::uint8_t kIntegral = 16;  ///< rni, rzi, rmi, rpi between floats
};
static_assert(sizeof(ConvertSpec) == 8);

/// One element; `random` is used by stochastic rounding only.
std::uint64_t convert(const ConvertSpec& spec, std::uint64_t bits, std::uint32_t random);

/// op[0] = d, then the sources; for kFour the sources are lists[extra..] in op[1..4], op[5] random.
void convert_lanes(Context& c, const ir::Inst& in, std::uint32_t mask);

}  // namespace mxfa::emu::exec
