#include <algorithm>

#include "exec/access.h"
#include "model/warp_matrix.h"

/// ldmatrix, stmatrix, movmatrix: addresses and checks here, layouts in model/warp_matrix.h.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

constexpr std::uint32_t kRowBytes = 16;

/// op[2] = model::MatrixForm, op[3] = number of matrices, lists = b registers.
struct Matrices {
  Warp& warp;
  model::MatrixForm form;
  std::uint32_t registers;
  const std::int32_t* rows;
  LanePointers memory;

  // Only the lanes that give row addresses are checked and used.
  Matrices(Context& c, const Inst& in, Access access)
      : warp(static_cast<Warp&>(c)),
        form(static_cast<model::MatrixForm>(in.op[2])),
        registers(in.b),
        rows(warp.cta().launch.kernel->lists.data() + in.extra) {
    const std::uint32_t lanes =
        model::matrix_address_lanes(form, static_cast<std::uint32_t>(in.op[3]));
    resolve(warp, in, lanes == 32 ? kFullMask : (1u << lanes) - 1, kRowBytes, access, memory);
    if (!memory.contiguous) return;
    for (std::size_t i = 1; i < kLanes; ++i) memory.lane[i] = memory.lane[0] + kRowBytes * i;
  }

  /// visit(byte in memory, register bits, shift of the byte in the register)
  template <class Visit>
  void for_bytes(const Visit& visit) const {
    for (std::uint32_t reg = 0; reg < registers; ++reg) {
      auto* row = warp.row<std::uint32_t>(rows[reg]);
      for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
        for (std::uint32_t byte = 0; byte < 4; ++byte) {
          const model::MatrixByte at = model::matrix_byte(form, lane, reg, byte);
          visit(memory.lane[at.lane][at.byte], row[lane], 8 * byte);
        }
      }
    }
  }
};

}  // namespace

void load_matrix(Context& c, const Inst& in, std::uint32_t) {
  const Matrices matrices(c, in, Access::kRead);
  matrices.for_bytes([](const std::byte& memory, std::uint32_t& bits, std::uint32_t shift) {
    bits = (bits & ~(0xFFu << shift)) | static_cast<std::uint32_t>(memory) << shift;
  });
}

void store_matrix(Context& c, const Inst& in, std::uint32_t) {
  const Matrices matrices(c, in, Access::kWrite);
  matrices.for_bytes([](std::byte& memory, std::uint32_t bits, std::uint32_t shift) {
    memory = static_cast<std::byte>(bits >> shift);
  });
  ++matrices.warp.cta().cluster.progress.count;
}

void move_matrix(Context& c, const Inst& in, std::uint32_t) {
  const auto result = model::movmatrix(
      std::span<const std::uint32_t, 32>(c.row<const std::uint32_t>(in.op[1]), 32));
  std::ranges::copy(result, c.row<std::uint32_t>(in.op[0]));
}

}  // namespace mxfa::emu::exec
