#include "model/tmem.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "model/fault.h"
#include "model/warp_ops.h"

namespace mxfa::emu::model {
namespace {

/// What a word holds before anything is written.
constexpr std::uint32_t kPoison = 0xBADC0DEDu;

/// Calls visit(quarter, lanes as bits) for the lanes of the range.
template <class Visit>
void for_quarters(const TmemRange& range, Visit visit) {
  const std::uint32_t end = range.lane + range.lanes;
  for (std::uint32_t lane = range.lane; lane < end;) {
    const std::uint32_t quarter = lane / 32;
    const std::uint32_t count = std::min(end, 32 * (quarter + 1)) - lane;
    const std::uint32_t bits = count == 32 ? 0xFFFFFFFFu : (1u << count) - 1u;
    visit(quarter, bits << (lane % 32));
    lane += count;
  }
}

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

/// Register and column are the same thing.
bool is_plain(const TmemAccess& access) {
  return access.shape == TmemShape::k32x32b && !access.pack;
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

bool TmemColumns::is_free(std::uint32_t base, std::uint32_t columns) const {
  return std::none_of(taken_.begin() + base, taken_.begin() + base + columns,
                      [](bool taken) { return taken; });
}
void TmemColumns::take(std::uint32_t base, std::uint32_t columns) {
  std::fill_n(taken_.begin() + base, columns, true);
}
void TmemColumns::give_back(std::uint32_t base, std::uint32_t columns) {
  std::fill_n(taken_.begin() + base, columns, false);
}

TensorMemory::TensorMemory(std::shared_ptr<TmemColumns> columns)
    : columns_(std::move(columns)), words_(std::size_t{kTmemLanes} * kTmemColumns, kPoison) {}

void TensorMemory::check_alloc(std::uint32_t columns) const {
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
}

void TensorMemory::alloc_at(std::uint32_t base, std::uint32_t columns) {
  columns_->take(base, columns);
  std::fill_n(allocated_.begin() + base, columns, true);
  std::fill_n(written_.begin() + base, columns, std::array<std::uint32_t, 4>{});
  live_[base] = columns;
  last_columns_ = columns;
}

std::optional<std::uint32_t> TensorMemory::alloc(std::uint32_t columns) {
  check_alloc(columns);
  for (std::uint32_t base = 0; base + columns <= kTmemColumns; base += columns) {
    if (!can_alloc(base, columns)) continue;
    alloc_at(base, columns);
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
  columns_->give_back(it->first, columns);
  std::fill_n(allocated_.begin() + it->first, columns, false);
  live_.erase(it);
}

std::uint32_t TensorMemory::live_columns() const {
  std::uint32_t sum = 0;
  for (const auto& [base, columns] : live_) sum += columns;
  return sum;
}

std::uint32_t TensorMemory::read(std::uint32_t lane, std::uint32_t column) const {
  check_written("tensor memory read", {lane, 1, column, 1});
  return this->column(column)[lane];
}

void TensorMemory::write(std::uint32_t lane, std::uint32_t column, std::uint32_t word) {
  check_allocated("tensor memory write", {lane, 1, column, 1});
  mark_written({lane, 1, column, 1});
  this->column(column)[lane] = word;
}

void TensorMemory::check_allocated(std::string_view what, const TmemRange& range) const {
  for (std::uint32_t column = range.column; column < range.column + range.columns; ++column) {
    if (range.lane + range.lanes > kTmemLanes || !is_allocated(column)) {
      fault(what, "allocated tensor memory", fmt::format("lane {} column {}", range.lane, column));
    }
  }
}

void TensorMemory::check_written(std::string_view what, const TmemRange& range) const {
  check_allocated(what, range);
  if (!checks_written_) return;
  const std::optional<TmemAddress> missing = first_unwritten(range);
  if (!missing) return;
  fault(what, "words written since their allocation",
        fmt::format("lane {} column {}", missing->lane, missing->column));
}

std::optional<TmemAddress> TensorMemory::first_unwritten(const TmemRange& range) const {
  std::optional<TmemAddress> first;
  for (std::uint32_t column = range.column; column < range.column + range.columns; ++column) {
    for_quarters(range, [&](std::uint32_t quarter, std::uint32_t lanes) {
      const std::uint32_t missing = lanes & ~written_[column][quarter];
      if (missing == 0 || first) return;
      first = {32 * quarter + static_cast<std::uint32_t>(std::countr_zero(missing)), column};
    });
    if (first) break;
  }
  return first;
}

void TensorMemory::mark_written(const TmemRange& range) {
  for (std::uint32_t column = range.column; column < range.column + range.columns; ++column) {
    for_quarters(range, [&](std::uint32_t quarter, std::uint32_t lanes) {
      written_[column][quarter] |= lanes;
    });
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
  for (const TmemRange& range : tmem_ranges(access, address, warp_idx, lenient)) {
    tmem.check_written("tcgen05.ld", range);
  }
  if (is_plain(access)) {
    for (std::uint32_t reg = 0; reg < access.num; ++reg) {
      std::copy_n(tmem.column(base.column + reg) + base.lane, 32, regs[reg]);
    }
    return;
  }
  each_cell(access, base,
            [&](std::uint32_t reg, std::uint32_t lane, std::uint32_t row, std::uint32_t column) {
              std::uint32_t word = tmem.column(column)[row];
              if (access.pack) word = (word & 0xFFFFu) | tmem.column(column + 1)[row] << 16;
              regs[reg][lane] = word;
            });
}

void tmem_store(const TmemAccess& access, std::uint32_t address, std::uint32_t warp_idx,
                TensorMemory& tmem, std::span<const std::uint32_t* const> regs, bool lenient) {
  check_registers(access, regs.size());
  const TmemAddress base = base_of(access, address, warp_idx, lenient);
  for (const TmemRange& range : tmem_ranges(access, address, warp_idx, lenient)) {
    tmem.check_allocated("tcgen05.st", range);
    tmem.mark_written(range);
  }
  if (is_plain(access)) {
    for (std::uint32_t reg = 0; reg < access.num; ++reg) {
      std::copy_n(regs[reg], 32, tmem.column(base.column + reg) + base.lane);
    }
    return;
  }
  each_cell(access, base,
            [&](std::uint32_t reg, std::uint32_t lane, std::uint32_t row, std::uint32_t column) {
              const std::uint32_t word = regs[reg][lane];
              if (access.pack) {
                tmem.column(column)[row] = word & 0xFFFFu;
                tmem.column(column + 1)[row] = word >> 16;
              } else {
                tmem.column(column)[row] = word;
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

std::uint32_t tmem_reduce_u32(TmemReduce op, std::span<const std::uint32_t> values) {
  return op == TmemReduce::kMax ? *std::ranges::max_element(values)
                                : *std::ranges::min_element(values);
}

std::uint32_t tmem_reduce_s32(TmemReduce op, std::span<const std::uint32_t> values) {
  const auto is_signed = [](std::uint32_t bits) { return static_cast<std::int32_t>(bits); };
  return op == TmemReduce::kMax ? *std::ranges::max_element(values, {}, is_signed)
                                : *std::ranges::min_element(values, {}, is_signed);
}

}  // namespace mxfa::emu::model
