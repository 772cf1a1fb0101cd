#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/attention_case.h"
#include "common/operands.h"
#include "mxfa/attention.h"

/// One attention call on the CPU with its tensors: BF16 in and out; MXFP8 operands quantized in
/// advance, as producers make them.
namespace mxfa::bench {

class CpuAttention {
 public:
  CpuAttention(const AttentionCase& c, const attention::Options& options);

  void forward();
  /// After a forward.
  void backward();
  /// Of o, dq, dk and dv, after a forward and a backward.
  std::vector<std::pair<std::string, double>> accuracy() const;

 private:
  enum Role { kQ, kK, kV, kDout, kRoles };

  TensorView offsets(std::vector<std::int32_t>& values) const;
  TensorView rows(Values<float>& values) const;
  attention::Tensor output(Values<std::uint16_t>& values, Role like) const;
  attention::Tensor make_operand(Role role);
  attention::BackwardArgs backward_args();
  std::span<std::byte> workspace(std::int64_t bytes);

  AttentionCase case_;
  attention::Options options_;
  std::vector<std::int64_t> shapes_[kRoles];
  std::vector<std::int32_t> cu_seqlens_q_, cu_seqlens_k_;
  Values<std::uint16_t> values_[kRoles];
  Values<std::uint8_t> payload_[kRoles], scales_[kRoles];
  attention::Tensor operands_[kRoles];
  Values<std::uint16_t> o_, dq_, dk_, dv_;
  Values<float> lse_, row_max_;
  Values<std::byte> workspace_;  ///< of both passes, kept as a training loop keeps it
};

}  // namespace mxfa::bench
