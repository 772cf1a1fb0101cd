#pragma once

#include <stdexcept>
#include <string>

namespace mxfa {

/// What went wrong, in the caller's terms; the command line maps it to its exit status.
enum class ErrorKind {
  kInvalidArgument,  ///< an argument has the wrong dtype, shape, value or size
  kUnsupported,      ///< a valid request that this build or device does not implement
  kIo,               ///< a file could not be read or written, or its contents are malformed
  kDevice,           ///< no suitable device, or the driver reported a failure
};

/// Where a call was written; std::source_location is missing from clang 14.
struct SourceLocation {
  const char* file = "";
  int line = 0;
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          int line = __builtin_LINE()) {
    return {file, line};
  }
};

/// The only exception that the library throws on purpose. The message names the argument, what
/// was expected and what came.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message,
        SourceLocation where = SourceLocation::current())
      : std::runtime_error(message), kind_(kind), where_(where) {}

  ErrorKind kind() const noexcept { return kind_; }
  const SourceLocation& where() const noexcept { return where_; }

 private:
  ErrorKind kind_;
  SourceLocation where_;
};

}  // namespace mxfa
