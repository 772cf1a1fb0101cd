#include <mxfa/mxfa.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr std::int64_t kHeads = 4, kHeadsKv = 2, kHeadDim = 64;

using Rows = std::vector<std::uint16_t>;  // BF16 [tokens, heads, head_dim]

// What README.md shows: it holds the lines between the two marks as they are.
// [snippet]
struct Step {
  Rows q, k, v, dout;      // in: [total_q or total_k, heads or heads_kv, head_dim]
  Rows o, dq, dk, dv;      // out: as q, q, k, v
  std::vector<float> lse;  // [heads, total_q]
};

mxfa::Tensor bf16(Rows& rows, std::int64_t heads) {
  const auto tokens = static_cast<std::int64_t>(rows.size()) / (heads * kHeadDim);
  return {mxfa::make_tensor(rows.data(), mxfa::DType::kBF16, {tokens, heads, kHeadDim}), {}};
}

/// Sequence s has the rows [cu_q[s], cu_q[s + 1]) of q and [cu_k[s], cu_k[s + 1]) of k and v.
void attention_step(Step& x, std::vector<std::int32_t>& cu_q, std::vector<std::int32_t>& cu_k) {
  const auto batch_1 = static_cast<std::int64_t>(cu_q.size());
  mxfa::attention::Options options;
  options.causal = true;
  const mxfa::attention::ForwardArgs forward{
      .q = bf16(x.q, kHeads),
      .k = bf16(x.k, kHeadsKv),
      .v = bf16(x.v, kHeadsKv),
      .cu_seqlens_q = mxfa::make_tensor(cu_q.data(), mxfa::DType::kI32, {batch_1}),
      .cu_seqlens_k = mxfa::make_tensor(cu_k.data(), mxfa::DType::kI32, {batch_1}),
      .o = bf16(x.o, kHeads),
      .lse = mxfa::make_tensor(x.lse.data(), mxfa::DType::kF32, {kHeads, cu_q.back()})};
  mxfa::attention::forward(forward, options);

  mxfa::attention::BackwardArgs backward =
      mxfa::attention::backward_args(forward, bf16(x.dout, kHeads));
  backward.dq = bf16(x.dq, kHeads);
  backward.dk = bf16(x.dk, kHeadsKv);
  backward.dv = bf16(x.dv, kHeadsKv);
  mxfa::attention::backward(backward, options);
}
// [snippet]

float to_float(std::uint16_t bf16) {
  const std::uint32_t bits = std::uint32_t{bf16} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Values between -1 and 1 that look random; their last bits are cut off.
Rows rows(std::int64_t tokens, std::int64_t heads) {
  Rows result(static_cast<std::size_t>(tokens * heads * kHeadDim));
  static std::uint32_t state = 1;
  for (std::uint16_t& code : result) {
    state = state * 1664525 + 1013904223;
    const float value = static_cast<float>(state >> 8) * 0x1p-23F - 1.0F;
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    code = static_cast<std::uint16_t>(bits >> 16);
  }
  return result;
}

double norm(const Rows& values) {
  double sum = 0;
  for (const std::uint16_t code : values) sum += std::pow(to_float(code), 2);
  return std::sqrt(sum);
}

}  // namespace

/// Attention of one training step on the CPU: o and the gradients of q, k and v.
int main() {
  std::vector<std::int32_t> cu_q{0, 100, 300}, cu_k{0, 120, 320};
  Step x{.q = rows(300, kHeads),
         .k = rows(320, kHeadsKv),
         .v = rows(320, kHeadsKv),
         .dout = rows(300, kHeads),
         .o = rows(300, kHeads),
         .dq = rows(300, kHeads),
         .dk = rows(320, kHeadsKv),
         .dv = rows(320, kHeadsKv),
         .lse = std::vector<float>(std::size_t{kHeads} * 300)};
  try {
    attention_step(x, cu_q, cu_k);
    std::printf("norms: o %.1f, dq %.2f, dk %.2f, dv %.1f\n", norm(x.o), norm(x.dq), norm(x.dk),
                norm(x.dv));
    x.k.resize(x.k.size() / 2);  // fewer rows than cu_k says
    attention_step(x, cu_q, cu_k);
  } catch (const mxfa::Error& error) {
    std::printf("refused: %s\n", error.what());
    return 0;
  }
  return 1;
}
