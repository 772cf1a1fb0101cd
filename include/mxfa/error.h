#pragma once

#include <source_location>
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

/// The only exception that the library throws on purpose. The message names the argument, what
/// was expected and what came.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message,
        std::source_location where = std::source_location::current())
      : std::runtime_error(message), kind_(kind), where_(where) {}

  ErrorKind kind() const noexcept { return kind_; }
  const std::source_location& where() const noexcept { return where_; }

 private:
  ErrorKind kind_;
  std::source_location where_;
};

}  // namespace mxfa
