#pragma once

#include <cstdint>
#include <string>

#include "mxfa/error.h"

namespace mxfa::emu {

/// Where in a PTX text something happened.
struct PtxLocation {
  std::string file;
  std::uint32_t line = 0;  ///< from 1; 0 where no line is to blame
  std::string text;        ///< the statement, shortened
};

/// What kind of wrong a running program did, as a GPU would tell kinds apart.
enum class Fault : std::uint8_t {
  kProgram,    ///< anything else
  kAddress,    ///< an access outside of every buffer, or a write to read-only memory
  kAlignment,  ///< a misaligned access
  kAssert,     ///< a failed assert()
  kStuck,      ///< deadlock or an endless loop
};

/// What every function of the emulator throws: malformed or unknown PTX, and what a running
/// program does wrong. what() is "file:line: reason: 'text'".
class PtxError : public Error {
 public:
  PtxError(PtxLocation location, std::string reason, ErrorKind kind = ErrorKind::kInvalidArgument);
  PtxError(PtxLocation location, std::string reason, Fault fault);

  const PtxLocation& location() const noexcept { return location_; }
  const std::string& reason() const noexcept { return reason_; }
  Fault fault() const noexcept { return fault_; }

 private:
  PtxLocation location_;
  std::string reason_;
  Fault fault_ = Fault::kProgram;
};

}  // namespace mxfa::emu
