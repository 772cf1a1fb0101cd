#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "device/attention_tensors.h"

/// Speed and accuracy of attention forward on a device, through the public calls.
namespace mxfa::bench {

/// A dial of the call.
enum class ForwardVariant : std::uint8_t {
  kF32,       ///< none: scores in FP32
  kHalf,      ///< half_scores
  kBf16,      ///< qk_bf16
  kLeakFree,  ///< leak_free
};
inline constexpr std::string_view kForwardVariants[] = {"f32", "half", "qk-bf16", "leak-free"};

/// One shape with its tensors.
class ForwardCase {
 public:
  ForwardCase(const Device& device, CUstream stream, const AttentionTensors& tensors,
              ForwardVariant variant);

  const attention::ForwardArgs& args() const { return args_; }
  const attention::Options& options() const { return options_; }
  const driver::DeviceBuffer& o() const { return o_; }
  const driver::DeviceBuffer& lse() const { return lse_; }
  /// The call; its preparation; attention on what that left.
  void forward() const { attention::forward(args_, options_, workspace_span()); }
  void prepare() const { attention::prepare_forward(args_, options_, workspace_span()); }
  void attend() const { attention::forward_prepared(args_, options_, workspace_span()); }

  struct Accuracy {
    double o_db = 0;       ///< SQNR of o
    double lse_error = 0;  ///< largest difference; NaN where one is
  };
  /// After a forward: of the sample, against attention in float64 on the BF16 inputs.
  Accuracy accuracy() const;

 private:
  std::span<std::byte> workspace_span() const {
    return {reinterpret_cast<std::byte*>(workspace_->address()), workspace_->size_bytes()};
  }

  const AttentionTensors& tensors_;
  driver::DeviceBuffer o_, lse_, row_max_;
  attention::ForwardArgs args_;
  attention::Options options_;
  std::optional<driver::DeviceBuffer> workspace_;
};

/// A record for each case and variant: time of attention on prepared operands, of the
/// preparation and of the whole call (all in turns), rate, accuracy. `done` after each.
std::vector<io::Record> forward_records(const Device& device,
                                        const std::vector<AttentionCase>& cases,
                                        const std::vector<ForwardVariant>& variants,
                                        const SpeedOptions& options,
                                        const std::function<void()>& done);

/// Host time of calls back to back, of a small batch, dense and jagged: their checks alone, the
/// preparation, attention on prepared operands, the whole call, that replayed from a CUDA graph.
std::vector<io::Record> forward_host_time_records(const Device& device);

}  // namespace mxfa::bench
