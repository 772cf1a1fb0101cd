#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "mx/bits.h"
#include "mxfa/mxfa.h"
#include "support/rng.h"

/// Public attention calls on the device of the test program.
namespace mxfa::testing {

/// Opened by main() from --driver and --arch.
const Device& device();

/// Uploaded, or poisoned with 0xFF.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values)
      : count_(values.size()), memory_(device(), values.size() * sizeof(T)) {
    memory_.upload(values.data(), values.size() * sizeof(T));
  }
  explicit DeviceArray(std::int64_t count)
      : count_(static_cast<std::size_t>(count)), memory_(device(), count_ * sizeof(T)) {
    poison_again();
  }
  void* data() const { return memory_.data(); }
  std::span<std::byte> bytes() const { return {memory_.data(), memory_.size_bytes()}; }
  std::vector<T> download() const {
    std::vector<T> values(count_);
    memory_.download(values.data(), count_ * sizeof(T));
    return values;
  }
  void upload(const std::vector<T>& values) const {
    memory_.upload(values.data(), count_ * sizeof(T));
  }
  void poison_again() const {
    // Kept, as most arrays are workspaces of some 50 MB.
    static thread_local std::vector<unsigned char> poison;
    const std::size_t bytes = count_ * sizeof(T);
    if (poison.size() < bytes) poison.assign(bytes, 0xFF);
    memory_.upload(poison.data(), bytes);
  }

 private:
  std::size_t count_;
  DeviceMemory memory_;
};

struct CallCase {
  std::vector<std::int32_t> cu_seqlens_q = {};  ///< both empty: dense
  std::vector<std::int32_t> cu_seqlens_k = {};
  std::int64_t batch = 1, seqlen_q = 0, seqlen_k = 0;  ///< dense; seqlen_q also where broadcast
  std::int64_t num_heads = 2, num_heads_kv = 1, head_dim = 64;
  std::int64_t slack_rows = 0;    ///< of q, behind the last sequence
  std::int64_t slack_rows_k = 0;  ///< of k and v
  attention::Options options = {};

  bool dense() const { return cu_seqlens_k.empty(); }
  std::int64_t batches() const {
    return dense() ? batch : static_cast<std::int64_t>(cu_seqlens_k.size()) - 1;
  }
  std::int64_t total_q() const {
    if (options.broadcast_q) return seqlen_q;
    return (dense() ? batch * seqlen_q : cu_seqlens_q.back()) + slack_rows;
  }
  std::int64_t total_k() const {
    return dense() ? batch * seqlen_k : cu_seqlens_k.back() + slack_rows_k;
  }
  std::int64_t rows_o() const { return options.broadcast_q ? batches() * seqlen_q : total_q(); }
  /// Offsets of every batch, for the host.
  std::vector<std::int32_t> offsets(const std::vector<std::int32_t>& given,
                                    std::int64_t seqlen) const {
    if (!given.empty()) return given;
    std::vector<std::int32_t> result;
    for (std::int64_t s = 0; s <= batch; ++s) {
      result.push_back(static_cast<std::int32_t>(s * seqlen));
    }
    return result;
  }
};

/// Shapes that the tests of both passes take.
inline CallCase jagged() {
  CallCase c{
      .cu_seqlens_q = {0, 5, 5, 70}, .cu_seqlens_k = {0, 40, 60, 200}, .batch = 3, .slack_rows = 3};
  c.options.causal = true;
  return c;
}
inline CallCase dense() { return {.batch = 2, .seqlen_q = 20, .seqlen_k = 70, .head_dim = 40}; }
inline CallCase broadcast() {
  CallCase c{.cu_seqlens_k = {0, 30, 30, 100}, .batch = 3, .seqlen_q = 17, .num_heads_kv = 2};
  c.options.broadcast_q = true;
  return c;
}

/// N(0, 1) in BF16.
inline std::vector<std::uint16_t> normal_bf16(std::int64_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (std::uint16_t& value : values) value = mx::encode_bf16(static_cast<float>(rng.normal()));
  return values;
}
inline std::vector<double> decoded(const std::vector<std::uint16_t>& values) {
  std::vector<double> result;
  for (const std::uint16_t value : values) result.push_back(mx::decode_bf16(value));
  return result;
}

struct CallResults {
  std::vector<std::uint16_t> o;  ///< BF16 [rows_o, num_heads, head_dim]
  std::vector<float> lse, row_max;
};

/// One call's tensors in BF16, on the device and on the host.
class DeviceCall {
 public:
  explicit DeviceCall(const CallCase& c)
      : case_(c),
        values_{normal_bf16(c.total_q() * c.num_heads * c.head_dim, 1),
                normal_bf16(c.total_k() * c.num_heads_kv * c.head_dim, 2),
                normal_bf16(c.total_k() * c.num_heads_kv * c.head_dim, 3)},
        q_(values_[0]),
        k_(values_[1]),
        v_(values_[2]),
        cu_q_(c.cu_seqlens_q),
        cu_k_(c.cu_seqlens_k),
        o_(c.rows_o() * c.num_heads * c.head_dim),
        lse_(c.rows_o() * c.num_heads),
        row_max_(c.rows_o() * c.num_heads) {
    options_ = c.options;
    options_.device = &device();
    options_.recipe = attention::native_recipe(device());
    args_ = {.q = {tensor(q_.data(), DType::kBF16, c.total_q(), c.seqlen_q, c.num_heads)},
             .k = {tensor(k_.data(), DType::kBF16, c.total_k(), c.seqlen_k, c.num_heads_kv)},
             .v = {tensor(v_.data(), DType::kBF16, c.total_k(), c.seqlen_k, c.num_heads_kv)},
             .cu_seqlens_q = {},
             .cu_seqlens_k = {},
             .o = {tensor(o_.data(), DType::kBF16, c.rows_o(), c.seqlen_q, c.num_heads)},
             .lse = make_tensor(lse_.data(), DType::kF32, {c.num_heads, c.rows_o()}),
             .row_max = make_tensor(row_max_.data(), DType::kF32, {c.num_heads, c.rows_o()})};
    if (c.options.broadcast_q) {
      args_.q.values = make_tensor(q_.data(), DType::kBF16, {c.seqlen_q, c.num_heads, c.head_dim});
    }
    if (!c.dense()) {
      args_.cu_seqlens_k = offsets(cu_k_, c.cu_seqlens_k);
      if (!c.options.broadcast_q) args_.cu_seqlens_q = offsets(cu_q_, c.cu_seqlens_q);
    }
  }

  attention::ForwardArgs& args() { return args_; }
  attention::Options& options() { return options_; }
  const std::vector<std::uint16_t>& values(int which) const { return values_[which]; }
  const DeviceArray<std::byte>& workspace() {
    const std::int64_t bytes = attention::forward_workspace_bytes(args_, options_);
    if (!workspace_ || std::ssize(workspace_->bytes()) != bytes) workspace_.emplace(bytes);
    return *workspace_;
  }
  /// As many as before, in place.
  void set_cu_seqlens_k(const std::vector<std::int32_t>& values) const { cu_k_.upload(values); }
  void poison_outputs() {
    o_.poison_again();
    lse_.poison_again();
    row_max_.poison_again();
  }
  CallResults results() {
    device().synchronize();
    return {o_.download(), lse_.download(), row_max_.download()};
  }
  CallResults run() {
    attention::forward(args_, options_, workspace().bytes());
    return results();
  }
  /// The same call on the CPU: the same recipe, packed.
  CallResults run_on_cpu() const;

 private:
  TensorView tensor(void* data, DType dtype, std::int64_t total, std::int64_t seqlen,
                    std::int64_t heads) const {
    if (!case_.dense()) return make_tensor(data, dtype, {total, heads, case_.head_dim});
    return make_tensor(data, dtype, {case_.batch, seqlen, heads, case_.head_dim});
  }
  static TensorView offsets(const DeviceArray<std::int32_t>& array,
                            const std::vector<std::int32_t>& values) {
    return make_tensor(array.data(), DType::kI32, {std::ssize(values)});
  }

  CallCase case_;
  std::vector<std::uint16_t> values_[3];
  DeviceArray<std::uint16_t> q_, k_, v_;
  DeviceArray<std::int32_t> cu_q_, cu_k_;
  DeviceArray<std::uint16_t> o_;
  DeviceArray<float> lse_, row_max_;
  std::optional<DeviceArray<std::byte>> workspace_;
  attention::ForwardArgs args_;
  attention::Options options_;
};

inline CallResults DeviceCall::run_on_cpu() const {
  const CallCase& c = case_;
  auto q = values_[0], k = values_[1], v = values_[2];
  auto cu_q = c.offsets(c.cu_seqlens_q, c.seqlen_q), cu_k = c.offsets(c.cu_seqlens_k, c.seqlen_k);
  CallResults results{
      std::vector<std::uint16_t>(static_cast<std::size_t>(c.rows_o() * c.num_heads * c.head_dim)),
      std::vector<float>(static_cast<std::size_t>(c.rows_o() * c.num_heads)),
      std::vector<float>(static_cast<std::size_t>(c.rows_o() * c.num_heads))};
  const auto packed = [&](std::vector<std::uint16_t>& values, std::int64_t rows,
                          std::int64_t heads) {
    return Tensor{make_tensor(values.data(), DType::kBF16, {rows, heads, c.head_dim})};
  };
  attention::Options options = c.options;
  options.recipe = options_.recipe;
  options.exact = options.half_scores = false;
  attention::ForwardArgs args{
      .q = packed(q, c.total_q(), c.num_heads),
      .k = packed(k, c.total_k(), c.num_heads_kv),
      .v = packed(v, c.total_k(), c.num_heads_kv),
      .cu_seqlens_q = {},
      .cu_seqlens_k = make_tensor(cu_k.data(), DType::kI32, {std::ssize(cu_k)}),
      .o = packed(results.o, c.rows_o(), c.num_heads),
      .lse = make_tensor(results.lse.data(), DType::kF32, {c.num_heads, c.rows_o()}),
      .row_max = make_tensor(results.row_max.data(), DType::kF32, {c.num_heads, c.rows_o()})};
  if (!c.options.broadcast_q) {
    args.cu_seqlens_q = make_tensor(cu_q.data(), DType::kI32, {std::ssize(cu_q)});
  }
  attention::forward(args, options);
  return results;
}

}  // namespace mxfa::testing
