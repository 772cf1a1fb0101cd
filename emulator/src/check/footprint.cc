#include "check/footprint.h"

namespace mxfa::emu::check {

void Footprint::add(std::uint64_t begin, std::uint64_t bytes, bool write, std::uint32_t line) {
  for_words(begin, bytes, [&](std::uint64_t word, std::uint8_t mask, std::uint64_t at) {
    if (const std::uint64_t page = at / kPageBytes; page != last_page_) {
      auto& slot = pages_[page];
      if (!slot) slot = std::make_unique<Page>();
      last_ = slot.get();
      last_page_ = page;
    }
    Word& touched = (*last_)[word];
    touched.lines[write ? 1 : 0] = line;
    touched.bytes[write ? 1 : 0] |= mask;
  });
}

// Of a word with several accesses the last one is named.
Footprint::Conflict Footprint::find(std::uint64_t begin, std::uint64_t bytes, bool write) const {
  Conflict found;
  for_words(begin, bytes, [&](std::uint64_t word, std::uint8_t mask, std::uint64_t at) {
    if (found.line != 0) return;
    const auto page = pages_.find(at / kPageBytes);
    if (page == pages_.end()) return;
    const Word& touched = (*page->second)[word];
    for (const bool wrote : {true, false}) {
      const auto common = static_cast<std::uint8_t>(touched.bytes[wrote ? 1 : 0] & mask);
      if (common == 0 || (!wrote && !write) || found.line != 0) continue;
      found = {touched.lines[wrote ? 1 : 0], wrote,
               at + static_cast<std::uint64_t>(std::countr_zero(std::uint32_t{common}))};
    }
  });
  return found;
}

}  // namespace mxfa::emu::check
