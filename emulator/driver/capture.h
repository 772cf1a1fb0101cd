#pragma once

#include "objects.h"

/// Streams that record a graph instead of asking for work.
namespace mxfa::emu::driver {

/// Throws CUDA_ERROR_STREAM_CAPTURE_INVALIDATED where an error has ended the capture.
void require_valid(const Capture& capture);

/// cuStreamWaitEvent where the stream or the event belongs to a capture: what the stream records
/// from now on comes after the event; a stream that records nothing yet joins the event's capture.
void join_capture(Stream& stream, const Event& event);

/// Asks for the nodes of a graph: the first after `before`, a mark that it returns after the last.
OpPtr submit_nodes(const ContextPtr& context, const std::vector<GraphNode>& nodes,
                   const std::vector<OpPtr>& before);

}  // namespace mxfa::emu::driver
