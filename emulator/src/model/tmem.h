#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

/// Tensor memory of one CTA: 128 lanes x 512 columns of 32 bits, its allocation, and the shapes of
/// tcgen05.ld and .st. Sources: PTX ISA 9.0, sections 9.7.16.1, 9.7.16.2.3, 9.7.16.7 and 9.7.16.8;
/// the lane and column maps, whose figures are missing from the text at hand, are those that two
/// public libraries agree on.
/// Unconfirmed: which columns an allocation gets (here the first that are free, aligned to their
/// number); the upper halves that .unpack::16b writes (here 0); 16-lane shapes that start elsewhere
/// than at lane 0 or 16 of a quarter (an error).
namespace mxfa::emu::model {

inline constexpr std::uint32_t kTmemLanes = 128;
inline constexpr std::uint32_t kTmemColumns = 512;

struct TmemAddress {
  std::uint32_t lane = 0;
  std::uint32_t column = 0;
};
/// Bits 31:16 lane, 15:0 column; errors beyond the memory.
TmemAddress decode_tmem_address(std::uint32_t address);
constexpr std::uint32_t encode_tmem_address(TmemAddress at) { return at.lane << 16 | at.column; }

/// A rectangle of words that an operation touched.
struct TmemRange {
  std::uint32_t lane = 0;
  std::uint32_t lanes = 0;
  std::uint32_t column = 0;
  std::uint32_t columns = 0;
  friend constexpr bool operator==(const TmemRange&, const TmemRange&) = default;
};

/// The columns of one SM. CTAs that run there together share them; each has its own TensorMemory.
class TmemColumns {
 public:
  bool is_free(std::uint32_t base, std::uint32_t columns) const;
  void take(std::uint32_t base, std::uint32_t columns);
  void give_back(std::uint32_t base, std::uint32_t columns);

 private:
  std::array<bool, kTmemColumns> taken_{};
};

class TensorMemory {
 public:
  explicit TensorMemory(std::shared_ptr<TmemColumns> columns = std::make_shared<TmemColumns>());

  /// Errors of tcgen05.alloc: a count that is not a power of two in 32..512, more columns than an
  /// earlier allocation, after relinquish().
  void check_alloc(std::uint32_t columns) const;
  /// Is the aligned range free?
  bool can_alloc(std::uint32_t base, std::uint32_t columns) const {
    return columns_->is_free(base, columns);
  }
  void alloc_at(std::uint32_t base, std::uint32_t columns);
  /// All three together: the base address, or none where tcgen05.alloc would block.
  std::optional<std::uint32_t> alloc(std::uint32_t columns);
  /// tcgen05.dealloc of exactly one live allocation.
  void dealloc(std::uint32_t address, std::uint32_t columns);
  void relinquish() { relinquished_ = true; }
  /// Columns that the kernel's end must not leave.
  std::uint32_t live_columns() const;

  /// Errors: a column that is not allocated; for reads a word that nothing wrote since its
  /// allocation.
  std::uint32_t read(std::uint32_t lane, std::uint32_t column) const;
  void write(std::uint32_t lane, std::uint32_t column, std::uint32_t word);
  /// Error unless all columns of the range are allocated.
  void check_allocated(std::string_view what, const TmemRange& range) const;
  /// The same, and all its words were written since.
  void check_written(std::string_view what, const TmemRange& range) const;
  /// The first word of the range that nothing wrote since its allocation.
  std::optional<TmemAddress> first_unwritten(const TmemRange& range) const;
  void mark_written(const TmemRange& range);
  bool is_written(std::uint32_t lane, std::uint32_t column) const {
    return (written_[column][lane / 32] >> (lane % 32) & 1u) != 0;
  }
  /// Off: words that nothing wrote are garbage instead of an error.
  void set_check_written(bool on) { checks_written_ = on; }

  /// The 128 lanes of a column, unchecked.
  std::uint32_t* column(std::uint32_t column) {
    return words_.data() + std::size_t{column} * kTmemLanes;
  }
  const std::uint32_t* column(std::uint32_t column) const {
    return words_.data() + std::size_t{column} * kTmemLanes;
  }

 private:
  bool is_allocated(std::uint32_t column) const {
    return column < kTmemColumns && allocated_[column];
  }
  std::shared_ptr<TmemColumns> columns_;
  std::vector<std::uint32_t> words_;
  /// By column and lane quarter, a bit for each lane.
  std::array<std::array<std::uint32_t, 4>, kTmemColumns> written_{};
  std::array<bool, kTmemColumns> allocated_{};
  std::map<std::uint32_t, std::uint32_t> live_;  ///< base column -> columns
  std::uint32_t last_columns_ = kTmemColumns;
  bool relinquished_ = false;
  bool checks_written_ = true;
};

enum class TmemShape : std::uint8_t { k32x32b, k16x64b, k16x128b, k16x256b, k16x32bx2 };

struct TmemAccess {
  TmemShape shape = TmemShape::k32x32b;
  std::uint32_t num = 1;         ///< .xN
  bool pack = false;             ///< ld .pack::16b, st .unpack::16b
  std::uint32_t half_split = 0;  ///< immHalfSplitoff of k16x32bx2
};
/// Registers of each lane (Table 47). Errors: an N that the shape lacks.
std::uint32_t tmem_registers(const TmemAccess& access);

/// Offsets from the base address of the word behind register `reg` of lane `lane`. With pack, the
/// column counts pairs: the register holds the low halves of columns 2c and 2c+1.
constexpr TmemAddress tmem_cell(const TmemAccess& access, std::uint32_t lane, std::uint32_t reg) {
  switch (access.shape) {
    case TmemShape::k32x32b:
      return {lane, reg};
    case TmemShape::k16x64b:
      return {lane / 4 + 8 * (lane % 2), 2 * reg + lane / 2 % 2};
    case TmemShape::k16x128b:
      return {lane / 4 + 8 * (reg % 2), reg / 2 * 4 + lane % 4};
    case TmemShape::k16x256b:
      return {lane / 4 + 8 * (reg / 2 % 2), reg / 4 * 8 + lane % 4 * 2 + reg % 2};
    case TmemShape::k16x32bx2:
      return {lane % 16, reg};  // upper lanes: plus half_split
  }
  return {};
}

/// The rectangles that the access covers from `address`. `warp_idx` is the warp's index in its CTA:
/// it reaches only lanes 32*(warp_idx%4) and on, another quarter in the address is an error unless
/// `lenient`, where the quarter comes from the warp as hardware is said to do.
std::vector<TmemRange> tmem_ranges(const TmemAccess& access, std::uint32_t address,
                                   std::uint32_t warp_idx, bool lenient = false);
/// tcgen05.ld and .st of one warp; regs[register] points at 32 lanes.
void tmem_load(const TmemAccess& access, std::uint32_t address, std::uint32_t warp_idx,
               const TensorMemory& tmem, std::span<std::uint32_t* const> regs,
               bool lenient = false);
void tmem_store(const TmemAccess& access, std::uint32_t address, std::uint32_t warp_idx,
                TensorMemory& tmem, std::span<const std::uint32_t* const> regs,
                bool lenient = false);

/// tcgen05.ld.red (sm_103a) over the registers of one lane: floats with .NaN and .abs as options.
enum class TmemReduce : std::uint8_t { kMin, kMax };
std::uint32_t tmem_reduce_f32(TmemReduce op, bool abs, bool propagate_nan,
                              std::span<const std::uint32_t> values);
std::uint32_t tmem_reduce_u32(TmemReduce op, std::span<const std::uint32_t> values);
std::uint32_t tmem_reduce_s32(TmemReduce op, std::span<const std::uint32_t> values);

}  // namespace mxfa::emu::model
