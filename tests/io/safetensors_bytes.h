#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mxfa::io {

/// A file image: header length, header, then `data`.
inline std::vector<std::byte> file_image(std::string_view header, std::string_view data) {
  std::vector<std::byte> image;
  for (int i = 0; i < 8; ++i) {
    image.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(header.size()) >> (8 * i)));
  }
  for (const char c : header) image.push_back(static_cast<std::byte>(c));
  for (const char c : data) image.push_back(static_cast<std::byte>(c));
  return image;
}

}  // namespace mxfa::io
