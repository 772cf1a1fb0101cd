#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/attention_case.h"
#include "device/events.h"
#include "io/json_records.h"
#include "mxfa/attention.h"
#include "reference/attention.h"

/// What the device benchmarks of attention share, forward and backward.
namespace mxfa::bench {

/// One shape's inputs on a device: q, k, v and dout in BF16 of N(0, 1), and their offsets.
class AttentionTensors {
 public:
  AttentionTensors(const Device& device, const AttentionCase& c, bool with_dout);

  const driver::Device& device() const;
  const AttentionCase& shape() const { return case_; }
  const Tensor& q() const { return q_view_; }
  const Tensor& k() const { return k_view_; }
  const Tensor& v() const { return v_view_; }
  const Tensor& dout() const { return dout_view_; }
  const TensorView& cu_seqlens_q() const { return cu_q_view_; }  ///< rank 0 where dense
  const TensorView& cu_seqlens_k() const { return cu_k_view_; }
  std::int64_t elements_q() const { return case_.total_q() * case_.num_heads * case_.head_dim; }
  std::int64_t elements_k() const { return cu_k_.back() * case_.num_heads_kv * case_.head_dim; }

  /// BF16 memory as a tensor that lies as q, or as k.
  Tensor like_q(void* data) const;
  Tensor like_k(void* data) const;

  /// What is checked: the last rows of the longest sequence's last head, against all of its keys.
  struct Sample {
    std::int64_t head, head_kv;
    std::int64_t first_q, rows_q;         ///< packed; of the rows that are checked
    std::int64_t begin_q, begin_k, keys;  ///< packed; the sequence
  };
  Sample sample() const;
  /// Of the sample's rows alone: they have the mask that they have among all.
  reference::HeadInputs inputs(const Sample& sample) const;
  /// All rows of a head of the sample's sequence; x lies as q.
  reference::Matrix<float> sequence_rows(const Sample& sample, const NoisyTensor& x,
                                         std::int64_t head) const;
  const NoisyTensor& q_noise() const { return q_; }
  const NoisyTensor& dout_noise() const { return *dout_; }

 private:
  reference::Matrix<float> matrix(const NoisyTensor& x, std::int64_t row0, std::int64_t rows,
                                  std::int64_t heads, std::int64_t head) const;

  const Device& device_;
  AttentionCase case_;
  std::vector<std::int32_t> cu_k_;
  NoisyTensor q_, k_, v_;
  std::optional<NoisyTensor> dout_;
  driver::DeviceBuffer cu_q_device_, cu_k_device_;
  Tensor q_view_, k_view_, v_view_, dout_view_;
  TensorView cu_q_view_, cu_k_view_;
};

/// After all work on the device: `count` values from element `first` of a buffer on.
template <class T>
std::vector<T> download(const driver::Device& device, const driver::DeviceBuffer& buffer,
                        std::int64_t first, std::int64_t count) {
  const driver::CurrentDevice current(device);
  device.driver().check(device.calls().cuCtxSynchronize(), "cuCtxSynchronize");
  std::vector<T> values(static_cast<std::size_t>(count));
  device.driver().check(
      device.calls().cuMemcpyDtoHAsync(
          values.data(), buffer.address() + static_cast<CUdeviceptr>(first) * sizeof(T),
          values.size() * sizeof(T), nullptr),
      "cuMemcpyDtoHAsync");
  device.driver().check(device.calls().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  return values;
}
/// Columns of one head of packed BF16 rows [rows, heads, head_dim], as doubles.
std::vector<double> head_values(const driver::Device& device, const driver::DeviceBuffer& buffer,
                                std::int64_t first_row, std::int64_t rows, std::int64_t heads,
                                std::int64_t head, std::int64_t head_dim);

/// A call on a device, its halves, and its checks alone.
struct CallParts {
  std::function<void()> attend, prepare, whole, checks;
  std::function<void()> attend_anew;  ///< as no call before it
};
struct SpeedOptions {
  RunPlan plan = {.warm_ups = 5, .runs = 30};
  bool timed = true;  ///< false in the emulator, whose time means nothing
  std::optional<double> fp8_gemm_tflops = std::nullopt;
};
/// Runs the call; where it is timed, in turns with its halves. Sets timing and rates of attention
/// on prepared operands, and in the record's further fields those of the preparation and of the
/// whole call.
void measure(const driver::Device& device, CUstream stream, const CallParts& parts, double flops,
             const SpeedOptions& options, io::Record& record);

/// Host time of one of 100 calls in a row, over rounds: little work in each, so that the host never
/// waits for the stream.
io::TimingRecord host_timing(const driver::Stream& stream, const std::function<void()>& body);

/// A call's names for its records, and the call.
struct HostWork {
  std::string name;
  std::function<void()> body;
};
/// A record for each of `works`, and one for the last of them replayed from a CUDA graph.
std::vector<io::Record> host_time_records(const driver::Device& device,
                                          const driver::Stream& stream, const io::Record& like,
                                          std::span<const HostWork> works);
/// The small batch, dense and jagged, that host time is measured on.
AttentionCase host_time_case(Lengths lengths);

}  // namespace mxfa::bench
