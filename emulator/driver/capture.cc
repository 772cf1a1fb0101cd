#include "capture.h"

#include <algorithm>

#include "state.h"

namespace mxfa::emu::driver {
namespace {

void merge_tail(std::vector<std::size_t>& tail, const std::vector<std::size_t>& more) {
  tail.insert(tail.end(), more.begin(), more.end());
  std::ranges::sort(tail);
  const auto rest = std::ranges::unique(tail);
  tail.erase(rest.begin(), rest.end());
}

// Is every node done when those of `tail` are?
bool all_joined(const std::vector<GraphNode>& nodes, const std::vector<std::size_t>& tail) {
  std::vector<bool> joined(nodes.size(), false);
  for (const std::size_t node : tail) joined[node] = true;
  for (std::size_t i = nodes.size(); i-- > 0;) {  // nodes come after earlier ones only
    if (!joined[i]) continue;
    for (const std::size_t before : nodes[i].after) joined[before] = true;
  }
  return std::ranges::find(joined, false) == joined.end();
}

void leave_capture(State& s, const std::shared_ptr<Capture>& capture) {
  capture->active = false;
  s.streams.for_each([&](const StreamPtr& stream) {
    if (stream->capture != capture) return;
    stream->capture.reset();
    stream->tail.clear();
  });
}

std::shared_ptr<Graph> end_capture(State& s, const Stream& stream) {
  const std::shared_ptr<Capture> capture = stream.capture;
  require(capture != nullptr, "the stream is not captured", CUDA_ERROR_ILLEGAL_STATE);
  require(capture->origin == &stream, "the capture did not begin in this stream",
          CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  require(capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
              capture->thread == std::this_thread::get_id(),
          "another thread began the capture", CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  const bool joined = all_joined(capture->graph->nodes, stream.tail);
  leave_capture(s, capture);
  require_valid(*capture);
  require(joined, "work of another stream was captured, but this one does not wait for it",
          CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  return capture->graph;
}

}  // namespace

void require_valid(const Capture& capture) {
  require(!capture.invalid, "an error has ended the capture",
          CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

void join_capture(Stream& stream, const Event& event) {
  if (event.capture == nullptr) {
    stream.capture->invalid = true;
    fail(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "captured work would wait for an event outside");
  }
  require(event.capture->active, "the event was recorded in a capture that has ended",
          CUDA_ERROR_CAPTURED_EVENT);
  require_valid(*event.capture);
  if (stream.capture != nullptr && stream.capture != event.capture) {
    stream.capture->invalid = true;
    event.capture->invalid = true;
    fail(CUDA_ERROR_STREAM_CAPTURE_MERGE, "stream and event belong to different captures");
  }
  require(&stream != stream.context->legacy_stream.get(), "the legacy stream cannot be captured",
          CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  stream.capture = event.capture;
  merge_tail(stream.tail, event.tail);
}

OpPtr submit_nodes(const ContextPtr& context, const std::vector<GraphNode>& nodes,
                   const std::vector<OpPtr>& before) {
  State& s = state();
  std::vector<OpPtr> ops;
  for (const GraphNode& node : nodes) {
    std::vector<OpPtr> after;
    for (const std::size_t earlier : node.after) after.push_back(ops[earlier]);
    if (node.after.empty()) after = before;
    ops.push_back(s.timeline.submit(context->number, guarded(s, context, node.run), after));
  }
  ops.insert(ops.end(), before.begin(), before.end());
  return s.timeline.submit(context->number, {}, ops);
}

}  // namespace mxfa::emu::driver

using namespace mxfa::emu::driver;  // the calls below are the driver's, in the global namespace

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  return call([&](State& s) {
    require(mode == CU_STREAM_CAPTURE_MODE_GLOBAL || mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
                mode == CU_STREAM_CAPTURE_MODE_RELAXED,
            "mode: expected one of CUstreamCaptureMode");
    const StreamPtr stream = find_stream(s, handle);
    require(stream != stream->context->legacy_stream, "the legacy stream cannot be captured",
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    require(stream->capture == nullptr, "the stream is captured already", CUDA_ERROR_ILLEGAL_STATE);
    auto capture = std::make_shared<Capture>();
    capture->graph = std::make_shared<Graph>();
    capture->graph->context = stream->context;
    capture->origin = stream.get();
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    stream->capture = std::move(capture);
  });
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* result) {
  return call([&](State& s) {
    require(result != nullptr, "phGraph: expected a pointer, got null");
    *result = nullptr;
    const StreamPtr stream = find_stream(s, handle);
    *result = s.graphs.add(end_capture(s, *stream));
  });
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return call([&](State& s) {
    require(status != nullptr, "captureStatus: expected a pointer, got null");
    const StreamPtr stream = find_stream(s, handle);
    *status = stream->capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
              : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                         : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  });
}

CUresult cuGraphInstantiate(CUgraphExec* result, CUgraph handle, unsigned long long flags) {
  return call([&](State& s) {
    require(result != nullptr, "phGraphExec: expected a pointer, got null");
    const Graph& graph = *s.graphs.get(handle);
    constexpr unsigned long long kIgnored = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                            CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                            CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    require((flags & ~kIgnored) == 0, "flags: device launch is not emulated",
            CUDA_ERROR_NOT_SUPPORTED);
    check_fault(*graph.context);
    auto exec = std::make_shared<GraphExec>();
    exec->context = graph.context;
    exec->nodes = graph.nodes;
    *result = s.graph_execs.add(std::move(exec));
  });
}

CUresult cuGraphLaunch(CUgraphExec exec_handle, CUstream handle) {
  return call([&](State& s) {
    const StreamPtr stream = find_stream(s, handle);
    GraphExec& exec = *s.graph_execs.get(exec_handle);
    require(stream->capture == nullptr, "graphs as nodes of a graph are not emulated",
            CUDA_ERROR_NOT_SUPPORTED);
    require(exec.context == stream->context, "graph and stream are of different contexts",
            CUDA_ERROR_INVALID_HANDLE);
    std::vector<OpPtr> before = predecessors(s, *stream);
    before.push_back(exec.last);
    exec.last = submit_nodes(exec.context, exec.nodes, before);
    stream->last = exec.last;
  });
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return call([&](State& s) { s.graph_execs.remove(handle); });
}

CUresult cuGraphDestroy(CUgraph handle) {
  return call([&](State& s) { s.graphs.remove(handle); });
}
