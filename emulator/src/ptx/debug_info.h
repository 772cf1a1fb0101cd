#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ptx/source.h"

namespace mxfa::emu::ptx {

struct SourcePosition {
  std::string file;
  std::uint32_t line = 0;  ///< 0: unknown
};

/// The .file and .loc directives of a PTX text.
class DebugInfo {
 public:
  explicit DebugInfo(const Source& source);
  /// Where the statement of this PTX line comes from.
  SourcePosition at(std::uint32_t ptx_line) const;

 private:
  struct Location {
    std::uint32_t ptx_line = 0;
    std::uint32_t file = 0;
    std::uint32_t line = 0;
  };
  std::vector<Location> locations_;  ///< ascending
  std::map<std::uint32_t, std::string> files_;
};

}  // namespace mxfa::emu::ptx
