#include <cuda.h>

#include <cstdlib>
#include <cstring>

#include "state.h"

/// Device and host memory, copies, fills.
namespace mxfa::emu::driver {
namespace {

constexpr std::size_t kAlignment = 512;

std::byte* pointer(CUdeviceptr address) { return reinterpret_cast<std::byte*>(address); }

void fill_fresh(const State& s, const Allocation& allocation) {
  std::memset(allocation.storage.get(), s.settings.poison ? 0xFF : 0, allocation.bytes);
}

// From here on kernels may use it.
void publish(const State& s, Context& context, const Allocation& allocation) {
  if (s.settings.check_uninitialised) {
    context.memory.add_unwritten(allocation.storage.get(), allocation.bytes, allocation.name);
  } else {
    context.memory.add(allocation.storage.get(), allocation.bytes, allocation.name);
  }
}

std::shared_ptr<Allocation> allocate(State& s, Context& context, std::size_t bytes) {
  require(bytes > 0, "bytesize: expected more than 0");
  const std::size_t total = device_memory_bytes(s);
  if (bytes > total || context.used_bytes > total - bytes) {
    fail(CUDA_ERROR_OUT_OF_MEMORY, fmt::format("{} bytes asked for, {} of the device's {} in use",
                                               bytes, context.used_bytes, total));
  }
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto allocation = std::make_shared<Allocation>();
  allocation->storage = {static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)),
                         std::free};
  require(allocation->storage != nullptr, "the host has no memory left", CUDA_ERROR_OUT_OF_MEMORY);
  allocation->bytes = bytes;
  allocation->name = fmt::format("allocation {}", ++s.allocations_made);
  fill_fresh(s, *allocation);
  context.allocations.emplace(allocation->address(), allocation);
  context.used_bytes += bytes;
  return allocation;
}

void release(Context& context, const Allocation& allocation) {
  context.used_bytes -= allocation.bytes;
  context.allocations.erase(allocation.address());  // may free it
}

std::shared_ptr<Allocation> find_start(Context& context, CUdeviceptr address) {
  const auto it = context.allocations.find(address);
  require(it != context.allocations.end() && !it->second->freed,
          "dptr: expected an address that an allocation returned and that is not free");
  return it->second;
}

ContextPtr owner_of(const State& s, CUdeviceptr address, std::size_t bytes, const char* what) {
  const auto place = find_allocation(s, address, bytes);
  if (!place) {
    fail(CUDA_ERROR_INVALID_VALUE,
         fmt::format("{}: {} bytes at 0x{:x} lie in no allocation", what, bytes, address));
  }
  return place->context;
}

// A copy may run later than memory dies that was alive when it was asked for.
void check_still_there(const Context& context, CUdeviceptr address, std::size_t bytes) {
  if (context.memory.contains(pointer(address), bytes)) return;
  fail(CUDA_ERROR_ILLEGAL_ADDRESS,
       fmt::format("a copy or fill ran while {} bytes at 0x{:x} were not allocated: freed too "
                   "early, or not ordered after their allocation",
                   bytes, address));
}

// Bytes that nobody wrote stay so in their copy.
void copy_initialised(const GlobalMemory& from, const std::byte* source, GlobalMemory& to,
                      const std::byte* target, std::size_t bytes) {
  if (from.is_initialised(source, bytes)) {
    to.mark_initialised(target, bytes);
  } else if (bytes > 1) {
    const std::size_t half = bytes / 2;
    copy_initialised(from, source, to, target, half);
    copy_initialised(from, source + half, to, target + half, bytes - half);
  }
}

}  // namespace
}  // namespace mxfa::emu::driver

using namespace mxfa::emu::driver;  // the calls below are the driver's, in the global namespace

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  return call([&](State& s) {
    require(address != nullptr, "dptr: expected a pointer, got null");
    const ContextPtr context = current_context(s);
    require_no_capture(s);
    const auto allocation = allocate(s, *context, bytes);
    publish(s, *context, *allocation);
    *address = allocation->address();
  });
}

CUresult cuMemFree(CUdeviceptr address) {
  return call([&](State& s) {
    const ContextPtr context = current_context(s);
    if (address == 0) return;
    require_no_capture(s);
    const auto allocation = find_start(*context, address);
    s.timeline.run_all(context->number);
    check_fault(*context);
    context->memory.remove(pointer(address));
    release(*context, *allocation);
  });
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream handle) {
  return call([&](State& s) {
    require(address != nullptr, "dptr: expected a pointer, got null");
    const StreamPtr stream = find_stream(s, handle);
    require(stream->capture == nullptr, "allocations as nodes of a graph are not emulated",
            CUDA_ERROR_NOT_SUPPORTED);
    const ContextPtr context = stream->context;
    const auto allocation = allocate(s, *context, bytes);
    enqueue(s, *stream, [&s, context, allocation] { publish(s, *context, *allocation); });
    *address = allocation->address();
  });
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  return call([&](State& s) {
    const StreamPtr stream = find_stream(s, handle);
    require(stream->capture == nullptr, "frees as nodes of a graph are not emulated",
            CUDA_ERROR_NOT_SUPPORTED);
    const ContextPtr context = stream->context;
    const auto allocation = find_start(*context, address);
    allocation->freed = true;
    enqueue(s, *stream, [context, allocation] {
      check_still_there(*context, allocation->address(), allocation->bytes);
      context->memory.remove(allocation->storage.get());
      release(*context, *allocation);
    });
  });
}

CUresult cuMemAllocHost(void** result, size_t bytes) {
  return call([&](State& s) {
    require(result != nullptr && bytes > 0, "expected a pointer and more than 0 bytes");
    current_context(s);
    require_no_capture(s);
    std::vector<std::byte> memory(bytes, std::byte(s.settings.poison ? 0xFF : 0));
    *result = memory.data();
    s.host_memory.emplace(memory.data(), std::move(memory));
  });
}

CUresult cuMemFreeHost(void* address) {
  return call([&](State& s) {
    const ContextPtr context = current_context(s);
    require_no_capture(s);
    require(s.host_memory.contains(address), "p: expected memory of cuMemAllocHost");
    s.timeline.run_all(context->number);
    s.host_memory.erase(address);
    check_fault(*context);
  });
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr target, const void* source, size_t bytes, CUstream handle) {
  return call([&](State& s) {
    const StreamPtr stream = find_stream(s, handle);
    if (bytes == 0) return;
    require(source != nullptr, "srcHost: expected a pointer, got null");
    const ContextPtr owner = owner_of(s, target, bytes, "dstDevice");
    enqueue(s, *stream, [=] {
      check_still_there(*owner, target, bytes);
      std::memcpy(pointer(target), source, bytes);
      owner->memory.mark_initialised(pointer(target), bytes);
    });
  });
}

CUresult cuMemcpyDtoHAsync(void* target, CUdeviceptr source, size_t bytes, CUstream handle) {
  return call([&](State& s) {
    const StreamPtr stream = find_stream(s, handle);
    if (bytes == 0) return;
    require(target != nullptr, "dstHost: expected a pointer, got null");
    const ContextPtr owner = owner_of(s, source, bytes, "srcDevice");
    enqueue(s, *stream, [=] {
      check_still_there(*owner, source, bytes);
      std::memcpy(target, pointer(source), bytes);
    });
  });
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream handle) {
  return call([&](State& s) {
    const StreamPtr stream = find_stream(s, handle);
    if (bytes == 0) return;
    const ContextPtr from = owner_of(s, source, bytes, "srcDevice");
    const ContextPtr to = owner_of(s, target, bytes, "dstDevice");
    enqueue(s, *stream, [=] {
      check_still_there(*from, source, bytes);
      check_still_there(*to, target, bytes);
      std::memmove(pointer(target), pointer(source), bytes);
      copy_initialised(from->memory, pointer(source), to->memory, pointer(target), bytes);
    });
  });
}

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t bytes, CUstream handle) {
  return call([&](State& s) {
    const StreamPtr stream = find_stream(s, handle);
    if (bytes == 0) return;
    const ContextPtr owner = owner_of(s, target, bytes, "dstDevice");
    enqueue(s, *stream, [=] {
      check_still_there(*owner, target, bytes);
      std::memset(pointer(target), value, bytes);
      owner->memory.mark_initialised(pointer(target), bytes);
    });
  });
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  return call([&](State& s) {
    require(data != nullptr, "data: expected a pointer, got null");
    current_context(s);
    const auto place = find_allocation(s, address, 1);
    require(place.has_value(), "ptr: expected the address of an allocation");
    const Allocation& allocation = *place->allocation;
    switch (attribute) {
      case CU_POINTER_ATTRIBUTE_CONTEXT:
        *static_cast<CUcontext*>(data) =
            s.devices[static_cast<std::size_t>(place->context->device)].handle;
        return;
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<CUmemorytype*>(data) = CU_MEMORYTYPE_DEVICE;
        return;
      case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *static_cast<CUdeviceptr*>(data) = address;
        return;
      case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *static_cast<unsigned*>(data) = 0;
        return;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(data) = place->context->device;
        return;
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *static_cast<CUdeviceptr*>(data) = allocation.address();
        return;
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *static_cast<std::size_t*>(data) = allocation.bytes;
        return;
      default:
        fail(CUDA_ERROR_NOT_SUPPORTED,
             fmt::format("pointer attribute {} is not emulated", static_cast<int>(attribute)));
    }
  });
}
