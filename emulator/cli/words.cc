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

std::string read_text(const std::string& path, const std::string& what) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(path, error);
  core::expect(!folder, what, "a file", "a folder");
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
