#include "cpu/key_pieces.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <thread>
#include <vector>

namespace mxfa::testing {
namespace {

using attention::AttentionProblem;
using cpu::KeyPiece;

struct Shape {
  std::int64_t heads, heads_kv;
  std::vector<std::int32_t> offsets_q, offsets_k;
};

AttentionProblem problem_of(const Shape& shape) {
  return {.batch = std::ssize(shape.offsets_k) - 1,
          .num_heads = shape.heads,
          .num_heads_kv = shape.heads_kv,
          .head_dim = 64,
          .total_q = shape.offsets_q.back(),
          .total_k = shape.offsets_k.back(),
          .cu_seqlens_q = shape.offsets_q,
          .cu_seqlens_k = shape.offsets_k};
}

/// Each key tile comes once for each group of heads, and a chunk's pieces in the order of their
/// turns, none longer than the one before: so none waits for one that has not begun.
TEST(KeyPieces, CoverEachTileOnceInOrder) {
  const std::vector<Shape> shapes{{8, 8, {0, 2048}, {0, 2048}},
                                  {4, 2, {0, 700}, {0, 900}},
                                  {3, 1, {0, 130, 130, 600}, {0, 300, 700, 700}},
                                  {1, 1, {0, 1}, {0, 4000}},
                                  {1, 1, {0, 0}, {0, 513}},
                                  {2, 2, {0, 64}, {0, 1}},
                                  {40, 40, {0, 500}, {0, 500}}};
  for (const Shape& shape : shapes) {
    const AttentionProblem problem = problem_of(shape);
    cpu::KeyPieces pieces(problem);
    std::map<std::int64_t, int> turns;  // of a chunk
    std::map<std::array<std::int64_t, 4>, int> tiles;
    std::int64_t last = std::int64_t{1} << 40;
    for (std::int64_t i = 0; i < pieces.size(); ++i) {
      pieces.run(i, [&](const KeyPiece& piece) {
        const std::int64_t work =
            (piece.tile_end - piece.tile_begin) * problem.seqlens().at(piece.sequence).seqlen_q;
        EXPECT_LE(work, last);
        last = work;
        EXPECT_EQ(piece.turn, turns[piece.chunk]++);
        for (std::int64_t tile = piece.tile_begin; tile < piece.tile_end; ++tile) {
          ++tiles[{piece.sequence, piece.head_kv, piece.group, tile}];
        }
      });
    }
    std::int64_t wanted = 0;
    for (std::int64_t s = 0; s < problem.batch; ++s) {
      wanted += (problem.seqlens().at(s).seqlen_k + cpu::kTileKeys - 1) / cpu::kTileKeys;
    }
    EXPECT_EQ(std::ssize(tiles), wanted * shape.heads_kv * cpu::key_groups(problem));
    for (const auto& [at, count] : tiles) EXPECT_EQ(count, 1);
  }
}

/// A piece waits for the one before it in its chunk, also where that one fails.
TEST(KeyPieces, TakeTurns) {
  const Shape shape{1, 1, {0, 64}, {0, 512}};
  const AttentionProblem problem = problem_of(shape);
  cpu::KeyPieces pieces(problem);
  ASSERT_EQ(pieces.size(), 4);
  std::atomic<bool> done[2][2] = {};  // [chunk][turn]
  std::vector<std::thread> threads;
  for (std::int64_t i = pieces.size(); i-- > 0;) {
    threads.emplace_back([&, i] {
      const auto run = [&] {
        pieces.run(i, [&](const KeyPiece& piece) {
          EXPECT_TRUE(piece.turn == 0 || done[piece.chunk][0].load());
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          done[piece.chunk][piece.turn] = true;
          if (piece.turn == 0) throw std::runtime_error("the first of a chunk");
        });
      };
      try {
        run();
      } catch (const std::runtime_error&) {
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& chunk : done) EXPECT_TRUE(chunk[0] && chunk[1]);
}

/// Where there are few chunks for each thread, the last pieces are short.
TEST(KeyPieces, TheLastAreShort) {
  const Shape shape{8, 8, {0, 2048}, {0, 2048}};
  const AttentionProblem problem = problem_of(shape);
  cpu::KeyPieces pieces(problem);
  EXPECT_EQ(cpu::key_chunks(problem), 4);
  ASSERT_EQ(pieces.size(), 64);
  for (std::int64_t i = 0; i < pieces.size(); ++i) {
    pieces.run(i, [&](const KeyPiece& piece) {
      EXPECT_EQ(piece.tile_end - piece.tile_begin, i < 32 ? 3 : 1);
    });
  }
}

}  // namespace
}  // namespace mxfa::testing
