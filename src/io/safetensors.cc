#include "io/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "io/atomic_file.h"
#include "mxfa/error.h"

namespace mxfa::io {
namespace {

constexpr std::uint64_t kLengthBytes = 8;

class MemorySource final : public SafetensorsReader::Source {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> out) const override {
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }

 private:
  std::span<const std::byte> bytes_;
};

class FileSource final : public SafetensorsReader::Source {
 public:
  explicit FileSource(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a pipe without a writer would hang before it can be refused.
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) fail(std::strerror(errno));
    struct stat status {};
    const bool known = ::fstat(descriptor_, &status) == 0;
    if (!known || !S_ISREG(status.st_mode)) {
      ::close(descriptor_);
      fail("not a regular file");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
  }
  ~FileSource() override { ::close(descriptor_); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  std::uint64_t size() const override { return size_; }
  void read(std::uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const ssize_t count =
          ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail(std::strerror(errno));
      if (count == 0) fail("the file became shorter while it was read");
      out = out.subspan(static_cast<std::size_t>(count));
      offset += static_cast<std::uint64_t>(count);
    }
  }

 private:
  [[noreturn]] void fail(std::string_view reason) const {
    throw Error(ErrorKind::kIo, fmt::format("{}: cannot read: {}", path_, reason));
  }

  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

std::uint64_t load_u64_le(std::span<const std::byte, kLengthBytes> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    value |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  }
  return value;
}

std::uint64_t read_header_length(const SafetensorsReader::Source& bytes,
                                 const std::string& source) {
  const auto fail = [&](const std::string& fault) {
    throw Error(ErrorKind::kIo, fmt::format("{}: not a safetensors file: {}", source, fault));
  };
  if (bytes.size() < kLengthBytes) {
    fail(fmt::format("{} bytes are too few for the 8-byte header length", bytes.size()));
  }
  std::array<std::byte, kLengthBytes> raw;
  bytes.read(0, raw);
  const std::uint64_t length = load_u64_le(raw);
  if (length > kMaxHeaderBytes) {
    fail(fmt::format("a header of {} bytes exceeds the limit of {}", length, kMaxHeaderBytes));
  }
  if (length > bytes.size() - kLengthBytes) {
    fail(fmt::format("truncated: a header of {} bytes in a file of {}", length, bytes.size()));
  }
  return length;
}

/// The header's JSON for tensors in the order given, padded to 8 bytes with spaces.
std::string header_text(std::span<const NamedTensor* const> tensors, const Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const NamedTensor* named : tensors) {
    const TensorView& tensor = named->tensor;
    const std::int64_t size = checked_size_bytes(tensor.dims(), dtype_size(tensor.dtype));
    const std::vector<std::int64_t> shape(tensor.dims().begin(), tensor.dims().end());
    header[named->name] = {{"dtype", safetensors_dtype_name(tensor.dtype)},
                           {"shape", shape},
                           {"data_offsets", {offset, offset + size}}};
    offset += size;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::kInvalidArgument, "tensors: a name or metadata text is not UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

void check_named_tensors(std::span<const NamedTensor* const> sorted_by_name) {
  for (std::size_t i = 0; i < sorted_by_name.size(); ++i) {
    const auto& [name, tensor] = *sorted_by_name[i];
    const std::string argument = fmt::format("tensor '{}'", printable(name));
    core::expect(!name.empty() && name != "__metadata__", argument, "a name", "a reserved one");
    core::expect(i == 0 || sorted_by_name[i - 1]->name != name, argument, "unique names",
                 "a repeated one");
    core::expect(tensor.is_contiguous(), argument, "a contiguous tensor", describe(tensor));
    core::expect(checked_size_bytes(tensor.dims(), dtype_size(tensor.dtype)) >= 0, argument,
                 "fewer than 2^63 bytes", describe(tensor));
  }
}

}  // namespace

SafetensorsReader::SafetensorsReader(std::shared_ptr<const Source> bytes, std::string source)
    : bytes_(std::move(bytes)), source_(std::move(source)) {
  const std::uint64_t length = read_header_length(*bytes_, source_);
  std::string json(static_cast<std::size_t>(length), '\0');
  bytes_->read(kLengthBytes, std::as_writable_bytes(std::span(json)));
  data_offset_ = kLengthBytes + length;
  header_ = parse_safetensors_header(json, bytes_->size() - data_offset_, source_);
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
}

SafetensorsReader SafetensorsReader::open(const std::string& path) {
  return {std::make_shared<FileSource>(path), path};
}

SafetensorsReader SafetensorsReader::from_bytes(std::span<const std::byte> bytes,
                                                std::string source) {
  return {std::make_shared<MemorySource>(bytes), std::move(source)};
}

const TensorEntry* SafetensorsReader::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

const TensorEntry& SafetensorsReader::at(std::string_view name) const {
  if (const TensorEntry* entry = find(name)) return *entry;
  constexpr std::size_t kMaxListed = 20;
  std::vector<std::string> names;
  for (const TensorEntry& entry : header_.tensors) {
    if (names.size() == kMaxListed) {
      names.push_back(fmt::format("... {} more", header_.tensors.size() - kMaxListed));
      break;
    }
    names.push_back(printable(entry.name));
  }
  throw Error(ErrorKind::kIo,
              fmt::format("{}: no tensor '{}'; the file has: {}", source_, printable(name),
                          names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
}

HostTensor SafetensorsReader::read(const TensorEntry& entry) const {
  const auto refuse = [&](const std::string& fault) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}: tensor '{}': {}", source_, printable(entry.name), fault));
  };
  if (!entry.dtype) refuse(fmt::format("dtype {} is not supported", entry.dtype_name));
  if (entry.shape.size() > kMaxRank) {
    refuse(fmt::format("{} dimensions, at most {} are supported", entry.shape.size(), kMaxRank));
  }
  HostTensor tensor = HostTensor::zeros(*entry.dtype, entry.shape);
  bytes_->read(data_offset_ + entry.offset, tensor.bytes);
  return tensor;
}

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const Metadata& metadata) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& named : tensors) order.push_back(&named);
  std::sort(order.begin(), order.end(),
            [](const NamedTensor* a, const NamedTensor* b) { return a->name < b->name; });
  check_named_tensors(order);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return dtype_size(a->tensor.dtype) > dtype_size(b->tensor.dtype);
  });
  const std::string header = header_text(order, metadata);
  AtomicFile file(path);
  std::array<std::byte, kLengthBytes> length;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  }
  file.write(length);
  file.write(header);
  for (const NamedTensor* named : order) {
    const TensorView& tensor = named->tensor;
    const std::int64_t size = checked_size_bytes(tensor.dims(), dtype_size(tensor.dtype));
    file.write({static_cast<const std::byte*>(tensor.data), static_cast<std::size_t>(size)});
  }
  file.commit();
}

}  // namespace mxfa::io
