#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/attention_case.h"
#include "common/timing.h"
#include "device/events.h"
#include "io/json_records.h"
#include "mxfa/attention.h"

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

/// One shape with its tensors: q, k, v in BF16 of N(0, 1).
class ForwardCase {
 public:
  ForwardCase(const Device& device, CUstream stream, const AttentionCase& c,
              ForwardVariant variant);

  const attention::ForwardArgs& args() const { return args_; }
  const attention::Options& options() const { return options_; }
  /// The call; its preparation; attention on what that left.
  void forward() const { attention::forward(args_, options_, workspace_span()); }
  void prepare() const { attention::prepare_forward(args_, options_, workspace_span()); }
  void attend() const { attention::forward_prepared(args_, options_, workspace_span()); }

  struct Accuracy {
    double o_db = 0;       ///< SQNR of o
    double lse_error = 0;  ///< largest difference
  };
  /// After a forward: of the last rows of the longest sequence's last head, against attention in
  /// float64 on the BF16 inputs.
  Accuracy accuracy() const;

 private:
  std::span<std::byte> workspace_span() const {
    return {reinterpret_cast<std::byte*>(workspace_->address()), workspace_->size_bytes()};
  }
  TensorView tensor(void* data, std::int64_t tokens, std::int64_t seqlen, std::int64_t heads) const;
  template <class T>
  std::vector<T> download(const driver::DeviceBuffer& buffer, std::int64_t first,
                          std::int64_t count) const;

  const Device& device_;
  AttentionCase case_;
  std::vector<std::int32_t> cu_k_;
  NoisyTensor q_, k_, v_;
  driver::DeviceBuffer cu_q_device_, cu_k_device_, o_, lse_;
  attention::ForwardArgs args_;
  attention::Options options_;
  std::optional<driver::DeviceBuffer> workspace_;
};

struct ForwardOptions {
  std::vector<AttentionCase> cases;
  std::vector<ForwardVariant> variants = {ForwardVariant::kF32, ForwardVariant::kHalf};
  RunPlan plan = {.warm_ups = 5, .runs = 30};
  bool timed = true;  ///< false in the emulator, whose time means nothing
  std::optional<double> fp8_gemm_tflops = std::nullopt;
};

/// A record for each case and variant: time of attention on prepared operands, of the
/// preparation and of the whole call (all in turns), rate, accuracy. `done` after each.
std::vector<io::Record> forward_records(const Device& device, const ForwardOptions& options,
                                        const std::function<void()>& done);

/// Host time of calls back to back, of a small batch, dense and jagged: attention on prepared
/// operands, the whole call, that replayed from a CUDA graph, and its checks alone.
std::vector<io::Record> host_time_records(const Device& device);

}  // namespace mxfa::bench
