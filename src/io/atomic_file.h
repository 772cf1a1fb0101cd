#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mxfa::io {

/// A file that appears complete or not at all: bytes go to a temporary file in the same folder,
/// commit() renames it over `path`, and destruction without commit() removes it. Symbolic links
/// are followed. Every failure throws Error(kIo) naming `path`; a path that exists and is no
/// regular file (a folder, a device) is refused.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

 private:
  void discard() noexcept;

  std::string path_;       ///< as given, for messages
  std::string target_;     ///< with symbolic links resolved
  std::string temporary_;  ///< empty once committed or discarded
  int descriptor_ = -1;
};

/// Throws what AtomicFile would throw if `path` could not be written; leaves nothing behind. Lets a
/// long computation refuse a bad output path before it starts.
void check_writable(const std::string& path);

/// Whether two paths name one file, however they are spelt: through links, `.` and `..`; files that
/// do not exist yet included.
bool is_same_file(const std::string& a, const std::string& b);

/// Options that name output files, and their paths; empty ones are not asked for. Throws Error
/// where one could not be written, is the file that is read (`input`, empty for none), or two are
/// the same: called before the work and before any output.
void check_outputs(const std::vector<std::pair<std::string, std::string>>& outputs,
                   const std::string& input = {});

/// Writes `text` by AtomicFile.
void write_text_file(const std::string& path, std::string_view text);

}  // namespace mxfa::io
