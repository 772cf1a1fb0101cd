#include "reference/cross_attention_batch.h"

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

void check(const CrossAttentionBatchOptions& options) {
  const auto at_least = [](std::int64_t value, std::int64_t least, std::string_view name) {
    core::expect(value >= least, name, fmt::format("at least {}", least), core::text(value));
  };
  at_least(options.batch, 0, "batch");
  at_least(options.seqlen_q, 1, "seed-queries");
  at_least(options.num_heads, 1, "heads");
  at_least(options.dim, 1, "dim");
  at_least(options.max_seqlen_k, 0, "max-kv");
  core::expect(options.dim % options.num_heads == 0, "dim",
               fmt::format("a multiple of the {} heads", options.num_heads),
               core::text(options.dim));
  core::expect(options.sparsity >= 0 && options.sparsity <= 1, "sparsity", "0 .. 1",
               fmt::format("{}", options.sparsity));
}

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

/// [rows, cols] of mean + sigma * n.
std::vector<std::uint16_t> draw(std::uint64_t seed, Purpose purpose, std::int64_t rows,
                                std::int64_t cols, double sigma, double mean = 0) {
  constexpr std::int64_t kRows = 4096;
  std::vector<std::uint16_t> values(static_cast<std::size_t>(rows * cols));
  core::parallel_for((rows + kRows - 1) / kRows, [&](std::int64_t block) {
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

CrossAttentionBatch make_cross_attention_batch(const CrossAttentionBatchOptions& options) {
  check(options);
  const std::int64_t dim = options.dim;
  const double sigma = 1 / std::sqrt(static_cast<double>(dim));
  CrossAttentionBatch batch;
  batch.options = options;
  batch.cu_seqlens_k = draw_lengths(options);
  batch.seeds = draw(options.seed, Purpose::kSeeds, options.seqlen_q, dim, 1);
  batch.kv = draw(options.seed, Purpose::kKv, batch.total_k(), dim, 1);
  batch.seed_norm_weight = draw(options.seed, Purpose::kSeedNorm, 1, dim, 0.1, 1);
  batch.kv_norm_weight = draw(options.seed, Purpose::kKvNorm, 1, dim, 0.1, 1);
  batch.wq = draw(options.seed, Purpose::kWq, dim, dim, sigma);
  batch.wk = draw(options.seed, Purpose::kWk, dim, dim, sigma);
  batch.wv = draw(options.seed, Purpose::kWv, dim, dim, sigma);
  batch.wo = draw(options.seed, Purpose::kWo, dim, dim, sigma);
  batch.dy = draw(options.seed, Purpose::kDy, options.batch * options.seqlen_q, dim, 1e-3);
  return batch;
}

CrossAttentionInputs CrossAttentionBatch::inputs() const {
  const auto matrix = [&](const std::vector<std::uint16_t>& codes) {
    Matrix<double> result;
    result.cols = options.dim;
    result.rows = std::ssize(codes) / options.dim;
    result.data = to_double(codes);
    return result;
  };
  return {.num_heads = options.num_heads,
          .num_heads_kv = options.num_heads,
          .head_dim = head_dim(),
          .cu_seqlens_k = cu_seqlens_k,
          .seeds = matrix(seeds),
          .kv = matrix(kv),
          .seed_norm_weight = to_double(seed_norm_weight),
          .kv_norm_weight = to_double(kv_norm_weight),
          .wq = matrix(wq),
          .wk = matrix(wk),
          .wv = matrix(wv),
          .wo = matrix(wo),
          .dy = matrix(dy)};
}

}  // namespace mxfa::reference
