#include "cpu/forward_keys.h"

#include <algorithm>

namespace mxfa::cpu {
namespace {

std::int64_t panel_elems(std::int64_t dim) { return kTileKeys * (dim + round_up(dim, kPanel)); }

std::int64_t tiles_of(const attention::AttentionProblem& problem, std::int64_t sequence) {
  return mx::ceil_div(problem.seqlens().at(sequence).seqlen_k, kTileKeys);
}

}  // namespace

KeyPacker::KeyPacker(const ForwardCall& call, std::int64_t sequence, std::int64_t head_kv)
    : call_(call),
      k_(call.k, sequence, head_kv),
      v_(call.v, sequence, head_kv),
      dim_(call.problem.head_dim),
      panel_dim_(round_up(dim_, kPanel)) {}

void KeyPacker::pack(std::int64_t key0, Buffer<std::uint16_t>& rows, KeyTile& tile) {
  const Kernels& kernel = kernels();
  const std::int64_t cols = padded_keys(k_.size(), key0);
  std::uint16_t* const plain = rows.reserve(kTileKeys * panel_dim_);
  k_.read(key0, cols, dim_, plain, dim_);
  pack_columns(kernel, plain, dim_, cols, dim_, tile.k_panels);
  if (call_.arithmetic.leak_free) {
    v_.read_payload(key0, cols, panel_dim_, kLeakFreeMinExponent, plain, panel_dim_);
  } else {
    v_.read(key0, cols, panel_dim_, plain, panel_dim_);
  }
  tile.v_non_finite.clear();
  if (hides_keys(call_.problem.mask)) tile.v_non_finite.take(plain, cols, dim_, panel_dim_);
  pack_rows(kernel, plain, panel_dim_, cols, panel_dim_, tile.v_panels, cols * kPanel);
}

std::int64_t shared_key_bytes(const attention::AttentionProblem& problem) {
  constexpr std::int64_t kFewQueries = 256;  // of a key: packing it again costs a quarter of them
  constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;
  std::int64_t tiles = 0, most_queries = 0;
  for (std::int64_t s = 0; s < problem.batch; ++s) {
    tiles += tiles_of(problem, s);
    most_queries = std::max(most_queries, problem.seqlens().at(s).seqlen_q);
  }
  if (most_queries * problem.heads_per_kv() <= kFewQueries) return 0;
  const std::int64_t bytes = tiles * problem.num_heads_kv * panel_elems(problem.head_dim) *
                             std::int64_t{sizeof(std::uint16_t)};
  return bytes <= kMostBytes ? bytes : 0;
}

SharedKeys::SharedKeys(const ForwardCall& call) : heads_(call.problem.num_heads_kv) {
  const attention::AttentionProblem& problem = call.problem;
  if (call.shared_keys == nullptr) return;
  struct Part {
    std::int64_t sequence, head, tile;
  };
  std::vector<Part> parts;
  first_.push_back(0);
  for (std::int64_t s = 0; s < problem.batch; ++s) {
    const std::int64_t tiles = tiles_of(problem, s);
    first_.push_back(first_.back() + tiles);
    for (std::int64_t head = 0; head < heads_; ++head) {
      for (std::int64_t tile = 0; tile < tiles; ++tile) parts.push_back({s, head, tile});
    }
  }
  tiles_.resize(parts.size());
  const std::int64_t dim = problem.head_dim;
  for_each_unit<Buffer<std::uint16_t>>(
      std::ssize(parts), [&](Buffer<std::uint16_t>& rows, std::int64_t i) {
        const Part& part = parts[static_cast<std::size_t>(i)];
        KeyTile& tile = tiles_[static_cast<std::size_t>(i)];
        tile.k_panels = call.shared_keys + i * panel_elems(dim);
        tile.v_panels = tile.k_panels + kTileKeys * dim;
        KeyPacker(call, part.sequence, part.head).pack(part.tile * kTileKeys, rows, tile);
      });
}

}  // namespace mxfa::cpu
