#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/host_device.h"
#include "kernels/sm90/common/band.h"

/// Tiles, roles, registers and shared memory of the Hopper backward. For host and device.
namespace mxfa::sm90::backward {

/// What dQ is summed in.
enum class DqSums : std::uint8_t {
  kF32,
  kF16,  ///< times 2^dq_exponent: half the bytes, and a range to mind
};

/// What S and dP are accumulated in.
enum class Scores : std::uint8_t {
  kF32,
  kF16,  ///< and all arithmetic on them is of packed halves; of lowered operands
};

/// What S^T and dP^T multiply, and where its scales are. Gradients are always of FP8 copies, with
/// the scales of those.
enum class Product : std::uint8_t {
  kGroupScales,  ///< FP8, a scale for each 32 tokens
  kTokenScales,  ///< FP8, a scale for each token of Q, K and V (leak-free); dO as above
  kBf16S,        ///< S^T from BF16 Q and K
  kBf16Dp,       ///< dP^T from BF16 V and dO
  kBf16,         ///< both
};

constexpr bool bf16_s(Product product) {
  return product == Product::kBf16S || product == Product::kBf16;
}
constexpr bool bf16_dp(Product product) {
  return product == Product::kBf16Dp || product == Product::kBf16;
}

inline constexpr int kScaleGroup = 32;  ///< tokens that share a scale
inline constexpr int kTileM = 64;       ///< queries of a tile
inline constexpr int kDqColumns = 64;   ///< of dQ, that are made at a time
inline constexpr int kQGroups = kTileM / kScaleGroup;
inline constexpr int kMostKGroups = 6;  ///< groups of keys of a tile, at most
/// The largest P' of a head is at most 2^8.
inline constexpr int kOffset = 8;
/// Below it a folded payload is 0 either way, and P' must not underflow.
inline constexpr int kLeastFold = -32;
/// What differs by more between two groups of 32 queries vanishes in dK's accumulators; beyond it
/// dS of queries that are all zero would underflow.
inline constexpr int kLeastShift = -60;
/// Of half sums: dK's payload of dS is at most 2^3 below E4M3's largest number, and dK is looked at
/// where dV is folded: beyond kMostHalfDk it is lowered by as much. So 8 tiles add at most
/// 16 * 56 * 56 * 17/16 to that, Q's payload summing up to 56 over 32 queries, and 65504 is not
/// reached. (dV's: 16 * 11.2 * 17/16 * P'.)
inline constexpr int kDkLowered = 3;
inline constexpr float kMostHalfDs = 448.0f / (1 << kDkLowered);
inline constexpr float kMostHalfDk = 8192.0f;
/// dS is multiplied by no more than 2^it, or by less than 2^-it, before its amax is known.
inline constexpr int kMostShift = 60;
/// dS for half sums of dQ is lowered by so many binades: those of 192 keys, whose payload sums up
/// to 56 over 32 of them, are then at most 6 * 56 * 17/16 * 112.
inline constexpr int kDqLowered = 2;
/// An exponent that is lower than every other.
inline constexpr int kNoExponent = -1000;

/// Biases of half scores beyond it are kept in FP32, for their precision.
inline constexpr float kMostHalfBias = 16.0f;
/// Larger factors of half scores would overflow.
inline constexpr float kMostHalfFactor = 0x1p12f;
/// dP^T in half: 128 columns, payload of dO at most 10, of V at most 14.
inline constexpr float kMostHalfV = 14.0f;
inline constexpr float kMostHalfDp = 128 * 10 * kMostHalfV;
/// The largest power of two in half.
inline constexpr int kMostHalfPower = 15;
/// Half dS is multiplied by no more than 2^it: its amax, undone, is then a normal number.
inline constexpr int kMostHalfShift = 100;
/// Nor by less than 2^-it of what is sure not to overflow.
inline constexpr int kMostHalfDrop = 8;
/// So many binades of dK's payload may stay unused if that saves a multiplication.
inline constexpr int kHalfSlack = 6;

/// dV leaves the tensor cores' 13-bit accumulators at each multiple of so many queries (sequences
/// of no more never do), dK at rarer ones: dO of one sign costs dV 7 dB at twice as many, while
/// what dK sums has either sign.
inline constexpr int kPromoteDvTiles = 512 / kTileM;
inline constexpr int kPromoteDkTiles = 4096 / kTileM;
/// Key tiles promote at different times, or all of the device would at once.
inline constexpr int kPromotePhases = kPromoteDvTiles;

/// Constants of a query tile of one head, made by a pre-pass in the order in which threads take
/// them: thread `pair` of a quad has the queries 8 j + 2 pair + c at [pair][2 j + c]. Rows of 20 so
/// that the four pairs read different banks.
struct alignas(16) RowRecord {
  float bias[4][20];         ///< fold - lse * log2(e); -infinity: the row sees no key or is none
  float minus_delta[4][20];  ///< -delta * 2^(q's exponent - reference - fold)
  /// Of the two groups of 32 queries: what S^T, dP^T and dS are multiplied by, K's and V's
  /// exponents left out.
  float s_factor[kQGroups];   ///< softmax_scale * log2(e) * 2^q's exponent
  float dp_factor[kQGroups];  ///< 2^(dO's exponent - fold + q's exponent - reference)
  float dq_factor[kQGroups];  ///< 2^(reference - q's exponent)
  std::int32_t reference;     ///< the larger exponent of Q
  std::int32_t anchor;        ///< dV = 2^anchor * (P' payload)^T * (dO payload)
};
static_assert(sizeof(RowRecord) == 672);

/// The same where every token has a scale: Q's exponents of each query.
struct alignas(16) TokenRowRecord {
  float bias[4][20];
  float minus_delta[4][20];   ///< -delta * 2^-fold
  float s_factor[4][20];      ///< softmax_scale * log2(e) * 2^q's exponent
  float q_relative[4][20];    ///< 2^(q's exponent - reference)
  float dp_factor[kQGroups];  ///< 2^(dO's exponent - fold)
  std::int32_t reference;     ///< the largest exponent of Q
  std::int32_t anchor;
};
static_assert(sizeof(TokenRowRecord) == 1296);

/// The same for half scores: pairs of queries 8 j + 2 pair and the next at [pair][j].
struct alignas(16) HalfRowRecord {
  std::uint32_t bias[4][8];         ///< fold - lse * log2(e), or -infinity
  std::uint32_t minus_delta[4][8];  ///< -delta * 2^(-fold - delta_exponent), less than 2^14
  float wide_bias[4][16];           ///< the bias in FP32
  float s_factor[kQGroups];         ///< softmax_scale * log2(e), rounded to half, * 2^q's exponent
  std::uint32_t q_relative[kQGroups];  ///< 2^(q's exponent - reference), twice
  std::int32_t reference;              ///< the larger exponent of Q
  std::int32_t dp_exponent;            ///< the larger of dO's exponents - fold
  std::int32_t delta_exponent;
  std::int16_t p_exponent;  ///< P' is at most 2^it; not below -1
  std::int16_t dp_room;     ///< |dP^T| is at most kMostHalfDp * 2^-it; 0 to 14
  std::int32_t anchor;      ///< as above
  std::uint32_t flags;      ///< HalfRowFlag
  std::int32_t unused[2];
};
enum HalfRowFlag : std::uint32_t {
  kWide = 1,     ///< some bias is larger than kMostHalfBias
  kQVaries = 2,  ///< q_relative is not 1
};
static_assert(sizeof(HalfRowRecord) == 560);

enum StageFlag : std::uint32_t {
  kValid = 1,         ///< else there are no more tiles
  kFreshDv = 2,       ///< dV begins from 0
  kFreshDk = 4,       ///< dK does
  kHeadBegins = 8,    ///< dS's exponents begin anew
  kMasked = 16,       ///< not every query of the tile sees every key of it
  kPromoteDv = 32,    ///< dV goes to the scratch afterwards (or to be folded, below)
  kPromoteDk = 64,    ///< dK does
  kScratchDv = 128,   ///< the scratch holds a sum of dV of these keys
  kScratchDk = 256,   ///< of dK
  kStore = 512,       ///< the last tile of these keys
  kKeysBegin = 1024,  ///< the first
  kFoldDv = 2048,     ///< what dV has beyond its rounding error goes to shared memory afterwards
  kFolded = 4096,     ///< some of dV of this head is there
};

/// Where a tile of dQ goes.
struct DqRecord {
  std::int32_t tile;  ///< among all tiles of the dQ sums; below 0: nowhere
  std::int32_t turn;  ///< how many key tiles add to it before, where the order is fixed
  std::int32_t last;  ///< none follows
};

/// A query tile as consumers and the dQ role see it.
struct StageRecord {
  std::uint32_t flags;
  std::int32_t row0;    ///< in its sequence
  std::int32_t q_tile;  ///< of Q^T, 64 tokens each
  std::int32_t o_tile;  ///< of dO^T
  std::int32_t head;    ///< of Q and dO
  DqRecord dq;
};

/// A key tile as the consumers see it.
struct KeyRecord {
  std::int64_t out_row;  ///< packed row of its first key
  Band rows;             ///< that see its keys
  std::int32_t seqlen_q;
  std::int32_t count;              ///< of its keys, those that exist
  std::int32_t head;               ///< of K and V
  std::int32_t reference;          ///< the largest exponent of K
  float k_factor[kMostKGroups];    ///< 2^K's exponent, of groups of 32 keys
  float v_factor[kMostKGroups];    ///< 2^V's
  float k_relative[kMostKGroups];  ///< 2^(K's - reference)
};

/// Where the queries of a key tile begin, and their tiles that see it.
struct QueryPlace {
  std::int32_t q_row, o_row;    ///< packed
  std::int32_t q_tile, o_tile;  ///< of 64 rows
  std::int32_t m_begin, m_end;
  std::int32_t full_begin, full_end;  ///< queries that see all of the keys
  std::int32_t seqlen_q, seqlen_k;
  Band rows;                     ///< that see the keys
  std::uint32_t number;          ///< the CTA's key tiles that queries see, before this one
  std::int32_t head;             ///< of K and V; below 0: there are no more key tiles
  std::int32_t tile;             ///< the key tile, in its sequence
  std::int32_t k_column, k_row;  ///< its first key in K^T, and among all sequences'
  std::int32_t members;          ///< heads of Q that share these keys
  std::int32_t turn;             ///< less `tile`; where sequences share queries, key tiles before
  /// The first row that sees the last key, as if there were rows enough: the last key that row r
  /// sees is seqlen_k - 1 - max(0, it - r). 0 where sequences share queries.
  std::int32_t row_of_last_key;
};

/// Of the keys of a tile where every token has a scale: what KeyRecord has for groups is for the 16
/// keys of a warp, by their largest exponents.
struct KeyTokens {
  static constexpr int kKeys = 128;
  static constexpr int kWarps = kKeys / 16;
  float k_factor[kWarps];
  float v_factor[kWarps];
  float k_relative[kWarps];
  std::uint32_t differ[kWarps];  ///< whether some key of the 16 has less than these
  float k_within[kKeys];         ///< of each key, 2^(its exponent - the warp's)
  float v_within[kKeys];
};
struct NoKeyTokens {};

/// One of the GEMMs whose K is head_dim: rows lie in parts of at most 128 bytes, one behind the
/// other.
template <int kHeadDim, bool kBf16Of>
struct RowsProduct {
  static constexpr bool kBf16 = kBf16Of;
  static constexpr int kBytes = kHeadDim * (kBf16 ? 2 : 1);
  static constexpr int kParts = kBytes > 128 ? 2 : 1;
  static constexpr int kPartBytes = kBytes / kParts;
};

/// kLong: for many queries a key tile. Has room to keep dV beside its accumulators, and for that
/// only one buffer of keys. Products other than kGroupScales have this form alone, and where BF16
/// operands take all of the memory, dV goes to the scratch.
template <int kHeadDimOf, DqSums kDqSumsOf, bool kLongOf, Scores kScoresOf = Scores::kF32,
          Product kProductOf = Product::kGroupScales>
struct Config {
  static constexpr int kHeadDim = kHeadDimOf;
  static constexpr DqSums kDqSums = kDqSumsOf;
  static constexpr Scores kScores = kScoresOf;
  static constexpr Product kProduct = kProductOf;
  using SProduct = RowsProduct<kHeadDim, bf16_s(kProduct)>;
  using DpProduct = RowsProduct<kHeadDim, bf16_dp(kProduct)>;
  static_assert(kProduct == Product::kGroupScales || (kLongOf && kScores == Scores::kF32));
  static constexpr bool kTokenScales = kProduct == Product::kTokenScales;
  using Record = std::conditional_t<kScores == Scores::kF16, HalfRowRecord,
                                    std::conditional_t<kTokenScales, TokenRowRecord, RowRecord>>;
  /// Of half scores dV and dK accumulate in half too, which makes room for a third consumer.
  static constexpr bool kHalfSums = kScores == Scores::kF16;
  static_assert(kLongOf || !kHalfSums);
  static constexpr bool kFolds = kLongOf && !(kProduct == Product::kBf16 && kHeadDim == 128);
  /// Bytes of a warp's 16 rows of dV: BF16 or E4M3.
  static constexpr int kFoldBytes = kFolds ? 16 * kHeadDim * (kHalfSums ? 1 : 2) : 16;
  static_assert(kHeadDim == 64 || kHeadDim == 128);
  static constexpr int kConsumers = kHalfSums ? 3 : 2;
  static constexpr int kTileN = 64 * kConsumers;  ///< keys of a tile
  static constexpr int kKGroups = kTileN / kScaleGroup;
  /// Keys side by side in dS and K^T, as wgmma reads them.
  static constexpr int kPanel = kHalfSums ? 64 : 128;
  static constexpr int kPanels = kTileN / kPanel;
  static constexpr int kConsumerThreads = 128 * kConsumers;
  static constexpr int kThreads = 256 + kConsumerThreads;
  /// All that there are: 512 threads are launched with 128 registers each, 640 with 96.
  static constexpr int kProducerRegisters = 24;
  static constexpr int kDqRegisters = kHalfSums ? 48 : 72;
  static constexpr int kConsumerRegisters = kHalfSums ? 136 : 208;

  static constexpr int kKeyBuffers = kLongOf ? 1 : 2;
  /// K and V of half sums are given back while consumers still need what else they know of keys.
  static constexpr int kKeyRecords = kKeyBuffers + (kHalfSums ? 1 : 0);
  /// So many of four steps of P' are made before dP^T is waited for; the other exponentials run
  /// beside dS. Of FP32 scores.
  static constexpr int kEarlySteps = 2;
  static constexpr int kStages = kHeadDim == 128 ? 2 : 4;
  /// More than stages: what goes with a tile is read for longer than its rows, by the dQ role for
  /// up to two tiles more. (Of rows' constants, by consumers alone, one more is enough.)
  static constexpr int kRecords = kProduct == Product::kGroupScales ? 2 * kStages : kStages + 1;
  static constexpr int kTileRecords = 4 * kStages;
  static constexpr int kAmaxBuffers = 4;
  static constexpr int kDsBuffers = 2;
  /// Consumers tell the dQ role the exponents of their dS, K's reference in, or it finds them.
  /// (FP32 scores lose 3% by telling, whose consumers take the longer.)
  static constexpr bool kTellsExponents = kHalfSums;
  /// dQ is made and added by 64 columns.
  static constexpr int kDqPieces = kHeadDim / kDqColumns;
  static constexpr int kDqPieceBytes = kTileM * kDqColumns * (kDqSums == DqSums::kF16 ? 2 : 4);
  static constexpr int kDqBuffers = 2;
};

template <class Config>
struct SmemPlan {
  static constexpr int kDim = Config::kHeadDim;
  alignas(1024) std::uint8_t k[Config::kKeyBuffers][Config::kTileN * Config::SProduct::kBytes];
  alignas(1024) std::uint8_t v[Config::kKeyBuffers][Config::kTileN * Config::DpProduct::kBytes];
  alignas(1024) std::uint8_t kt[Config::kKeyBuffers][kDim * Config::kTileN];
  alignas(1024) std::uint8_t q[Config::kStages][kTileM * Config::SProduct::kBytes];
  alignas(1024) std::uint8_t dout[Config::kStages][kTileM * Config::DpProduct::kBytes];
  alignas(1024) std::uint8_t qt[Config::kStages][kDim * kTileM];
  alignas(1024) std::uint8_t dout_t[Config::kStages][kDim * kTileM];
  /// Rows of queries, keys in sigma order.
  alignas(1024) std::uint8_t ds[Config::kDsBuffers][kTileM * Config::kTileN];
  alignas(1024) std::uint8_t dq[Config::kDqBuffers][Config::kDqPieceBytes];
  /// Of dV, [i][lane][16 bytes]. Half sums also stage gradients there.
  alignas(128) std::uint8_t fold[Config::kConsumers][4][Config::kFoldBytes];
  typename Config::Record rows[Config::kRecords];
  StageRecord stage[Config::kTileRecords];
  KeyRecord keys[Config::kKeyRecords];
  QueryPlace place[Config::kKeyBuffers];
  DqRecord dq_record[Config::kDqBuffers];  ///< of what is staged
  alignas(16) std::uint32_t
      amax[Config::kAmaxBuffers][Config::kConsumers][4];  ///< of each warp's dS, K folded
  /// Of each consumer's dS for dQ.
  std::int32_t ds_exponent[Config::kAmaxBuffers][Config::kConsumers];
  std::uint64_t place_full[Config::kKeyBuffers];   ///< the producer of keys
  std::uint64_t place_empty[Config::kKeyBuffers];  ///< that of rows, every lane
  std::uint64_t key_full[Config::kKeyBuffers];     ///< producer's lanes + bytes: K, its record
  std::uint64_t key_empty[Config::kKeyBuffers];    ///< consumer threads; dQ's, who read the record
  std::uint64_t v_full[Config::kKeyBuffers];       ///< producer + bytes
  std::uint64_t v_empty[Config::kKeyBuffers];      ///< every consumer thread
  std::uint64_t kt_full[Config::kKeyBuffers];      ///< producer + bytes
  std::uint64_t kt_empty[Config::kKeyBuffers];     ///< every thread of dQ
  std::uint64_t rows_full[Config::kStages];        ///< producer + bytes: Q, dO, record
  std::uint64_t rows_empty[Config::kStages];       ///< consumer threads, columns
  std::uint64_t columns_full[Config::kStages];     ///< producer + bytes: Q^T, dO^T
  std::uint64_t columns_empty[Config::kStages];    ///< every consumer thread
  std::uint64_t ds_full[Config::kDsBuffers];       ///< every consumer thread
  std::uint64_t ds_empty[Config::kDsBuffers];      ///< every thread of dQ
  std::uint64_t dq_full[Config::kDqBuffers];       ///< likewise
  std::uint64_t dq_empty[Config::kDqBuffers];      ///< the adder
  std::conditional_t<Config::kTokenScales, KeyTokens, NoKeyTokens> tokens;
  static_assert(!Config::kTokenScales ||
                (Config::kKeyBuffers == 1 && Config::kTileN == KeyTokens::kKeys));
};
static_assert(sizeof(SmemPlan<Config<128, DqSums::kF32, false>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<Config<128, DqSums::kF32, true>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<Config<64, DqSums::kF32, true>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<Config<128, DqSums::kF32, true, Scores::kF16>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<Config<64, DqSums::kF32, true, Scores::kF16>>) <= 227 * 1024);
template <int kHeadDim, Product kProduct>
using DialConfig = Config<kHeadDim, DqSums::kF32, true, Scores::kF32, kProduct>;
static_assert(sizeof(SmemPlan<DialConfig<128, Product::kBf16S>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<DialConfig<128, Product::kBf16Dp>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<DialConfig<128, Product::kBf16>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<DialConfig<64, Product::kBf16>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<DialConfig<128, Product::kTokenScales>>) <= 227 * 1024);

/// Bytes of a tile of dQ's sums: [i][thread of a warpgroup][16 bytes], where 16 bytes are what a
/// thread holds of the columns 8 i .. 8 i + 7 (F32) or 16 i .. 16 i + 15 (F16).
MXFA_HOST_DEVICE constexpr std::int64_t dq_tile_bytes(std::int64_t head_dim, DqSums sums) {
  return kTileM * head_dim * (sums == DqSums::kF16 ? 2 : 4);
}
/// Floats of a CTA's scratch: dV, then dK, [float4][thread][4].
template <class Config>
inline constexpr std::int64_t kScratchFloats = std::int64_t{2} * Config::kTileN* Config::kHeadDim;
/// From so many queries a sequence on, kLong is faster.
inline constexpr std::int64_t kLongQueries = 1024;

}  // namespace mxfa::sm90::backward
