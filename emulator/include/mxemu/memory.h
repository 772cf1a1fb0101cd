#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mxfa::emu {

namespace mem {
struct Region;
using RegionTable = std::vector<std::shared_ptr<Region>>;
}  // namespace mem

/// The global memory that kernels may touch: device addresses are host addresses, and every access
/// must lie in one of these buffers. Not for use while a kernel runs.
class GlobalMemory {
 public:
  GlobalMemory();
  ~GlobalMemory();
  GlobalMemory(const GlobalMemory&) = delete;
  GlobalMemory& operator=(const GlobalMemory&) = delete;

  /// A new buffer, 256-byte aligned, filled with 0xFF and not initialised: kernels must write a
  /// byte before they read it, unless mark_initialised() says otherwise.
  std::byte* allocate(std::size_t bytes, const std::string& name);
  void free(const void* address);

  /// The caller's own buffer, initialised. It must outlive its registration.
  void add(void* address, std::size_t bytes, const std::string& name, bool writable = true);
  /// Likewise, but not initialised: its bytes are as the caller left them.
  void add_unwritten(void* address, std::size_t bytes, const std::string& name);
  void remove(const void* address);

  void mark_initialised(const void* address, std::size_t bytes);
  /// Have all of these bytes been written, by a kernel or by mark_initialised()?
  bool is_initialised(const void* address, std::size_t bytes) const;
  /// Do all of these bytes lie in one buffer?
  bool contains(const void* address, std::size_t bytes) const;

  /// Buffers in the order of their addresses; stays as it is when buffers come and go.
  std::shared_ptr<const mem::RegionTable> snapshot() const { return table_; }

 private:
  void insert(std::shared_ptr<mem::Region> region);
  std::shared_ptr<const mem::RegionTable> table_;
};

}  // namespace mxfa::emu
