#include "device/forward_suite.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "dispatch/gpu/device_state.h"
#include "mx/bits.h"
#include "reference/attention.h"

namespace mxfa::bench {
namespace {

/// Rows of the oracle: a second of a core at 16384 keys.
constexpr std::int64_t kCheckedRows = 32;

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

ForwardCase::ForwardCase(const Device& device, CUstream stream, const AttentionCase& c,
                         ForwardVariant variant)
    : device_(device),
      case_(c),
      cu_k_(c.cu_seqlens_k()),
      q_(device.state().device, c.total_q() * c.num_heads * c.head_dim, 0),
      k_(device.state().device, cu_k_.back() * c.num_heads_kv * c.head_dim, 1234567),
      v_(device.state().device, cu_k_.back() * c.num_heads_kv * c.head_dim, 7654321),
      cu_q_device_(device.state().device, (c.batch + 1) * sizeof(std::int32_t)),
      cu_k_device_(device.state().device, (c.batch + 1) * sizeof(std::int32_t)),
      o_(device.state().device, c.total_q() * c.num_heads * c.head_dim * sizeof(std::uint16_t)),
      lse_(device.state().device, c.total_q() * c.num_heads * sizeof(float)),
      args_{.q = {tensor(q_.data(), c.total_q(), c.seqlen_q, c.num_heads)},
            .k = {tensor(k_.data(), cu_k_.back(), c.seqlen_k, c.num_heads_kv)},
            .v = {tensor(v_.data(), cu_k_.back(), c.seqlen_k, c.num_heads_kv)},
            .cu_seqlens_q = {},
            .cu_seqlens_k = {},
            .o = {tensor(reinterpret_cast<void*>(o_.address()), c.total_q(), c.seqlen_q,
                         c.num_heads)},
            .lse = make_tensor(reinterpret_cast<void*>(lse_.address()), DType::kF32,
                               {c.num_heads, c.total_q()}),
            .row_max = {}},
      options_{.device = &device,
               .stream = stream,
               .recipe = attention::native_recipe(device),
               .causal = c.causal,
               .qk_bf16 = variant == ForwardVariant::kBf16,
               .leak_free = variant == ForwardVariant::kLeakFree,
               .half_scores = variant == ForwardVariant::kHalf} {
  o_.fill(0xFF);
  const std::vector<std::int32_t> cu_q = c.cu_seqlens_q();
  cu_q_device_.upload(cu_q.data(), cu_q.size() * sizeof(std::int32_t));
  cu_k_device_.upload(cu_k_.data(), cu_k_.size() * sizeof(std::int32_t));
  if (c.jagged()) {
    const auto offsets = [&](const driver::DeviceBuffer& buffer) {
      return make_tensor(reinterpret_cast<void*>(buffer.address()), DType::kI32, {c.batch + 1});
    };
    args_.cu_seqlens_q = offsets(cu_q_device_);
    args_.cu_seqlens_k = offsets(cu_k_device_);
  }
  workspace_.emplace(device.state().device,
                     static_cast<std::size_t>(attention::forward_workspace_bytes(args_, options_)));
}

TensorView ForwardCase::tensor(void* data, std::int64_t tokens, std::int64_t seqlen,
                               std::int64_t heads) const {
  if (case_.jagged()) return make_tensor(data, DType::kBF16, {tokens, heads, case_.head_dim});
  return make_tensor(data, DType::kBF16, {case_.batch, seqlen, heads, case_.head_dim});
}

template <class T>
std::vector<T> ForwardCase::download(const driver::DeviceBuffer& buffer, std::int64_t first,
                                     std::int64_t count) const {
  const driver::Device& own = device_.state().device;
  const driver::CurrentDevice current(own);
  std::vector<T> values(static_cast<std::size_t>(count));
  own.driver().check(
      own.calls().cuMemcpyDtoHAsync(values.data(),
                                    buffer.address() + static_cast<CUdeviceptr>(first) * sizeof(T),
                                    values.size() * sizeof(T), nullptr),
      "cuMemcpyDtoHAsync");
  own.driver().check(own.calls().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  return values;
}

ForwardCase::Accuracy ForwardCase::accuracy() const {
  device_.synchronize();
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s < case_.batch; ++s) {
    if (cu_k_[s + 1] - cu_k_[s] > cu_k_[longest + 1] - cu_k_[longest]) longest = s;
  }
  const std::int64_t dim = case_.head_dim, head = case_.num_heads - 1;
  const std::int64_t head_kv = case_.num_heads_kv - 1;
  const std::int64_t rows = std::min(kCheckedRows, case_.seqlen_q);
  const std::int64_t first = (longest + 1) * case_.seqlen_q - rows;
  const std::int64_t keys = cu_k_[longest + 1] - cu_k_[longest];
  const auto matrix = [&](const NoisyTensor& x, std::int64_t row0, std::int64_t count,
                          std::int64_t heads, std::int64_t which) {
    reference::Matrix<float> result(count, dim);
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t d = 0; d < dim; ++d) {
        result(row, d) = x.at(((row0 + row) * heads + which) * dim + d);
      }
    }
    return result;
  };
  // The last rows alone have the mask that they have among all.
  const auto want = reference::attention_forward(
      {.q = matrix(q_, first, rows, case_.num_heads, head),
       .k = matrix(k_, cu_k_[longest], keys, case_.num_heads_kv, head_kv),
       .v = matrix(v_, cu_k_[longest], keys, case_.num_heads_kv, head_kv),
       .dout = {},
       .mask = case_.mask(),
       .softmax_scale = 1 / std::sqrt(static_cast<double>(dim))});
  const std::int64_t width = case_.num_heads * dim;
  const auto o = download<std::uint16_t>(o_, first * width, rows * width);
  const auto lse = download<float>(lse_, head * case_.total_q() + first, rows);
  std::vector<double> got;
  Accuracy result;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t d = 0; d < dim; ++d) {
      got.push_back(mx::decode_bf16(o[row * width + head * dim + d]));
    }
    result.lse_error = std::max(result.lse_error, std::abs(want.lse[row] - lse[row]));
  }
  result.o_db = reference::sqnr_db(want.o.data, got);
  return result;
}

std::vector<io::Record> forward_records(const Device& device, const ForwardOptions& options,
                                        const std::function<void()>& done) {
  const driver::Device& own = device.state().device;
  const driver::Stream stream(own);
  std::vector<io::Record> records;
  for (const AttentionCase& c : options.cases) {
    for (const ForwardVariant variant : options.variants) {
      const ForwardCase forward(device, stream.handle(), c, variant);
      io::Record record = record_of(c, variant, attention::operand_shape(forward.options()));
      if (options.timed) {
        const std::function<void()> bodies[] = {
            [&] { forward.attend(); }, [&] { forward.prepare(); }, [&] { forward.forward(); }};
        forward.prepare();
        const auto ms = time_by_events(own, stream.handle(), bodies, options.plan);
        record.timing = timing_of(ms[0]);
        record.tflops = c.forward_flops() / record.timing->ms_median * 1e-9;
        record.extra["prepare_ms_median"] = timing_of(ms[1]).ms_median;
        record.extra["fused_ms_median"] = timing_of(ms[2]).ms_median;
        record.extra["fused_tflops"] = c.forward_flops() / timing_of(ms[2]).ms_median * 1e-9;
        if (options.fp8_gemm_tflops) {
          record.ceiling = io::CeilingRecord{"fp8_gemm_tflops", *options.fp8_gemm_tflops};
          record.fraction_of_ceiling = *record.tflops / *options.fp8_gemm_tflops;
        }
      } else {
        forward.forward();
      }
      const ForwardCase::Accuracy accuracy = forward.accuracy();
      record.sqnr_db = {{"o", accuracy.o_db}};
      record.extra["lse_error_max"] = accuracy.lse_error;
      records.push_back(std::move(record));
      done();
    }
  }
  return records;
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

/// Host time of one of `calls` calls in a row, over rounds.
io::TimingRecord host_timing(const driver::Stream& stream, const std::function<void()>& body) {
  // Fewer calls than a stream's queue holds, and little work in each: the host never waits for it.
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

}  // namespace

std::vector<io::Record> host_time_records(const Device& device) {
  const driver::Device& own = device.state().device;
  const driver::Stream stream(own);
  std::vector<io::Record> records;
  for (const Lengths lengths : {Lengths::kEqual, Lengths::kUniform}) {
    const AttentionCase c{
        .name = {}, .batch = 2, .seqlen_q = 64, .seqlen_k = 128, .lengths = lengths};
    const ForwardCase forward(device, stream.handle(), c, ForwardVariant::kF32);
    forward.forward();
    const Graph graph(own, stream, [&] { forward.forward(); });
    const std::pair<const char*, std::function<void()>> works[] = {
        {"forward_prepared", [&] { forward.attend(); }},
        {"forward", [&] { forward.forward(); }},
        {"forward in a graph", [&] { graph.launch(); }},
        {"checks alone",
         [&] { attention::forward_workspace_bytes(forward.args(), forward.options()); }}};
    for (const auto& [what, body] : works) {
      io::Record record =
          record_of(c, ForwardVariant::kF32, attention::operand_shape(forward.options()));
      record.routine = "attention_forward_host_time";
      record.timing = host_timing(stream, body);
      record.extra["call"] = what;
      record.extra["host_us_median"] = record.timing->ms_median * 1e3;
      records.push_back(std::move(record));
    }
  }
  return records;
}

}  // namespace mxfa::bench
