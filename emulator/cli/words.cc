#include "words.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <utility>

#include "core/check.h"

namespace mxfa::emu::cli {
namespace {

std::vector<std::string> words_of(const std::string& path) {
  const std::string text = read_text(path) + "\n";
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
  std::stringstream stream(text);
  std::string part;
  std::size_t i = 0;
  while (std::getline(stream, part, ',')) {
    std::uint32_t value = 0;
    const auto end = part.data() + part.size();
    const auto parsed = std::from_chars(part.data(), end, value);
    if (i >= 3 || parsed.ec != std::errc{} || parsed.ptr != end) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("{}: expected X[,Y[,Z]], got '{}'", option, text));
    }
    result[i++] = value;
  }
  core::expect(i > 0, option, "X[,Y[,Z]]", text);
  return result;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw Error(ErrorKind::kIo, fmt::format("cannot read '{}'", path));
  return text.str();
}

void write_bytes(const std::string& path, const std::byte* data, std::size_t bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  file.close();
  if (!file) throw Error(ErrorKind::kIo, fmt::format("cannot write '{}'", path));
}

std::vector<std::string> expand_files(const std::vector<std::string>& words) {
  std::vector<std::string> result;
  for (const std::string& word : words) {
    if (word.starts_with('@')) {
      const std::vector<std::string> inner = words_of(word.substr(1));
      result.insert(result.end(), inner.begin(), inner.end());
    } else {
      result.push_back(word);
    }
  }
  return result;
}

}  // namespace mxfa::emu::cli
