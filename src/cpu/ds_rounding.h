#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "cpu/kernels.h"
#include "mxfa/types.h"

/// How a part of a tile of dS^T (keys x 64 queries) becomes FP8 payload for dK and dQ.
namespace mxfa::cpu {

/// Exponents of the tile's queries and keys, for folding; -127 where a block is zero.
struct TokenExponents {
  const int* q = nullptr;  ///< [64]
  const int* k = nullptr;  ///< [rows]
  int k_top = 0;           ///< the largest of the key tile
};
/// Largest exponents of the head: what folds are relative to where a square serves both products.
struct DsAnchors {
  int q = 0;
  int k = 0;
};

class DsRounding {
 public:
  /// Forgets the exponents that grow over the query tiles of one key tile.
  void begin_keys() { warp_exponents_.fill(kNoExponent); }

  /// Squares of 32 x 32, one payload for both products. With `anchors` the exponents of queries and
  /// keys are folded.
  void round_squares(const Kernels& kernels, const RoundTile& tile, TokenExponents exponents,
                     std::optional<DsAnchors> anchors, ScaleRule rule);
  /// dK's payload (tile.out): 16 keys x 64 queries, the queries' exponents folded, with an exponent
  /// that never shrinks from one query tile to the next. dQ's (tile.pairs): 64 keys x 64 queries,
  /// the keys' exponents folded. The part begins at key `first` of the tile, a multiple of 64.
  void round_warps(const Kernels& kernels, const RoundTile& tile, std::int64_t first,
                   TokenExponents exponents, ScaleRule rule);

  static constexpr std::int64_t kDqKeys = 64;

 private:
  static constexpr int kNoExponent = -1000;
  static constexpr int kMostKeys = 128;
  static constexpr int kWarpKeys = 16;

  std::array<int, kMostKeys / kWarpKeys> warp_exponents_{};
  std::array<float, kMostKeys> row_fold_{}, row_unfold_{};
  std::array<float, kPanel> col_fold_{}, col_unfold_{};
};

}  // namespace mxfa::cpu
