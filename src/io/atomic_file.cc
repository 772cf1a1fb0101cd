#include "io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/check.h"
#include "mxfa/error.h"

namespace mxfa::io {
namespace {

[[noreturn]] void fail(const std::string& path, const char* action, int error_number) {
  throw Error(ErrorKind::kIo,
              fmt::format("{}: cannot {}: {}", path, action, std::strerror(error_number)));
}

/// The path behind symbolic links; an error where it names something other than a regular file.
std::string resolve_target(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw Error(ErrorKind::kIo, fmt::format("{}: cannot write: not a regular file", path));
  }
  if (!fs::exists(status)) return path;
  const fs::path resolved = fs::canonical(path, error);
  return error ? path : resolved.string();
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  if (path.empty()) throw Error(ErrorKind::kIo, "output file: the name is empty");
  target_ = resolve_target(path);
  static std::atomic<unsigned> counter{0};
  // O_EXCL makes a clash with a stale temporary an error, and the loop steps over it.
  for (int attempt = 0; attempt < 100; ++attempt) {
    temporary_ = fmt::format("{}.{}.{}.part", target_, ::getpid(), counter++);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ >= 0) return;
    if (errno != EEXIST) break;
  }
  const int error_number = errno;
  temporary_.clear();
  fail(path_, "write", error_number);
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path_, "write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::commit() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) fail(path_, "write", errno);
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail(path_, "write", errno);
  temporary_.clear();
}

void check_writable(const std::string& path) { const AtomicFile probe(path); }

bool is_same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::equivalent(a, b, error) && !error) return true;
  const fs::path canonical_a = fs::weakly_canonical(fs::absolute(a), error);
  if (error) return a == b;
  const fs::path canonical_b = fs::weakly_canonical(fs::absolute(b), error);
  return error ? a == b : canonical_a == canonical_b;
}

void check_outputs(const std::vector<std::pair<std::string, std::string>>& outputs,
                   const std::string& input) {
  std::vector<std::pair<std::string, std::string>> taken;
  if (!input.empty()) taken.emplace_back("input", input);
  for (const auto& [option, path] : outputs) {
    if (path.empty()) continue;
    for (const auto& [other, other_path] : taken) {
      core::expect(!is_same_file(path, other_path), option,
                   fmt::format("another file than --{}", other), path);
    }
    taken.emplace_back(option, path);
    check_writable(path);
  }
}

void write_text_file(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace mxfa::io
