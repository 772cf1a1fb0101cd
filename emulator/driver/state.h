#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "handle_table.h"
#include "objects.h"

/// The machine that the process sees.
namespace mxfa::emu::driver {

/// Limits of a CTA and an SM that all emulated architectures share (CUDA C++ Programming Guide,
/// table of compute capabilities).
inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr int kMaxThreadsPerMultiprocessor = 2048;
inline constexpr int kMaxBlocksPerMultiprocessor = 32;
inline constexpr int kDefaultSharedBytes = 48 * 1024;
inline constexpr int kMaxSharedBytes = 227 * 1024;
inline constexpr int kSharedBytesPerMultiprocessor = 228 * 1024;
inline constexpr int kReservedSharedBytes = 1024;  ///< of each CTA, by the system
inline constexpr unsigned kPortableCluster = 8;
inline constexpr unsigned kMaxCluster = 16;

struct Architecture {
  std::string_view name;
  int major;
  int minor;
  int multiprocessors;
  Fp8Mode fp8;
};
/// Null where there is none of the name.
const Architecture* find_architecture(std::string_view name);

struct Settings {
  const Architecture* arch = find_architecture("sm_90a");
  int device_count = 1;
  int multiprocessors = 0;  ///< 0: as the architecture has
  Policy policy = Policy::kRandom;
  std::uint64_t seed = 0;
  int threads = 1;
  bool poison = true;
  bool check_uninitialised = true;
  std::optional<Fp8Mode> arithmetic;  ///< none: as the architecture has
  bool strict = true;
  bool check_hazards = false;
  std::string trace_folder;
};

struct PrimaryContext {
  int retained = 0;
  CUcontext handle = nullptr;
};

struct State {
  bool initialised = false;
  Settings settings;
  Timeline timeline;
  std::vector<PrimaryContext> devices;
  HandleTable<Context, CUcontext> contexts;
  HandleTable<Stream, CUstream> streams;
  HandleTable<Event, CUevent> events;
  HandleTable<LoadedModule, CUmodule> modules;
  HandleTable<Function, CUfunction> functions;
  HandleTable<Graph, CUgraph> graphs;
  HandleTable<GraphExec, CUgraphExec> graph_execs;
  std::map<const void*, std::vector<std::byte>> host_memory;
  std::uint64_t contexts_made = 0;
  std::uint64_t allocations_made = 0;
  std::uint64_t modules_loaded = 0;
  std::uint64_t launches = 0;

  int multiprocessors() const {
    return settings.multiprocessors > 0 ? settings.multiprocessors : settings.arch->multiprocessors;
  }
};

std::size_t device_memory_bytes(const State& s);
bool any_context_active(const State& s);

/// The calling thread's current context, without a look at its fault. Throws
/// CUDA_ERROR_INVALID_CONTEXT where there is none.
ContextPtr current_context_unchecked(State& s);
/// Likewise; throws its fault again where it has one.
ContextPtr current_context(State& s);
void check_fault(const Context& context);
std::vector<CUcontext>& context_stack();

/// A stream by handle; null and CU_STREAM_LEGACY mean the current context's. Checks the fault.
StreamPtr find_stream(State& s, CUstream handle);

/// Adds work to a stream: to the timeline, or to the graph that the stream records. A fault of
/// `run` (PtxError) becomes the context's.
void enqueue(State& s, Stream& stream, const Work& run);
/// Work of a context that is guarded against its faults.
Work guarded(State& s, const ContextPtr& context, Work run);
/// What an op added to the stream now would have to come after, apart from captures.
std::vector<OpPtr> predecessors(State& s, const Stream& stream);

/// Throws, and spoils the captures concerned, where a capture forbids calls that may synchronise.
void require_no_capture(State& s);
/// Every capture that is being recorded in the context.
std::vector<std::shared_ptr<Capture>> captures_in(const State& s, const Context& context);

/// The allocation around [address, address + bytes) in any context, null where there is none.
struct Place {
  ContextPtr context;
  std::shared_ptr<Allocation> allocation;
};
std::optional<Place> find_allocation(const State& s, std::uint64_t address, std::size_t bytes);

}  // namespace mxfa::emu::driver
