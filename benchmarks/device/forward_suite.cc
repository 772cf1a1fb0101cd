#include "device/forward_suite.h"

#include "common/bars.h"
#include "dispatch/gpu/device_state.h"

namespace mxfa::bench {
namespace {

io::Record record_of(const AttentionCase& c, ForwardVariant variant, BlockShape block_shape) {
  constexpr const char* kImpls[] = {"mxfa mxfp8", "mxfa mxfp8 (half scores)",
                                    "mxfa mxfp8 (qk bf16)", "mxfa mxfp8 (leak-free)"};
  io::Record record;
  record.routine = "attention_forward";
  record.shape = c.record();
  record.impl = kImpls[static_cast<int>(variant)];
  record.variant.qk = variant == ForwardVariant::kBf16 ? "bf16" : "mxfp8";
  record.variant.p_scale = "constant";
  record.variant.block_shape = block_shape_name(block_shape);
  return record;
}

}  // namespace

ForwardCase::ForwardCase(const Device& device, CUstream stream, const AttentionTensors& tensors,
                         ForwardVariant variant)
    : tensors_(tensors),
      o_(tensors.device(), tensors.elements_q() * sizeof(std::uint16_t)),
      lse_(tensors.device(), tensors.shape().total_q() * tensors.shape().num_heads * sizeof(float)),
      row_max_(tensors.device(), lse_.size_bytes()),
      options_{.device = &device,
               .stream = stream,
               .recipe = attention::native_recipe(device),
               .causal = tensors.shape().causal,
               .qk_bf16 = variant == ForwardVariant::kBf16,
               .leak_free = variant == ForwardVariant::kLeakFree,
               .half_scores = variant == ForwardVariant::kHalf} {
  const AttentionCase& c = tensors.shape();
  const auto rows = [&](const driver::DeviceBuffer& buffer) {
    return make_tensor(reinterpret_cast<void*>(buffer.address()), DType::kF32,
                       {c.num_heads, c.total_q()});
  };
  args_ = {.q = tensors.q(),
           .k = tensors.k(),
           .v = tensors.v(),
           .cu_seqlens_q = tensors.cu_seqlens_q(),
           .cu_seqlens_k = tensors.cu_seqlens_k(),
           .o = tensors.like_q(reinterpret_cast<void*>(o_.address())),
           .lse = rows(lse_),
           .row_max = rows(row_max_)};
  for (const auto* output : {&o_, &lse_, &row_max_}) output->fill(0xFF);
  workspace_.emplace(tensors.device(),
                     static_cast<std::size_t>(attention::forward_workspace_bytes(args_, options_)));
}

ForwardCase::Accuracy ForwardCase::accuracy() const {
  const AttentionCase& c = tensors_.shape();
  const driver::Device& device = tensors_.device();
  const AttentionTensors::Sample sample = tensors_.sample();
  const auto want = reference::attention_forward(tensors_.inputs(sample));
  const auto lse =
      download<float>(device, lse_, sample.head * c.total_q() + sample.first_q, sample.rows_q);
  Accuracy result;
  result.lse_error = largest_difference(want.lse, std::vector<double>(lse.begin(), lse.end()));
  result.o_db = reference::sqnr_db(
      want.o.data,
      head_values(device, o_, sample.first_q, sample.rows_q, c.num_heads, sample.head, c.head_dim));
  return result;
}

std::vector<io::Record> forward_records(const Device& device,
                                        const std::vector<AttentionCase>& cases,
                                        const std::vector<ForwardVariant>& variants,
                                        const SpeedOptions& options,
                                        const std::function<void()>& done) {
  const driver::Device& own = device.state().device;
  const driver::Stream stream(own);
  std::vector<io::Record> records;
  for (const AttentionCase& c : cases) {
    const AttentionTensors tensors(device, c, false);
    for (const ForwardVariant variant : variants) {
      const ForwardCase forward(device, stream.handle(), tensors, variant);
      io::Record record = record_of(c, variant, attention::operand_shape(forward.options()));
      measure(own, stream.handle(),
              {.attend = [&] { forward.attend(); },
               .prepare = [&] { forward.prepare(); },
               .whole = [&] { forward.forward(); }},
              c.forward_flops(), options, record);
      const ForwardCase::Accuracy accuracy = forward.accuracy();
      record.sqnr_db = {{"o", accuracy.o_db}};
      record.extra["lse_error_max"] = accuracy.lse_error;
      records.push_back(std::move(record));
      done();
    }
  }
  return records;
}

std::vector<io::Record> forward_host_time_records(const Device& device) {
  const driver::Device& own = device.state().device;
  const driver::Stream stream(own);
  std::vector<io::Record> records;
  for (const Lengths lengths : {Lengths::kEqual, Lengths::kUniform}) {
    const AttentionCase c = host_time_case(lengths);
    const AttentionTensors tensors(device, c, false);
    const ForwardCase forward(device, stream.handle(), tensors, ForwardVariant::kF32);
    forward.forward();
    const HostWork works[] = {
        {"checks", [&] { attention::forward_workspace_bytes(forward.args(), forward.options()); }},
        {"prepare_forward", [&] { forward.prepare(); }},
        {"forward_prepared", [&] { forward.attend(); }},
        {"forward", [&] { forward.forward(); }}};
    const io::Record like =
        record_of(c, ForwardVariant::kF32, attention::operand_shape(forward.options()));
    for (io::Record& record : host_time_records(own, stream, like, works)) {
      records.push_back(std::move(record));
    }
  }
  return records;
}

}  // namespace mxfa::bench
