#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cpu/attention_backward.h"

/// How the backward's work is cut. Internal to attention_backward().
namespace mxfa::cpu {

/// Tiles of chunk `index` of `chunks` of a sequence's keys; empty where it has fewer tiles.
attention::KeyRange chunk_tiles(const attention::Sequence& sequence, std::int64_t index,
                                std::int64_t chunks);

/// Pieces of all chunks, longest first.
class KeyPieces {
 public:
  explicit KeyPieces(const attention::AttentionProblem& problem);

  std::int64_t size() const { return std::ssize(pieces_); }
  /// Calls body(piece i) once the pieces before it in its chunk are done. To be called in ascending
  /// order, by any threads: what a piece waits for has then begun.
  template <class Body>
  void run(std::int64_t i, Body body) {
    const KeyPiece& piece = pieces_[static_cast<std::size_t>(i)];
    if (turns_.empty()) return body(piece);
    std::atomic<int>& turn = turns_[static_cast<std::size_t>(piece.chunk)];
    for (int now = turn.load(); now != piece.turn; now = turn.load()) turn.wait(now);
    const NextTurn next{turn};
    body(piece);
  }

 private:
  /// Also where a piece fails: the next one must not wait for ever.
  struct NextTurn {
    std::atomic<int>& turn;
    ~NextTurn() {
      ++turn;
      turn.notify_all();
    }
  };

  void add_chunk(KeyPiece piece, attention::KeyRange tiles);

  std::vector<KeyPiece> pieces_;
  std::vector<std::atomic<int>> turns_;  ///< [chunks]: whose it is; empty where each is one piece
};

}  // namespace mxfa::cpu
