#include "module/zero_gradients.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "mx/bits.h"

namespace mxfa::cli::module {
namespace {

double largest_bf16(std::span<const std::uint16_t> codes) {
  double top = 0;
  for (const std::uint16_t code : codes)
    top = std::max(top, std::abs(double{mx::decode_bf16(code)}));
  return top;
}

bool has_two_keys(const reference::CrossAttentionBatch& batch) {
  for (std::size_t s = 1; s < batch.cu_seqlens_k.size(); ++s) {
    if (batch.cu_seqlens_k[s] - batch.cu_seqlens_k[s - 1] > 1) return true;
  }
  return false;
}

/// Of RMSNorm over the rows of a BF16 matrix [rows, dim].
struct Norm {
  double rstd = 0;        ///< the largest 1 / rms
  double normalized = 0;  ///< the largest |x| / rms

  Norm(std::span<const std::uint16_t> codes, std::int64_t dim) {
    for (auto rest = codes; !rest.empty(); rest = rest.subspan(static_cast<std::size_t>(dim))) {
      const auto row = rest.first(static_cast<std::size_t>(dim));
      double squares = 0;
      for (const std::uint16_t code : row) squares += std::pow(double{mx::decode_bf16(code)}, 2);
      const double inverse = std::sqrt(static_cast<double>(dim) / squares);
      if (!std::isfinite(inverse)) continue;  // a row of zeros
      rstd = std::max(rstd, inverse);
      normalized = std::max(normalized, inverse * largest_bf16(row));
    }
  }
  /// |dx| for |dy| <= 1 and |weight| <= 1: dx = rstd (g - xhat mean(g xhat)), g = dy weight.
  double gradient() const { return rstd * (1 + normalized * normalized); }
};

}  // namespace

double largest_magnitude(std::span<const float> values) {
  double top = 0;
  for (const float value : values) {
    if (std::isnan(value)) return value;
    top = std::max(top, std::abs(double{value}));
  }
  return top;
}

std::map<std::string_view, double> zero_gradients(const reference::CrossAttentionBatch& batch,
                                                  const Step& step) {
  if (has_two_keys(batch)) return {};
  std::map<std::string_view, double> top;
  for (const StepTensor& tensor : step.tensors()) {
    top[tensor.name] = largest_magnitude(values_of(tensor));
  }
  const auto& sizes = batch.options;
  const auto depth = static_cast<double>(sizes.head_dim);
  const auto queries = static_cast<double>(sizes.seqlen_q);
  const auto keys = static_cast<double>(batch.total_k());
  const double scale = 1 / std::sqrt(depth);
  // What an operand in MXFP8 or a stored result may be above the value that it was rounded from.
  constexpr double kRounded = 1 + 0x1p-3;
  // dP and delta are the same sum of head_dim products, each rounded at most head_dim times.
  const double ds = 2 * depth * 0x1p-23 * depth * top["dout"] * top["v"];
  const double dq_seq = kRounded * kRounded * scale * ds * top["k"];
  const double dq = kRounded * dq_seq * static_cast<double>(sizes.batch);
  const double group = static_cast<double>(sizes.num_heads / sizes.num_heads_kv);
  const double dk = kRounded * kRounded * scale * ds * top["q"] * queries * group;
  const double dseed_norm =
      kRounded * kRounded * dq * largest_bf16(batch.wq) * static_cast<double>(batch.width_q());
  const Norm norm(batch.seeds, sizes.dim);
  const double weight = largest_bf16(batch.seed_norm_weight);
  return {{"dq_seq", dq_seq},
          {"dq", dq},
          {"dk", dk},
          {"dseed_norm", dseed_norm},
          {"dseeds", kRounded * dseed_norm * weight * norm.gradient()},
          {"dseed_norm_weight", kRounded * dseed_norm * norm.normalized * queries},
          {"dwq", kRounded * dq * top["seed_norm"] * queries},
          {"dwk", kRounded * dk * top["kv_norm"] * keys}};
}

}  // namespace mxfa::cli::module
