#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "check/agents.h"
#include "mxemu/check.h"
#include "ptx/source.h"

/// Launches that overlap: griddepcontrol. PTX ISA, section 9.7.13 (Parallel Synchronization and
/// Communication Instructions): what a launch did to memory is visible to the one that may begin
/// before it has ended only after griddepcontrol.wait.
namespace mxfa::emu::check {

/// Whom a thread knows to have ended by griddepcontrol.wait: agents of a cluster that no grid has.
inline constexpr std::uint32_t kEarlierGrids = UINT32_MAX;
inline constexpr AgentId kGridBefore = 1;  ///< those before it follow

class Footprint final : public GridFootprint {
 public:
  Footprint(std::string kernel, std::shared_ptr<const ptx::Source> source)
      : kernel_(std::move(kernel)), source_(std::move(source)) {}

  const std::string& kernel() const { return kernel_; }
  const std::shared_ptr<const ptx::Source>& source() const { return source_; }

  void add(std::uint64_t begin, std::uint64_t bytes, bool write, std::uint32_t line);
  /// An access that one to these bytes must come after; line 0: there is none.
  struct Conflict {
    std::uint32_t line = 0;
    bool write = false;
    std::uint64_t address = 0;
  };
  Conflict find(std::uint64_t begin, std::uint64_t bytes, bool write) const;

  /// Of the launch before, where this one has ended without having waited for it.
  std::shared_ptr<const GridFootprint> before;
  bool launched_dependents = false;

 private:
  static constexpr std::uint64_t kPageBytes = 4096;
  struct Word {
    std::uint32_t lines[2] = {};  ///< of the last read, of the last write
    std::uint8_t bytes[2] = {};   ///< masks, likewise
  };
  using Page = std::array<Word, kPageBytes / 4>;

  /// Calls visit(word of a page, mask of its bytes, address of the word).
  template <class Visit>
  static void for_words(std::uint64_t begin, std::uint64_t bytes, const Visit& visit) {
    const std::uint64_t end = begin + bytes;
    for (std::uint64_t at = begin / 4 * 4; at < end; at += 4) {
      const auto skipped = static_cast<unsigned>(at < begin ? begin - at : 0);
      const auto last = static_cast<unsigned>(end - at < 4 ? end - at : 4);
      visit(at % kPageBytes / 4, static_cast<std::uint8_t>((0xFu << skipped) & ((1u << last) - 1)),
            at);
    }
  }

  std::string kernel_;
  std::shared_ptr<const ptx::Source> source_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Page>> pages_;
  std::uint64_t last_page_ = UINT64_MAX;
  Page* last_ = nullptr;
};

}  // namespace mxfa::emu::check
