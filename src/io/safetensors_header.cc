#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "io/safetensors.h"
#include "mxfa/error.h"

namespace mxfa::io {
namespace {

struct DTypeRow {
  std::string_view name;
  std::size_t bytes;
  std::optional<DType> dtype;
};

constexpr std::array kDTypes{
    DTypeRow{"F64", 8, DType::kF64},
    DTypeRow{"F32", 4, DType::kF32},
    DTypeRow{"F16", 2, DType::kF16},
    DTypeRow{"BF16", 2, DType::kBF16},
    DTypeRow{"F8_E4M3", 1, DType::kE4M3},
    DTypeRow{"F8_E5M2", 1, DType::kE5M2},
    DTypeRow{"F8_E8M0", 1, DType::kE8M0},
    DTypeRow{"I64", 8, DType::kI64},
    DTypeRow{"I32", 4, DType::kI32},
    DTypeRow{"U8", 1, DType::kU8},
    // In the format, but not in this library: such tensors may lie beside the ones we read.
    DTypeRow{"BOOL", 1, std::nullopt},
    DTypeRow{"I8", 1, std::nullopt},
    DTypeRow{"I16", 2, std::nullopt},
    DTypeRow{"U16", 2, std::nullopt},
    DTypeRow{"U32", 4, std::nullopt},
    DTypeRow{"U64", 8, std::nullopt},
    DTypeRow{"C64", 8, std::nullopt},
};

/// Far above any real tensor; keeps a hostile header from growing one shape without end.
constexpr std::size_t kMaxHeaderRank = 64;

/// One tensor as the header states it, before it is checked.
struct RawTensor {
  std::optional<std::string> dtype;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> offsets;
};

/// Walks the JSON and accepts exactly the header's grammar: no value is stored that the format
/// does not name, so nesting and size stay bounded by the grammar.
class HeaderSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderSax(const std::string& source, SafetensorsHeader* header)
      : source_(source), header_(header) {}

  std::vector<std::pair<std::string, RawTensor>> take_tensors() { return std::move(tensors_); }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_integer(number_integer_t value) override {
    if (value >= 0) return number_unsigned(static_cast<number_unsigned_t>(value));
    return unexpected(fmt::format("the negative number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected(fmt::format("{}, which is no 64-bit integer", printable(text)));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kNumbers) return unexpected("a number");
    const bool is_shape = field_ == "shape";
    std::vector<std::uint64_t>& numbers = is_shape ? *tensor().shape : *tensor().offsets;
    if (numbers.size() == (is_shape ? kMaxHeaderRank : 2)) {
      fail(is_shape ? fmt::format("shape has more than {} dimensions", kMaxHeaderRank)
                    : "data_offsets has more than 2 numbers");
    }
    numbers.push_back(value);
    return true;
  }
  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_->metadata[field_] = value;
      return true;
    }
    if (place_ != Place::kTensor || field_ != "dtype") return unexpected("a string");
    tensor().dtype = value;
    return true;
  }
  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = name_ == "__metadata__" ? Place::kMetadata : Place::kTensor;
      if (place_ == Place::kTensor) tensors_.emplace_back(name_, RawTensor{});
    } else {
      return unexpected("an object");
    }
    fields_.clear();
    return true;
  }
  bool key(string_t& value) override {
    std::set<std::string>& seen = place_ == Place::kTop ? names_ : fields_;
    if (place_ == Place::kTop) name_ = value;
    if (!seen.insert(value).second) {
      fail(place_ == Place::kTop ? "the name occurs twice"
                                 : fmt::format("the key '{}' occurs twice", printable(value)));
    }
    if (place_ == Place::kTensor && value != "dtype" && value != "shape" &&
        value != "data_offsets") {
      fail(fmt::format("unknown field '{}' (known: dtype, shape, data_offsets)", printable(value)));
    }
    if (place_ != Place::kTop) field_ = value;
    return true;
  }
  bool end_object() override {
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || field_ == "dtype") return unexpected("an array");
    (field_ == "shape" ? tensor().shape : tensor().offsets).emplace();
    place_ = Place::kNumbers;
    return true;
  }
  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The library's text starts with "[json.exception....] ", which says nothing to a reader.
    std::string_view text = error.what();
    text.remove_prefix(std::min(text.size(), text.find("] ") + 2));
    throw Error(ErrorKind::kIo, fmt::format("{}: the header is not valid JSON at byte {}: {}",
                                            source_, position, printable(text)));
  }

 private:
  enum class Place { kStart, kTop, kTensor, kMetadata, kNumbers, kEnd };

  RawTensor& tensor() { return tensors_.back().second; }

  [[noreturn]] void fail(const std::string& fault) const {
    throw Error(ErrorKind::kIo,
                fmt::format("{}: tensor '{}': {}", source_, printable(name_), fault));
  }

  [[noreturn]] bool unexpected(const std::string& what) const {
    switch (place_) {
      case Place::kTensor:
        fail(fmt::format("{} is {}, expected {}", field_, what,
                         field_ == "dtype" ? "a string" : "an array of integers"));
      case Place::kNumbers:
        fail(fmt::format("{} holds {}, expected non-negative integers", field_, what));
      case Place::kTop:
        fail(fmt::format("described by {}, expected an object", what));
      case Place::kMetadata:
        throw Error(ErrorKind::kIo, fmt::format("{}: __metadata__: the value of '{}' is {}, "
                                                "expected a string",
                                                source_, printable(field_), what));
      case Place::kStart:
      case Place::kEnd:
        break;
    }
    throw Error(ErrorKind::kIo,
                fmt::format("{}: the header is {}, expected an object", source_, what));
  }

  const std::string& source_;
  SafetensorsHeader* header_;
  std::vector<std::pair<std::string, RawTensor>> tensors_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  std::string name_;   ///< key of the top level
  std::string field_;  ///< key inside a tensor or the metadata
  Place place_ = Place::kStart;
};

[[noreturn]] void fail_tensor(const std::string& source, std::string_view name,
                              const std::string& fault) {
  throw Error(ErrorKind::kIo, fmt::format("{}: tensor '{}': {}", source, printable(name), fault));
}

const DTypeRow& find_dtype(const std::string& source, const std::string& name,
                           const std::string& dtype) {
  const auto row = std::find_if(kDTypes.begin(), kDTypes.end(),
                                [&](const DTypeRow& r) { return r.name == dtype; });
  if (row == kDTypes.end()) {
    fail_tensor(source, name, fmt::format("unknown dtype '{}'", printable(dtype)));
  }
  return *row;
}

TensorEntry check_tensor(const std::string& source, const std::string& name, const RawTensor& raw,
                         std::uint64_t data_bytes) {
  const auto require = [&](bool present, std::string_view field) {
    if (!present) fail_tensor(source, name, fmt::format("the field {} is missing", field));
  };
  require(raw.dtype.has_value(), "dtype");
  require(raw.shape.has_value(), "shape");
  require(raw.offsets.has_value(), "data_offsets");
  const DTypeRow& dtype = find_dtype(source, name, *raw.dtype);
  TensorEntry entry{.name = name, .dtype_name = *raw.dtype, .dtype = dtype.dtype, .shape = {}};
  for (const std::uint64_t extent : *raw.shape) {
    if (extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail_tensor(source, name, fmt::format("extent {} does not fit 63 bits", extent));
    }
    entry.shape.push_back(static_cast<std::int64_t>(extent));
  }
  const auto shape_text = [&] { return fmt::format("[{}]", fmt::join(entry.shape, ", ")); };
  const std::int64_t size = checked_size_bytes(entry.shape, dtype.bytes);
  if (size < 0) {
    fail_tensor(source, name, fmt::format("the size of shape {} overflows", shape_text()));
  }
  if (raw.offsets->size() != 2) {
    fail_tensor(source, name,
                fmt::format("data_offsets has {} numbers, expected 2", raw.offsets->size()));
  }
  const auto [begin, end] = std::pair((*raw.offsets)[0], (*raw.offsets)[1]);
  if (end < begin || end > data_bytes) {
    fail_tensor(source, name,
                fmt::format("data_offsets [{}, {}] out of range: the file holds {} bytes of data",
                            begin, end, data_bytes));
  }
  if (end - begin != static_cast<std::uint64_t>(size)) {
    fail_tensor(source, name,
                fmt::format("data_offsets [{}, {}] span {} bytes, but {} {} needs {}", begin, end,
                            end - begin, entry.dtype_name, shape_text(), size));
  }
  entry.offset = begin;
  entry.size_bytes = end - begin;
  return entry;
}

/// Tensors must follow each other and end with the file. `tensors` is sorted by offset.
void check_coverage(const std::string& source, const std::vector<TensorEntry>& tensors,
                    std::uint64_t data_bytes) {
  std::uint64_t position = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& entry = tensors[i];
    if (entry.offset > position) {
      fail_tensor(source, entry.name,
                  fmt::format("starts at {}, which leaves a hole after byte {} of the data",
                              entry.offset, position));
    }
    if (entry.offset < position) {
      fail_tensor(source, entry.name,
                  fmt::format("starts at {} and overlaps tensor '{}', which ends at {}",
                              entry.offset, printable(tensors[i - 1].name), position));
    }
    position += entry.size_bytes;
  }
  if (position != data_bytes) {
    throw Error(ErrorKind::kIo, fmt::format("{}: the last {} bytes belong to no tensor", source,
                                            data_bytes - position));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                           const std::string& source) {
  if (json.empty() || json.front() != '{') {
    throw Error(ErrorKind::kIo, fmt::format("{}: not a safetensors file: the header does not "
                                            "begin with '{{'",
                                            source));
  }
  SafetensorsHeader header;
  HeaderSax sax(source, &header);
  nlohmann::json::sax_parse(json.begin(), json.end(), &sax);
  for (const auto& [name, raw] : sax.take_tensors()) {
    header.tensors.push_back(check_tensor(source, name, raw, data_bytes));
  }
  // Empty tensors share their offset with the next one; ordering by end as well keeps them first.
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tuple(a.offset, a.size_bytes, std::string_view(a.name)) <
                     std::tuple(b.offset, b.size_bytes, std::string_view(b.name));
            });
  check_coverage(source, header.tensors, data_bytes);
  return header;
}

std::string_view safetensors_dtype_name(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.name;
  }
  throw Error(ErrorKind::kInvalidArgument, "dtype: not a member of DType");
}

std::string printable(std::string_view name) {
  constexpr std::size_t kMaxLength = 120;
  std::string text;
  for (const char c : name.substr(0, kMaxLength)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7F) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  if (name.size() > kMaxLength) text += fmt::format("... ({} bytes)", name.size());
  return text;
}

}  // namespace mxfa::io
