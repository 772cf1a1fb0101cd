#pragma once

#include <cstdint>

#include "attention/seqlen.h"
#include "cpu/attention.h"
#include "cpu/attention_tiles.h"
#include "cpu/backward_queries.h"
#include "cpu/ds_rounding.h"
#include "cpu/non_finite.h"
#include "cpu/units.h"

/// The backward of one chunk of keys. Internal to attention_backward().
namespace mxfa::cpu {

inline constexpr std::int64_t kBlockTiles = 4;  ///< key tiles that pass over the queries together

/// Key tiles [tile_begin, tile_end) of one (sequence, kv head).
struct KeyChunk {
  std::int64_t sequence = 0;
  std::int64_t head_kv = 0;
  std::int64_t index = 0;  ///< of the chunk
  std::int64_t tile_begin = 0;
  std::int64_t tile_end = 0;
};

struct BackwardScratch {
  /// A key tile: operands, sums, masks, and how its dS is rounded.
  struct Keys {
    Buffer<std::uint16_t> k_rows, v_rows, k_panels;
    Buffer<float> dk, dv;
    Buffer<int> exponent;
    NonFinite non_finite;
    DsRounding rounding;

    void reserve(std::int64_t dim, std::int64_t panel_dim);
  };
  Keys keys[kBlockTiles];
  Buffer<std::uint16_t> rows;             ///< before packing
  Buffer<std::uint16_t> p, ds, ds_pairs;  ///< P^T and dS^T of a tile, rounded
  Buffer<float> s, dp, ones;
  Buffer<std::int32_t> begin, end;
  Buffer<std::byte> queries;  ///< of units that prepare their own
  Buffer<float> dq;           ///< of units that write it themselves
  std::vector<bool> has_dq;   ///< of each tile of queries: some key tile has added to it

  void reserve(std::int64_t dim, std::int64_t panel_dim);
};

class BackwardUnit {
 public:
  BackwardUnit(const BackwardCall& call, const KeyChunk& chunk, const BackwardQueries& queries,
               BackwardScratch& scratch);
  void run();

 private:
  using Keys = BackwardScratch::Keys;

  /// Columns of dQ's sums of query head h from row `row` on.
  float* dq_at(std::int64_t h, std::int64_t row);
  void read_keys(Keys& keys, std::int64_t tile);
  void run_block(std::int64_t first_tile, std::int64_t tiles);
  void write_keys(Keys& keys, std::int64_t tile);
  void mask_keys(std::int64_t row, std::int64_t key0, std::int64_t keys);
  void run_tile(Keys& keys, std::int64_t tile, std::int64_t h, std::int64_t row);
  void add_to_keys(std::int64_t at, std::int64_t count, Buffer<std::uint16_t>& weights,
                   const std::uint16_t* operand, const NonFinite& non_finite, float* sums);
  void add_to_queries(Keys& keys, std::int64_t count, std::int64_t h, std::int64_t row);
  void round_p(std::int64_t at, std::int64_t count);
  void round_ds(Keys& keys, std::int64_t at, std::int64_t count);
  void finish_dq(std::int64_t h, std::int64_t row);

  std::int64_t first_key(std::int64_t tile) const { return tile * kTileKeys; }
  /// Keys of a tile that exist.
  std::int64_t real_keys(std::int64_t tile) const;
  bool sees(std::int64_t query, std::int64_t key) {
    return s_.begin[key] <= query && query < s_.end[key];
  }

  const BackwardCall& call_;
  const KeyChunk& chunk_;
  const BackwardQueries& q_;
  BackwardScratch& s_;
  const Kernels& kernel_;
  attention::Sequence sequence_;
  HeadRows k_s_, k_q_, v_p_;
  std::int64_t heads_;  ///< query heads of the kv head
  std::int64_t dim_;
  std::int64_t panel_dim_;
  float dq_factor_;
};

}  // namespace mxfa::cpu
