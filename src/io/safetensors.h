#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/host_tensor.h"
#include "mxfa/tensor.h"

/// The safetensors file format (github.com/huggingface/safetensors, "Format"): 8 bytes of
/// little-endian header length, a JSON header, then the tensors' bytes without a hole. Files are
/// untrusted: whatever is wrong with one becomes Error(kIo) that names the file, the tensor and
/// the fault, before any tensor is read.
namespace mxfa::io {

/// Longest header that is accepted, as in the format's own implementation.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

using Metadata = std::map<std::string, std::string>;

struct TensorEntry {
  std::string name;
  std::string dtype_name;      ///< as the file spells it ("F8_E4M3")
  std::optional<DType> dtype;  ///< empty where this library has no such type (BOOL, I16, ...)
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  ///< of the first byte, from the end of the header
  std::uint64_t size_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of their data
  Metadata metadata;                 ///< `__metadata__`; empty where absent
};

/// Parses and checks a header. `data_bytes` is what follows it in the file, `source` names the
/// file in messages. Refused: invalid JSON or UTF-8, duplicate keys, missing or unknown fields,
/// unknown dtypes, extents and offsets that are no non-negative integers, sizes that overflow or
/// disagree with dtype x shape, and tensors that overlap, leave a hole or leave the data.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                           const std::string& source);

/// A file whose header has been checked. Tensors are read one by one on demand, by copying, so
/// data at odd addresses is fine and a file that shrinks meanwhile is an error, not a fault.
class SafetensorsReader {
 public:
  static SafetensorsReader open(const std::string& path);
  /// Reads from memory, which must outlive the reader.
  static SafetensorsReader from_bytes(std::span<const std::byte> bytes, std::string source);

  const std::string& source() const { return source_; }
  std::span<const TensorEntry> tensors() const { return header_.tensors; }
  const Metadata& metadata() const { return header_.metadata; }

  /// Null where no tensor has this name.
  const TensorEntry* find(std::string_view name) const;
  /// Throws Error(kIo) that lists the names present.
  const TensorEntry& at(std::string_view name) const;
  /// The tensor's elements. Throws Error where its dtype is none of ours, its rank exceeds
  /// kMaxRank, or the bytes cannot be read.
  HostTensor read(const TensorEntry& entry) const;
  HostTensor read(std::string_view name) const { return read(at(name)); }

  /// Where bytes come from: a file or memory.
  class Source {
   public:
    virtual ~Source() = default;
    virtual std::uint64_t size() const = 0;
    virtual void read(std::uint64_t offset, std::span<std::byte> out) const = 0;
  };

 private:
  SafetensorsReader(std::shared_ptr<const Source> bytes, std::string source);

  std::shared_ptr<const Source> bytes_;
  std::string source_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> index_;  ///< of header_.tensors, by name
  std::uint64_t data_offset_ = 0;
};

struct NamedTensor {
  std::string name;
  TensorView tensor;
};

/// Writes the file at once or not at all (AtomicFile). Tensors are laid out by falling element
/// size, then by name, after a header padded to 8 bytes, so that every tensor is aligned to its
/// element. Throws Error where a tensor is not contiguous, a name is empty, repeated, reserved or
/// not UTF-8, or the file cannot be written.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const Metadata& metadata);

/// The format's name of a dtype ("F8_E8M0").
std::string_view safetensors_dtype_name(DType dtype);

/// A name from a file, made fit for a message: control characters and broken UTF-8 escaped, long
/// ones shortened.
std::string printable(std::string_view name);

}  // namespace mxfa::io
