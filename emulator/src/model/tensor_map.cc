#include "model/tensor_map.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "model/fault.h"

namespace mxfa::emu::model {
namespace {

constexpr std::uint64_t kMagic = 0x70616D726F736E74;  // "tnsormap"
constexpr std::uint64_t kMaxStride = std::uint64_t{1} << 40;
constexpr std::uint64_t kMaxDim = std::uint64_t{1} << 32;
constexpr std::uint64_t kMaxBoxBytes = 227 * 1024;  // shared memory of a CTA

/// What lies in the 128 bytes. Enums keep the numbers of their source so that a bad one can be
/// told at use.
struct Record {
  std::uint64_t magic = kMagic;
  std::uint64_t address = 0;
  std::uint64_t dims[kMaxTensorRank] = {};
  std::uint64_t strides[kMaxTensorRank - 1] = {};
  std::uint16_t box[kMaxTensorRank] = {};
  std::uint16_t steps[kMaxTensorRank] = {};
  std::uint8_t type = 0;
  std::uint8_t rank = 0;
  std::uint8_t interleave = 0;
  std::uint8_t swizzle_mode = 0;  ///< 0 none, 1 32B, 2 64B, 3 128B
  std::uint8_t swizzle_atom = 0;  ///< 0 16B, 1 32B, 2 32B with 8B flip, 3 64B
  std::uint8_t l2_promotion = 0;
  std::uint8_t fill = 0;
};
static_assert(sizeof(Record) <= kTensorMapBytes);

bool is_packed_wide(TensorType type) {
  return type == TensorType::kB4x16P64 || type == TensorType::kB6x16P32;
}
bool is_float(TensorType type) {
  return type == TensorType::kF16 || type == TensorType::kF32 || type == TensorType::kF64 ||
         type == TensorType::kBF16 || type == TensorType::kF32Ftz || type == TensorType::kTF32 ||
         type == TensorType::kTF32Ftz;
}

std::string element(std::string_view array, int index) {
  return fmt::format("{}[{}]", array, index);
}

void check_range(const std::string& name, std::uint64_t value, std::uint64_t low,
                 std::uint64_t high) {
  if (value < low || value > high) {
    fault(name, fmt::format("{}..{}", low, high), std::to_string(value));
  }
}
void check_multiple(const std::string& name, std::uint64_t value, std::uint64_t factor) {
  if (value % factor != 0) {
    fault(name, fmt::format("a multiple of {}", factor), fmt::format("{:#x}", value));
  }
}

void check_address(std::uint64_t address, TensorType type) {
  check_multiple("globalAddress", address, is_packed_wide(type) ? 32 : 16);
}
void check_stride(int index, std::uint64_t stride, TensorType type) {
  const std::string name = element("globalStrides", index);
  check_multiple(name, stride, is_packed_wide(type) ? 32 : 16);
  if (stride >= kMaxStride) fault(name, "less than 2^40", fmt::format("{}", stride));
}
void check_dim(int index, std::uint64_t dim, TensorType type) {
  check_range(element("globalDim", index), dim, 1, kMaxDim);
  if (index != 0) return;
  if (is_packed_wide(type)) check_multiple("globalDim[0]", dim, 128);
  if (type == TensorType::kB4x16) check_multiple("globalDim[0]", dim, 2);
}

void check_box(const Record& record) {
  const TensorType type = static_cast<TensorType>(record.type);
  for (int i = 0; i < record.rank; ++i) {
    check_range(element("boxDim", i), record.box[i], 1, 256);
    // The first step is ignored without interleave.
    if (i > 0) check_range(element("elementStrides", i), record.steps[i], 1, 8);
  }
  if (is_packed_wide(type) && record.box[0] != 128) fault("boxDim[0]", "128", record.box[0]);
  const std::uint32_t inner_bits =
      record.box[0] * static_cast<std::uint32_t>(tensor_type_bits(type));
  if (inner_bits % 128 != 0) {
    fault("boxDim[0]", "an inner dimension of a multiple of 16 bytes",
          fmt::format("{} x {} bits", record.box[0], tensor_type_bits(type)));
  }
  const std::uint32_t width = record.swizzle_mode == 0 ? 0 : 16u << record.swizzle_mode;
  if (width != 0 && inner_bits / 8 > width) {
    fault("boxDim[0]", fmt::format("at most {} bytes under this swizzle", width),
          fmt::format("{} bytes", inner_bits / 8));
  }
}

Swizzle check_swizzle(const Record& record) {
  check_range("swizzle mode", record.swizzle_mode, 0, 4);
  check_range("swizzle atomicity", record.swizzle_atom, 0, 3);
  if (record.swizzle_mode == 4) unsupported("swizzle", "96B mode");
  if (record.swizzle_atom == 2) unsupported("swizzle", "128B_ATOM_32B_FLIP_8B");
  if (record.swizzle_atom != 0 && record.swizzle_mode != 3) {
    fault("swizzle atomicity", "16B unless the mode is 128B",
          fmt::format("{} with mode {}", record.swizzle_atom, record.swizzle_mode));
  }
  constexpr Swizzle kByMode[] = {Swizzle::kNone, Swizzle::k32B, Swizzle::k64B, Swizzle::k128B};
  Swizzle swizzle = kByMode[record.swizzle_mode];
  if (record.swizzle_atom == 1) swizzle = Swizzle::k128BAtom32;
  if (record.swizzle_atom == 3) swizzle = Swizzle::k128BAtom64;
  const TensorType type = static_cast<TensorType>(record.type);
  const bool narrow = swizzle == Swizzle::k32B || swizzle == Swizzle::k64B;
  const bool refused =
      is_packed_wide(type) &&
      (narrow || (type == TensorType::kB4x16P64 && swizzle == Swizzle::k128BAtom64));
  if (refused) {
    fault("swizzle", fmt::format("a mode that {} supports", tensor_type_name(type)),
          fmt::format("mode {}", record.swizzle_mode));
  }
  return swizzle;
}

TensorMap check(const Record& record) {
  check_range("tensorDataType", record.type, 0, 15);
  check_range("tensorRank", record.rank, 1, kMaxTensorRank);
  check_range("interleave", record.interleave, 0, 2);
  check_range("l2Promotion", record.l2_promotion, 0, 3);
  check_range("oobFill", record.fill, 0, 1);
  if (record.interleave != 0) {
    unsupported("interleave", record.interleave == 1 ? "INTERLEAVE_16B" : "INTERLEAVE_32B");
  }
  TensorMap map;
  map.type = static_cast<TensorType>(record.type);
  map.rank = record.rank;
  check_address(record.address, map.type);
  map.address = record.address;
  map.strides[0] = static_cast<std::uint64_t>(tensor_type_bits(map.type) / 8);
  for (int i = 0; i < map.rank; ++i) {
    check_dim(i, record.dims[i], map.type);
    map.dims[i] = record.dims[i];
    if (i + 1 < map.rank) {
      check_stride(i, record.strides[i], map.type);
      map.strides[i + 1] = record.strides[i];
    }
  }
  map.swizzle = check_swizzle(record);
  check_box(record);
  for (int i = 0; i < map.rank; ++i) {
    map.box[i] = record.box[i];
    map.steps[i] = i == 0 ? 1 : record.steps[i];
  }
  if (record.fill != 0 && !is_float(map.type)) {
    fault("oobFill", "NONE for types that are not floating point", "NAN_REQUEST_ZERO_FMA");
  }
  if (map.box_bytes() > kMaxBoxBytes) {
    fault("boxDim", fmt::format("a box of at most {} bytes", kMaxBoxBytes),
          fmt::format("{} bytes", map.box_bytes()));
  }
  map.l2_promotion = record.l2_promotion;
  map.fill_nan = record.fill != 0;
  return map;
}

template <class T>
std::span<const T> take(std::span<const T> values, std::size_t count, std::string_view name) {
  if (values.size() < count) {
    fault(name, fmt::format("{} entries", count), static_cast<std::int64_t>(values.size()));
  }
  return values.first(count);
}

Record load(std::span<const std::byte, kTensorMapBytes> bytes, std::string_view what) {
  Record record;
  std::memcpy(&record, bytes.data(), sizeof record);
  if (record.magic != kMagic) {
    fault(what, "a tensor map written by cuTensorMapEncodeTiled",
          fmt::format("other bytes (first word {:#x})", record.magic));
  }
  return record;
}

void store(const Record& record, std::span<std::byte, kTensorMapBytes> bytes) {
  std::memcpy(bytes.data(), &record, sizeof record);
}

constexpr TensorType kReplaceTypes[] = {
    TensorType::kU8,      TensorType::kU16,   TensorType::kU32,      TensorType::kS32,
    TensorType::kU64,     TensorType::kS64,   TensorType::kF16,      TensorType::kF32,
    TensorType::kF32Ftz,  TensorType::kF64,   TensorType::kBF16,     TensorType::kTF32,
    TensorType::kTF32Ftz, TensorType::kB4x16, TensorType::kB4x16P64, TensorType::kB6x16P32};

void replace_enum(Record& record, TensorMapField field, std::uint64_t value) {
  const std::uint8_t number = static_cast<std::uint8_t>(std::min<std::uint64_t>(value, 255));
  switch (field) {
    case TensorMapField::kElemtype:
      check_range("tensormap.replace.elemtype", value, 0, 15);
      record.type = static_cast<std::uint8_t>(kReplaceTypes[value]);
      return;
    case TensorMapField::kInterleaveLayout:
      check_range("tensormap.replace.interleave_layout", value, 0, 2);
      record.interleave = number;
      return;
    case TensorMapField::kSwizzleMode:
      check_range("tensormap.replace.swizzle_mode", value, 0, 4);
      record.swizzle_mode = number;
      return;
    case TensorMapField::kSwizzleAtomicity:
      check_range("tensormap.replace.swizzle_atomicity", value, 0, 3);
      record.swizzle_atom = number;
      return;
    default:
      check_range("tensormap.replace.fill_mode", value, 0, 1);
      record.fill = number;
      return;
  }
}

}  // namespace

int tensor_type_bits(TensorType type) {
  constexpr int kBits[] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};
  return kBits[static_cast<int>(type)];
}

std::string_view tensor_type_name(TensorType type) {
  constexpr std::string_view kNames[] = {
      "UINT8",        "UINT16",       "UINT32",        "INT32",        "UINT64",      "INT64",
      "FLOAT16",      "FLOAT32",      "FLOAT64",       "BFLOAT16",     "FLOAT32_FTZ", "TFLOAT32",
      "TFLOAT32_FTZ", "16U4_ALIGN8B", "16U4_ALIGN16B", "16U6_ALIGN16B"};
  return kNames[static_cast<int>(type)];
}

std::uint32_t TensorMap::box_elems(int dimension) const {
  return (box[dimension] + steps[dimension] - 1) / steps[dimension];
}

std::uint64_t TensorMap::box_bytes() const {
  std::uint64_t elems = 1;
  for (int i = 0; i < rank; ++i) elems *= box_elems(i);
  return elems * static_cast<std::uint64_t>(tensor_type_bits(type)) / 8;
}

TensorMapRecord encode_tiled(const TiledArguments& arguments) {
  // Before the narrow fields of the record cut anything off.
  check_range("tensorDataType", arguments.data_type, 0, 15);
  check_range("tensorRank", arguments.rank, 1, kMaxTensorRank);
  check_range("interleave", arguments.interleave, 0, 2);
  check_range("swizzle", arguments.swizzle, 0, 6);
  check_range("l2Promotion", arguments.l2_promotion, 0, 3);
  check_range("oobFill", arguments.oob_fill, 0, 1);
  if (arguments.interleave != 0 && arguments.rank < 3) {
    fault("tensorRank", "at least 3 with an interleaved layout", arguments.rank);
  }
  const std::size_t rank = arguments.rank;
  Record record;
  record.type = static_cast<std::uint8_t>(arguments.data_type);
  record.rank = static_cast<std::uint8_t>(rank);
  record.address = arguments.global_address;
  std::ranges::copy(take(arguments.global_dim, rank, "globalDim"), record.dims);
  std::ranges::copy(take(arguments.global_strides, rank - 1, "globalStrides"), record.strides);
  const auto box = take(arguments.box_dim, rank, "boxDim");
  const auto steps = take(arguments.element_strides, rank, "elementStrides");
  for (std::size_t i = 0; i < rank; ++i) {
    check_range(element("boxDim", static_cast<int>(i)), box[i], 1, 256);
    check_range(element("elementStrides", static_cast<int>(i)), steps[i], 1, 8);
    record.box[i] = static_cast<std::uint16_t>(box[i]);
    record.steps[i] = static_cast<std::uint16_t>(steps[i]);
  }
  record.interleave = static_cast<std::uint8_t>(arguments.interleave);
  record.swizzle_mode = static_cast<std::uint8_t>(std::min(arguments.swizzle, 3u));
  record.swizzle_atom =
      static_cast<std::uint8_t>(arguments.swizzle > 3 ? arguments.swizzle - 3 : 0);
  record.l2_promotion = static_cast<std::uint8_t>(arguments.l2_promotion);
  record.fill = static_cast<std::uint8_t>(arguments.oob_fill);
  if (!arguments.sm_100 && record.swizzle_atom != 0) {
    fault("swizzle", "at most SWIZZLE_128B before sm_100", arguments.swizzle);
  }
  if (!arguments.sm_100 && arguments.data_type >= 13) {
    fault("tensorDataType", "at most TFLOAT32_FTZ before sm_100", arguments.data_type);
  }
  check(record);
  TensorMapRecord bytes{};
  store(record, bytes);
  return bytes;
}

TensorMap decode_tensor_map(std::span<const std::byte, kTensorMapBytes> record) {
  return check(load(record, "tensorMap"));
}

void replace_field(std::span<std::byte, kTensorMapBytes> bytes, TensorMapField field,
                   std::uint32_t ordinal, std::uint64_t value) {
  Record record = load(bytes, "tensormap.replace address");
  const TensorType type = static_cast<TensorType>(record.type);
  const int index = static_cast<int>(std::min(ordinal, 255u));
  const bool is_stride = field == TensorMapField::kGlobalStride;
  const bool is_array = is_stride || field == TensorMapField::kBoxDim ||
                        field == TensorMapField::kGlobalDim ||
                        field == TensorMapField::kElementStride;
  if (is_array) check_range("tensormap.replace ord", ordinal, 0, is_stride ? 3 : 4);
  switch (field) {
    case TensorMapField::kGlobalAddress:
      check_address(value, type);
      record.address = value;
      break;
    case TensorMapField::kRank:
      check_range("tensormap.replace.rank (rank - 1)", value, 0, kMaxTensorRank - 1);
      record.rank = static_cast<std::uint8_t>(value + 1);
      break;
    case TensorMapField::kBoxDim:
      check_range(element("boxDim", index), value, 1, 256);
      record.box[index] = static_cast<std::uint16_t>(value);
      break;
    case TensorMapField::kGlobalDim:
      check_dim(index, value, type);
      record.dims[index] = value;
      break;
    case TensorMapField::kGlobalStride:
      check_stride(index, value, type);
      record.strides[index] = value;
      break;
    case TensorMapField::kElementStride:
      check_range(element("elementStrides", index), value, 1, 8);
      record.steps[index] = static_cast<std::uint16_t>(value);
      break;
    default:
      replace_enum(record, field, value);
      break;
  }
  store(record, bytes);
}

}  // namespace mxfa::emu::model
