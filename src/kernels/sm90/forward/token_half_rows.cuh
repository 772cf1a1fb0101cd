#pragma once

#include "kernels/sm90/forward/token_rows.cuh"

/// What the leak-free softmax with half scores keeps of rows (token_half_softmax.cuh).
namespace mxfa::sm90::forward {

template <class Config>
struct TokenHalfRows {
  using Fragment = std::uint32_t[Config::kTileN / 4];
  static constexpr std::uint32_t kMinusInfinities = 0xFC00FC00;
  struct State : PackedRowState {
    std::uint32_t factors;  ///< of the queries
    /// What `bases` are for: blocks by token, or uniform ones of V's exponent `value`, of which
    /// they are base + value.
    int kind = kByToken;
    bool odd = false;       ///< a factor of the warp's rows is too large for half
    bool packable = false;  ///< all of the warp's rows are, in blocks of this kind
    float top[2];           ///< by finish()
    /// Where asked for: of the thread's columns, the largest visible s less the query's factor; of
    /// odd tokens s is in RowNumbers::top.
    std::uint32_t packed_top = kMinusInfinities;
  };

  struct Scales : TokenBlock<Config> {
    int kind;

    __device__ Scales(const StageScales<Config>& source, RowNumbers<Config>& rows, int first,
                      BlockUse use)
        : TokenBlock<Config>(source, rows, first, use),
          kind(use.partial ? kByToken : source.kind) {}
    __device__ float factor(int h) const { return this->numbers.factor[row_of(this->warp_row, h)]; }
  };

  /// As a tile begins and ends, by whole warps; of the warp's 16 rows.
  __device__ static void begin(RowNumbers<Config>& numbers, int warp_row, State& rows) {
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      factor[h] = numbers.factor[row_of(warp_row, h)];
      if (quarter() == 0) numbers.top[row_of(warp_row, h)] = -INFINITY;
    }
    rows.factors = ptx::half2_pack(factor[0], factor[1]);
    rows.odd = __any_sync(~0u, factor[0] > kMost || factor[1] > kMost);
  }
  __device__ static void finish(const RowNumbers<Config>& numbers, int warp_row, State& rows) {
    __syncwarp();  // lane 0 of four has written both, lane 1 stores the second
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row_of(warp_row, h);
      const float top = quad_max(half_of(rows.packed_top, h) * numbers.factor[row]);
      rows.top[h] = quarter() < 2 ? fmaxf(top, numbers.top[row]) : top;
    }
  }
  __device__ static float row_max(const State& rows, int h) { return rows.top[h]; }
  /// As it is: the largest P' is a part of the sum that nobody knows.
  __device__ static float whole_sum(const State&, int, float sum) { return sum; }

  static constexpr std::uint32_t kMinusOne = 0xBC00BC00, kEight = 0x48004800;
  static constexpr std::uint32_t kInfinity = 0x7C00;
  /// Scores beyond it count as it, so that none is infinite.
  static constexpr float kMost = 60000.0f;
  /// Bases of packed rows: with maxima from 0 to 32, 2^(z + base) of the maximum rounds to 256.
  static constexpr float kLeastBase = -24.0f, kMostBase = 8.0f;
  /// In uniform blocks, where s is not rounded before: maxima of s from -8 to 16.
  static constexpr float kLeastUniformBase = -8.0f, kMostUniformBase = 16.0f;

  /// Of the thread's columns, as a pair of rows.
  __device__ static std::uint32_t both_rows(const std::uint32_t (&row)[2]) {
    return ptx::half2_max(__byte_perm(row[0], row[1], 0x5410), __byte_perm(row[0], row[1], 0x7632));
  }
  __device__ static float half_of(std::uint32_t pair, int i) {
    return i == 0 ? ptx::half2_low(pair) : ptx::half2_high(pair);
  }
  __device__ static std::uint32_t of_row(std::uint32_t rows, int h) {
    return h == 0 ? ptx::half2_broadcast_low(rows) : ptx::half2_broadcast_high(rows);
  }
  /// The thread's largest number of each row to that of the row.
  __device__ static std::uint32_t over_quad(std::uint32_t x) {
    x = ptx::half2_max(x, __shfl_xor_sync(~0u, x, 1));
    return ptx::half2_max(x, __shfl_xor_sync(~0u, x, 2));
  }
  /// NaN and -infinity, of hidden scores, stay.
  __device__ static float clamp(float x) {
    return x > kMost ? kMost : x < -kMost && x != -INFINITY ? -kMost : x;
  }

  /// Bases of both rows to `most` where they are larger, both as blocks of the kind have them;
  /// rounded to half where the row is packed.
  __device__ static Rescale lower_bases(const Scales& scales, const float (&most)[2], State& rows) {
    const bool uniform = rows.kind != kByToken;
    const float value = uniform ? static_cast<float>(rows.kind) : 0.0f;
    const float least_packed = uniform ? kLeastUniformBase : kLeastBase;
    const float most_packed = uniform ? kMostUniformBase : kMostBase;
    float rescale[2], packed[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float base = rows.base[h], of_kind = base + value;
      if (most[h] < of_kind) {
        of_kind = most[h];
        base = of_kind - value;
      }
      packed[h] = INFINITY;
      if (of_kind >= least_packed && of_kind <= most_packed &&
          !(uniform && rows.odd && scales.factor(h) > kMost)) {
        packed[h] = ptx::half2_low(ptx::half2_pack(of_kind, of_kind));
        base = packed[h] - value;
      }
      rescale[h] = ptx::exp2_approx(base - rows.base[h]);
      rows.base[h] = base;
      rows.sum[h] *= rescale[h];
    }
    rows.bases = ptx::half2_pack(packed[0], packed[1]);
    rows.packable = __all_sync(~0u, packed[0] != INFINITY && packed[1] != INFINITY);
    return ptx::half2_pack(rescale[0], rescale[1]);
  }
  /// Before the first block of another kind: its bases are halves too, where rows are packed. The
  /// row sums follow, O is to.
  __device__ static Rescale turn(const Scales& scales, State& rows) {
    rows.kind = scales.kind;
    constexpr float kAnywhere[2] = {INFINITY, INFINITY};
    return lower_bases(scales, kAnywhere, rows);
  }
};

}  // namespace mxfa::sm90::forward
