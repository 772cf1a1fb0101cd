#include "device/exact_attention.h"

#include "device/checks.h"

namespace mxfa::device {
namespace {

void check_operand(const AttentionOperand& x, std::string_view name, const void* payload) {
  core::expect(payload != nullptr || x.total == 0, name, "payload in the layout that is read",
               "none");
  core::expect(x.scales.data != nullptr || x.total == 0, name, "scales", "none");
  core::expect(x.head_dim == 64 || x.head_dim == 128, name, "head_dim 64 or 128 (padded)",
               x.head_dim);
}

}  // namespace

void exact_attention(const Queue& queue, const ExactAttentionParams& params) {
  constexpr int kThreads = 128;
  check_operand(params.q, "q", params.q.rows);
  check_operand(params.k, "k", params.k.rows);
  check_operand(params.v, "v", params.v.transposed);
  core::expect(params.v.order == TokenOrder::kPi, "v.order", "pi", "another");
  core::expect(params.k.num_heads > 0 && params.q.num_heads % params.k.num_heads == 0,
               "q.num_heads", core::later("a multiple of k.num_heads = {}", params.k.num_heads),
               params.q.num_heads);
  internal::expect_multiple(params.columns, "columns", 4);
  const std::int64_t works = params.rows * params.q.num_heads;
  if (works <= 0) return;
  driver::LaunchShape shape;
  shape.grid[0] = internal::grid_for(queue, works, kThreads / 32, 8);
  shape.block[0] = kThreads;
  queue.kernels.get("exact_attention", "exact_attention").launch(queue.stream, shape, params);
}

}  // namespace mxfa::device
