#include "model/tcgen05_mma.h"

#include <algorithm>
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
constexpr std::uint32_t kFoldedLanes = 64;

bool has_scales(const InstructionDescriptor& idesc) { return idesc.kind == MmaKind::kMxF8F6F4; }

/// Columns of D in each CTA.
std::uint32_t d_columns(const InstructionDescriptor& idesc) {
  return data_path(idesc) == DataPath::kFolded ? idesc.n / 2 : idesc.n;
}
/// Columns of the scales of B.
std::uint32_t sfb_columns(const InstructionDescriptor& idesc) {
  return (d_columns(idesc) + 31) / 32;
}
std::uint32_t sfa_columns(const InstructionDescriptor& idesc) { return (idesc.cta_m() + 31) / 32; }

/// Lane of row m of D, without folding, and of A in tensor memory.
std::uint32_t row_lane(DataPath path, std::uint32_t base_lane, std::uint32_t m) {
  return path == DataPath::kHalf ? base_lane + m % 16 + 32 * (m / 16) : m;
}

/// Lanes that rows occupy from the base: all 128, or 16 of each quarter.
std::vector<TmemRange> row_ranges(DataPath path, const TmemAddress& base, std::uint32_t columns) {
  if (path != DataPath::kHalf) return {{0, kTmemLanes, base.column, columns}};
  std::vector<TmemRange> ranges;
  for (std::uint32_t quarter = 0; quarter < 4; ++quarter) {
    ranges.push_back({base.lane + 32 * quarter, 16, base.column, columns});
  }
  return ranges;
}

TmemAddress matrix_base(const char* what, DataPath path, std::uint32_t address) {
  const TmemAddress base = decode_tmem_address(address);
  const bool half = path == DataPath::kHalf;
  if (base.lane != 0 && !(half && base.lane == 16)) {
    fault(what, half ? "lane 0 or 16" : "lane 0", base.lane);
  }
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

bool overlap(const TmemRange& x, const TmemRange& y) {
  return x.column < y.column + y.columns && y.column < x.column + x.columns &&
         x.lane < y.lane + y.lanes && y.lane < x.lane + x.lanes;
}

struct Bases {
  TmemAddress d, a, sfa, sfb;
};

Bases find_bases(const Tcgen05Mma& mma) {
  const DataPath path = data_path(mma.idesc);
  Bases bases;
  bases.d = matrix_base("tcgen05.mma address of D", path, mma.d);
  if (!mma.a) {
    bases.a = matrix_base("tcgen05.mma address of A", path, mma.a_tmem);
    if (bases.a.lane != bases.d.lane) {
      fault("tcgen05.mma lane of A", fmt::format("{} as D's", bases.d.lane), bases.a.lane);
    }
  }
  if (has_scales(mma.idesc)) {
    bases.sfa = scale_base("tcgen05.mma address of scale A", mma.sfa);
    bases.sfb = scale_base("tcgen05.mma address of scale B", mma.sfb);
  }
  return bases;
}

std::vector<TmemRange> source_ranges(const Tcgen05Mma& mma, const Bases& bases) {
  std::vector<TmemRange> ranges;
  if (!mma.a) ranges = row_ranges(data_path(mma.idesc), bases.a, kAColumns);
  if (has_scales(mma.idesc)) {
    ranges.push_back({0, kTmemLanes, bases.sfa.column, sfa_columns(mma.idesc)});
    ranges.push_back({0, kTmemLanes, bases.sfb.column, sfb_columns(mma.idesc)});
  }
  return ranges;
}

void check_overlaps(const Tcgen05Mma& mma, const Bases& bases) {
  const auto writes = row_ranges(data_path(mma.idesc), bases.d, d_columns(mma.idesc));
  for (const TmemRange& read : source_ranges(mma, bases)) {
    for (const TmemRange& write : writes) {
      if (!overlap(read, write)) continue;
      fault("tcgen05.mma operands", "A and scales apart from D",
            fmt::format("columns {}..{} against D at {}..{}", read.column,
                        read.column + read.columns - 1, write.column,
                        write.column + write.columns - 1));
    }
  }
}

/// One instruction while it executes.
class Execution {
 public:
  Execution(const Tcgen05Mma& mma, std::span<const MmaCta> ctas, MmaUnit& unit)
      : mma_(mma),
        idesc_(mma.idesc),
        ctas_(ctas),
        unit_(unit),
        path_(data_path(mma.idesc)),
        bases_(find_bases(mma)) {}

  MmaReport run() {
    for (const MmaCta& cta : ctas_) b_.push_back(read_b(cta));
    for (std::size_t i = 0; i < ctas_.size(); ++i) run_cta(i);
    return report_;
  }

 private:
  Multiplicand read_b(const MmaCta& cta) const {
    const OperandShape shape = mma_b_shape(idesc_);
    std::vector<std::byte> raw(std::size_t{shape.mn} * shape.k * shape.elem_bytes);
    fetch_operand(mma_.b, shape, cta.smem, raw);
    if (is_packed_type(idesc_.b)) unpack_chunks(idesc_.b, raw);
    Multiplicand b{idesc_.b, shape.mn, shape.k, {}};
    decode_multiplicand(raw, idesc_.negate_b, b);
    return b;
  }

  Multiplicand read_a(const MmaCta& cta) const {
    const OperandShape shape = mma_a_shape(idesc_);
    std::vector<std::byte> raw(std::size_t{shape.mn} * shape.k * shape.elem_bytes);
    if (mma_.a) {
      fetch_operand(*mma_.a, shape, cta.smem, raw);
      if (is_packed_type(idesc_.a)) unpack_chunks(idesc_.a, raw);
    } else {
      read_a_tmem(*cta.tmem, raw);
      if (is_packed_type(idesc_.a)) unpack_containers(idesc_.a, raw);
    }
    Multiplicand a{idesc_.a, shape.mn, shape.k, {}};
    decode_multiplicand(raw, idesc_.negate_a, a);
    return a;
  }

  void read_a_tmem(const TensorMemory& tmem, std::span<std::byte> raw) const {
    for (const TmemRange& range : row_ranges(path_, bases_.a, kAColumns)) {
      tmem.check_written("tcgen05.mma A", range);
    }
    for (std::uint32_t c = 0; c < kAColumns; ++c) {
      const std::uint32_t* words = tmem.column(bases_.a.column + c);
      for (std::uint32_t m = 0; m < idesc_.cta_m(); ++m) {
        const std::uint32_t lane = row_lane(path_, bases_.a.lane, m);
        std::memcpy(raw.data() + (std::size_t{m} * kAColumns + c) * 4, &words[lane], 4);
        if (path_ == DataPath::kFolded && words[lane] != words[lane + kFoldedLanes]) {
          fault("tcgen05.mma A in tensor memory", "the same in lanes 0..63 and 64..127",
                fmt::format("row {} column {} differs", m, bases_.a.column + c));
        }
      }
    }
  }

  /// The scale byte of the row that lane `lane` of column `column` stands for, which must be the
  /// same in every quarter of `quarters`, a bit each.
  std::uint8_t scale_byte(const char* what, const TensorMemory& tmem, std::uint32_t column,
                          std::uint32_t lane, std::uint32_t id, std::uint32_t quarters) {
    const std::uint32_t* words = tmem.column(column);
    const auto first = static_cast<std::uint32_t>(std::countr_zero(quarters));
    const auto byte = static_cast<std::uint8_t>(words[lane + 32 * first] >> (8 * id));
    for (std::uint32_t quarter = first + 1; quarter < 4; ++quarter) {
      const auto other = static_cast<std::uint8_t>(words[lane + 32 * quarter] >> (8 * id));
      if ((quarters >> quarter & 1u) == 0 || other == byte) continue;
      fault(what, "the same in all lane quarters that scale the same rows",
            fmt::format("lane {} column {}: {:#04x} in quarter {}, {:#04x} in quarter {}", lane,
                        column, byte, first, other, quarter));
    }
    report_.nan_scale |= byte == mx::kE8M0Nan;
    return byte;
  }

  void check_scales(const char* what, const TensorMemory& tmem, std::uint32_t column,
                    std::uint32_t rows) const {
    for (std::uint32_t first = 0; first < rows; first += 32) {
      for (std::uint32_t quarter = 0; quarter < 4; ++quarter) {
        tmem.check_written(what,
                           {32 * quarter, std::min(32u, rows - first), column + first / 32, 1});
      }
    }
  }

  std::vector<std::uint8_t> read_sfa(const TensorMemory& tmem) {
    const char* what = "tcgen05.mma scale A";
    std::vector<std::uint8_t> scales(idesc_.cta_m());
    check_scales(what, tmem, bases_.sfa.column, idesc_.cta_m());
    for (std::uint32_t m = 0; m < scales.size(); ++m) {
      scales[m] = scale_byte(what, tmem, bases_.sfa.column + m / 32, m % 32, idesc_.sf_id_a, 0xF);
    }
    return scales;
  }

  // Folded, the quarters hold what their own columns of D need.
  std::vector<std::uint8_t> read_sfb(const TensorMemory& tmem) {
    const char* what = "tcgen05.mma scale B";
    const std::uint32_t stripe = d_columns(idesc_);
    std::vector<std::uint8_t> scales(idesc_.n);
    check_scales(what, tmem, bases_.sfb.column, stripe);
    for (std::uint32_t n = 0; n < scales.size(); ++n) {
      const std::uint32_t quarters = stripe == idesc_.n ? 0xF : n < stripe ? 0x3 : 0xC;
      const std::uint32_t local = n % stripe;
      scales[n] = scale_byte(what, tmem, bases_.sfb.column + local / 32, local % 32, idesc_.sf_id_b,
                             quarters);
    }
    return scales;
  }

  void run_cta(std::size_t index) {
    const MmaCta& cta = ctas_[index];
    TensorMemory& tmem = *cta.tmem;
    const auto ranges = row_ranges(path_, bases_.d, d_columns(idesc_));
    for (const TmemRange& range : ranges) tmem.check_allocated("tcgen05.mma D", range);
    const Multiplicand a = read_a(cta);
    std::vector<std::uint8_t> sfa, sfb;
    if (has_scales(idesc_)) {
      sfa = read_sfa(tmem);
      sfb = read_sfb(tmem);
    }
    const std::span<const std::uint32_t> disabled(mma_.disable_lanes.data() + 4 * index, 4);
    if (std::ranges::any_of(disabled, [](std::uint32_t bits) { return bits != 0; })) {
      run_masked(tmem, a, disabled);
      return;
    }
    if (mma_.enable_input_d) {
      for (const TmemRange& range : ranges) tmem.check_written("tcgen05.mma D", range);
    }
    multiply(tmem, a, sfa, sfb);
    for (const TmemRange& range : ranges) tmem.mark_written(range);
  }

  // D lies transposed: each of its columns is a row of lanes. So B gives the rows here.
  void multiply(TensorMemory& tmem, const Multiplicand& a, std::span<const std::uint8_t> sfa,
                std::span<const std::uint8_t> sfb) {
    if (mma_.scale_input_d != 0 && mma_.enable_input_d) scale_input(tmem);
    const std::uint32_t step = idesc_.cta_n();
    for (std::uint32_t i = 0; i < b_.size(); ++i) {
      const bool folded = path_ == DataPath::kFolded;
      const std::uint32_t column = bases_.d.column + (folded ? 0 : i * step);
      const std::uint32_t lane = bases_.d.lane + (folded ? i * kFoldedLanes : 0);
      const AccumulatorView<std::uint32_t> view{tmem.column(column) + lane, kTmemLanes,
                                                path_ == DataPath::kHalf ? 32u : 16u};
      const BlockScales scales{sfb.empty() ? sfb : sfb.subspan(std::size_t{i} * step, step), sfa};
      unit_.words(b_[i], a, mma_.enable_input_d, idesc_.d, view, scales);
    }
  }

  template <class Visit>
  void each_d_word(TensorMemory& tmem, const Visit& visit) {
    for (std::uint32_t c = 0; c < d_columns(idesc_); ++c) {
      std::uint32_t* words = tmem.column(bases_.d.column + c);
      for (const TmemRange& range : row_ranges(path_, bases_.d, 1)) {
        for (std::uint32_t lane = range.lane; lane < range.lane + range.lanes; ++lane) {
          visit(words[lane], lane, bases_.d.column + c);
        }
      }
    }
  }

  void scale_input(TensorMemory& tmem) {
    const auto scaled = [&](float value) {
      return static_cast<float>(
          std::ldexp(static_cast<double>(value), -static_cast<int>(mma_.scale_input_d)));
    };
    each_d_word(tmem, [&](std::uint32_t& word, std::uint32_t, std::uint32_t) {
      if (idesc_.d == AccumulatorType::kF16) {
        word = mx::encode_f16(scaled(mx::decode_f16(static_cast<std::uint16_t>(word))));
      } else {
        word = mx::float_bits(scaled(mx::bits_float(word)));
      }
    });
  }

  // Lanes that are switched off keep their words.
  void run_masked(TensorMemory& tmem, const Multiplicand& a,
                  std::span<const std::uint32_t> disabled) {
    const auto off = [&](std::uint32_t lane) {
      return (disabled[lane / 32] >> (lane % 32) & 1u) != 0;
    };
    std::vector<std::uint32_t> before;
    each_d_word(tmem, [&](std::uint32_t& word, std::uint32_t lane, std::uint32_t column) {
      before.push_back(word);
      if (off(lane)) return;
      const TmemRange cell{lane, 1, column, 1};
      if (mma_.enable_input_d) tmem.check_written("tcgen05.mma D", cell);
      tmem.mark_written(cell);
    });
    multiply(tmem, a, {}, {});
    std::size_t at = 0;
    each_d_word(tmem, [&](std::uint32_t& word, std::uint32_t lane, std::uint32_t) {
      if (off(lane)) word = before[at];
      ++at;
    });
  }

  const Tcgen05Mma& mma_;
  const InstructionDescriptor& idesc_;
  std::span<const MmaCta> ctas_;
  MmaUnit& unit_;
  DataPath path_;
  Bases bases_;
  std::vector<Multiplicand> b_;  ///< as each CTA holds it
  MmaReport report_;
};

}  // namespace

DataPath data_path(const InstructionDescriptor& idesc) {
  if (idesc.cta_m() == kTmemLanes) return DataPath::kWhole;
  return idesc.cta_group == 1 ? DataPath::kHalf : DataPath::kFolded;
}

OperandShape mma_a_shape(const InstructionDescriptor& idesc) {
  return {idesc.major_a, idesc.cta_m(), idesc.k(), mma_type_bytes(idesc.a)};
}
OperandShape mma_b_shape(const InstructionDescriptor& idesc) {
  return {idesc.major_b, idesc.cta_n(), idesc.k(), mma_type_bytes(idesc.b)};
}

std::vector<TmemRange> mma_reads(const Tcgen05Mma& mma) {
  const Bases bases = find_bases(mma);
  std::vector<TmemRange> ranges = source_ranges(mma, bases);
  if (!mma.enable_input_d) return ranges;
  for (const TmemRange& range : row_ranges(data_path(mma.idesc), bases.d, d_columns(mma.idesc))) {
    ranges.push_back(range);
  }
  return ranges;
}

std::vector<TmemRange> mma_writes(const Tcgen05Mma& mma) {
  return row_ranges(data_path(mma.idesc), find_bases(mma).d, d_columns(mma.idesc));
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

void check_mma(const Tcgen05Mma& mma) {
  const InstructionDescriptor& idesc = mma.idesc;
  if (!mma.a && idesc.major_a != Major::kK) {
    fault("tcgen05.mma transpose of A", "none in tensor memory", 1);
  }
  const bool masked = mma.disable_lanes != std::array<std::uint32_t, 8>{};
  if (has_scales(idesc) && masked) {
    fault("tcgen05.mma disable-output-lane", "none with block scales", "a mask");
  }
  const bool scalable = idesc.kind == MmaKind::kF16 || idesc.kind == MmaKind::kTF32;
  if (mma.scale_input_d > 15 || (mma.scale_input_d != 0 && !scalable)) {
    fault("tcgen05.mma scale-input-d", "0..15 and kind::f16 or tf32", mma.scale_input_d);
  }
  check_overlaps(mma, find_bases(mma));
  check_layout(mma.b, mma_b_shape(idesc));
  if (mma.a) check_layout(*mma.a, mma_a_shape(idesc));
}

MmaReport tcgen05_mma(const Tcgen05Mma& mma, std::span<const MmaCta> ctas, MmaUnit& unit) {
  check_mma(mma);
  if (ctas.size() != mma.idesc.cta_group) {
    fault("tcgen05.mma CTAs", std::to_string(mma.idesc.cta_group),
          static_cast<std::int64_t>(ctas.size()));
  }
  return Execution(mma, ctas, unit).run();
}

}  // namespace mxfa::emu::model
