#pragma once

#include <cstdint>

#include "attention/seqlen.h"
#include "cpu/attention.h"
#include "cpu/attention_tiles.h"
#include "cpu/ds_rounding.h"
#include "cpu/non_finite.h"
#include "cpu/units.h"

/// The backward of one chunk of keys. Internal to attention_backward().
namespace mxfa::cpu {

inline constexpr std::int64_t kTileQueries = 64;

/// Key tiles [tile_begin, tile_end) of one (sequence, kv head).
struct KeyChunk {
  std::int64_t sequence = 0;
  std::int64_t head_kv = 0;
  std::int64_t index = 0;  ///< of the chunk
  std::int64_t tile_begin = 0;
  std::int64_t tile_end = 0;
};

/// Sized for the queries of one kv head; scores only for a tile.
struct BackwardScratch {
  Buffer<std::uint16_t> q_columns, dout_columns;  ///< panels of 64 queries, k = head_dim
  Buffer<std::uint16_t> q_rows, dout_rows;        ///< panels, k = 64 queries
  Buffer<std::uint16_t> k_rows, v_rows, k_panels;
  Buffer<std::uint16_t> rows;             ///< before packing
  Buffer<std::uint16_t> p, ds, ds_pairs;  ///< P^T and dS^T of a tile, rounded
  Buffer<float> s, dp, dk, dv, dq;
  Buffer<float> bias, delta, unfold, ones, o_row, dout_row, s_mult, dp_mult;
  Buffer<int> q_exponent, k_exponent;
  Buffer<std::int32_t> begin, end;
  std::vector<NonFinite> q_non_finite, dout_non_finite;  ///< of each tile of queries
  NonFinite k_non_finite;

  void reserve(std::int64_t query_rows, std::int64_t heads, std::int64_t dim,
               std::int64_t panel_dim);
};

class BackwardUnit {
 public:
  BackwardUnit(const BackwardCall& call, const KeyChunk& chunk, BackwardScratch& scratch);
  void run();

 private:
  void prepare_head(std::int64_t h);
  void row_constants(std::int64_t h, HeadRows& dout_p, HeadRows& dout_v);
  bool has_keys(std::int64_t head, std::int64_t row) const;
  bool folds_ds() const;
  void read_keys(std::int64_t key0, std::int64_t keys);
  void run_keys(std::int64_t tile);
  void mask_keys(std::int64_t row, std::int64_t key0, std::int64_t keys);
  void run_tile(std::int64_t h, std::int64_t row, std::int64_t key0, std::int64_t keys);
  void round_p(std::int64_t at, std::int64_t keys);
  void round_ds(std::int64_t at, std::int64_t keys);
  void write_dq();

  const BackwardCall& call_;
  const KeyChunk& chunk_;
  BackwardScratch& s_;
  const Kernels& kernel_;
  attention::Sequence sequence_;
  HeadRows k_s_, k_q_, v_p_;
  std::int64_t heads_;  ///< query heads of the kv head
  std::int64_t dim_;
  std::int64_t panel_dim_;
  std::int64_t rows_;  ///< queries, padded to whole tiles
  int q_anchor_ = -127;
  int dout_anchor_ = -127;
  DsRounding ds_;
};

}  // namespace mxfa::cpu
