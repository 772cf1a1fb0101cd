#include "model/smem_descriptor.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace mxfa::emu::model {
namespace {

constexpr std::uint32_t kChunk = 16;

std::uint32_t field(std::uint64_t bits, int low, int width) {
  return static_cast<std::uint32_t>((bits >> low) & ((std::uint64_t{1} << width) - 1));
}
void check_zero(std::string_view name, std::uint64_t bits, int low, int width) {
  if (field(bits, low, width) != 0) {
    fault(fmt::format("{} bits {}:{}", name, low + width - 1, low), "0 (reserved)",
          fmt::format("{:#x} in {:#018x}", field(bits, low, width), bits));
  }
}

MatrixDescriptor common_fields(std::string_view name, std::uint64_t bits) {
  check_zero(name, bits, 14, 2);
  check_zero(name, bits, 30, 2);
  MatrixDescriptor desc;
  desc.start = field(bits, 0, 14) * 16;
  desc.lbo = field(bits, 16, 14) * 16;
  desc.sbo = field(bits, 32, 14) * 16;
  desc.base_offset = field(bits, 49, 3);
  return desc;
}

/// Bytes along the contiguous direction of one row of the operand.
std::uint32_t row_bytes(const OperandShape& shape) {
  return (shape.major == Major::kK ? shape.k : shape.mn) * shape.elem_bytes;
}

/// One piece of a row that lies together in memory: 16 bytes, or less at the row's end.
struct Chunk {
  std::uint32_t address = 0;
  std::uint32_t size = 0;
  std::uint32_t row = 0;   ///< K-major: mn, MN-major: k
  std::uint32_t byte = 0;  ///< offset inside the row
};

void check_end(std::uint64_t end, std::uint64_t smem_bytes) {
  if (end > smem_bytes) {
    fault("matrix operand", fmt::format("bytes below {:#x} (the CTA's shared memory)", smem_bytes),
          fmt::format("an operand that ends at {:#x}", end));
  }
}

// Chunks are 16-byte aligned, so that their bits lie in one word.
bool is_written(const SmemView& smem, const Chunk& chunk) {
  if (smem.written == nullptr) return true;
  const std::uint64_t bits = smem.written[chunk.address / 64] >> (chunk.address % 64);
  const std::uint64_t wanted = (std::uint64_t{1} << chunk.size) - 1;
  return (bits & wanted) == wanted;
}

/// Neighbours become rows.
template <std::uint32_t kElem>
void scatter(const std::byte* from, std::uint32_t size, std::byte* to, std::size_t pitch) {
  for (std::uint32_t at = 0; at < size; at += kElem, to += pitch) {
    std::memcpy(to, from + at, kElem);
  }
}

template <class Visit>
void each_chunk(const MatrixDescriptor& desc, const OperandShape& shape, Visit visit) {
  const std::uint32_t rows = shape.major == Major::kK ? shape.mn : shape.k;
  for (std::uint32_t row = 0; row < rows; ++row) {
    for (std::uint32_t byte = 0; byte < row_bytes(shape); byte += kChunk) {
      const std::uint32_t inner = byte / shape.elem_bytes;
      const bool k_major = shape.major == Major::kK;
      visit(Chunk{element_address(desc, shape, k_major ? row : inner, k_major ? inner : row),
                  std::min(kChunk, row_bytes(shape) - byte), row, byte});
    }
  }
}

}  // namespace

MatrixDescriptor decode_wgmma_descriptor(std::uint64_t bits) {
  constexpr std::string_view kName = "wgmma matrix descriptor";
  MatrixDescriptor desc = common_fields(kName, bits);
  check_zero(kName, bits, 46, 3);
  check_zero(kName, bits, 52, 10);
  constexpr Swizzle kCodes[] = {Swizzle::kNone, Swizzle::k128B, Swizzle::k64B, Swizzle::k32B};
  desc.swizzle = kCodes[field(bits, 62, 2)];
  return desc;
}

MatrixDescriptor decode_tcgen05_descriptor(std::uint64_t bits) {
  constexpr std::string_view kName = "tcgen05 matrix descriptor";
  MatrixDescriptor desc = common_fields(kName, bits);
  if (field(bits, 46, 3) != 1) {
    fault("tcgen05 matrix descriptor bits 48:46", "0b001",
          fmt::format("{} in {:#018x}", field(bits, 46, 3), bits));
  }
  if (desc.base_offset != 0) {
    fault("tcgen05 matrix descriptor base offset", "0 (its meaning is not confirmed)",
          desc.base_offset);
  }
  if (field(bits, 52, 1) != 0) {
    unsupported("tcgen05 matrix descriptor", "absolute leading dimension address");
  }
  check_zero(kName, bits, 53, 8);
  switch (field(bits, 61, 3)) {
    case 0:
      desc.swizzle = Swizzle::kNone;
      break;
    case 1:
      desc.swizzle = Swizzle::k128BAtom32;
      break;
    case 2:
      desc.swizzle = Swizzle::k128B;
      break;
    case 4:
      desc.swizzle = Swizzle::k64B;
      break;
    case 6:
      desc.swizzle = Swizzle::k32B;
      break;
    default:
      fault("tcgen05 matrix descriptor swizzle", "0, 1, 2, 4 or 6", field(bits, 61, 3));
  }
  return desc;
}

void check_layout(const MatrixDescriptor& desc, const OperandShape& shape) {
  const bool atom32 = desc.swizzle == Swizzle::k128BAtom32;
  const bool wide_mn = shape.major == Major::kMN && shape.elem_bytes == 4;
  if (atom32 != wide_mn) {
    fault(
        "matrix descriptor swizzle",
        "32-byte atoms for MN-major 32-bit elements and for nothing else",
        fmt::format("{}-byte elements, {}", shape.elem_bytes, atom32 ? "32B atoms" : "16B atoms"));
  }
  if (desc.swizzle != Swizzle::kNone) {
    const std::uint32_t width = swizzle_width(desc.swizzle);
    if (desc.starts_inside_pattern() && !desc.inner_start) {
      fault("matrix descriptor start address",
            fmt::format("row 0 of the swizzle's pattern ({} bytes)", 8 * width),
            fmt::format("{:#x}, row {}", desc.start, desc.start % (8 * width) / width));
    }
    const std::uint32_t row = std::min(row_bytes(shape), width);
    if (desc.start % width + row > width) {
      fault("matrix descriptor start address",
            fmt::format("{} bytes inside one row of {}", row, width),
            fmt::format("{:#x}, offset {} in its row", desc.start, desc.start % width));
    }
  }
}

void check_operand(const MatrixDescriptor& desc, const OperandShape& shape,
                   std::uint64_t smem_bytes) {
  check_layout(desc, shape);
  std::uint64_t last = 0;
  each_chunk(desc, shape, [&](const Chunk& chunk) {
    last = std::max<std::uint64_t>(last, std::uint64_t{chunk.address} + chunk.size);
  });
  check_end(last, smem_bytes);
}

std::vector<ByteRange> operand_ranges(const MatrixDescriptor& desc, const OperandShape& shape) {
  std::vector<Chunk> chunks;
  each_chunk(desc, shape, [&](const Chunk& chunk) { chunks.push_back(chunk); });
  std::ranges::sort(chunks, {}, &Chunk::address);
  std::vector<ByteRange> ranges;
  for (const Chunk& chunk : chunks) {
    const std::uint64_t end = std::uint64_t{chunk.address} + chunk.size;
    if (!ranges.empty() && ranges.back().begin + ranges.back().size >= chunk.address) {
      ranges.back().size = std::max(ranges.back().size, end - ranges.back().begin);
    } else {
      ranges.push_back({chunk.address, chunk.size});
    }
  }
  return ranges;
}

void fetch_operand(const MatrixDescriptor& desc, const OperandShape& shape, const SmemView& smem,
                   std::span<std::byte> out) {
  const std::uint32_t elem = shape.elem_bytes;
  each_chunk(desc, shape, [&](const Chunk& chunk) {
    check_end(std::uint64_t{chunk.address} + chunk.size, smem.bytes.size());
    if (!is_written(smem, chunk)) {
      fault("matrix operand in shared memory", "bytes that somebody wrote",
            fmt::format("offset {}, {} bytes", chunk.address, chunk.size));
    }
    const std::byte* from = smem.bytes.data() + chunk.address;
    if (shape.major == Major::kK) {
      std::memcpy(out.data() + std::size_t{chunk.row} * shape.k * elem + chunk.byte, from,
                  chunk.size);
      return;
    }
    std::byte* to = out.data() + (std::size_t{chunk.byte / elem} * shape.k + chunk.row) * elem;
    const std::size_t pitch = std::size_t{shape.k} * elem;
    if (elem == 1) return scatter<1>(from, chunk.size, to, pitch);
    if (elem == 2) return scatter<2>(from, chunk.size, to, pitch);
    scatter<4>(from, chunk.size, to, pitch);
  });
}

}  // namespace mxfa::emu::model
