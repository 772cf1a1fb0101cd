#include "model/tmem.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "model/fault.h"
#include "model/warp_ops.h"

namespace mxfa::emu::model {
namespace {

std::uint32_t shape_lanes(TmemShape shape) { return shape == TmemShape::k32x32b ? 32 : 16; }

/// Columns of one access without the second half of k16x32bx2.
std::uint32_t shape_columns(const TmemAccess& access) {
  std::uint32_t columns = access.num;
  switch (access.shape) {
    case TmemShape::k16x64b:
      columns *= 2;
      break;
    case TmemShape::k16x128b:
      columns *= 4;
      break;
    case TmemShape::k16x256b:
      columns *= 8;
      break;
    default:
      break;
  }
  return access.pack ? 2 * columns : columns;
}

/// The base with the lane that really counts.
TmemAddress base_of(const TmemAccess& access, std::uint32_t address, std::uint32_t warp_idx,
                    bool lenient) {
  TmemAddress base = decode_tmem_address(address);
  const std::uint32_t quarter = warp_idx % 4;
  if (base.lane / 32 != quarter) {
    if (!lenient) {
      fault("tcgen05.ld/st lane",
            fmt::format("{}..{} (warp {})", 32 * quarter, 32 * quarter + 31, warp_idx), base.lane);
    }
    base.lane = 32 * quarter + base.lane % 32;
  }
  const std::uint32_t start = base.lane % 32;
  const bool aligned = start == 0 || (start == 16 && shape_lanes(access.shape) == 16);
  if (!aligned) fault("tcgen05.ld/st lane", "lane 0 or 16 of the quarter", base.lane);
  return base;
}

/// Calls visit(register, lane, tmem lane, tmem column) for each 32-bit word, or with pack for each
/// pair's even column.
template <class Visit>
void each_cell(const TmemAccess& access, const TmemAddress& base, Visit visit) {
  const std::uint32_t count = tmem_registers(access);
  const std::uint32_t scale = access.pack ? 2 : 1;
  for (std::uint32_t reg = 0; reg < count; ++reg) {
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      const TmemAddress cell = tmem_cell(access, lane, reg);
      const bool second = access.shape == TmemShape::k16x32bx2 && lane >= 16;
      const std::uint32_t column =
          base.column + cell.column * scale + (second ? access.half_split : 0);
      visit(reg, lane, base.lane + cell.lane, column);
    }
  }
}

void check_registers(const TmemAccess& access, std::size_t got) {
  if (got != tmem_registers(access)) {
    fault("tcgen05.ld/st registers", std::to_string(tmem_registers(access)),
          static_cast<std::int64_t>(got));
  }
}

}  // namespace

TmemAddress decode_tmem_address(std::uint32_t address) {
  const TmemAddress at{address >> 16, address & 0xFFFFu};
  if (at.lane >= kTmemLanes || at.column >= kTmemColumns) {
    fault("tensor memory address", "a lane below 128 and a column below 512",
          fmt::format("{:#010x}", address));
  }
  return at;
}

TensorMemory::TensorMemory()
    : words_(std::size_t{kTmemLanes} * kTmemColumns),
      written_(words_.size()),
      allocated_(kTmemColumns) {}

std::optional<std::uint32_t> TensorMemory::alloc(std::uint32_t columns) {
  if (relinquished_) {
    fault("tcgen05.alloc", "no allocation after relinquish_alloc_permit", columns);
  }
  if (columns < 32 || columns > kTmemColumns || !std::has_single_bit(columns)) {
    fault("tcgen05.alloc columns", "a power of two in 32..512", columns);
  }
  if (columns > last_columns_) {
    fault("tcgen05.alloc columns", fmt::format("at most the {} of an earlier one", last_columns_),
          columns);
  }
  for (std::uint32_t base = 0; base + columns <= kTmemColumns; base += columns) {
    const auto begin = allocated_.begin() + base;
    if (std::any_of(begin, begin + columns, [](std::uint8_t used) { return used != 0; })) continue;
    std::fill(begin, begin + columns, std::uint8_t{1});
    std::fill_n(written_.begin() + static_cast<std::ptrdiff_t>(index(0, base)),
                std::size_t{columns} * kTmemLanes, std::uint8_t{0});
    live_[base] = columns;
    last_columns_ = columns;
    return encode_tmem_address({0, base});
  }
  return std::nullopt;
}

void TensorMemory::dealloc(std::uint32_t address, std::uint32_t columns) {
  const auto it = address < kTmemColumns ? live_.find(address) : live_.end();
  if (it == live_.end() || it->second != columns) {
    fault("tcgen05.dealloc", "the base and the columns of a live allocation",
          fmt::format("{} columns at {:#010x}", columns, address));
  }
  std::fill_n(allocated_.begin() + it->first, columns, std::uint8_t{0});
  live_.erase(it);
}

std::uint32_t TensorMemory::live_columns() const {
  std::uint32_t sum = 0;
  for (const auto& [base, columns] : live_) sum += columns;
  return sum;
}

std::uint32_t TensorMemory::read(std::uint32_t lane, std::uint32_t column) const {
  if (lane >= kTmemLanes || column >= kTmemColumns || allocated_[column] == 0) {
    fault("tensor memory read", "an allocated column",
          fmt::format("lane {} column {}", lane, column));
  }
  if (written_[index(lane, column)] == 0) {
    fault("tensor memory read", "a word written since its allocation",
          fmt::format("lane {} column {}", lane, column));
  }
  return words_[index(lane, column)];
}

void TensorMemory::write(std::uint32_t lane, std::uint32_t column, std::uint32_t word) {
  if (lane >= kTmemLanes || column >= kTmemColumns || allocated_[column] == 0) {
    fault("tensor memory write", "an allocated column",
          fmt::format("lane {} column {}", lane, column));
  }
  written_[index(lane, column)] = 1;
  words_[index(lane, column)] = word;
}

void TensorMemory::check_allocated(const char* what, const TmemRange& range) const {
  for (std::uint32_t i = 0; i < range.columns; ++i) {
    const std::uint32_t column = range.column + i;
    if (column >= kTmemColumns || allocated_[column] == 0) {
      fault(what, "allocated tensor memory columns", fmt::format("column {}", column));
    }
  }
}

std::uint32_t tmem_registers(const TmemAccess& access) {
  std::uint32_t each = 1;
  std::uint32_t most = 128;
  if (access.shape == TmemShape::k16x128b) {
    each = 2;
    most = 64;
  } else if (access.shape == TmemShape::k16x256b) {
    each = 4;
    most = 32;
  }
  if (!std::has_single_bit(access.num) || access.num > most) {
    fault("tcgen05.ld/st .num", fmt::format("a power of two in .x1 to .x{}", most), access.num);
  }
  return each * access.num;
}

std::vector<TmemRange> tmem_ranges(const TmemAccess& access, std::uint32_t address,
                                   std::uint32_t warp_idx, bool lenient) {
  tmem_registers(access);
  const TmemAddress base = base_of(access, address, warp_idx, lenient);
  const TmemRange first{base.lane, shape_lanes(access.shape), base.column, shape_columns(access)};
  if (access.shape != TmemShape::k16x32bx2) return {first};
  TmemRange second = first;
  second.column += access.half_split;
  return {first, second};
}

void tmem_load(const TmemAccess& access, std::uint32_t address, std::uint32_t warp_idx,
               const TensorMemory& tmem, std::span<std::uint32_t* const> regs, bool lenient) {
  check_registers(access, regs.size());
  const TmemAddress base = base_of(access, address, warp_idx, lenient);
  each_cell(access, base,
            [&](std::uint32_t reg, std::uint32_t lane, std::uint32_t row, std::uint32_t column) {
              std::uint32_t word = tmem.read(row, column);
              if (access.pack) word = (word & 0xFFFFu) | tmem.read(row, column + 1) << 16;
              regs[reg][lane] = word;
            });
}

void tmem_store(const TmemAccess& access, std::uint32_t address, std::uint32_t warp_idx,
                TensorMemory& tmem, std::span<const std::uint32_t* const> regs, bool lenient) {
  check_registers(access, regs.size());
  const TmemAddress base = base_of(access, address, warp_idx, lenient);
  each_cell(access, base,
            [&](std::uint32_t reg, std::uint32_t lane, std::uint32_t row, std::uint32_t column) {
              const std::uint32_t word = regs[reg][lane];
              if (access.pack) {
                tmem.write(row, column, word & 0xFFFFu);
                tmem.write(row, column + 1, word >> 16);
              } else {
                tmem.write(row, column, word);
              }
            });
}

std::uint32_t tmem_reduce_f32(TmemReduce op, bool abs, bool propagate_nan,
                              std::span<const std::uint32_t> values) {
  std::array<std::uint32_t, 32> padded{};
  std::uint32_t result = 0x7FFFFFFFu;
  bool first = true;
  // In pieces of 31 with the result so far; the reduction is associative.
  for (std::size_t at = 0; at < values.size(); at += 31) {
    const std::size_t count = std::min<std::size_t>(31, values.size() - at);
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(at), count, padded.begin());
    std::uint32_t mask = (1u << count) - 1u;
    if (!first) {
      padded[31] = result;
      mask |= 0x80000000u;
    }
    result = redux_f32(op == TmemReduce::kMax, abs, propagate_nan, padded, mask);
    first = false;
  }
  return result;
}

}  // namespace mxfa::emu::model
