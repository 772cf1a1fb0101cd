#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "io/safetensors.h"
#include "mxfa/error.h"

namespace {

/// Any bytes are either refused with Error or read completely: every tensor's elements lie inside
/// the file and together they fit it.
void read_or_refuse(std::span<const std::byte> bytes) {
  using namespace mxfa;
  try {
    const auto reader = io::SafetensorsReader::from_bytes(bytes, "fuzz");
    std::uint64_t total = 0;
    for (const io::TensorEntry& entry : reader.tensors()) {
      total += entry.size_bytes;
      if (reader.find(entry.name) != &entry) std::abort();
      if (!entry.dtype || entry.shape.size() > kMaxRank) continue;
      const io::HostTensor tensor = reader.read(entry);
      if (tensor.bytes.size() != entry.size_bytes) std::abort();
      const TensorView view = tensor.view();
      if (!view.is_contiguous()) std::abort();
      const bool is_float =
          view.dtype == DType::kF32 || view.dtype == DType::kF16 || view.dtype == DType::kBF16;
      if (is_float && static_cast<std::int64_t>(io::to_f32(tensor).size()) != view.num_elements()) {
        std::abort();
      }
    }
    if (total > bytes.size()) std::abort();
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  read_or_refuse(bytes);
  if (size < 8) return 0;
  // Most mutations break the length field, so try the same bytes with a length that fits as well.
  std::vector<std::byte> fitted(bytes.begin(), bytes.end());
  const std::size_t length = (data[0] | std::size_t{data[1]} << 8) % (size - 7);
  for (std::size_t i = 0; i < 8; ++i) fitted[i] = static_cast<std::byte>(length >> (8 * i));
  read_or_refuse(fitted);
  return 0;
}
