#pragma once

#include <cuda.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "mxemu/emulator.h"
#include "timeline.h"

/// What handles of the driver's interface stand for.
namespace mxfa::emu::driver {

/// Device memory as the host sees it; kernels may touch it while it is in Context::memory.
struct Allocation {
  std::unique_ptr<std::byte, void (*)(void*)> storage{nullptr, nullptr};
  std::size_t bytes = 0;
  std::string name;
  bool freed = false;  ///< cuMemFreeAsync was called, but has not run yet
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(storage.get()); }
};

/// What a kernel did wrong; every later call on its context gives this again.
struct ContextFault {
  CUresult code = CUDA_SUCCESS;
  std::string report;
};

struct Stream;

/// The primary context of a device, from the first retain to the last release.
struct Context {
  int device = 0;
  std::uint64_t number = 0;  ///< the owner of its work in the Timeline
  GlobalMemory memory;
  std::map<std::uint64_t, std::shared_ptr<Allocation>> allocations;  ///< by address
  std::size_t used_bytes = 0;
  std::shared_ptr<Stream> legacy_stream;
  std::optional<ContextFault> fault;
};
using ContextPtr = std::shared_ptr<Context>;

/// Work that may run more than once.
using Work = std::function<void()>;

struct GraphNode {
  Work run;
  std::vector<std::size_t> after;  ///< earlier nodes
};
struct Graph {
  ContextPtr context;
  std::vector<GraphNode> nodes;
};
struct GraphExec {
  ContextPtr context;
  std::vector<GraphNode> nodes;
  OpPtr last;  ///< the end of its latest launch: launches do not overlap
};

/// A graph that streams are recording.
struct Capture {
  std::shared_ptr<Graph> graph;
  const Stream* origin = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  bool invalid = false;
  bool active = true;
};

/// What a launch did, known once it has run: for one that may begin before it has ended.
struct LaunchRecord {
  std::shared_ptr<const GridFootprint> footprint;
};
/// The last launch that a stream asked for: an op, or a node of the graph that it records.
struct LastLaunch {
  std::shared_ptr<LaunchRecord> record;
  OpPtr op;
  std::shared_ptr<Graph> graph;
  std::size_t node = 0;
};

struct Stream {
  ContextPtr context;
  bool blocking = true;  ///< ordered with the legacy stream
  OpPtr last;
  LastLaunch launch;
  std::shared_ptr<Capture> capture;  ///< null unless it records
  std::vector<std::size_t> tail;     ///< while it records: nodes that the next one comes after
};
using StreamPtr = std::shared_ptr<Stream>;

struct Event {
  ContextPtr context;
  bool timing = true;
  OpPtr recorded;
  std::shared_ptr<Capture> capture;  ///< where its latest record was captured
  std::vector<std::size_t> tail;     ///< nodes it stands for
};

struct Function;

/// A PTX text in a context.
struct LoadedModule {
  ContextPtr context;
  std::unique_ptr<Module> module;
  std::string name;
  std::map<std::string, CUfunction> functions;
};
struct Function {
  std::shared_ptr<LoadedModule> module;
  EntryInfo info;
  int max_dynamic_shared_bytes = 0;
  bool nonportable_cluster = false;
};

}  // namespace mxfa::emu::driver
