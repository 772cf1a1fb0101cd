#include "ptx/opcode.h"

#include <fmt/format.h>

#include <algorithm>

namespace mxfa::emu::ptx {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// '#' in a choice stands for digits.
bool matches(std::string_view choice, std::string_view word) {
  const std::size_t mark = choice.find('#');
  if (mark == std::string_view::npos) return choice == word;
  const std::string_view tail = choice.substr(mark + 1);
  if (word.size() <= choice.size() - 1 || !word.starts_with(choice.substr(0, mark)) ||
      !word.ends_with(tail)) {
    return false;
  }
  word = word.substr(mark, word.size() - mark - tail.size());
  return std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

bool Opcode::has(std::string_view qualifier) const {
  return std::ranges::find(qualifiers, qualifier) != qualifiers.end();
}

int Opcode::which(std::initializer_list<std::string_view> choices) const {
  int index = 0;
  for (const std::string_view choice : choices) {
    if (has(choice)) return index;
    ++index;
  }
  return -1;
}

OpcodeFinder::OpcodeFinder() {
  for (const OpcodeSpec& spec : opcode_table()) {
    const Row row = compile(spec);
    for (const std::string_view word : row.groups[0].choices) rows_[word].push_back(row);
  }
}

OpcodeFinder::Row OpcodeFinder::compile(const OpcodeSpec& spec) {
  Row row{&spec, {}};
  for (std::string_view part : split(spec.pattern, ' ')) {
    Group group;
    if (part.ends_with('-')) {
      group.in_key = false;
      part.remove_suffix(1);
    }
    if (part.starts_with('[')) {
      group.optional = true;
      part = part.substr(1, part.size() - 2);
    }
    group.choices = split(part, '|');
    row.groups.push_back(std::move(group));
  }
  return row;
}

bool OpcodeFinder::match(const Row& row, std::size_t group, std::span<const std::string_view> words,
                         std::vector<bool>& keep) {
  if (group == row.groups.size()) return words.empty();
  const Group& wanted = row.groups[group];
  const auto fits = [&](std::string_view choice) { return matches(choice, words[0]); };
  if (!words.empty() && std::ranges::any_of(wanted.choices, fits)) {
    keep.push_back(wanted.in_key);
    if (match(row, group + 1, words.subspan(1), keep)) return true;
    keep.pop_back();
  }
  return wanted.optional && match(row, group + 1, words, keep);
}

const Opcode* OpcodeFinder::find(std::string_view text) {
  const std::string name(text);
  if (const auto it = known_.find(name); it != known_.end()) return &it->second;
  const std::string_view base = text.substr(0, text.find('.'));
  const auto rows = rows_.find(base);
  if (rows == rows_.end()) return nullptr;
  const auto entry = known_.emplace(name, Opcode{}).first;
  Opcode& opcode = entry->second;
  opcode.qualifiers = split(entry->first, '.');
  std::vector<bool> keep;
  for (const Row& row : rows->second) {
    keep.clear();
    if (!match(row, 0, opcode.qualifiers, keep)) continue;
    opcode.spec = row.spec;
    for (std::size_t i = 0; i < keep.size(); ++i) {
      if (keep[i] && i > 0) opcode.key += '.';
      if (keep[i]) opcode.key += opcode.qualifiers[i];
      const Type* type = find_type(opcode.qualifiers[i]);
      if (type == nullptr || i == 0) continue;
      if (opcode.first_type == nullptr) opcode.first_type = type;
      opcode.type = type;
    }
    return &opcode;
  }
  known_.erase(entry);
  return nullptr;
}

const Opcode& OpcodeFinder::require(std::string_view text, const Source& source,
                                    std::uint32_t line) {
  const Opcode* opcode = find(text);
  if (opcode == nullptr) {
    source.fail(line, fmt::format("unknown opcode or qualifier in {}", text),
                ErrorKind::kUnsupported);
  }
  return *opcode;
}

}  // namespace mxfa::emu::ptx
