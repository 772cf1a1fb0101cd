#pragma once

#include <cstdint>

#include "attention/seqlen.h"
#include "cpu/attention.h"
#include "cpu/attention_tiles.h"
#include "cpu/backward_queries.h"
#include "cpu/ds_rounding.h"
#include "cpu/non_finite.h"
#include "cpu/units.h"

/// The backward of one piece of a chunk of keys. Internal to attention_backward().
namespace mxfa::cpu {

// A block is what passes over the queries together, a span what of them is worked on between two
// additions to the block's sums: both make sums, which lie in the second cache, move less often.
inline constexpr std::int64_t kBlockTiles = 4;
inline constexpr std::int64_t kBlockKeys = kBlockTiles * kTileKeys;
inline constexpr std::int64_t kSpanTiles = 2;
inline constexpr std::int64_t kSpanQueries = kSpanTiles * kTileQueries;
/// Keys whose scores and dP stay in the first cache, from their products until they are rounded: so
/// many share a scale in Hopper's recipe.
inline constexpr std::int64_t kPartKeys = DsRounding::kDqKeys;

inline constexpr LeftLayout kWeightsLayout = LeftLayout::pieces(kSpanQueries);  // [kTileKeys, .]
inline constexpr LeftLayout kDsLayout = LeftLayout::pieces(kBlockKeys);         // [kSpanQueries, .]

/// What one thread works on: key tiles [tile_begin, tile_end) of one chunk of a (sequence, kv
/// head), and some of its query heads.
struct KeyPiece {
  std::int64_t sequence = 0;
  std::int64_t head_kv = 0;
  std::int64_t index = 0;  ///< of the chunk among the sequence's
  std::int64_t tile_begin = 0;
  std::int64_t tile_end = 0;
  std::int64_t group = 0;
  std::int64_t head_begin = 0;  ///< of the group's query heads, counted from the kv head's first
  std::int64_t head_end = 0;
  std::int64_t chunk = 0;  ///< among all
  /// Pieces of a chunk add to the same sums of dQ: one after the other, in this order.
  int turn = 0;
};

struct BackwardScratch {
  /// A key tile: operands, sums, and how its dS is rounded.
  struct Keys {
    std::int64_t first = 0;                ///< in its sequence
    std::int64_t real = 0;                 ///< keys that exist
    std::int64_t count = 0;                ///< padded to whole scale blocks
    attention::KeyRange seen_by = {};      ///< query rows, begin rounded down to whole tiles
    Buffer<std::uint16_t> k_rows, v_rows;  ///< tiles in pieces, as dk and dv
    Buffer<float> dk, dv;
    Buffer<int> exponent;
    int exponent_top = 0;
    NonFinite non_finite;
    DsRounding rounding;

    void reserve(std::int64_t dim, std::int64_t panel_dim);
    bool seen_from(std::int64_t row) const { return seen_by.begin <= row && row < seen_by.end; }
  };
  Keys keys[kBlockTiles];
  Buffer<std::uint16_t> k_panels;  ///< k = the block's keys
  Buffer<std::uint16_t> rows;      ///< before packing
  Buffer<std::uint16_t> p, ds;     ///< of a key tile: P^T and dS^T, kWeightsLayout
  Buffer<std::uint16_t> ds_pairs;  ///< of a part: [kPartKeys / 2][kTileQueries][2]
  Buffer<std::uint16_t> ds_rows;   ///< dS, kDsLayout
  Buffer<float> s, dp;             ///< of a part [kPartKeys, kTileQueries]
  Buffer<float> ones;
  Buffer<float> gradient;  ///< rows of dK or dV [kScaleBlock, panel_dim]
  Buffer<std::int32_t> begin, end;
  std::vector<bool> has_dq;  ///< of each tile of queries: some key tile has added to it

  void reserve(std::int64_t dim, std::int64_t panel_dim);
};

class BackwardUnit {
 public:
  BackwardUnit(const BackwardCall& call, const KeyPiece& piece, const BackwardQueries& queries,
               BackwardScratch& scratch);
  void run();

 private:
  using Keys = BackwardScratch::Keys;

  /// Columns of dQ's sums of query head h from row `row` on.
  float* dq_at(std::int64_t h, std::int64_t row);
  void read_keys(std::int64_t index, std::int64_t tile);
  void run_block(std::int64_t first_tile, std::int64_t tiles);
  void run_span(std::int64_t tiles, std::int64_t h, std::int64_t row);
  void write_keys(Keys& keys);
  void mask_keys(std::int64_t row, std::int64_t key0, std::int64_t keys);
  void run_tile(std::int64_t index, std::int64_t h, std::int64_t row, std::int64_t span_row);
  void transpose_ds(std::int64_t count, std::int64_t span_row, std::int64_t key);
  void make_scores(Keys& keys, std::int64_t first, std::int64_t count, std::int64_t h,
                   std::int64_t row);
  void add_to_keys(Keys& keys, std::int64_t h, std::int64_t row);
  void add_to_queries(std::int64_t first, std::int64_t tiles, std::int64_t h, std::int64_t row,
                      std::int64_t span_row);
  void round_p(std::int64_t count, std::int64_t at, std::uint16_t* out);
  void round_ds(Keys& keys, std::int64_t first, std::int64_t count, std::int64_t at,
                std::uint16_t* out);
  void write_dq();

  bool sees(std::int64_t query, std::int64_t key) const;
  std::size_t index_of(std::int64_t h, std::int64_t row) const {
    return static_cast<std::size_t>(q_.at(h, row) / kTileQueries);
  }

  const BackwardCall& call_;
  const KeyPiece& piece_;
  const BackwardQueries& q_;
  BackwardScratch& s_;
  const Kernels& kernel_;
  attention::Sequence sequence_;
  HeadRows k_s_, k_q_, v_p_;
  std::int64_t heads_;  ///< query heads of the kv head
  std::int64_t dim_;
  std::int64_t panel_dim_;
  Buffer<float> dq_;  ///< where the unit writes dq itself
};

/// By what sums grow in the end.
float dq_factor(const BackwardCall& call, std::int64_t sequence, std::int64_t head_kv);
float dk_factor(const BackwardCall& call, const BackwardQueries& queries);
float dv_factor(const BackwardQueries& queries);

/// FP32 [2][groups][num_heads_kv][total_k][panel_dim]: a token's row of it.
enum class KeyGradient : std::uint8_t { kDk, kDv };
float* key_sums_at(const BackwardCall& call, KeyGradient which, std::int64_t group,
                   std::int64_t head_kv, std::int64_t token);

}  // namespace mxfa::cpu
