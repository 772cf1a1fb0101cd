#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mxfa::emu::cli {

/// "4", "4,2" or "4,2,1".
std::array<std::uint32_t, 3> parse_dim3(const std::string& text, const std::string& option);

std::string read_text(const std::string& path);
void write_bytes(const std::string& path, const std::byte* data, std::size_t bytes);

/// The words of a command line with each word @FILE replaced by the words in that file: separated
/// by white space, '...' and "..." hold words together, # begins a comment.
std::vector<std::string> expand_files(const std::vector<std::string>& words);

}  // namespace mxfa::emu::cli
