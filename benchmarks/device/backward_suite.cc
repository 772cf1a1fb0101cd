#include "device/backward_suite.h"

#include <algorithm>

#include "common/key_gradients.h"
#include "dispatch/gpu/device_state.h"

namespace mxfa::bench {
namespace {

/// How many keys' dk and dv are checked.
std::int64_t checked_keys(const AttentionTensors::Sample& sample) {
  return std::min<std::int64_t>(16, sample.keys);
}

io::Record record_of(const AttentionCase& c, BackwardVariant variant, BlockShape block_shape) {
  io::Record record;
  record.routine = "attention_backward";
  record.shape = c.record();
  record.impl = variant == BackwardVariant::kF16             ? "mxfa mxfp8 (dq fp16)"
                : variant == BackwardVariant::kDeterministic ? "mxfa mxfp8 (deterministic)"
                                                             : "mxfa mxfp8";
  record.variant.dq_accum = variant == BackwardVariant::kF16 ? "fp16" : "fp32";
  record.variant.deterministic = variant == BackwardVariant::kDeterministic;
  record.variant.qk = "mxfp8";
  record.variant.block_shape = block_shape_name(block_shape);
  return record;
}

}  // namespace

BackwardCase::BackwardCase(const Device& device, CUstream stream, const AttentionTensors& tensors)
    : tensors_(tensors),
      forward_(device, stream, tensors, ForwardVariant::kF32),
      dq_(tensors.device(), tensors.elements_q() * sizeof(std::uint16_t)),
      dk_(tensors.device(), tensors.elements_k() * sizeof(std::uint16_t)),
      dv_(tensors.device(), tensors.elements_k() * sizeof(std::uint16_t)),
      options_(forward_.options()) {
  forward_.forward();
  const auto memory = [](const driver::DeviceBuffer& buffer) {
    return reinterpret_cast<void*>(buffer.address());
  };
  const attention::ForwardArgs& forward = forward_.args();
  args_ = {.q = forward.q,
           .k = forward.k,
           .v = forward.v,
           .cu_seqlens_q = forward.cu_seqlens_q,
           .cu_seqlens_k = forward.cu_seqlens_k,
           .o = forward.o,
           .lse = forward.lse,
           .row_max = forward.row_max,
           .dout = tensors.dout(),
           .dq = tensors.like_q(memory(dq_)),
           .dk = tensors.like_k(memory(dk_)),
           .dv = tensors.like_k(memory(dv_))};
  use(BackwardVariant::kF32);
}

void BackwardCase::use(BackwardVariant variant) {
  options_.dq_accum = variant == BackwardVariant::kF16 ? DType::kF16 : DType::kF32;
  options_.deterministic = variant == BackwardVariant::kDeterministic;
  workspace_.reset();
  workspace_.emplace(tensors_.device(), static_cast<std::size_t>(
                                            attention::backward_workspace_bytes(args_, options_)));
  for (const auto* gradient : {&dq_, &dk_, &dv_}) gradient->fill(0xFF);
}

BackwardCase::Gradients BackwardCase::wanted() const {
  const AttentionCase& c = tensors_.shape();
  const AttentionTensors::Sample sample = tensors_.sample();
  reference::HeadInputs inputs = tensors_.inputs(sample);
  const auto oracle = reference::attention_backward(inputs, reference::attention_forward(inputs));
  const std::int64_t count = checked_keys(sample);
  const auto zeros = std::vector<double>(static_cast<std::size_t>(count * c.head_dim));
  Gradients want{oracle.dq.data, zeros, zeros};
  const std::int64_t heads_per_kv = c.num_heads / c.num_heads_kv;
  for (std::int64_t head = sample.head + 1 - heads_per_kv; head <= sample.head; ++head) {
    inputs.q = tensors_.sequence_rows(sample, tensors_.q_noise(), head);
    inputs.dout = tensors_.sequence_rows(sample, tensors_.dout_noise(), head);
    const KeyGradients of_head = first_key_gradients(inputs, count);
    for (std::size_t i = 0; i < zeros.size(); ++i) {
      want.dk[i] += of_head.dk[i];
      want.dv[i] += of_head.dv[i];
    }
  }
  return want;
}

std::vector<std::pair<std::string, double>> BackwardCase::accuracy(const Gradients& want) const {
  const AttentionCase& c = tensors_.shape();
  const driver::Device& device = tensors_.device();
  const AttentionTensors::Sample sample = tensors_.sample();
  const auto of_keys = [&](const driver::DeviceBuffer& buffer) {
    return head_values(device, buffer, sample.begin_k, checked_keys(sample), c.num_heads_kv,
                       sample.head_kv, c.head_dim);
  };
  return {{"dq", reference::sqnr_db(want.dq, head_values(device, dq_, sample.first_q, sample.rows_q,
                                                         c.num_heads, sample.head, c.head_dim))},
          {"dk", reference::sqnr_db(want.dk, of_keys(dk_))},
          {"dv", reference::sqnr_db(want.dv, of_keys(dv_))}};
}

std::vector<io::Record> backward_records(const Device& device,
                                         const std::vector<AttentionCase>& cases,
                                         const std::vector<BackwardVariant>& variants,
                                         const SpeedOptions& options,
                                         const std::function<void()>& done) {
  const driver::Device& own = device.state().device;
  const driver::Stream stream(own);
  std::vector<io::Record> records;
  for (const AttentionCase& c : cases) {
    const AttentionTensors tensors(device, c, true);
    BackwardCase backward(device, stream.handle(), tensors);
    const BackwardCase::Gradients want = backward.wanted();
    for (const BackwardVariant variant : variants) {
      backward.use(variant);
      io::Record record = record_of(c, variant, attention::operand_shape(backward.options()));
      measure(own, stream.handle(),
              {.attend = [&] { backward.attend(); },
               .prepare = [&] { backward.prepare(); },
               .whole = [&] { backward.backward(); }},
              c.backward_flops(), options, record);
      record.sqnr_db = backward.accuracy(want);
      records.push_back(std::move(record));
      done();
    }
  }
  return records;
}

std::vector<io::Record> backward_host_time_records(const Device& device) {
  const driver::Device& own = device.state().device;
  const driver::Stream stream(own);
  std::vector<io::Record> records;
  for (const Lengths lengths : {Lengths::kEqual, Lengths::kUniform}) {
    const AttentionCase c = host_time_case(lengths);
    const AttentionTensors tensors(device, c, true);
    const BackwardCase backward(device, stream.handle(), tensors);
    backward.backward();
    const HostWork works[] = {
        {"checks",
         [&] { attention::backward_workspace_bytes(backward.args(), backward.options()); }},
        {"prepare_backward", [&] { backward.prepare(); }},
        {"backward_prepared", [&] { backward.attend(); }},
        {"backward", [&] { backward.backward(); }}};
    const io::Record like =
        record_of(c, BackwardVariant::kF32, attention::operand_shape(backward.options()));
    for (io::Record& record : host_time_records(own, stream, like, works)) {
      records.push_back(std::move(record));
    }
  }
  return records;
}

}  // namespace mxfa::bench
