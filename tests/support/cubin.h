#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

/// What the assembler noted in a cubin about each of its functions.
namespace mxfa::testing {

/// An ELF file of 64 bits, little-endian.
class Cubin {
 public:
  explicit Cubin(std::span<const std::byte> bytes) : bytes_(bytes) {
    constexpr std::size_t kHeaders = 0x28, kHeaderSize = 0x3A, kCount = 0x3C, kNames = 0x3E;
    const std::size_t first = at<std::uint64_t>(kHeaders), size = at<std::uint16_t>(kHeaderSize);
    for (std::size_t i = 0; i < at<std::uint16_t>(kCount); ++i) {
      const std::size_t header = first + i * size;
      sections_.push_back({.name = at<std::uint32_t>(header),
                           .offset = at<std::uint64_t>(header + 0x18),
                           .size = at<std::uint64_t>(header + 0x20)});
    }
    names_ = sections_.at(at<std::uint16_t>(kNames)).offset;
  }

  /// Bytes of local memory that each function has for its thread: spilled registers, arrays.
  std::map<std::string, std::uint32_t> frames() const {
    // Records of format, attribute, size; format 4 has a payload of that size, here the function's
    // symbol and a number (EIATTR_FRAME_SIZE).
    constexpr std::uint8_t kSized = 4, kFrameSize = 0x11;
    constexpr std::size_t kSymbolBytes = 24;
    const Section info = section(".nv.info");
    const std::size_t symbols = section(".symtab").offset, names = section(".strtab").offset;
    std::map<std::string, std::uint32_t> frames;
    for (std::size_t p = info.offset; p < info.offset + info.size;) {
      const auto format = at<std::uint8_t>(p), attribute = at<std::uint8_t>(p + 1);
      if (format == kSized && attribute == kFrameSize) {
        const std::size_t symbol = symbols + at<std::uint32_t>(p + 4) * kSymbolBytes;
        frames[text(names + at<std::uint32_t>(symbol))] = at<std::uint32_t>(p + 8);
      }
      p += 4 + (format == kSized ? at<std::uint16_t>(p + 2) : 0);
    }
    return frames;
  }

 private:
  struct Section {
    std::uint32_t name;
    std::size_t offset, size;
  };

  template <class T>
  T at(std::size_t offset) const {
    T value;
    std::memcpy(&value, bytes_.subspan(offset, sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string text(std::size_t offset) const {
    return reinterpret_cast<const char*>(bytes_.subspan(offset).data());
  }
  Section section(const std::string& name) const {
    for (const Section& section : sections_) {
      if (text(names_ + section.name) == name) return section;
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  std::vector<Section> sections_;
  std::size_t names_ = 0;
};

}  // namespace mxfa::testing
