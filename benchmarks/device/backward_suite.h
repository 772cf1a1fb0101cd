#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "device/forward_suite.h"

/// Speed and accuracy of attention backward on a device, through the public calls.
namespace mxfa::bench {

/// What dQ's sums are made in.
enum class BackwardVariant : std::uint8_t {
  kF32,
  kF16,            ///< dq_accum
  kDeterministic,  ///< FP32, in the order of the keys
};
inline constexpr std::string_view kBackwardVariants[] = {"fp32", "fp16", "deterministic"};

/// One shape with its tensors and what a forward left.
class BackwardCase {
 public:
  /// Runs the forward.
  BackwardCase(const Device& device, CUstream stream, const AttentionTensors& tensors);

  /// Options and workspace of the variant, for all that follows.
  void use(BackwardVariant variant);
  const attention::BackwardArgs& args() const { return args_; }
  const attention::Options& options() const { return options_; }
  /// The call; its preparation; the gradients from what that left.
  void backward() const { attention::backward(args_, options_, workspace_span()); }
  void prepare() const { attention::prepare_backward(args_, options_, workspace_span()); }
  void attend() const { attention::backward_prepared(args_, options_, workspace_span()); }

  /// What is checked: dq of the sample, dk and dv of its sequence's first keys, summed over all
  /// queries.
  struct Gradients {
    std::vector<double> dq, dk, dv;
  };
  /// They in float64 from the BF16 inputs alone. No result of the device goes into them.
  Gradients wanted() const;
  /// After a backward: SQNR of dq, dk and dv against what is wanted().
  std::vector<std::pair<std::string, double>> accuracy(const Gradients& want) const;

 private:
  std::span<std::byte> workspace_span() const {
    return {reinterpret_cast<std::byte*>(workspace_->address()), workspace_->size_bytes()};
  }

  const AttentionTensors& tensors_;
  ForwardCase forward_;
  driver::DeviceBuffer dq_, dk_, dv_;
  attention::BackwardArgs args_;
  attention::Options options_;
  std::optional<driver::DeviceBuffer> workspace_;
};

/// A record for each case and variant, as forward_records().
std::vector<io::Record> backward_records(const Device& device,
                                         const std::vector<AttentionCase>& cases,
                                         const std::vector<BackwardVariant>& variants,
                                         const SpeedOptions& options,
                                         const std::function<void()>& done);

/// As forward_host_time_records().
std::vector<io::Record> backward_host_time_records(const Device& device);

}  // namespace mxfa::bench
