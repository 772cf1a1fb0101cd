#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "io/json_records.h"
#include "mx/bits.h"
#include "mxfa/device.h"
#include "mxfa/tensor.h"
#include "reference/matrix.h"

/// Tensors of one head on a device, in BF16.
namespace mxfa::bench {

inline DeviceMemory upload_bf16(const Device& device, const reference::Matrix<float>& matrix) {
  std::vector<std::uint16_t> values;
  values.reserve(matrix.data.size());
  for (const float value : matrix.data) values.push_back(mx::encode_bf16(value));
  DeviceMemory memory(device, values.size() * sizeof(std::uint16_t));
  memory.upload(values.data(), memory.size_bytes());
  return memory;
}

inline std::vector<double> download_bf16(const DeviceMemory& memory) {
  std::vector<std::uint16_t> codes(memory.size_bytes() / sizeof(std::uint16_t));
  memory.download(codes.data(), memory.size_bytes());
  std::vector<double> values;
  values.reserve(codes.size());
  for (const std::uint16_t code : codes) values.push_back(mx::decode_bf16(code));
  return values;
}

/// For results: what a kernel leaves out stays NaN, in BF16 and in FP32.
inline DeviceMemory nan_memory(const Device& device, std::size_t size_bytes) {
  DeviceMemory memory(device, size_bytes);
  const std::vector<std::byte> bytes(size_bytes, std::byte{0xFF});
  memory.upload(bytes.data(), size_bytes);
  return memory;
}

/// Rows of one head as a dense batch of one sequence or as a jagged one.
class Sequence {
 public:
  Sequence(const Device& device, std::int64_t rows, bool jagged) : rows_(rows) {
    if (!jagged) return;
    const std::int32_t offsets[] = {0, static_cast<std::int32_t>(rows)};
    offsets_.emplace(device, sizeof(offsets));
    offsets_->upload(offsets, sizeof(offsets));
  }
  Tensor tensor(const DeviceMemory& memory, std::int64_t head_dim) const {
    if (!offsets_) return {make_tensor(memory.data(), DType::kBF16, {1, rows_, 1, head_dim}), {}};
    return {make_tensor(memory.data(), DType::kBF16, {rows_, 1, head_dim}), {}};
  }
  TensorView cu_seqlens() const {
    return offsets_ ? make_tensor(offsets_->data(), DType::kI32, {2}) : TensorView{};
  }

 private:
  std::int64_t rows_;
  std::optional<DeviceMemory> offsets_;
};

/// The case of a record about one head, dense and without a mask.
inline io::CaseRecord one_head(std::int64_t seqlen_q, std::int64_t seqlen_k,
                               std::int64_t head_dim) {
  return {.batch = 1,
          .num_heads = 1,
          .num_heads_kv = 1,
          .seqlen_q = seqlen_q,
          .seqlen_k = seqlen_k,
          .total_q = seqlen_q,
          .total_k = seqlen_k,
          .head_dim = head_dim,
          .causal = false,
          .jagged = false};
}

}  // namespace mxfa::bench
