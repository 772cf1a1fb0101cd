#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attention/split_tail.h"
#include "core/host_device.h"
#include "kernels/sm90/common/band.h"

/// Tiles, roles, registers and shared memory of the Hopper forward. For host and device.
namespace mxfa::sm90::forward {

/// What Q K^T accumulates in.
enum class Scores : std::uint8_t {
  kF32,
  /// Half the registers, packed softmax. Needs lowered payload of Q and K (device/operands.h).
  kF16,
};

/// What Q K^T multiplies, and where its scales are.
enum class Product : std::uint8_t {
  kGroupScales,  ///< FP8, a scale for each 32 tokens
  kTokenScales,  ///< FP8, a scale for each token (leak-free)
  kBf16,         ///< BF16; V as with kGroupScales; FP32 scores
};

inline constexpr int kScaleGroup = 32;  ///< tokens that share a scale
/// log2 of what the row maximum becomes: 256, an exact code of E4M3.
inline constexpr float kOffset = 8.0f;

template <int kHeadDimOf, Scores kScoresOf, Product kProductOf = Product::kGroupScales>
struct Config {
  static constexpr int kHeadDim = kHeadDimOf;
  static constexpr Scores kScores = kScoresOf;
  static constexpr Product kProduct = kProductOf;
  static constexpr bool kTokenScales = kProduct == Product::kTokenScales;
  static constexpr bool kBf16 = kProduct == Product::kBf16;
  static_assert(kProduct != Product::kBf16 || kScores == Scores::kF32);
  /// Q's and K's rows lie in parts of at most 128 bytes, one behind the other.
  static constexpr int kQkBytes = kHeadDim * (kBf16 ? 2 : 1);
  static constexpr int kQkParts = kQkBytes > 128 ? 2 : 1;
  static constexpr int kQkPartBytes = kQkBytes / kQkParts;

  /// Warpgroups of 64 rows, each in turn: S, softmax, PV. Scores and sums in half leave registers
  /// for a fourth.
  static constexpr int kConsumers = kScores == Scores::kF16 ? 4 : 3;
  static constexpr int kTileM = 64 * kConsumers;
  static constexpr int kTileN = 128;
  static constexpr int kQGroups = kTileM / kScaleGroup;
  static constexpr int kKGroups = kTileN / kScaleGroup;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  /// 128 x 32 + 384 x 160 registers are all that a multiprocessor has; of 640 threads a launch gets
  /// 96 each, which make 128 x 32 + 512 x 112.
  static constexpr int kProducerRegisters = 32;
  static constexpr int kConsumerRegisters = kConsumers == 4 ? 112 : 160;

  /// Whether P V of a block and O are in half: 64 registers less. Needs payload of V that is made
  /// for it (mx/half_sums.h).
  static constexpr bool kHalfSums = kScores == Scores::kF16 || kTokenScales || kBf16;
  /// Whether S of the next block is issued behind P V, before that has been added to O.
  static constexpr bool kScoresAhead = kHalfSums && kConsumers == 3 && !kTokenScales;

  static constexpr int kQBuffers = kQkParts == 2 ? 1 : 2;
  /// Of what is known of a tile beside its Q.
  static constexpr int kTileBuffers = 2;
  static_assert(kQBuffers == 2 || kScoresAhead, "one Q is given back before the last P V");
  static constexpr int kStages = kHeadDim == 128 ? (kBf16             ? 3
                                                    : kConsumers == 4 ? 4
                                                                      : 5)
                                                 : (kBf16 ? 6 : 8);
  /// PV in FP32 in halves of 64 columns: the fresh accumulator of one is 32 registers, as that of
  /// all columns in half.
  static constexpr int kValueColumns = kHalfSums ? kHeadDim : 64;
  static_assert(kHeadDim == 64 || kHeadDim == 128);
  /// A thread's part of PV of one block and kValueColumns, and of O.
  using Fresh =
      std::conditional_t<kHalfSums, std::uint32_t[kValueColumns / 4], float[kValueColumns / 2]>;
  using Sums = std::conditional_t<kHalfSums, std::uint32_t[kHeadDim / 4], float[kHeadDim / 2]>;
  /// Q's fragments of so many steps of 32 bytes a row stay in registers, as far as there is room:
  /// reading Q from shared memory for every block costs 10% (power, and bandwidth).
  static constexpr int kQRegisterSteps = kTokenScales && kScores == Scores::kF16 ? 0
                                         : kBf16                                 ? 1
                                         : kHeadDim == 64                        ? 2
                                                                                 : 3;
  /// Whether consumers' pointer to shared memory is made of its address in a register. Of a plain
  /// one ptxas rebuilds the window in the loop of FP32 scores (S2UR, twice a block: 2 to 3%); where
  /// it does not, the plain one is as fast or faster.
  static constexpr bool kWindowInRegister =
      kScores == Scores::kF32 && kProduct == Product::kGroupScales;
};

/// What factors and folds of a block allow the softmax to do. Most blocks of most tensors are
/// uniform, which saves 4 to 7% of all instructions.
enum class Packing : std::int32_t {
  kNone,     ///< kF16: too large or too small for half, widened to FP32
  kGroups,   ///< a factor and a fold for each group
  kUniform,  ///< one factor for all groups of keys, folds are 0
};

/// Scales of one key block as the softmax takes them, made by the producer. kF32 holds floats, kF16
/// pairs of equal halves.
template <class Config, bool kTokenScales = Config::kTokenScales, Scores kScores = Config::kScores>
struct alignas(16) StageScales {
  /// softmax_scale * log2(e) * 2^(exponents of Q's and K's groups)
  std::uint32_t factor[Config::kQGroups][Config::kKGroups];
  std::uint32_t fold[Config::kKGroups];    ///< exponent of V's group - anchor, at least kLeastFold
  std::uint32_t unfold[Config::kKGroups];  ///< 2^-fold
  /// Largest exponent of V up to this block, + kNanGroupUnit * (bits of groups of V that are NaN).
  std::int32_t anchor;
  Packing packing;
};

/// The same where every token has scales: floats, and bits of tokens whose V is NaN.
template <class Config>
struct alignas(16) StageScales<Config, true, Scores::kF32> {
  /// Of two tokens, which one load brings.
  struct alignas(16) Pair {
    float key[2];    ///< 2^(K's exponent)
    float value[2];  ///< V's exponent, at least kLeastValue, - kTokenAnchor
  };
  Pair pair[Config::kTileN / 2];
  float unfold[Config::kTileN];  ///< 2^-value
  std::uint32_t nan_tokens[Config::kTileN / 32];
  std::int32_t anchor;   ///< kTokenAnchor, + kNanGroupUnit where a token of V is NaN
  std::int32_t uniform;  ///< whether all tokens have the same numbers, none of them NaN
};
/// Half scores: pairs of neighbouring tokens, so placed that a thread finds those of four of its
/// columns side by side (token_word()). What half cannot hold marks a token as odd: its numbers
/// come from the exponents.
template <class Config>
struct alignas(16) StageScales<Config, true, Scores::kF16> {
  static constexpr int kPairs = Config::kTileN / 2;
  std::uint32_t key[kPairs];     ///< 2^(K's exponent - kKeyShift)
  std::uint32_t value[kPairs];   ///< V's exponent, at least kLeastValue, - kTokenAnchor
  std::uint32_t unfold[kPairs];  ///< 2^-value; odd tokens: 0
  std::int8_t key_exponent[Config::kTileN];
  std::int8_t value_exponent[Config::kTileN];  ///< V's, at least kLeastValue
  std::uint32_t odd_tokens[Config::kTileN / 32];
  std::uint32_t nan_tokens[Config::kTileN / 32];
  std::int32_t has_odd;
  std::int32_t anchor;  ///< as with FP32 scores
  /// The tokens' value where all have the same numbers, none of them odd or NaN; else kByToken.
  std::int32_t kind;
};
/// A kind of block (StageScales::kind) that no value is.
inline constexpr int kByToken = 1000;
/// Word of tokens 8 * eight + 2 * quarter and the next.
MXFA_HOST_DEVICE constexpr int token_word(int eight, int quarter) {
  return eight / 4 * 16 + quarter * 4 + eight % 4;
}

/// Of every block, so that no token's numbers depend on others. With FP32 scores it is low, so that
/// maxima are positive where V is of size 1: then they are found by bits. With half scores maxima
/// from 0 to 32 are packed, and V of size 1 lies in the middle of kLeastPackedValue to
/// kMostPackedValue.
template <class Config>
inline constexpr int kTokenAnchor = Config::kScores == Scores::kF16 ? -4 : -16;
/// V's exponents of tokens are at least this: the row sum takes P' * 2^-v.
inline constexpr int kLeastValue = -64;
/// Half scores: what a row sum in half chains of 16 holds, neither overflowing nor losing what is
/// 2^-20 of the row's largest P.
inline constexpr int kLeastPackedValue = -3;
inline constexpr int kMostPackedValue = 12;
/// Half scores: 2^(K's exponent - kKeyShift) is in half from kLeastPackedKey to kKeyShift, and no
/// larger than 1, as scores may be as large as half allows. The factor of a query takes it back.
inline constexpr int kKeyShift = 6;
inline constexpr int kLeastPackedKey = kKeyShift - 24;

/// Below it a folded payload is 0 either way, and the row sum must not underflow with it.
inline constexpr int kLeastFold = -32;
/// Folds down to it cost the packed row sum nothing.
inline constexpr int kLeastPackedFold = -6;
/// An anchor before the first block of V.
inline constexpr int kNoAnchor = -1000;

inline constexpr int kNanGroupUnit = 4096;

/// Key blocks that a warpgroup's 64 rows work on: the visible ones of the tile, and those that need
/// no mask.
struct BlockRange {
  std::int32_t begin = 0, end = 0;
  std::int32_t full_begin = 0, full_end = 0;
};

/// One tile as consumers and the producer of keys see it.
struct TileRecord {
  std::int64_t o_begin = 0;   ///< first row of the sequence in lse
  std::int64_t o_offset = 0;  ///< of the sequence in o, elements
  std::int64_t o_group = 0;   ///< first group of 32 rows of the sequence in o
  std::int64_t k_group = 0;   ///< first scale group of the sequence in K and V
  std::int32_t k_begin = 0;   ///< first row of the sequence in K
  std::int32_t v_tile = 0;    ///< first tile of the sequence in V^T
  std::int32_t seqlen_q = 0;
  std::int32_t seqlen_k = 0;
  std::int32_t head = 0;
  std::int32_t head_kv = 0;
  std::int32_t m_block = 0;
  std::int32_t n_begin = 0;
  std::int32_t n_end = 0;  ///< n_begin: no row sees a key
  Band band = {};          ///< of the tile's rows
  /// Where a tile is divided among CTAs (attention/split_tail.h). 0 parts: there are no more tiles.
  std::int32_t parts = 1;
  std::int32_t part = 0;
  std::int32_t slot = 0;
};

/// A tile that its producer has taken and not yet handed over.
struct TakenTile {
  TileRecord record;
  std::int64_t q_group = 0;  ///< first scale group of Q's sequence
  std::int32_t q_begin = 0;  ///< first row of the sequence in Q
};

/// The keys of a tile, for their producer.
struct Keys {
  std::int64_t group;   ///< first scale group of the sequence
  std::int32_t token;   ///< first row of the sequence in K
  std::int32_t v_tile;  ///< first tile of the sequence in V^T
  std::int32_t count;   ///< of the sequence
  std::int32_t head;    ///< of K and V
  std::int32_t n_begin, n_end;
  std::int32_t full_begin, full_end;  ///< blocks that no warpgroup masks; of token scales
};

/// What a thread hands over of one part: its O, then sums, bases and the anchor; a warpgroup's
/// values of one index lie together.
template <class Config>
inline constexpr int kPartValues = Config::kHeadDim / 2 + 5;
template <class Config>
inline constexpr std::int64_t kPartBytes = std::int64_t{kPartValues<Config>} * 128 * 4;

/// Half sums: so many of a tile's first key blocks are summed in half, then segment_blocks() at a
/// time; kMostFolds segments at most are laid aside (folded_sums.cuh).
inline constexpr int kFirstSegment = 32;
inline constexpr int kMostFolds = 4;
/// Of a tile of `blocks`, behind its first segment.
MXFA_HOST_DEVICE constexpr int segment_blocks(int blocks) {
  constexpr int kLeast = 64;
  const int even = (blocks - kFirstSegment + kMostFolds - 1) / kMostFolds;
  return even > kLeast ? even : kLeast;
}
/// What a warpgroup lays aside of a segment: O, bases and row sums, the anchor.
template <class Config>
inline constexpr std::int64_t kFoldedBytes = (Config::kHeadDim / 16 + 1) * 128 * 16 + 128 * 4;

/// What is known of a tile's rows where every token has scales.
template <class Config>
struct RowNumbers {
  static constexpr int kRows = Config::kTokenScales ? Config::kTileM : 1;
  /// softmax_scale * log2(e) * 2^(exponent of the row); half: * 2^kKeyShift.
  float factor[kRows];
  /// Largest visible s; half scores: of odd tokens. The consumers' own, for want of registers.
  float top[kRows];
};

template <class Config>
struct SmemPlan {
  alignas(1024) std::uint8_t q[Config::kQBuffers][Config::kTileM * Config::kQkBytes];
  alignas(1024) std::uint8_t k[Config::kStages][Config::kTileN * Config::kQkBytes];
  alignas(1024) std::uint8_t v[Config::kStages][Config::kHeadDim * Config::kTileN];
  StageScales<Config> scales[Config::kStages];
  TileRecord tile[Config::kTileBuffers];
  TakenTile taken;                 ///< the producer of tiles' own
  attention::TailSegment segment;  ///< likewise, the next of its CTA's share
  Keys keys;                       ///< the producer of keys' own
  BlockRange blocks[Config::kTileBuffers][Config::kConsumers];
  std::int32_t q_exponent[Config::kTileBuffers]
                         [Config::kQGroups];      ///< kGroupScales: of rows' groups
  RowNumbers<Config> rows[Config::kTileBuffers];  ///< kTokenScales
  /// O in MXFP8: largest magnitudes of a warp's 16 rows and 32 columns.
  float o_amax[Config::kConsumers][4][Config::kHeadDim / 32];
  std::uint64_t tile_full[Config::kTileBuffers];  ///< producer's lanes: the tile's record
  std::uint64_t q_full[Config::kTileBuffers];     ///< of two Q, the same + bytes: Q too
  std::uint64_t q_empty[Config::kTileBuffers];  ///< every consumer thread, lanes of keys' producer
  /// Of one Q, of each warpgroup: bytes of its rows, and its threads, as their last scores are
  /// made.
  std::uint64_t rows_full[Config::kConsumers];
  std::uint64_t rows_read[Config::kConsumers];
  std::uint64_t full[Config::kStages];      ///< producer's lanes + bytes: K, V^T, their scales
  std::uint64_t empty[Config::kStages];     ///< every consumer thread
  std::uint64_t patched;                    ///< bytes of a stage that has NaN in V
  std::int32_t merges[Config::kConsumers];  ///< whether the warpgroup came last of a tile's parts
};

static_assert(sizeof(SmemPlan<Config<128, Scores::kF16>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<Config<64, Scores::kF16>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<Config<128, Scores::kF32, Product::kTokenScales>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<Config<64, Scores::kF32, Product::kTokenScales>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<Config<128, Scores::kF16, Product::kTokenScales>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<Config<64, Scores::kF16, Product::kTokenScales>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<Config<128, Scores::kF32, Product::kBf16>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<Config<64, Scores::kF32, Product::kBf16>>) <= 227 * 1024);

}  // namespace mxfa::sm90::forward
