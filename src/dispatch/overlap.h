#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "mxfa/attention.h"
#include "mxfa/tensor.h"

/// Outputs that share memory with other tensors of a call.
namespace mxfa::dispatch {

/// Whether an element of one lies on an element of the other. Exact, whatever the strides, up to a
/// number of comparisons that only strides of no use exceed: nullopt then. Tensors that interleave,
/// as q, k and v in one buffer do, share nothing. Both are checked (check_tensor).
std::optional<bool> share_memory(const TensorView& a, const TensorView& b);

/// The checked tensors of one call, by name; they and their names outlive this. Those without
/// elements, or of rank 0, are left out.
class Overlaps {
 public:
  Overlaps() { entries_.reserve(16); }  // of a forward
  Overlaps(const Overlaps&) = delete;
  Overlaps& operator=(const Overlaps&) = delete;

  void input(const TensorView& tensor, std::string_view name);
  /// The name of scales: "o.scales".
  void input(const Tensor& tensor, std::string_view name);
  void output(const TensorView& tensor, std::string_view name);
  void output(const Tensor& tensor, std::string_view name);
  void workspace(std::span<std::byte> memory);

  /// Throws Error(kInvalidArgument) naming an output that shares memory with another tensor, and
  /// that tensor.
  void check() const;

 private:
  struct Entry {
    const TensorView* tensor;
    std::string_view name;
    bool scales;  ///< of the tensor of that name
    bool output;
    std::int64_t begin, end;  ///< addresses
  };
  void add(const TensorView& tensor, std::string_view name, bool scales, bool output);

  std::vector<Entry> entries_;
  TensorView workspace_;
};

/// Of an attention call, on any device.
void check_overlaps(const attention::ForwardArgs& args, std::span<std::byte> workspace);
void check_overlaps(const attention::BackwardArgs& args, std::span<std::byte> workspace);

}  // namespace mxfa::dispatch
