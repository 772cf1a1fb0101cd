#pragma once

#include <functional>

#include "dispatch/gpu/device_call.h"
#include "dispatch/gpu/device_state.h"

namespace mxfa::testing {

/// What `body` launched on `stream`, to be launched again as a CUDA graph.
class CapturedGraph {
 public:
  CapturedGraph(const driver::Stream& stream, const std::function<void()>& body) : stream_(stream) {
    const driver::CurrentDevice current(own());
    check(calls().cuStreamBeginCapture(stream.handle(), CU_STREAM_CAPTURE_MODE_GLOBAL));
    body();
    check(calls().cuStreamEndCapture(stream.handle(), &graph_));
    check(calls().cuGraphInstantiate(&exec_, graph_, 0));
  }
  ~CapturedGraph() {
    const driver::CurrentDevice current(own());
    calls().cuGraphExecDestroy(exec_);
    calls().cuGraphDestroy(graph_);
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  void replay() const {
    const driver::CurrentDevice current(own());
    check(calls().cuGraphLaunch(exec_, stream_.handle()));
  }

 private:
  static const driver::Device& own() { return device().state().device; }
  static const driver::FunctionTable& calls() { return own().calls(); }
  static void check(CUresult result) { own().driver().check(result, "graph"); }

  const driver::Stream& stream_;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

}  // namespace mxfa::testing
