#include "command.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "build_info.h"
#include "core/check.h"
#include "io/atomic_file.h"

namespace mxfa::cli {
namespace {

/// Characters, not bytes, so that tables with UTF-8 text stay aligned.
std::size_t length(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

}  // namespace

void add_json_option(CLI::App& app, std::string& path) {
  app.add_option("--json", path, "Write the result as JSON records to FILE")->type_name("FILE");
}

io::Record base_record(const std::string& routine, const std::string& impl) {
  io::Record record;
  record.routine = routine;
  record.impl = impl;
  record.device = io::cpu_name();
  record.commit = kCommit;
  record.date = io::utc_date();
  return record;
}

void write_json(const std::string& path, const std::vector<io::Record>& records) {
  if (!path.empty()) io::write_records(path, records);
}

void check_outputs(const std::vector<std::pair<std::string, std::string>>& outputs) {
  std::map<std::string, std::string> options;  // by path
  for (const auto& [option, path] : outputs) {
    if (path.empty()) continue;
    const auto [other, added] = options.emplace(path, option);
    core::expect(added, option, fmt::format("another file than --{}", other->second), path);
    io::check_writable(path);
  }
}

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], length(row[c]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string pad(widths[c] - length(row[c]), ' ');
      line += c == 0 ? row[c] + pad : "  " + pad + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace mxfa::cli
