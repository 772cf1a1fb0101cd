#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "mxemu/emulator.h"

namespace mxfa::emu::cli {

/// What a command is told about the launch, as text.
struct RunOptions {
  std::string path;
  std::vector<std::string> word_files;  ///< of @FILE words: read, so never written
  std::string entry;
  std::string grid = "1";
  std::string block = "32";
  std::string cluster;
  std::uint32_t shared_bytes = 0;
  std::vector<std::string> arguments;
  std::vector<std::string> buffers;
  std::vector<std::string> outputs;
  std::vector<std::string> expected;
  std::uint64_t seed = 0;
  std::uint64_t seeds = 1;
  LaunchOptions launch;
  bool keep_diverged = false;
  bool allow_uninitialised = false;
};

/// What `visit` returns. A text that is not PTX is bad input, not a program that does wrong.
template <class Visit>
auto bad_input_of(const Visit& visit) {
  try {
    return visit();
  } catch (const PtxError& error) {
    throw Error(ErrorKind::kInvalidArgument, error.what());
  }
}

/// A kernel with its arguments, to be launched again and again, each time on fresh buffers.
class Session {
 public:
  /// Reads and checks everything; throws Error that names what is wrong. Completes `options`:
  /// the entry where the text has one only, flags as launch options.
  explicit Session(RunOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const std::string& ptx() const { return ptx_; }
  /// The text as it stands, with the entry made executable.
  const Module& module() const { return *module_; }
  GlobalMemory& memory() { return memory_; }

  LaunchStats launch(const Module& module, const LaunchOptions& options);
  /// Throws where one of these files could not be written, or is read or written as well for
  /// something else: that shows before the work.
  void check_outputs(const std::map<std::string, std::string>& file_of_option) const;
  std::uint64_t blocks() const;  ///< of the grid
  std::uint64_t warps() const;   ///< of a block
  /// Of all buffers after the last launch: FNV-1a.
  std::uint64_t checksum() const;
  /// Whether they hold what --expect says.
  bool as_expected() const;
  /// Writes what --out asks for.
  void write_outputs() const;

 private:
  struct Buffer {
    ArgumentSpec spec;
    std::vector<std::byte> initial;
    std::byte* data = nullptr;
  };
  struct Reference {
    const Buffer* buffer = nullptr;
    std::string value;  ///< file name, or its bytes
  };

  void choose_entry(RunOptions& options) const;
  void add_buffer(const std::string& name, const ArgumentSpec& spec);
  void check_memory(const ArgumentSpec& next) const;
  const Buffer& find_buffer(const std::string& name, const std::string& text) const;
  std::vector<Reference> parse_references(const std::vector<std::string>& texts,
                                          const std::string& option) const;
  void check_references(const ArgumentSpec& spec) const;
  void check_arguments(const EntryInfo& info) const;
  std::vector<std::byte> argument_bytes(const ArgumentSpec& spec, const std::string& number) const;
  void allocate();
  void free_buffers();

  const RunOptions& options_;
  std::string ptx_;
  LaunchConfig config_;
  std::vector<ArgumentSpec> arguments_;
  GlobalMemory memory_;
  std::unique_ptr<const Module> module_;
  std::map<std::string, Buffer> buffers_;  ///< by name; of an argument: its number
  std::vector<Reference> outputs_;
  std::vector<Reference> expected_;
};

}  // namespace mxfa::emu::cli
