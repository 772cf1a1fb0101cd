#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ptx/source.h"

namespace mxfa::emu::ptx {

struct SourcePosition {
  std::string file;
  std::uint32_t line = 0;  ///< 0: unknown
  /// Where the function of this line was inlined, and that of that one, ...: "b.cuh:7, a.cu:40".
  std::string inlined_at;
};

/// The .file and .loc directives of a PTX text.
class DebugInfo {
 public:
  explicit DebugInfo(const Source& source);
  /// Where the statement of this PTX line comes from.
  SourcePosition at(std::uint32_t ptx_line) const;

 private:
  struct Frame {
    std::uint32_t file = 0;
    std::uint32_t line = 0;
    std::int32_t caller = -1;  ///< in frames_
  };
  struct Location {
    std::uint32_t ptx_line = 0;
    std::int32_t frame = -1;
  };
  /// File, line and column.
  using Key = std::array<std::uint32_t, 3>;
  void add_location(std::uint32_t ptx_line, std::string_view words);
  std::int32_t caller(const Key& key);

  std::vector<Location> locations_;  ///< ascending
  std::vector<Frame> frames_;
  std::map<Key, std::int32_t> last_;  ///< frame of the latest .loc with these numbers
  std::map<std::uint32_t, std::string> files_;
};

}  // namespace mxfa::emu::ptx
