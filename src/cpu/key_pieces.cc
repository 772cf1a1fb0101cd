#include "cpu/key_pieces.h"

#include <algorithm>

namespace mxfa::cpu {
namespace {

constexpr std::int64_t kWantedUnits = 32;  // enough for the cores of one socket

}  // namespace

attention::KeyRange chunk_tiles(const attention::Sequence& sequence, std::int64_t index,
                                std::int64_t chunks) {
  const std::int64_t tiles = mx::ceil_div(sequence.seqlen_k, kTileKeys);
  return {index * tiles / chunks, (index + 1) * tiles / chunks};
}

std::int64_t key_groups(const attention::AttentionProblem& problem) {
  const std::int64_t heads = problem.heads_per_kv();
  std::int64_t groups = 1;
  while (groups < heads &&
         (heads % groups != 0 || problem.batch * problem.num_heads_kv * groups < kWantedUnits)) {
    ++groups;
  }
  return groups;
}

std::int64_t key_chunks(const attention::AttentionProblem& problem) {
  constexpr std::int64_t kMostChunks = 8;  // bounds the scratch of dQ's sums
  constexpr std::int64_t kLeastTiles = 2;  // of a chunk: each reads all queries
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s < problem.batch; ++s) {
    longest = std::max(longest, problem.seqlens().at(s).seqlen_k);
  }
  const std::int64_t units =
      std::max<std::int64_t>(1, problem.batch * problem.num_heads_kv * key_groups(problem));
  const std::int64_t most = std::min(kMostChunks, mx::ceil_div(longest, kLeastTiles * kTileKeys));
  return std::clamp<std::int64_t>(mx::ceil_div(kWantedUnits, units), 1,
                                  std::max<std::int64_t>(most, 1));
}

/// One chunk always remains, so that its dQ and empty sequences are written.
KeyPieces::KeyPieces(const attention::AttentionProblem& problem) {
  const std::int64_t chunks = key_chunks(problem), groups = key_groups(problem);
  const std::int64_t of_sequence = problem.num_heads_kv * chunks * groups;
  const std::int64_t all = problem.batch * of_sequence;
  if (chunks > 1) turns_ = std::vector<std::atomic<int>>(static_cast<std::size_t>(all));
  for (std::int64_t i = 0; i < all; ++i) {
    const attention::Sequence lengths = problem.seqlens().at(i / of_sequence);
    const attention::KeyRange tiles = chunk_tiles(lengths, i % chunks, chunks);
    if (tiles.empty() && chunks > 1) continue;
    KeyPiece piece{.sequence = i / of_sequence,
                   .head_kv = i % of_sequence / chunks / groups,
                   .index = i % chunks,
                   .group = i / chunks % groups,
                   .chunk = i};
    piece.head_begin = piece.group * problem.heads_per_kv() / groups;
    piece.head_end = (piece.group + 1) * problem.heads_per_kv() / groups;
    add_chunk(piece, tiles);
  }
  // Longest first, so that threads end together; no result depends on the order. No piece is longer
  // than the one before it in its chunk.
  const auto work = [&](const KeyPiece& piece) {
    return (piece.tile_end - piece.tile_begin) * problem.seqlens().at(piece.sequence).seqlen_q;
  };
  std::stable_sort(pieces_.begin(), pieces_.end(),
                   [&](const KeyPiece& a, const KeyPiece& b) { return work(a) > work(b); });
}

/// Where sequences have several chunks there are few for each thread, and threads are not equally
/// fast: the last key tile of a chunk is a piece of its own, so that they end together. By then the
/// rest of its chunk, which it waits for, has long been done.
void KeyPieces::add_chunk(KeyPiece piece, attention::KeyRange tiles) {
  const bool cuts = !turns_.empty() && tiles.end - tiles.begin > 1;
  piece.tile_begin = tiles.begin;
  piece.tile_end = cuts ? tiles.end - 1 : tiles.end;
  pieces_.push_back(piece);
  if (!cuts) return;
  piece.tile_begin = piece.tile_end;
  piece.tile_end = tiles.end;
  piece.turn = 1;
  pieces_.push_back(piece);
}

}  // namespace mxfa::cpu
