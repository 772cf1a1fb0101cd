#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mxemu/emulator.h"

namespace mxfa::emu::cli {

/// One `--arg`: a scalar "TYPE=VALUE", or a buffer "TYPE:COUNT=PATTERN" with PATTERN zeros, ones,
/// iota, random, random:SEED, out (to be written by the kernel) or @FILE (raw bytes).
struct ArgumentSpec {
  std::string text;
  std::string type;
  bool is_buffer = false;
  std::uint64_t count = 0;
  std::string value;
  std::uint64_t bytes() const;
};

/// Throws mxfa::Error that quotes the text.
ArgumentSpec parse_argument(const std::string& text);

/// The bytes of a scalar, or what a buffer holds before the launch (empty for "out").
std::vector<std::byte> initial_bytes(const ArgumentSpec& spec);

/// "4", "4,2" or "4,2,1".
std::array<std::uint32_t, 3> parse_dim3(const std::string& text, const std::string& option);

std::string read_text(const std::string& path);
void write_bytes(const std::string& path, const std::byte* data, std::size_t bytes);

}  // namespace mxfa::emu::cli
