#include "mem/global.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "mxemu/error.h"

namespace mxfa::emu {
namespace {

constexpr std::size_t kAlignment = 256;

std::uint64_t number(const void* address) { return reinterpret_cast<std::uint64_t>(address); }

[[noreturn]] void fail(const std::string& reason) {
  throw PtxError({"global memory", 0, {}}, reason);
}

}  // namespace

namespace mem {

Region* find_region(const RegionTable& table, std::uint64_t address) {
  auto it = std::upper_bound(
      table.begin(), table.end(), address,
      [](std::uint64_t a, const std::shared_ptr<Region>& region) { return a < region->begin; });
  if (it == table.begin()) return nullptr;
  Region* region = std::prev(it)->get();
  return address - region->begin < region->size ? region : nullptr;
}

std::string describe_address(const RegionTable& table, std::uint64_t address) {
  const Region* nearest = nullptr;
  for (const auto& region : table) {
    if (region->begin <= address) nearest = region.get();
  }
  if (nearest == nullptr) return fmt::format("0x{:x}, below every buffer", address);
  return fmt::format("0x{:x}, byte {} of buffer '{}' of {} bytes", address,
                     address - nearest->begin, nearest->name, nearest->size);
}

}  // namespace mem

GlobalMemory::GlobalMemory() : table_(std::make_shared<mem::RegionTable>()) {}
GlobalMemory::~GlobalMemory() = default;

void GlobalMemory::insert(std::shared_ptr<mem::Region> region) {
  auto table = std::make_shared<mem::RegionTable>(*table_);
  const auto at = std::ranges::upper_bound(*table, region->begin, {},
                                           [](const auto& other) { return other->begin; });
  const bool hits_previous =
      at != table->begin() && region->size > 0 && (*std::prev(at))->contains(region->begin, 1);
  const bool hits_next = at != table->end() && region->contains((*at)->begin, 1);
  if (hits_previous || hits_next) {
    fail(fmt::format("buffer '{}' overlaps '{}'", region->name,
                     (hits_next ? *at : *std::prev(at))->name));
  }
  table->insert(at, std::move(region));
  table_ = std::move(table);
}

std::byte* GlobalMemory::allocate(std::size_t bytes, const std::string& name) {
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded * kAlignment));
  if (memory == nullptr) fail(fmt::format("no memory for buffer '{}' of {} bytes", name, bytes));
  auto region = std::make_shared<mem::Region>();
  region->storage = {memory, [](std::byte* p) { std::free(p); }};
  std::memset(memory, 0xFF, bytes);
  region->begin = number(memory);
  region->size = bytes;
  region->name = name;
  region->tracked = true;
  region->init = mem::InitMap(bytes);
  insert(std::move(region));
  return memory;
}

void GlobalMemory::add(void* address, std::size_t bytes, const std::string& name, bool writable) {
  if (bytes == 0) fail(fmt::format("buffer '{}' is empty", name));
  auto region = std::make_shared<mem::Region>();
  region->begin = number(address);
  region->size = bytes;
  region->name = name;
  region->writable = writable;
  insert(std::move(region));
}

void GlobalMemory::add_unwritten(void* address, std::size_t bytes, const std::string& name) {
  add(address, bytes, name);
  mem::Region* region = mem::find_region(*table_, number(address));
  region->init = mem::InitMap(bytes);
  region->tracked = true;
}

bool GlobalMemory::contains(const void* address, std::size_t bytes) const {
  const mem::Region* region = mem::find_region(*table_, number(address));
  return region != nullptr && region->contains(number(address), bytes);
}

void GlobalMemory::remove(const void* address) {
  auto table = std::make_shared<mem::RegionTable>(*table_);
  const auto at = std::ranges::find_if(
      *table, [&](const auto& region) { return region->begin == number(address); });
  if (at == table->end()) fail(fmt::format("no buffer begins at 0x{:x}", number(address)));
  table->erase(at);
  table_ = std::move(table);
}

void GlobalMemory::free(const void* address) { remove(address); }

void GlobalMemory::mark_initialised(const void* address, std::size_t bytes) {
  mem::Region* region = mem::find_region(*table_, number(address));
  if (region == nullptr || !region->contains(number(address), bytes)) {
    fail(fmt::format("not in one buffer: {} bytes at {}", bytes,
                     mem::describe_address(*table_, number(address))));
  }
  if (region->tracked) region->init.mark(number(address) - region->begin, bytes);
}

bool GlobalMemory::is_initialised(const void* address, std::size_t bytes) const {
  const mem::Region* region = mem::find_region(*table_, number(address));
  if (region == nullptr || !region->contains(number(address), bytes)) return false;
  return !region->tracked || region->init.all(number(address) - region->begin, bytes);
}

}  // namespace mxfa::emu
