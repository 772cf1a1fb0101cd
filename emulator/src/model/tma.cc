#include "model/tma.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "model/convert.h"

namespace mxfa::emu::model {
namespace {

constexpr std::uint32_t kChunk = 16;  ///< what swizzles keep together
constexpr std::uint32_t kLine = 128;  ///< what they never leave
/// One side of every transfer is shared memory, and descriptors address this much of it.
constexpr std::uint64_t kMaxSharedBytes = 256 * 1024;

void append(std::vector<ByteRange>& ranges, std::uint64_t begin, std::uint64_t size) {
  if (size == 0) return;
  if (!ranges.empty() && ranges.back().begin + ranges.back().size == begin) {
    ranges.back().size += size;
  } else {
    ranges.push_back({begin, size});
  }
}

/// One innermost row of the box: which of its elements lie inside the tensor, and where.
struct Row {
  std::uint64_t index = 0;         ///< row of the shared image
  std::uint64_t gmem_address = 0;  ///< of element `begin`
  std::uint32_t begin = 0;         ///< elements [begin, end) are inside
  std::uint32_t end = 0;
};

/// The box as rows, and its image in shared memory.
class Box {
 public:
  explicit Box(const TileCopy& copy, std::string_view what) : map_(copy.map) {
    if (copy.coords.size() != static_cast<std::size_t>(map_.rank)) {
      fault(fmt::format("{} coordinates", what), fmt::format("{} (the map's rank)", map_.rank),
            static_cast<std::int64_t>(copy.coords.size()));
    }
    if (copy.smem_address % kLine != 0) {
      fault(fmt::format("{} shared address", what), "a multiple of 128",
            fmt::format("{:#x}", copy.smem_address));
    }
    check_type(what);
    coords_ = copy.coords;
    base_ = copy.smem_address;
    elem_bytes_ = static_cast<std::uint32_t>(map_.strides[0]);
    row_bytes_ = map_.box_elems(0) * elem_bytes_;
    pitch_ = map_.swizzle == Swizzle::kNone ? row_bytes_ : swizzle_width(map_.swizzle);
    const std::uint64_t bytes = map_.box_bytes() / row_bytes_ * pitch_;
    if (bytes > kMaxSharedBytes) {
      fault(fmt::format("{} box", what), "at most 256 KiB of shared memory",
            fmt::format("{} bytes", bytes));
    }
    if (std::int64_t{coords_[0]} * elem_bytes_ % kChunk != 0) {
      fault(fmt::format("{} coordinate 0", what), "a multiple of 16 bytes",
            fmt::format("{} elements of {}", coords_[0], elem_bytes_));
    }
    image_.resize((bytes + kLine - 1) / kLine * kLine);
    touched_.resize(image_.size() / kChunk);
  }

  std::uint32_t elem_bytes() const { return elem_bytes_; }
  std::uint32_t row_bytes() const { return row_bytes_; }

  /// Calls visit(row) for every row of the box, those outside the tensor with an empty range.
  template <class Visit>
  void each_row(Visit visit) const {
    std::array<std::uint32_t, kMaxTensorRank> at{};
    Row row;
    while (true) {
      place(at, row);
      visit(row);
      ++row.index;
      int dimension = 1;
      while (dimension < map_.rank && ++at[dimension] == map_.box_elems(dimension)) {
        at[dimension++] = 0;
      }
      if (dimension >= map_.rank) return;
    }
  }

  /// Calls visit(row offset, image offset) for the row's 16-byte chunks that overlap its bytes
  /// [begin, end).
  template <class Visit>
  void each_chunk(const Row& row, std::uint32_t begin, std::uint32_t end, Visit visit) const {
    for (std::uint32_t at = begin / kChunk * kChunk; at < end; at += kChunk) {
      const std::uint32_t linear = base_ + static_cast<std::uint32_t>(row.index) * pitch_ + at;
      visit(at, swizzled(map_.swizzle, linear) - base_);
    }
  }

  std::byte* image(std::uint32_t offset) { return image_.data() + offset; }
  void touch(std::uint32_t offset) { touched_[offset / kChunk] = true; }

  /// Calls transfer(address, bytes) for each run of touched chunks and lists the runs.
  template <class Transfer>
  void each_run(std::vector<ByteRange>& ranges, Transfer transfer) {
    for (std::size_t chunk = 0; chunk < touched_.size();) {
      if (!touched_[chunk]) {
        ++chunk;
        continue;
      }
      std::size_t end = chunk;
      while (end < touched_.size() && touched_[end]) ++end;
      const std::span<std::byte> bytes(image_.data() + chunk * kChunk, (end - chunk) * kChunk);
      transfer(base_ + chunk * kChunk, bytes);
      append(ranges, base_ + chunk * kChunk, bytes.size());
      chunk = end;
    }
  }

 private:
  void check_type(std::string_view what) const {
    switch (map_.type) {
      case TensorType::kB4x16:
      case TensorType::kB4x16P64:
      case TensorType::kB6x16P32:
        unsupported(fmt::format("{} element type", what), std::string(tensor_type_name(map_.type)));
      default:
        break;
    }
  }

  void place(const std::array<std::uint32_t, kMaxTensorRank>& at, Row& row) const {
    const std::int64_t first = coords_[0];
    const std::int64_t size = static_cast<std::int64_t>(map_.dims[0]);
    const std::int64_t width = map_.box_elems(0);
    std::int64_t begin = std::clamp<std::int64_t>(-first, 0, width);
    std::int64_t end = std::clamp<std::int64_t>(size - first, begin, width);
    std::uint64_t address = map_.address;
    for (int i = 1; i < map_.rank; ++i) {
      const std::int64_t coord = std::int64_t{coords_[i]} + std::int64_t{at[i]} * map_.steps[i];
      if (coord < 0 || coord >= static_cast<std::int64_t>(map_.dims[i])) {
        begin = end = 0;
        break;
      }
      address += static_cast<std::uint64_t>(coord) * map_.strides[i];
    }
    row.begin = static_cast<std::uint32_t>(begin);
    row.end = static_cast<std::uint32_t>(end);
    row.gmem_address =
        begin == end ? 0 : address + static_cast<std::uint64_t>(first + begin) * elem_bytes_;
  }

  const TensorMap& map_;
  std::span<const std::int32_t> coords_;
  std::uint32_t base_ = 0;
  std::uint32_t elem_bytes_ = 1;
  std::uint32_t row_bytes_ = 0;
  std::uint32_t pitch_ = 0;  ///< from row to row in shared memory
  std::vector<std::byte> image_;
  std::vector<bool> touched_;
};

void fill_outside(const TensorMap& map, std::span<std::byte> row) {
  if (!map.fill_nan) {
    std::ranges::fill(row, std::byte{0});
    return;
  }
  for (std::size_t at = 0; at < row.size(); ++at) {
    row[at] = at % 2 == 0 ? std::byte{0xF7} : std::byte{0x7F};
  }
}

/// What a load does to its elements: TF32 types round.
void convert_loaded(const TensorMap& map, std::span<std::byte> elements) {
  if (map.type != TensorType::kTF32 && map.type != TensorType::kTF32Ftz) return;
  for (std::size_t at = 0; at < elements.size(); at += 4) {
    float value;
    std::memcpy(&value, elements.data() + at, 4);
    const std::uint32_t bits = encode_small(SmallFloat::kTF32, value);
    std::memcpy(elements.data() + at, &bits, 4);
  }
}

void check_store_start(const TileCopy& copy, std::string_view what) {
  for (std::size_t i = 0; i < copy.coords.size(); ++i) {
    if (copy.coords[i] < 0) {
      fault(fmt::format("{} coordinate {}", what, i), "0 or more (shared to global)",
            copy.coords[i]);
    }
  }
}

/// Reads the rows that have elements inside the tensor and hands these elements on.
template <class Sink>
CopyTrace from_shared(const TileCopy& copy, std::string_view what, Sink sink) {
  Box box(copy, what);
  check_store_start(copy, what);
  CopyTrace trace;
  trace.bytes = copy.map.box_bytes();
  const std::uint32_t elem = box.elem_bytes();
  box.each_row([&](const Row& row) {
    box.each_chunk(row, row.begin * elem, row.end * elem,
                   [&](std::uint32_t, std::uint32_t image) { box.touch(image); });
  });
  box.each_run(trace.smem, [&](std::uint64_t address, std::span<std::byte> bytes) {
    copy.smem.read(address, bytes);
  });
  std::vector<std::byte> bytes(box.row_bytes());
  box.each_row([&](const Row& row) {
    if (row.begin == row.end) return;
    box.each_chunk(row, row.begin * elem, row.end * elem,
                   [&](std::uint32_t at, std::uint32_t image) {
                     std::memcpy(bytes.data() + at, box.image(image), kChunk);
                   });
    const std::uint64_t size = std::uint64_t{row.end - row.begin} * elem;
    sink(row.gmem_address, std::span<const std::byte>(bytes).subspan(row.begin * elem, size));
    append(trace.gmem, row.gmem_address, size);
  });
  return trace;
}

void check_bulk(const BulkCopy& copy) {
  const auto check = [](std::string_view what, std::uint64_t value) {
    if (value % kChunk != 0) fault(what, "a multiple of 16", fmt::format("{:#x}", value));
  };
  check("cp.async.bulk size", copy.size);
  if (copy.size > kMaxSharedBytes) {
    fault("cp.async.bulk size", "at most 256 KiB of shared memory", fmt::format("{}", copy.size));
  }
  check("cp.async.bulk source address", copy.source_address);
  check("cp.async.bulk destination address", copy.destination_address);
}

}  // namespace

std::size_t SpanMemory::offset(std::uint64_t address, std::size_t size) const {
  if (address < base_ || address - base_ > bytes_.size() ||
      size > bytes_.size() - (address - base_)) {
    fault("memory access", fmt::format("[{:#x}, {:#x})", base_, base_ + bytes_.size()),
          fmt::format("{} bytes at {:#x}", size, address));
  }
  return address - base_;
}

void SpanMemory::read(std::uint64_t address, std::span<std::byte> out) {
  const std::size_t at = offset(address, out.size());
  std::ranges::copy(bytes_.subspan(at, out.size()), out.begin());
}

void SpanMemory::write(std::uint64_t address, std::span<const std::byte> bytes) {
  const std::size_t at = offset(address, bytes.size());
  std::ranges::copy(bytes, bytes_.begin() + static_cast<std::ptrdiff_t>(at));
}

void check_tensor_mode(TensorMode mode) {
  constexpr std::string_view kNames[] = {"tile",          "im2col",         "im2col_no_offs",
                                         "im2col::w",     "im2col::w::128", "tile::gather4",
                                         "tile::scatter4"};
  if (mode != TensorMode::kTile) {
    unsupported("tensor copy mode", std::string(kNames[static_cast<int>(mode)]));
  }
}

CopyTrace tile_load(const TileCopy& copy) {
  Box box(copy, "cp.async.bulk.tensor");
  CopyTrace trace;
  trace.bytes = copy.map.box_bytes();
  const std::uint32_t elem = box.elem_bytes();
  std::vector<std::byte> bytes(box.row_bytes());
  box.each_row([&](const Row& row) {
    const std::uint64_t size = std::uint64_t{row.end - row.begin} * elem;
    if (size < bytes.size()) fill_outside(copy.map, bytes);
    if (size != 0) {
      const auto inside = std::span(bytes).subspan(row.begin * elem, size);
      copy.gmem.read(row.gmem_address, inside);
      convert_loaded(copy.map, inside);
      append(trace.gmem, row.gmem_address, size);
    }
    box.each_chunk(row, 0, box.row_bytes(), [&](std::uint32_t at, std::uint32_t image) {
      std::memcpy(box.image(image), bytes.data() + at, kChunk);
      box.touch(image);
    });
  });
  box.each_run(trace.smem, [&](std::uint64_t address, std::span<std::byte> run) {
    copy.smem.write(address, run);
  });
  return trace;
}

CopyTrace tile_store(const TileCopy& copy) {
  return from_shared(copy, "cp.async.bulk.tensor",
                     [&](std::uint64_t address, std::span<const std::byte> bytes) {
                       copy.gmem.write(address, bytes);
                     });
}

CopyTrace tile_reduce(const TileCopy& copy, ReduceOp op) {
  const ReduceType type = reduce_type_of(copy.map.type, op);
  check_reduction(ReduceTarget::kTensor, op, type);
  std::vector<std::byte> old;
  return from_shared(copy, "cp.reduce.async.bulk.tensor",
                     [&](std::uint64_t address, std::span<const std::byte> bytes) {
                       old.resize(bytes.size());
                       copy.gmem.read(address, old);
                       reduce_elements(op, type, old, bytes);
                       copy.gmem.write(address, old);
                     });
}

void bulk_copy(const BulkCopy& copy) {
  check_bulk(copy);
  std::vector<std::byte> bytes(copy.size);
  copy.source.read(copy.source_address, bytes);
  copy.destination.write(copy.destination_address, bytes);
}

void bulk_copy_masked(const BulkCopy& copy, std::uint16_t byte_mask) {
  check_bulk(copy);
  std::vector<std::byte> bytes(copy.size);
  copy.source.read(copy.source_address, bytes);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if ((byte_mask >> (at % kChunk)) & 1u) {
      copy.destination.write(copy.destination_address + at, std::span(bytes).subspan(at, 1));
    }
  }
}

void bulk_reduce(const BulkCopy& copy, ReduceTarget target, ReduceOp op, ReduceType type) {
  check_reduction(target, op, type);
  check_bulk(copy);
  std::vector<std::byte> bytes(copy.size);
  std::vector<std::byte> old(copy.size);
  copy.source.read(copy.source_address, bytes);
  copy.destination.read(copy.destination_address, old);
  reduce_elements(op, type, old, bytes);
  copy.destination.write(copy.destination_address, old);
}

}  // namespace mxfa::emu::model
