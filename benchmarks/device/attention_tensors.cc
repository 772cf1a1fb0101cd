#include "device/attention_tensors.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "dispatch/gpu/device_state.h"
#include "mx/bits.h"

namespace mxfa::bench {
namespace {

/// Rows of the oracle: a second of a core at 16384 keys.
constexpr std::int64_t kCheckedRows = 32;

Tensor bf16_tensor(void* data, const AttentionCase& c, std::int64_t tokens, std::int64_t seqlen,
                   std::int64_t heads) {
  return {c.jagged() ? make_tensor(data, DType::kBF16, {tokens, heads, c.head_dim})
                     : make_tensor(data, DType::kBF16, {c.batch, seqlen, heads, c.head_dim})};
}

}  // namespace

const driver::Device& AttentionTensors::device() const { return device_.state().device; }

AttentionTensors::AttentionTensors(const Device& device, const AttentionCase& c, bool with_dout)
    : device_(device),
      case_(c),
      cu_k_(c.cu_seqlens_k()),
      q_(this->device(), elements_q(), 0),
      k_(this->device(), elements_k(), 1234567),
      v_(this->device(), elements_k(), 7654321),
      cu_q_device_(this->device(), (c.batch + 1) * sizeof(std::int32_t)),
      cu_k_device_(this->device(), (c.batch + 1) * sizeof(std::int32_t)),
      q_view_(like_q(q_.data())),
      k_view_(like_k(k_.data())),
      v_view_(like_k(v_.data())) {
  if (with_dout) {
    dout_.emplace(this->device(), elements_q(), 3333333);
    dout_view_ = like_q(dout_->data());
  }
  const std::vector<std::int32_t> cu_q = c.cu_seqlens_q();
  cu_q_device_.upload(cu_q.data(), cu_q.size() * sizeof(std::int32_t));
  cu_k_device_.upload(cu_k_.data(), cu_k_.size() * sizeof(std::int32_t));
  if (!c.jagged()) return;
  const auto offsets = [&](const driver::DeviceBuffer& buffer) {
    return make_tensor(reinterpret_cast<void*>(buffer.address()), DType::kI32, {c.batch + 1});
  };
  cu_q_view_ = offsets(cu_q_device_);
  cu_k_view_ = offsets(cu_k_device_);
}

Tensor AttentionTensors::like_q(void* data) const {
  return bf16_tensor(data, case_, case_.total_q(), case_.seqlen_q, case_.num_heads);
}
Tensor AttentionTensors::like_k(void* data) const {
  return bf16_tensor(data, case_, cu_k_.back(), case_.seqlen_k, case_.num_heads_kv);
}

AttentionTensors::Sample AttentionTensors::sample() const {
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s < case_.batch; ++s) {
    if (cu_k_[s + 1] - cu_k_[s] > cu_k_[longest + 1] - cu_k_[longest]) longest = s;
  }
  const std::int64_t rows = std::min(kCheckedRows, case_.seqlen_q);
  return {.head = case_.num_heads - 1,
          .head_kv = case_.num_heads_kv - 1,
          .first_q = (longest + 1) * case_.seqlen_q - rows,
          .rows_q = rows,
          .begin_q = longest * case_.seqlen_q,
          .begin_k = cu_k_[longest],
          .keys = cu_k_[longest + 1] - cu_k_[longest]};
}

reference::Matrix<float> AttentionTensors::matrix(const NoisyTensor& x, std::int64_t row0,
                                                  std::int64_t rows, std::int64_t heads,
                                                  std::int64_t head) const {
  reference::Matrix<float> result(rows, case_.head_dim);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t d = 0; d < case_.head_dim; ++d) {
      result(row, d) = x.at(((row0 + row) * heads + head) * case_.head_dim + d);
    }
  }
  return result;
}

reference::HeadInputs AttentionTensors::inputs(const Sample& sample) const {
  const std::int64_t heads = case_.num_heads, heads_kv = case_.num_heads_kv;
  reference::HeadInputs inputs{
      .q = matrix(q_, sample.first_q, sample.rows_q, heads, sample.head),
      .k = matrix(k_, sample.begin_k, sample.keys, heads_kv, sample.head_kv),
      .v = matrix(v_, sample.begin_k, sample.keys, heads_kv, sample.head_kv),
      .dout = {},
      .mask = case_.mask(),
      .softmax_scale = 1 / std::sqrt(static_cast<double>(case_.head_dim))};
  if (dout_) inputs.dout = matrix(*dout_, sample.first_q, sample.rows_q, heads, sample.head);
  return inputs;
}

reference::Matrix<float> AttentionTensors::sequence_rows(const Sample& sample, const NoisyTensor& x,
                                                         std::int64_t head) const {
  return matrix(x, sample.begin_q, case_.seqlen_q, case_.num_heads, head);
}

std::vector<double> head_values(const driver::Device& device, const driver::DeviceBuffer& buffer,
                                std::int64_t first_row, std::int64_t rows, std::int64_t heads,
                                std::int64_t head, std::int64_t head_dim) {
  const std::int64_t width = heads * head_dim;
  const auto codes = download<std::uint16_t>(device, buffer, first_row * width, rows * width);
  std::vector<double> values;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t d = 0; d < head_dim; ++d) {
      values.push_back(mx::decode_bf16(codes[row * width + head * head_dim + d]));
    }
  }
  return values;
}

void measure(const driver::Device& device, CUstream stream, const CallParts& parts, double flops,
             const SpeedOptions& options, io::Record& record) {
  if (!options.timed) return parts.whole();
  parts.prepare();
  const std::function<void()> bodies[] = {parts.attend, parts.prepare, parts.whole};
  const auto ms = time_by_events(device, stream, bodies, options.plan);
  record.timing = timing_of(ms[0]);
  record.tflops = flops / record.timing->ms_median * 1e-9;
  record.extra["prepare_ms_median"] = timing_of(ms[1]).ms_median;
  record.extra["fused_ms_median"] = timing_of(ms[2]).ms_median;
  record.extra["fused_tflops"] = flops / timing_of(ms[2]).ms_median * 1e-9;
  if (!options.fp8_gemm_tflops) return;
  record.ceiling = io::CeilingRecord{"fp8_gemm_tflops", *options.fp8_gemm_tflops};
  record.fraction_of_ceiling = *record.tflops / *options.fp8_gemm_tflops;
}

io::TimingRecord host_timing(const driver::Stream& stream, const std::function<void()>& body) {
  constexpr int kCalls = 100, kRounds = 30;
  std::vector<double> ms;
  body();
  for (int round = 0; round < kRounds; ++round) {
    stream.synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) body();
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    ms.push_back(spent.count() / kCalls);
  }
  stream.synchronize();
  return timing_of(ms);
}

namespace {

/// Work that was captured once and is launched as one.
class Graph {
 public:
  Graph(const driver::Device& device, const driver::Stream& stream,
        const std::function<void()>& body)
      : device_(device), stream_(stream) {
    const driver::CurrentDevice current(device_);
    check(calls().cuStreamBeginCapture(stream.handle(), CU_STREAM_CAPTURE_MODE_GLOBAL));
    body();
    check(calls().cuStreamEndCapture(stream.handle(), &graph_));
    check(calls().cuGraphInstantiate(&exec_, graph_, 0));
  }
  ~Graph() {
    const driver::CurrentDevice current(device_);
    calls().cuGraphExecDestroy(exec_);
    calls().cuGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch() const {
    const driver::CurrentDevice current(device_);
    check(calls().cuGraphLaunch(exec_, stream_.handle()));
  }

 private:
  const driver::FunctionTable& calls() const { return device_.calls(); }
  void check(CUresult result) const { device_.driver().check(result, "graph"); }

  const driver::Device& device_;
  const driver::Stream& stream_;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

}  // namespace

std::vector<io::Record> host_time_records(const driver::Device& device,
                                          const driver::Stream& stream, const io::Record& like,
                                          std::span<const HostWork> works) {
  std::vector<io::Record> records;
  const auto add = [&](const std::string& name, const std::function<void()>& body) {
    io::Record record = like;
    record.routine += "_host_time";
    record.timing = host_timing(stream, body);
    record.extra["call"] = name;
    record.extra["host_us_median"] = record.timing->ms_median * 1e3;
    records.push_back(std::move(record));
  };
  for (const HostWork& work : works) add(work.name, work.body);
  const HostWork& last = works.back();
  last.body();  // loads its kernels
  const Graph graph(device, stream, last.body);
  add(last.name + " in a graph", [&] { graph.launch(); });
  return records;
}

AttentionCase host_time_case(Lengths lengths) {
  return {.name = {}, .batch = 2, .seqlen_q = 64, .seqlen_k = 128, .lengths = lengths};
}

}  // namespace mxfa::bench
