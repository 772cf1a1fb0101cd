#include "model/tcgen05_cp.h"

#include <cstring>

#include "model/mma_operand.h"

namespace mxfa::emu::model {
namespace {

void decompress(CpFormat format, std::span<std::byte> raw) {
  if (format == CpFormat::kPlain) return;
  // Both 6-bit types are moved alike.
  const auto type = format == CpFormat::kB4x16P64 ? mx::MmaType::kE2M1 : mx::MmaType::kE3M2;
  unpack_chunks(type, raw);
  for (std::byte& byte : raw) {
    byte = static_cast<std::byte>(container_of(type, static_cast<std::uint8_t>(byte)));
  }
}

}  // namespace

std::uint32_t cp_rows(CpShape shape) {
  switch (shape) {
    case CpShape::k128x256b:
    case CpShape::k128x128b:
      return 128;
    case CpShape::k32x128bWarpx4:
      return 32;
    default:
      return 64;
  }
}

std::uint32_t cp_row_bytes(CpShape shape) { return shape == CpShape::k128x256b ? 32 : 16; }

std::vector<std::uint32_t> cp_lanes(CpShape shape, std::uint32_t row) {
  switch (shape) {
    case CpShape::k64x128bWarpx2_02_13:
      return {row, row + 64};
    case CpShape::k64x128bWarpx2_01_23: {
      const std::uint32_t lane = row < 32 ? row : row + 32;
      return {lane, lane + 32};
    }
    case CpShape::k32x128bWarpx4:
      return {row, row + 32, row + 64, row + 96};
    default:
      return {row};
  }
}

OperandShape cp_operand(CpShape shape) {
  return {Major::kK, cp_rows(shape), cp_row_bytes(shape), 1};
}

TmemRange cp_writes(const TensorCopy& copy) {
  const TmemAddress base = decode_tmem_address(copy.address);
  return {0, kTmemLanes, base.column, cp_row_bytes(copy.shape) / 4};
}

void check_copy(const TensorCopy& copy) {
  const TmemAddress base = decode_tmem_address(copy.address);
  if (base.lane != 0 || base.column % 4 != 0) {
    fault("tcgen05.cp address", "lane 0 and a column that is a multiple of 4",
          fmt::format("lane {} column {}", base.lane, base.column));
  }
  check_layout(copy.source, cp_operand(copy.shape));
}

void tcgen05_cp(const TensorCopy& copy, const SmemView& smem, TensorMemory& tmem) {
  check_copy(copy);
  const TmemRange range = cp_writes(copy);
  tmem.check_allocated("tcgen05.cp", range);
  const OperandShape operand = cp_operand(copy.shape);
  std::vector<std::byte> raw(std::size_t{operand.mn} * operand.k);
  fetch_operand(copy.source, operand, smem, raw);
  decompress(copy.format, raw);
  for (std::uint32_t row = 0; row < operand.mn; ++row) {
    const std::vector<std::uint32_t> lanes = cp_lanes(copy.shape, row);
    for (std::uint32_t c = 0; c < operand.k / 4; ++c) {
      std::uint32_t word;
      std::memcpy(&word, raw.data() + std::size_t{row} * operand.k + std::size_t{4} * c, 4);
      for (const std::uint32_t lane : lanes) tmem.column(range.column + c)[lane] = word;
    }
  }
  tmem.mark_written(range);
}

}  // namespace mxfa::emu::model
