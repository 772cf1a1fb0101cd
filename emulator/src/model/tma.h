#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/fault.h"
#include "model/reduction.h"
#include "model/tensor_map.h"

/// Bulk copies and reductions, tensor (tile mode) and 1-D. Each function does the whole transfer
/// at once; when it happens is the scheduler's business. Sources: PTX ISA 9.0, sections 5.5.3
/// (tile mode, out-of-boundary access), 5.5.7 (swizzle) and 9.7.9.25.4 / .5 (the instructions).
///
/// Measured on an H200, where the ISA is silent: the shared address is a multiple of 128; the first
/// coordinate falls on a multiple of 16 bytes in every direction, and no coordinate of a store or
/// reduction is negative (both end as an illegal instruction there); under a swizzle rows have the
/// pitch of the swizzle's width, however narrow the box; complete_tx counts the box alone; OOB-NaN
/// is 0x7FF7 in every 16 bits; loads of TF32 types round to nearest even, stores copy.
/// Unconfirmed: the row pitch under 32 and 64-byte atoms.
/// Not modelled: im2col modes, gather4 / scatter4, packed 4 and 6-bit types.
namespace mxfa::emu::model {

/// Memory under emulation; read and write throw where the range is not all inside.
class ByteMemory {
 public:
  virtual ~ByteMemory() = default;
  virtual void read(std::uint64_t address, std::span<std::byte> out) = 0;
  virtual void write(std::uint64_t address, std::span<const std::byte> bytes) = 0;
};

/// Bytes of the host seen at addresses from `base` on.
class SpanMemory : public ByteMemory {
 public:
  SpanMemory(std::uint64_t base, std::span<std::byte> bytes) : base_(base), bytes_(bytes) {}
  void read(std::uint64_t address, std::span<std::byte> out) override;
  void write(std::uint64_t address, std::span<const std::byte> bytes) override;

 private:
  std::size_t offset(std::uint64_t address, std::size_t size) const;
  std::uint64_t base_;
  std::span<std::byte> bytes_;
};

/// What a transfer touched, neighbouring ranges joined, in the order of the transfer.
struct CopyTrace {
  std::uint64_t bytes = 0;  ///< for complete_tx: the whole box, filled elements included
  std::vector<ByteRange> gmem;
  std::vector<ByteRange> smem;
};

enum class TensorMode : std::uint8_t {
  kTile,
  kIm2col,
  kIm2colNoOffs,
  kIm2colW,
  kIm2colW128,
  kGather4,
  kScatter4,
};
/// Error (kUnsupported, by name) unless the mode is kTile.
void check_tensor_mode(TensorMode mode);

/// One tensor copy: the box at `coords` (innermost first, as many as the map's rank).
struct TileCopy {
  const TensorMap& map;
  std::span<const std::int32_t> coords;
  ByteMemory& gmem;
  ByteMemory& smem;
  std::uint32_t smem_address;  ///< absolute; a multiple of 128
};
/// Global to shared. Elements outside the tensor become zero or OOB-NaN.
CopyTrace tile_load(const TileCopy& copy);
/// Shared to global. Elements outside the tensor are skipped.
CopyTrace tile_store(const TileCopy& copy);
CopyTrace tile_reduce(const TileCopy& copy, ReduceOp op);

/// One 1-D transfer of `size` bytes; size and both addresses are multiples of 16.
struct BulkCopy {
  ByteMemory& source;
  std::uint64_t source_address;
  ByteMemory& destination;
  std::uint64_t destination_address;
  std::uint64_t size;
};
void bulk_copy(const BulkCopy& copy);
/// .cp_mask: bit i tells whether byte i of each 16 is copied.
void bulk_copy_masked(const BulkCopy& copy, std::uint16_t byte_mask);
void bulk_reduce(const BulkCopy& copy, ReduceTarget target, ReduceOp op, ReduceType type);

}  // namespace mxfa::emu::model
