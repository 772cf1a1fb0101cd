#include "model/tcgen05.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "model/fault.h"
#include "mx/bits.h"
#include "mx/e8m0.h"

namespace mxfa::emu::model {
namespace {

constexpr std::uint32_t kScaleAddressMask = 0x3FFFFFFF;
constexpr std::uint32_t kAColumns = 8;  // 32 bytes of K a row

bool has_scales(const InstructionDescriptor& idesc) { return idesc.kind == MmaKind::kMxF8F6F4; }

/// Lanes that M rows occupy from the base: all 128, or 16 of each quarter.
std::vector<TmemRange> row_ranges(std::uint32_t m, const TmemAddress& base, std::uint32_t columns) {
  if (m == 128) return {{0, kTmemLanes, base.column, columns}};
  std::vector<TmemRange> ranges;
  for (std::uint32_t quarter = 0; quarter < 4; ++quarter) {
    ranges.push_back({base.lane + 32 * quarter, 16, base.column, columns});
  }
  return ranges;
}

TmemAddress matrix_base(const char* what, std::uint32_t m, std::uint32_t address) {
  const TmemAddress base = decode_tmem_address(address);
  const bool ok = base.lane == 0 || (m == 64 && base.lane == 16);
  if (!ok) fault(what, m == 64 ? "lane 0 or 16" : "lane 0", base.lane);
  return base;
}

TmemAddress scale_base(const char* what, std::uint32_t address) {
  const TmemAddress base = decode_tmem_address(address & kScaleAddressMask);
  if (base.lane != 0 || base.column % 2 != 0) {
    fault(what, "lane 0 and an even column",
          fmt::format("lane {} column {}", base.lane, base.column));
  }
  return base;
}
std::uint32_t scale_columns(std::uint32_t rows) { return (rows + 31) / 32; }

bool columns_overlap(const TmemRange& x, const TmemRange& y) {
  return x.column < y.column + y.columns && y.column < x.column + x.columns;
}
bool overlap(const TmemRange& x, const TmemRange& y) {
  return columns_overlap(x, y) && x.lane < y.lane + y.lanes && y.lane < x.lane + x.lanes;
}

struct Bases {
  TmemAddress d, a, sfa, sfb;
};

Bases check_mma(const Tcgen05Mma& mma) {
  const InstructionDescriptor& idesc = mma.idesc;
  if (idesc.m != 64 && idesc.m != 128) unsupported("tcgen05.mma", fmt::format("M = {}", idesc.m));
  Bases bases;
  bases.d = matrix_base("tcgen05.mma address of D", idesc.m, mma.d);
  if (!mma.a) {
    bases.a = matrix_base("tcgen05.mma address of A", idesc.m, mma.a_tmem);
    if (bases.a.lane != bases.d.lane) {
      fault("tcgen05.mma lane of A", fmt::format("{} as D's", bases.d.lane), bases.a.lane);
    }
    if (idesc.major_a != Major::kK) {
      fault("tcgen05.mma transpose of A", "none in tensor memory", 1);
    }
  }
  if (has_scales(idesc)) {
    bases.sfa = scale_base("tcgen05.mma address of scale A", mma.sfa);
    bases.sfb = scale_base("tcgen05.mma address of scale B", mma.sfb);
    if (mma.disable_lanes != std::array<std::uint32_t, 4>{}) {
      fault("tcgen05.mma disable-output-lane", "none with block scales", "a mask");
    }
  }
  if (mma.scale_input_d > 15 || (mma.scale_input_d != 0 && idesc.kind != MmaKind::kF16)) {
    fault("tcgen05.mma scale-input-d", "0..15 and kind::f16", mma.scale_input_d);
  }
  return bases;
}

void check_overlaps(const Tcgen05Mma& mma) {
  Tcgen05Mma sources = mma;
  sources.enable_input_d = false;
  for (const TmemRange& read : mma_reads(sources)) {
    for (const TmemRange& write : mma_writes(mma)) {
      if (overlap(read, write)) {
        fault("tcgen05.mma operands", "A and scales apart from D",
              fmt::format("columns {}..{} against D at {}..{}", read.column,
                          read.column + read.columns - 1, write.column,
                          write.column + write.columns - 1));
      }
    }
  }
}

/// One scale byte for each of `rows`, the same in all four quarters.
std::vector<std::uint8_t> read_scales(const char* what, const TensorMemory& tmem,
                                      const TmemAddress& base, std::uint32_t rows,
                                      std::uint32_t id) {
  std::vector<std::uint8_t> scales(rows);
  for (std::uint32_t row = 0; row < rows; ++row) {
    const std::uint32_t column = base.column + row / 32;
    for (std::uint32_t quarter = 0; quarter < 4; ++quarter) {
      const std::uint32_t word = tmem.read(row % 32 + 32 * quarter, column);
      const auto byte = static_cast<std::uint8_t>(word >> (8 * id));
      if (quarter == 0) scales[row] = byte;
      if (byte != scales[row]) {
        fault(what, "the same in all four lane quarters",
              fmt::format("row {}: {:#04x} in quarter 0, {:#04x} in quarter {}", row, scales[row],
                          byte, quarter));
      }
    }
  }
  return scales;
}

std::vector<std::byte> read_a(const Tcgen05Mma& mma, const Bases& bases,
                              std::span<const std::byte> smem, const TensorMemory& tmem) {
  const OperandShape shape = mma_a_shape(mma.idesc);
  std::vector<std::byte> raw(std::size_t{shape.mn} * shape.k * shape.elem_bytes);
  if (mma.a) {
    check_operand(*mma.a, shape, smem.size());
    fetch_operand(*mma.a, shape, smem, raw);
    return raw;
  }
  for (std::uint32_t m = 0; m < shape.mn; ++m) {
    for (std::uint32_t c = 0; c < kAColumns; ++c) {
      const std::uint32_t lane = mma_lane(shape.mn, bases.a.lane, m);
      const std::uint32_t word = tmem.read(lane, bases.a.column + c);
      std::memcpy(raw.data() + (std::size_t{m} * kAColumns + c) * 4, &word, 4);
    }
  }
  return raw;
}

/// Accumulators as an array [m][n] of the words' values.
template <class T, class Decode>
void read_d(const Tcgen05Mma& mma, const Bases& bases, const TensorMemory& tmem,
            std::vector<T>& out, Decode decode) {
  const auto& [m_extent, n_extent] = std::pair{mma.idesc.m, mma.idesc.n};
  if (!mma.enable_input_d) return;
  for (std::uint32_t n = 0; n < n_extent; ++n) {
    for (std::uint32_t m = 0; m < m_extent; ++m) {
      const std::uint32_t lane = mma_lane(m_extent, bases.d.lane, m);
      out[std::size_t{m} * n_extent + n] = decode(tmem.read(lane, bases.d.column + n));
    }
  }
}
template <class T, class Encode>
void write_d(const Tcgen05Mma& mma, const Bases& bases, TensorMemory& tmem, const std::vector<T>& d,
             Encode encode) {
  const auto& [m_extent, n_extent] = std::pair{mma.idesc.m, mma.idesc.n};
  for (std::uint32_t m = 0; m < m_extent; ++m) {
    const std::uint32_t lane = mma_lane(m_extent, bases.d.lane, m);
    if ((mma.disable_lanes[lane / 32] >> (lane % 32) & 1u) != 0) continue;
    for (std::uint32_t n = 0; n < n_extent; ++n) {
      tmem.write(lane, bases.d.column + n, encode(d[std::size_t{m} * n_extent + n]));
    }
  }
}

float scaled_input(float d, std::uint32_t scale) {
  return scale == 0
             ? d
             : static_cast<float>(std::ldexp(static_cast<double>(d), -static_cast<int>(scale)));
}

}  // namespace

std::uint32_t cp_rows(CpShape shape) {
  switch (shape) {
    case CpShape::k128x256b:
    case CpShape::k128x128b:
      return 128;
    case CpShape::k64x128bWarpx2_02_13:
    case CpShape::k64x128bWarpx2_01_23:
      return 64;
    case CpShape::k32x128bWarpx4:
      return 32;
    case CpShape::k4x256b:
      break;
  }
  unsupported("tcgen05.cp shape", ".4x256b");
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

std::vector<TmemRange> cp_writes(CpShape shape, std::uint32_t address) {
  const TmemAddress base = decode_tmem_address(address);
  return {{0, kTmemLanes, base.column, cp_row_bytes(shape) / 4}};
}

void tcgen05_cp(CpShape shape, std::uint32_t address, const MatrixDescriptor& source,
                std::span<const std::byte> smem, TensorMemory& tmem) {
  const OperandShape operand = cp_operand(shape);
  const TmemAddress base = decode_tmem_address(address);
  if (base.lane != 0 || base.column % 4 != 0) {
    fault("tcgen05.cp address", "lane 0 and a column that is a multiple of 4",
          fmt::format("lane {} column {}", base.lane, base.column));
  }
  check_operand(source, operand, smem.size());
  std::vector<std::byte> raw(std::size_t{operand.mn} * operand.k);
  fetch_operand(source, operand, smem, raw);
  for (std::uint32_t row = 0; row < operand.mn; ++row) {
    for (std::uint32_t c = 0; c < operand.k / 4; ++c) {
      std::uint32_t word;
      std::memcpy(&word, raw.data() + std::size_t{row} * operand.k + 4 * c, 4);
      for (const std::uint32_t lane : cp_lanes(shape, row)) tmem.write(lane, base.column + c, word);
    }
  }
}

OperandShape mma_a_shape(const InstructionDescriptor& idesc) {
  return {idesc.major_a, idesc.m, idesc.k(), mma_type_bytes(idesc.a)};
}
OperandShape mma_b_shape(const InstructionDescriptor& idesc) {
  return {idesc.major_b, idesc.n, idesc.k(), mma_type_bytes(idesc.b)};
}

std::vector<TmemRange> mma_reads(const Tcgen05Mma& mma) {
  const Bases bases = check_mma(mma);
  std::vector<TmemRange> ranges;
  if (mma.enable_input_d) ranges = row_ranges(mma.idesc.m, bases.d, mma.idesc.n);
  if (!mma.a) {
    for (const TmemRange& range : row_ranges(mma.idesc.m, bases.a, kAColumns)) {
      ranges.push_back(range);
    }
  }
  if (has_scales(mma.idesc)) {
    ranges.push_back({0, kTmemLanes, bases.sfa.column, scale_columns(mma.idesc.m)});
    ranges.push_back({0, kTmemLanes, bases.sfb.column, scale_columns(mma.idesc.n)});
  }
  return ranges;
}

std::vector<TmemRange> mma_writes(const Tcgen05Mma& mma) {
  return row_ranges(mma.idesc.m, check_mma(mma).d, mma.idesc.n);
}

std::vector<ByteRange> mma_smem_reads(const Tcgen05Mma& mma) {
  std::vector<ByteRange> ranges = operand_ranges(mma.b, mma_b_shape(mma.idesc));
  if (mma.a) {
    for (const ByteRange& range : operand_ranges(*mma.a, mma_a_shape(mma.idesc))) {
      ranges.push_back(range);
    }
  }
  return ranges;
}

MmaReport tcgen05_mma(const Tcgen05Mma& mma, std::span<const std::byte> smem, TensorMemory& tmem,
                      MmaUnit& unit) {
  const InstructionDescriptor& idesc = mma.idesc;
  const Bases bases = check_mma(mma);
  check_overlaps(mma);
  for (const TmemRange& range : mma_writes(mma)) tmem.check_allocated("tcgen05.mma D", range);
  const OperandShape shape_b = mma_b_shape(idesc);
  check_operand(mma.b, shape_b, smem.size());
  std::vector<std::byte> raw_b(std::size_t{shape_b.mn} * shape_b.k * shape_b.elem_bytes);
  fetch_operand(mma.b, shape_b, smem, raw_b);
  Multiplicand a{idesc.a, idesc.m, idesc.k(), {}};
  Multiplicand b{idesc.b, idesc.n, idesc.k(), {}};
  decode_multiplicand(read_a(mma, bases, smem, tmem), idesc.negate_a, a);
  decode_multiplicand(raw_b, idesc.negate_b, b);

  MmaReport report;
  std::vector<std::uint8_t> sfa, sfb;
  if (has_scales(idesc)) {
    sfa = read_scales("tcgen05.mma scale A", tmem, bases.sfa, idesc.m, idesc.sf_id_a);
    sfb = read_scales("tcgen05.mma scale B", tmem, bases.sfb, idesc.n, idesc.sf_id_b);
    for (const auto* scales : {&sfa, &sfb}) {
      for (const std::uint8_t byte : *scales) report.nan_scale |= byte == mx::kE8M0Nan;
    }
  }
  const std::size_t size = std::size_t{idesc.m} * idesc.n;
  if (idesc.d == AccumulatorType::kF16) {
    std::vector<std::uint16_t> d(size);
    read_d(mma, bases, tmem, d, [&](std::uint32_t word) {
      const float value = mx::decode_f16(static_cast<std::uint16_t>(word));
      return mma.scale_input_d == 0 ? static_cast<std::uint16_t>(word)
                                    : mx::encode_f16(scaled_input(value, mma.scale_input_d));
    });
    unit.f16(a, b, mma.enable_input_d, d);
    write_d(mma, bases, tmem, d, [](std::uint16_t bits) { return std::uint32_t{bits}; });
    return report;
  }
  std::vector<float> d(size);
  read_d(mma, bases, tmem, d,
         [&](std::uint32_t word) { return scaled_input(mx::bits_float(word), mma.scale_input_d); });
  unit.f32(a, b, mma.enable_input_d, d, {sfa, sfb});
  write_d(mma, bases, tmem, d, [](float value) { return mx::float_bits(value); });
  return report;
}

}  // namespace mxfa::emu::model
