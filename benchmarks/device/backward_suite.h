#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "device/forward_suite.h"

/// Speed and accuracy of attention backward on a device, through the public calls.
namespace mxfa::bench {

/// What dQ's sums are made in, and scores.
enum class BackwardVariant : std::uint8_t {
  kF32,
  kF16,            ///< dq_accum
  kDeterministic,  ///< FP32, in the order of the keys
  kHalf,           ///< half_scores, dQ in FP32
  kHalfF16,        ///< half_scores, dq_accum in F16
  kQkBf16,         ///< qk_bf16, behind such a forward
  kDpBf16,         ///< dp_bf16
  kBf16,           ///< both
  kLeakFree,       ///< leak_free, behind such a forward
};
inline constexpr std::string_view kBackwardVariants[] = {"fp32",    "fp16",      "deterministic",
                                                         "half",    "half-fp16", "qk-bf16",
                                                         "dp-bf16", "bf16",      "leak-free"};

/// One shape with its tensors and what a forward left (see device/call_suite.h).
class BackwardCase {
 public:
  using Variant = BackwardVariant;
  static constexpr std::string_view kName = "backward";
  static constexpr bool kWithDout = true;

  /// Runs the forward. Of variant kF32.
  BackwardCase(const Device& device, CUstream stream, const AttentionTensors& tensors);

  /// Options and workspace of the variant, for all that follows. Runs the forward anew where the
  /// one that has run is not what this variant follows.
  void use(BackwardVariant variant);
  const attention::BackwardArgs& args() const { return args_; }
  const attention::Options& options() const { return options_; }
  CallParts parts() const;
  double flops() const { return tensors_.shape().backward_flops(); }
  io::Record record() const;
  /// After the call: SQNR of dq of the sample, and of dk and dv of its sequence's first keys,
  /// summed over all queries.
  void add_accuracy(io::Record& record);

 private:
  /// In float64 from the BF16 inputs alone: no result of the device goes into them.
  struct Gradients {
    std::vector<double> dq, dk, dv;
  };
  Gradients wanted() const;
  void run_forward(ForwardVariant variant);
  std::span<std::byte> workspace_span() const {
    return {reinterpret_cast<std::byte*>(workspace_->address()), workspace_->size_bytes()};
  }

  const AttentionTensors& tensors_;
  ForwardCase forward_;
  std::optional<ForwardVariant> forward_variant_;  ///< that has run
  driver::DeviceBuffer dq_, dk_, dv_;
  attention::BackwardArgs args_;
  attention::Options options_;
  BackwardVariant variant_ = BackwardVariant::kF32;
  std::optional<driver::DeviceBuffer> workspace_;
  std::optional<Gradients> wanted_;  ///< of all variants
};

}  // namespace mxfa::bench
