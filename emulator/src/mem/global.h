#pragma once

#include <string>

#include "mem/init_map.h"
#include "mxemu/memory.h"

namespace mxfa::emu::mem {

/// One buffer of global memory.
struct Region {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  std::string name;
  bool writable = true;
  bool tracked = false;  ///< `init` holds; else everything counts as initialised
  InitMap init;
  std::unique_ptr<std::byte, void (*)(std::byte*)> storage{nullptr, nullptr};

  bool contains(std::uint64_t address, std::uint64_t bytes) const {
    return address >= begin && bytes <= size && address - begin <= size - bytes;
  }
};

/// The buffer around `address`, else null.
Region* find_region(const RegionTable& table, std::uint64_t address);

/// What lies nearest below `address`, for messages.
std::string describe_address(const RegionTable& table, std::uint64_t address);

}  // namespace mxfa::emu::mem
