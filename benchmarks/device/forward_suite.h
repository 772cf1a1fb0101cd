#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "device/attention_tensors.h"

/// Speed and accuracy of attention forward on a device, through the public calls.
namespace mxfa::bench {

/// A dial of the call.
enum class ForwardVariant : std::uint8_t {
  kF32,           ///< none: scores in FP32
  kHalf,          ///< half_scores
  kBf16,          ///< qk_bf16
  kLeakFree,      ///< leak_free
  kLeakFreeHalf,  ///< leak_free and half_scores
};
inline constexpr std::string_view kForwardVariants[] = {"f32", "half", "qk-bf16", "leak-free",
                                                        "leak-free-half"};

/// One shape with its tensors (see device/call_suite.h).
class ForwardCase {
 public:
  using Variant = ForwardVariant;
  static constexpr std::string_view kName = "forward";
  static constexpr bool kWithDout = false;

  /// Of variant kF32.
  ForwardCase(const Device& device, CUstream stream, const AttentionTensors& tensors);

  /// Options and workspace of the variant, for all that follows.
  void use(ForwardVariant variant);
  const attention::ForwardArgs& args() const { return args_; }
  const attention::Options& options() const { return options_; }
  CallParts parts() const;
  double flops() const { return tensors_.shape().forward_flops(); }
  io::Record record() const;
  /// After the call: SQNR of o and the largest difference of lse (NaN where one is) of the sample,
  /// against attention in float64 on the BF16 inputs.
  void add_accuracy(io::Record& record) const;

 private:
  std::span<std::byte> workspace_span() const {
    return {reinterpret_cast<std::byte*>(workspace_->address()), workspace_->size_bytes()};
  }

  const AttentionTensors& tensors_;
  driver::DeviceBuffer o_, lse_, row_max_;
  attention::ForwardArgs args_;
  attention::Options options_;
  ForwardVariant variant_ = ForwardVariant::kF32;
  std::optional<driver::DeviceBuffer> workspace_;
};

}  // namespace mxfa::bench
