#include "reference/cross_attention_batch.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/parallel.h"
#include "mx/bits.h"
#include "reference/stream.h"

namespace mxfa::reference {
namespace {

/// The values enter every batch: never renumber them. A tensor's draws take the stream of its
/// purpose plus the index of each 4096 rows.
enum class Purpose : std::uint64_t {
  kLengths = 100,
  kSeeds = 101,
  kSeedNorm = 102,
  kKvNorm = 103,
  kWq = 104,
  kWk = 105,
  kWv = 106,
  kWo = 107,
  kKv = 1ULL << 32,
  kDy = 2ULL << 32,
};

std::vector<std::int32_t> draw_lengths(const CrossAttentionBatchOptions& options) {
  Stream stream(options.seed, static_cast<std::uint64_t>(Purpose::kLengths));
  const double scale = static_cast<double>(options.max_seqlen_k) * (1 - options.sparsity);
  std::vector<std::int32_t> offsets{0};
  for (std::int64_t s = 0; s < options.batch; ++s) {
    const double drawn = scale * (stream.uniform() + stream.uniform());
    const std::int64_t length = std::min<std::int64_t>(options.max_seqlen_k, std::llround(drawn));
    const std::int64_t end = offsets.back() + length;
    core::expect(end <= INT32_MAX, "max-kv", "fewer than 2^31 keys in the batch", core::text(end));
    offsets.push_back(static_cast<std::int32_t>(end));
  }
  return offsets;
}

struct Extents {
  std::int64_t rows, cols;
};
/// [rows, cols] of mean + sigma * n.
std::vector<std::uint16_t> draw(std::uint64_t seed, Purpose purpose, Extents extents, double sigma,
                                double mean) {
  const auto [rows, cols] = extents;
  constexpr std::int64_t kRows = 4096;
  std::vector<std::uint16_t> values(static_cast<std::size_t>(rows * cols));
  core::parallel_for((rows + kRows - 1) / kRows, [&, rows = rows, cols = cols](std::int64_t block) {
    Stream stream(seed, static_cast<std::uint64_t>(purpose) + static_cast<std::uint64_t>(block));
    const std::int64_t end = std::min(rows, (block + 1) * kRows) * cols;
    for (std::int64_t i = block * kRows * cols; i < end; ++i) {
      values[static_cast<std::size_t>(i)] =
          mx::encode_bf16(static_cast<float>(mean + sigma * stream.normal()));
    }
  });
  return values;
}

std::vector<double> to_double(const std::vector<std::uint16_t>& codes) {
  std::vector<double> values;
  values.reserve(codes.size());
  for (const std::uint16_t code : codes) values.push_back(mx::decode_bf16(code));
  return values;
}

}  // namespace

CrossAttentionBatchOptions checked(CrossAttentionBatchOptions options) {
  const auto at_least = [](std::int64_t value, std::int64_t least, std::string_view name) {
    core::expect(value >= least, name, fmt::format("at least {}", least), core::text(value));
  };
  at_least(options.batch, 0, "batch");
  at_least(options.seqlen_q, 1, "seed-queries");
  at_least(options.num_heads, 1, "heads");
  at_least(options.dim, 1, "dim");
  at_least(options.max_seqlen_k, 0, "max-kv");
  at_least(options.num_heads_kv, 0, "heads-kv");
  at_least(options.head_dim, 0, "head-dim");
  core::expect(options.head_dim > 0 || options.dim % options.num_heads == 0, "dim",
               fmt::format("a multiple of the {} heads", options.num_heads),
               core::text(options.dim));
  core::expect(options.sparsity >= 0 && options.sparsity <= 1, "sparsity", "0 .. 1",
               fmt::format("{}", options.sparsity));
  if (options.head_dim == 0) options.head_dim = options.dim / options.num_heads;
  if (options.num_heads_kv == 0) options.num_heads_kv = options.num_heads;
  return options;
}

CrossAttentionBatch make_cross_attention_batch(const CrossAttentionBatchOptions& given) {
  CrossAttentionBatch batch;
  batch.options = checked(given);
  const CrossAttentionBatchOptions& options = batch.options;
  const std::int64_t dim = options.dim;
  const double sigma = 1 / std::sqrt(static_cast<double>(dim));
  const double sigma_o = 1 / std::sqrt(static_cast<double>(batch.width_q()));
  const auto drawn = [&](Purpose purpose, std::int64_t rows, std::int64_t cols, double deviation,
                         double mean = 0) {
    return draw(options.seed, purpose, {rows, cols}, deviation, mean);
  };
  batch.cu_seqlens_k = draw_lengths(options);
  batch.seeds = drawn(Purpose::kSeeds, options.seqlen_q, dim, 1);
  batch.kv = drawn(Purpose::kKv, batch.total_k(), dim, 1);
  batch.seed_norm_weight = drawn(Purpose::kSeedNorm, 1, dim, 0.1, 1);
  batch.kv_norm_weight = drawn(Purpose::kKvNorm, 1, dim, 0.1, 1);
  batch.wq = drawn(Purpose::kWq, batch.width_q(), dim, sigma);
  batch.wk = drawn(Purpose::kWk, batch.width_kv(), dim, sigma);
  batch.wv = drawn(Purpose::kWv, batch.width_kv(), dim, sigma);
  batch.wo = drawn(Purpose::kWo, dim, batch.width_q(), sigma_o);
  batch.dy = drawn(Purpose::kDy, batch.rows_o(), dim, 1e-3);
  return batch;
}

CrossAttentionInputs CrossAttentionBatch::inputs() const {
  const auto matrix = [](const std::vector<std::uint16_t>& codes, std::int64_t cols) {
    Matrix<double> result;
    result.cols = cols;
    result.rows = std::ssize(codes) / cols;
    result.data = to_double(codes);
    return result;
  };
  return {.num_heads = options.num_heads,
          .num_heads_kv = options.num_heads_kv,
          .head_dim = options.head_dim,
          .cu_seqlens_k = cu_seqlens_k,
          .seeds = matrix(seeds, options.dim),
          .kv = matrix(kv, options.dim),
          .seed_norm_weight = to_double(seed_norm_weight),
          .kv_norm_weight = to_double(kv_norm_weight),
          .wq = matrix(wq, options.dim),
          .wk = matrix(wk, options.dim),
          .wv = matrix(wv, options.dim),
          .wo = matrix(wo, width_q()),
          .dy = matrix(dy, options.dim)};
}

}  // namespace mxfa::reference
