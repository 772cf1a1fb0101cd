#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "exec/access.h"

/// ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16-bit elements. Lane l holds elements 2(l%4) and
/// 2(l%4)+1 of row l/4; lane 8i+r gives the address of row r of matrix i. stmatrix.m16n8.b8 stores
/// 16x8 bytes, transposed. PTX ISA 9.0, sections 9.7.14.5.15 - 17.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

constexpr int kRows = 8;
constexpr std::uint32_t kRowBytes = 16;

struct Matrices {
  Warp& warp;
  const Inst& in;
  int count;
  bool transposed;
  const std::int32_t* rows;

  Matrices(Context& c, const Inst& instruction)
      : warp(static_cast<Warp&>(c)),
        in(instruction),
        count(instruction.b),
        transposed(instruction.op[2] != 0),
        rows(warp.cta().launch.kernel->lists.data() + instruction.extra) {}

  // Only the lanes that give row addresses are checked and used.
  LanePointers addresses(Access access) const {
    const std::uint32_t mask = count == 4 ? kFullMask : (1u << (8 * count)) - 1;
    LanePointers out;
    resolve(warp, in, mask, kRowBytes, access, out);
    if (out.contiguous) {
      for (int i = 1; i < kLanes; ++i)
        out.lane[i] = out.lane[0] + kRowBytes * static_cast<std::uint32_t>(i);
    }
    return out;
  }
};

std::uint16_t element(const std::byte* row, int column) {
  std::uint16_t value;
  std::memcpy(&value, row + 2 * column, 2);
  return value;
}

// 16x8 bytes: register byte b of lane l is row 8(b/2) + 2(l%4) + b%2, column l/4 of the matrix
// whose columns are stored as rows of 16 bytes.
void store_bytes(const Matrices& m, const LanePointers& to) {
  for (int i = 0; i < m.count; ++i) {
    const auto* row = m.warp.row<const std::uint32_t>(m.rows[i]);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int b = 0; b < 4; ++b) {
        const int in_column = 8 * (b / 2) + 2 * (lane % 4) + b % 2;
        to.lane[kRows * i + lane / 4][in_column] = static_cast<std::byte>(row[lane] >> (8 * b));
      }
    }
  }
}

}  // namespace

void load_matrix(Context& c, const Inst& in, std::uint32_t) {
  const Matrices m(c, in);
  const LanePointers from = m.addresses(Access::kRead);
  for (int i = 0; i < m.count; ++i) {
    auto* row = c.row<std::uint32_t>(m.rows[i]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int r = lane / 4;
      const int k = 2 * (lane % 4);
      std::byte* const* matrix = &from.lane[kRows * i];
      const std::uint32_t low = m.transposed ? element(matrix[k], r) : element(matrix[r], k);
      const std::uint32_t high =
          m.transposed ? element(matrix[k + 1], r) : element(matrix[r], k + 1);
      row[lane] = high << 16 | low;
    }
  }
}

void store_matrix(Context& c, const Inst& in, std::uint32_t) {
  const Matrices m(c, in);
  const LanePointers to = m.addresses(Access::kWrite);
  ++m.warp.cta().cluster.progress.count;
  if (in.op[3] != 0) return store_bytes(m, to);
  for (int i = 0; i < m.count; ++i) {
    const auto* row = c.row<const std::uint32_t>(m.rows[i]);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int half = 0; half < 2; ++half) {
        const int r = lane / 4;
        const int k = 2 * (lane % 4) + half;
        const auto value = static_cast<std::uint16_t>(row[lane] >> (16 * half));
        std::byte* at =
            m.transposed ? to.lane[kRows * i + k] + 2 * r : to.lane[kRows * i + r] + 2 * k;
        std::memcpy(at, &value, 2);
      }
    }
  }
}

void move_matrix(Context& c, const Inst& in, std::uint32_t) {
  auto* d = c.row<std::uint32_t>(in.op[0]);
  const auto* a = c.row<const std::uint32_t>(in.op[1]);
  std::uint16_t matrix[kRows][kRows];
  for (int lane = 0; lane < kLanes; ++lane) {
    matrix[lane / 4][2 * (lane % 4)] = static_cast<std::uint16_t>(a[lane]);
    matrix[lane / 4][2 * (lane % 4) + 1] = static_cast<std::uint16_t>(a[lane] >> 16);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::uint32_t low = matrix[2 * (lane % 4)][lane / 4];
    const std::uint32_t high = matrix[2 * (lane % 4) + 1][lane / 4];
    d[lane] = high << 16 | low;
  }
}

}  // namespace mxfa::emu::exec
