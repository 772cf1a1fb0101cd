#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "kernels/sm100/forward/tmem.h"
#include "mx/scale_layout.h"

/// Tiles, roles, registers and shared memory of the Blackwell forward. For host and device.
namespace mxfa::sm100::forward {

/// Where the scales of P come from.
enum class PScale : std::uint8_t {
  kConstant,     ///< 2^-8 for all: P' = exp2(s - max + 8), so that 1 is the exact code 256
  kBlockAmax,    ///< of each 32 keys of a row, from their largest P
  kBlockRowMax,  ///< the same scale from the largest score: one more exp2 for a second maximum
};

/// log2 of what P is at its row's maximum. With block scales the maximum may be stale by
/// kRescaleThreshold, so that O is rescaled rarely.
MXFA_HOST_DEVICE constexpr float p_offset(PScale scale) {
  return scale == PScale::kConstant ? 8.0f : 0.0f;
}
inline constexpr float kRescaleThreshold = 8.0f;
static_assert(p_offset(PScale::kBlockAmax) + kRescaleThreshold <= 8.8f, "log2(448)");
/// The constant scale, 2^-8 = 2^-p_offset: what P' multiplies V with is at most 1.
inline constexpr std::uint8_t kConstantScale = 127 - 8;

inline constexpr int kStreams = 2;  ///< tiles of 128 queries that take turns on the tensor cores
inline constexpr int kTileM = 128;  ///< queries of one stream
inline constexpr int kTileN = 128;  ///< keys of a step
inline constexpr int kScaleGroup = 32;
inline constexpr int kGroups = kTileN / kScaleGroup;

/// Warps. A warp reaches only the lanes of tensor memory of its quarter, warp % 4.
inline constexpr int kSoftmaxWarps = 4;  ///< of each stream, from warp 0
inline constexpr int kCorrectionWarp = 8;
inline constexpr int kMmaWarp = 12;
inline constexpr int kEpilogueWarp = 13;
inline constexpr int kLoadWarp = 14;
inline constexpr int kThreads = 512;
/// Registers of a thread of each role, of the 65536 that a multiprocessor has.
struct RoleRegisters {
  int softmax, correction, other;
};
/// With which nothing spills, by __CUDA_ARCH__.
MXFA_HOST_DEVICE constexpr RoleRegisters role_registers(int arch, bool leak_free) {
  if (arch == 1030 && leak_free) return {184, 88, 56};
  return {176, 96, 64};
}

template <int kHeadDimOf, PScale kPScaleOf, bool kLeakFreeOf = false, bool kProbeOf = false>
struct Config {
  static constexpr int kHeadDim = kHeadDimOf;
  static constexpr PScale kPScale = kPScaleOf;
  /// No scale is shared by two tokens: V's exponent of each joins the scores, the MMA applies none.
  static constexpr bool kLeakFree = kLeakFreeOf;
  static_assert(!kLeakFree || kPScale == PScale::kConstant);
  static constexpr bool kProbe = kProbeOf;  ///< writes ForwardParams::probe, for tests
  static constexpr bool kLazy = kPScale != PScale::kConstant;
  /// What P is taken against may differ from the largest score.
  static constexpr bool kOwnTrueMax = kLazy || kLeakFree;

  static constexpr int kStages = kHeadDim == 128 ? 7 : 12;  ///< tiles of K and V in turn
  static constexpr int kRecords = 4;                        ///< work tiles that roles may be apart
  static constexpr int kTileBytes = 128 * kHeadDim;         ///< of Q, K or V
  static constexpr int kOutBytes = 128 * kHeadDim * 2;      ///< of O
  /// Columns of O that one swizzled box of 128 bytes holds.
  static constexpr int kOutBox = 64;
  static_assert(kHeadDim == 64 || kHeadDim == 128);
};

/// One work tile, 2 x 128 queries, as all roles see it.
struct TileRecord {
  std::int64_t o_begin = 0;  ///< first row of the sequence in o, lse
  std::int32_t o_group = 0;  ///< first group of 32 rows of the sequence in o
  std::int32_t seqlen_q = 0;
  std::int32_t seqlen_k = 0;
  std::int32_t head = 0;
  std::int32_t row0 = 0;  ///< of the tile, in the sequence
  std::int32_t n_begin = 0;
  std::int32_t n_end = 0;  ///< key blocks that either stream sees
  std::int32_t begin[kStreams] = {};
  std::int32_t end[kStreams] = {};  ///< begin: no row of the stream sees a key
  std::int32_t valid = 0;           ///< 0: there are no more tiles

  MXFA_HOST_DEVICE bool has_rows(int stream) const { return row0 + kTileM * stream < seqlen_q; }
  /// begin, end of a stream that is only known at run time: indices would put the record in memory.
  MXFA_HOST_DEVICE std::int32_t begin_of(int stream) const {
    return stream == 0 ? begin[0] : begin[1];
  }
  MXFA_HOST_DEVICE std::int32_t end_of(int stream) const { return stream == 0 ? end[0] : end[1]; }
};

/// Barriers: who arrives. An index is a stream, a stage or a record.
template <class Config>
struct Barriers {
  std::uint64_t tile_full[Config::kRecords];   ///< load
  std::uint64_t tile_empty[Config::kRecords];  ///< every other role's warps
  std::uint64_t q_full[kStreams];              ///< load, and bytes
  std::uint64_t q_empty[kStreams];             ///< commit of the tile's last S GEMM
  std::uint64_t kv_full[Config::kStages];      ///< load, and bytes
  std::uint64_t kv_empty[Config::kStages];     ///< commit of both streams' GEMMs on it
  std::uint64_t s_full[kStreams];              ///< commit of an S GEMM
  std::uint64_t s_read[kStreams];              ///< softmax warps: S is in registers
  /// Softmax warps: P and its scales are there. Correction warps: O is rescaled, or free where a
  /// tile begins.
  std::uint64_t pv_ready[kStreams];
  std::uint64_t o_full[kStreams];        ///< commit of the tile's last O GEMM
  std::uint64_t message_full[kStreams];  ///< softmax warps: rescale, or the tile's row_sum, row_max
  std::uint64_t message_empty[kStreams];  ///< correction warps
  std::uint64_t out_full[kStreams];       ///< correction warps: O in shared memory
  std::uint64_t out_empty[kStreams];      ///< epilogue
};
inline constexpr unsigned kRecordReaders = 1 + kStreams * kSoftmaxWarps + 4 + 1;

template <class Config>
struct SmemPlan {
  alignas(1024) std::uint8_t q[kStreams][Config::kTileBytes];
  alignas(1024) std::uint8_t kv[Config::kStages][Config::kTileBytes];
  /// [columns / 64][128 rows] of 128 bytes, swizzled.
  alignas(1024) std::uint8_t out[kStreams][Config::kOutBytes];
  alignas(128) std::uint8_t sf_q[kStreams][mx::kAtomBytes];
  std::uint8_t sf_kv[Config::kStages][mx::kAtomBytes];
  std::uint8_t sf_p[kStreams][mx::kAtomBytes];  ///< kConstant: the first serves both
  float rescale[kStreams][kTileM];
  float row_sum[kStreams][kTileM];
  float row_max[kStreams][kTileM];  ///< what P was taken against, log2 units
  float true_max[Config::kOwnTrueMax ? kStreams : 1][kTileM];  ///< of scores, where it differs
  /// kLeakFree: 2^-8 scales are P's, these are V's: 1 for all keys.
  std::uint8_t sf_v[Config::kLeakFree ? mx::kAtomBytes : 16];
  /// kLeakFree, of the keys of a step, in two buffers: V's exponent v, and 2^-v.
  alignas(16) float fold[Config::kLeakFree ? kStreams : 1][2][Config::kLeakFree ? kTileN : 4];
  alignas(16) float unfold[Config::kLeakFree ? kStreams : 1][2][Config::kLeakFree ? kTileN : 4];
  TileRecord tile[Config::kRecords];
  Barriers<Config> barriers;
  std::uint32_t tmem;
};

static_assert(sizeof(SmemPlan<Config<128, PScale::kBlockAmax>>) <= 227 * 1024);
static_assert(sizeof(SmemPlan<Config<64, PScale::kBlockAmax>>) <= 227 * 1024);

}  // namespace mxfa::sm100::forward
