#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/atomic_file.h"
#include "io/json_records.h"

// Not all of CLI11 for everyone: its header alone makes two seconds of code.
namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

/// The command line: one file for each subcommand, collected by main.cc.
namespace mxfa::cli {

/// What the program returns; design: done, a check failed, bad input or usage, no device.
enum ExitStatus : int { kDone = 0, kCheckFailed = 1, kBadInput = 2, kNoDevice = 3 };

struct Command {
  CLI::App* app = nullptr;
  /// Runs after parsing. Throws mxfa::Error on bad input, before anything is written.
  std::function<ExitStatus()> run;
};

using AddCommand = Command (*)(CLI::App& root);

Command add_info(CLI::App& root);
Command add_quantize(CLI::App& root);
Command add_dequantize(CLI::App& root);
Command add_sqnr(CLI::App& root);
Command add_bench(CLI::App& root);
Command add_module(CLI::App& root);
Command add_tmem(CLI::App& root);
Command add_budget(CLI::App& root);

/// `kernel`, --arch and --head-dim of the commands about one Blackwell kernel.
void add_blackwell_kernel_options(CLI::App& app, std::string& kernel, std::string& arch,
                                  int& head_dim);

/// Add `--json FILE`, and an option for the name of a chart.
void add_json_option(CLI::App& app, std::string& path);
void add_svg_option(CLI::App& app, const std::string& option, std::string& path,
                    const std::string& what);

/// A record with impl, device, commit and date set.
io::Record base_record(const std::string& routine, const std::string& impl);

/// The record with commit and date, and with the device and driver that it was made on; the
/// processor where `device` is empty.
io::Record complete_record(io::Record record, const std::string& device, const std::string& driver);

/// Throws Error where what was printed could not be written: a full disk or a closed pipe.
void flush_report();

/// Write a file where `path` is not empty. A report is printed before: where it is lost, these
/// throw and nothing is written.
void write_json(const std::string& path, const std::vector<io::Record>& records);
void write_svg(const std::string& path, const std::function<std::string()>& svg);

using io::check_outputs;

/// Names separated by commas, none of them empty. CLI11's own delimiter drops empty ones.
CLI::Option* add_names_option(CLI::App& app, const std::string& option,
                              std::vector<std::string>& names, const std::string& what);

/// Throws Error that names the option and lists what it may be.
void expect_one_of(const std::string& value, std::string_view name,
                   std::span<const std::string_view> known);
inline void expect_one_of(const std::string& value, std::string_view name,
                          std::initializer_list<std::string_view> known) {
  expect_one_of(value, name, std::span(known.begin(), known.size()));
}
/// The same for each of a list, and each but once.
void expect_some_of(std::span<const std::string> values, std::string_view name,
                    std::span<const std::string_view> known);

/// For options that count: digits only, and at most 2^63 - 1. CLI11 itself wraps or saturates.
extern const CLI::Validator kWholeNumber;
/// For options that are numbers: neither infinite nor NaN.
extern const CLI::Validator kFiniteNumber;
/// For options that name a file.
extern const CLI::Validator kFileName;

/// Columns are as wide as their widest cell; the first is left-aligned, the others right-aligned.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace mxfa::cli
