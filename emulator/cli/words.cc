#include "words.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

namespace mxfa::emu::cli {
namespace {

std::vector<std::string> words_of(const std::string& path) {
  const std::string text = read_text(path, "@" + path) + "\n";
  std::vector<std::string> result;
  std::string current;
  bool open = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (quote != 0 ? c == quote : c == '\'' || c == '"') {
      quote = quote != 0 ? '\0' : c;
      open = true;
    } else if (quote == 0 && c == '#' && !open) {
      i = text.find('\n', i);
    } else if (quote == 0 && space) {
      if (open) result.push_back(std::exchange(current, {}));
      open = false;
    } else {
      current += c;
      open = true;
    }
  }
  if (quote == 0) return result;
  throw Error(ErrorKind::kInvalidArgument, fmt::format("@{}: a quotation is not closed", path));
}

}  // namespace

std::array<std::uint32_t, 3> parse_dim3(const std::string& text, const std::string& option) {
  std::array<std::uint32_t, 3> result{1, 1, 1};
  std::size_t begin = 0;
  for (std::size_t i = 0;; ++i) {
    core::expect(i < result.size(), option, "X[,Y[,Z]]", "'" + text + "'");
    const std::size_t comma = text.find(',', begin);
    result[i] = parse_whole<std::uint32_t>(fmt::format("{} {}", option, text),
                                           text.substr(begin, comma - begin), 1);
    if (comma == std::string::npos) return result;
    begin = comma + 1;
  }
}

// A pipe or a device may never end: those are refused before they are opened.
std::string read_text(const std::string& path, const std::string& what, std::uint64_t max_bytes) {
  namespace fs = std::filesystem;
  core::expect(!path.empty(), what, "the name of a file", "''");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  core::expect(!fs::is_directory(status), what, "a file", fmt::format("'{}', a folder", path));
  core::expect(!fs::exists(status) || fs::is_regular_file(status), what, "a regular file",
               fmt::format("'{}', a pipe or a device", path));
  const std::uint64_t bytes = fs::file_size(path, error);
  core::expect(error || bytes <= max_bytes, what,
               fmt::format("a file of {} bytes at most", max_bytes),
               fmt::format("'{}' of {}", path, bytes));
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw Error(ErrorKind::kIo, fmt::format("{}: cannot read '{}'", what, path));
  return text;
}

std::vector<std::string> expand_files(const std::vector<std::string>& words,
                                      std::vector<std::string>& files) {
  std::vector<std::string> result;
  for (const std::string& word : words) {
    if (word.starts_with('@')) {
      files.push_back(word.substr(1));
      const std::vector<std::string> inner = words_of(files.back());
      result.insert(result.end(), inner.begin(), inner.end());
    } else {
      result.push_back(word);
    }
  }
  return result;
}

}  // namespace mxfa::emu::cli
