#pragma once

#include <fmt/format.h>

#include <functional>
#include <vector>

#include "device/attention_tensors.h"
#include "dispatch/gpu/device_state.h"

/// Records of a public call on a device. `Call` is ForwardCase or BackwardCase: a shape's tensors,
/// and the call under one variant at a time.
namespace mxfa::bench {

/// A record for each case and variant: time of attention on prepared operands, of the
/// preparation and of the whole call (all in turns), rate, accuracy. `done` after each.
template <class Call>
std::vector<io::Record> speed_records(const Device& device, const std::vector<AttentionCase>& cases,
                                      const std::vector<typename Call::Variant>& variants,
                                      const SpeedOptions& options,
                                      const std::function<void()>& done) {
  const driver::Device& own = device.state().device;
  const driver::Stream stream(own);
  std::vector<io::Record> records;
  for (const AttentionCase& c : cases) {
    const AttentionTensors tensors(device, c, Call::kWithDout);
    Call call(device, stream.handle(), tensors);
    for (const auto variant : variants) {
      call.use(variant);
      io::Record record = call.record();
      measure(own, stream.handle(), call.parts(), call.flops(), options, record);
      call.add_accuracy(record);
      records.push_back(std::move(record));
      done();
    }
  }
  return records;
}

/// Host time of calls back to back, of a small batch, dense and jagged: their checks alone, the
/// preparation, attention on prepared operands, again and as no call before, the whole call, that
/// replayed from a CUDA graph.
template <class Call>
std::vector<io::Record> host_time_records(const Device& device) {
  const driver::Stream stream(device.state().device);
  std::vector<io::Record> records;
  for (const Lengths lengths : {Lengths::kEqual, Lengths::kUniform}) {
    const AttentionTensors tensors(device, host_time_case(lengths), Call::kWithDout);
    const Call call(device, stream.handle(), tensors);
    const CallParts parts = call.parts();
    parts.whole();
    const HostWork works[] = {
        {"checks", parts.checks},
        {fmt::format("prepare_{}", Call::kName), parts.prepare},
        {fmt::format("{}_prepared", Call::kName), parts.attend},
        {fmt::format("{}_prepared, another scale each time", Call::kName), parts.attend_anew},
        {std::string(Call::kName), parts.whole}};
    for (io::Record& record :
         host_time_records(device.state().device, stream, call.record(), works)) {
      records.push_back(std::move(record));
    }
  }
  return records;
}

}  // namespace mxfa::bench
