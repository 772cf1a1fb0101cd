#include "command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "build_info.h"
#include "core/check.h"
#include "core/standard_streams.h"
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

const CLI::Validator kWholeNumber(
    [](std::string& text) {
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      const bool fits = error == std::errc() && end == text.data() + text.size() && value >= 0;
      return fits ? std::string() : fmt::format("expected a whole number from 0, got '{}'", text);
    },
    "", "whole number");

const CLI::Validator kFiniteNumber(
    [](std::string& text) {
      double value = 0;
      const bool number = CLI::detail::lexical_cast(text, value);
      return !number || std::isfinite(value)
                 ? std::string()
                 : fmt::format("expected a finite number, got '{}'", text);
    },
    "", "finite number");

const CLI::Validator kFileName(
    [](std::string& text) {
      return text.empty() ? std::string("expected the name of a file, got ''") : std::string();
    },
    "", "file name");

void add_blackwell_kernel_options(CLI::App& app, std::string& kernel, std::string& arch,
                                  int& head_dim) {
  app.add_option("kernel", kernel, "forward")->required()->check(CLI::IsMember({"forward"}));
  app.add_option("--arch", arch, "sm_100a or sm_103a")->capture_default_str();
  app.add_option("--head-dim", head_dim, "64 or 128")
      ->check(CLI::IsMember({64, 128}))
      ->capture_default_str();
}

void add_json_option(CLI::App& app, std::string& path) {
  app.add_option("--json", path, "Write the result as JSON records to FILE")
      ->type_name("FILE")
      ->check(kFileName);
}

void add_svg_option(CLI::App& app, const std::string& option, std::string& path,
                    const std::string& what) {
  app.add_option(option, path, what)
      ->type_name("FILE.svg")
      ->check(kFileName)
      ->check(CLI::Validator(
          [](std::string& text) {
            return text.ends_with(".svg")
                       ? std::string()
                       : fmt::format("expected a name that ends in .svg, as it is one, got '{}'",
                                     text);
          },
          "", "name of a chart"));
}

CLI::Option* add_names_option(CLI::App& app, const std::string& option,
                              std::vector<std::string>& names, const std::string& what) {
  const auto split = [&names, option](const std::vector<std::string>& texts) {
    names.clear();
    for (const std::string& text : texts) {
      for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        if (end == begin) {
          throw CLI::ValidationError(
              option, fmt::format("expected names separated by commas, got '{}'", text));
        }
        names.push_back(text.substr(begin, end - begin));
        begin = end + 1;
      }
    }
  };
  return app.add_option_function<std::vector<std::string>>(option, split, what)
      ->type_name("NAME,NAME");
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

io::Record complete_record(io::Record record, const std::string& device,
                           const std::string& driver) {
  const io::Record base = base_record(record.routine, record.impl);
  record.device = device.empty() ? base.device : device;
  record.driver = driver;
  record.commit = base.commit;
  record.date = base.date;
  return record;
}

void flush_report() {
  if (!core::output_written()) throw Error(ErrorKind::kIo, "standard output: cannot write");
}

void write_json(const std::string& path, const std::vector<io::Record>& records) {
  if (path.empty()) return;
  flush_report();
  io::write_records(path, records);
}

void write_svg(const std::string& path, const std::function<std::string()>& svg) {
  if (path.empty()) return;
  flush_report();
  io::write_text_file(path, svg());
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

void expect_one_of(const std::string& value, std::string_view name,
                   std::span<const std::string_view> known) {
  core::expect(std::find(known.begin(), known.end(), value) != known.end(), name,
               fmt::format("{}", fmt::join(known, ", ")), fmt::format("'{}'", value));
}

void expect_some_of(std::span<const std::string> values, std::string_view name,
                    std::span<const std::string_view> known) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    expect_one_of(values[i], name, known);
    core::expect(std::ranges::count(values.first(i), values[i]) == 0, name, "each of them once",
                 core::later("'{}' again", values[i]));
  }
}

}  // namespace mxfa::cli
