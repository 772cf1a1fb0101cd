#pragma once

#include <vector>

#include "reference/recipe/panels.h"

/// The backward, key tile by key tile. Internal to recipe_backward().
namespace mxfa::reference::recipe::internal {

/// What the pre-pass knows of each query row.
struct RowConstants {
  std::vector<float> delta;
  std::vector<float> bias;  ///< of x: fold - lse * log2(e); 0 in rows without a visible key
  std::vector<int> fold;    ///< log2(P' / P)
  int anchor = 0;           ///< dV = 2^anchor * (payload GEMM)
};
RowConstants prepass(const Operands& operands, const HeadProblem& problem,
                     const SavedForward& forward, const RecipeConfig& config);
/// The dQ exponent of kF16Dynamic: sums of any order stay below 2^14 * (1 + payload rounding).
int dynamic_dq_exponent(const Operands& operands, const HeadProblem& problem,
                        const RecipeConfig& config);

/// Keys that share a scale of kWarp16's payload for dQ, for dK.
inline constexpr std::int64_t kDqKeys = 64;
inline constexpr std::int64_t kWarpKeys = 16;

/// One key tile and the query rows that it works on.
struct KeyTile {
  std::int64_t key0 = 0;
  std::int64_t keys = 0;
  std::int64_t row0 = 0;  ///< a multiple of backward_tile_m
  std::int64_t row1 = 0;
  Matrix<float> p;   ///< [seqlen_q, keys], P'; 0 where masked
  Matrix<float> ds;  ///< [seqlen_q, keys], P * (dP - delta); 0 where masked
};

class BackwardRun {
 public:
  BackwardRun(const Operands& operands, const HeadProblem& problem, const SavedForward& forward,
              const RecipeConfig& config);
  RecipeBackward run();

 private:
  std::int64_t num_tiles() const { return mx::ceil_div(seqlen_k_, config_.tile_n); }
  void allocate();
  KeyTile key_tile(std::int64_t index) const;
  /// S, P', dP and dS of the tile's rows.
  void compute_scores(KeyTile& tile, bool record);
  void score_row(KeyTile& tile, std::int64_t row, const float* s_acc, const float* dp_acc,
                 bool record);
  void measure_tensor_scales();

  // dV and its payload.
  mx::MmaPanel p_panel(const KeyTile& tile);
  void p_blocks(const KeyTile& tile, std::int64_t key, mx::MmaPanel& panel);
  void accumulate_dv(const KeyTile& tile);
  /// result[keys, head_dim] += A^T-shaped panel [keys, queries] times b [queries, head_dim], with a
  /// fresh accumulator for each promotion interval.
  void accumulate(const KeyTile& tile, const mx::MmaPanel& a, const mx::MmaPanel& b,
                  mx::AccumulatorRule rule, Matrix<float>& result) const;

  // Sums in half (backward_half.cc).
  void half_dv(const KeyTile& tile);
  void half_dk(const KeyTile& tile);

  // dS: payloads, dK and dQ (backward_ds.cc).
  void warp16_dk(const KeyTile& tile);
  void warp16_dq(const KeyTile& tile);
  void gradients_square32(const KeyTile& tile);
  void gradients_tensor(const KeyTile& tile);
  void gradients_bf16(const KeyTile& tile);
  int warp_payload(const KeyTile& tile, std::int64_t row0, std::int64_t group, int exponent,
                   mx::MmaPanel& panel);
  int dq_payload(const KeyTile& tile, std::int64_t row0, std::int64_t key0, mx::MmaPanel& panel);
  Matrix<float> dq_of_halves(const KeyTile& tile, const mx::MmaPanel& panel,
                             Matrix<int>& exponents) const;
  void square_payload(const KeyTile& tile, std::int64_t row0, std::int64_t key0,
                      mx::MmaPanel& for_dk, mx::MmaPanel& for_dq);
  std::uint8_t encode_ds(float value, std::int64_t row, std::int64_t key) const;
  /// dk of one key = acc * softmax_scale * 2^exponent.
  void store_dk(std::int64_t key, const float* acc, float scale, int exponent);

  /// dq += acc * scale * 2^exponent[row] of the tile's rows, rounded as dq_accum says.
  void add_dq(const KeyTile& tile, const Matrix<float>& acc, const std::vector<int>& exponents,
              float scale);
  Matrix<float> dq_gemm(const KeyTile& tile, const mx::MmaPanel& panel) const;
  void finish_dq();

  const RecipeConfig& config_;
  const HeadProblem& problem_;
  const Operands& operands_;
  const SavedForward& forward_;
  std::int64_t seqlen_q_;
  std::int64_t seqlen_k_;
  std::int64_t dim_;
  RowConstants rows_;
  HeadDimGemm scores_;
  HeadDimGemm dp_;
  mx::AccumulatorRule rule_;     ///< of the FP8 GEMMs along tokens
  mx::AccumulatorRule ds_rule_;  ///< of dK and dQ
  mx::MmaPanel dout_;            ///< [seqlen_q, head_dim], for dV
  mx::MmaPanel q_;               ///< [seqlen_q, head_dim], for dK
  mx::MmaPanel k_;               ///< [seqlen_k, head_dim], for dQ
  TokenExponents q_fold_;        ///< folded into dK's payload
  TokenExponents k_fold_;        ///< folded into dQ's payload
  float softmax_scale_;
  float p_tensor_amax_ = 0;   ///< kFp8PerTensor
  float ds_tensor_amax_ = 0;  ///< kFp8PerTensor
  RecipeBackward out_;
};

}  // namespace mxfa::reference::recipe::internal
