#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

/// The hot loops, compiled for several instruction sets; one table of them is chosen at run time.
/// Operands of products are BF16: FP8 payload times a power of two is exact there. Sums are FP32.
///
/// A "panel" matrix [k, n] is what a product reads as its right operand: panels of 64 columns one
/// after another, each [k / 2][64][2], so that the two values of adjacent k lie together. n and k
/// are padded with zeros to multiples of 64 and 2.
namespace mxfa::cpu {

inline constexpr std::int64_t kPanel = 64;
inline constexpr std::int64_t kSquare = 32;
inline constexpr std::int64_t kTile = 16;       ///< rows of a tile, and columns of one of sums
inline constexpr std::int64_t kTileDepth = 32;  ///< values along k in a tile of a left operand

enum class Isa : std::uint8_t {
  kPortable,    ///< any machine; multiply and add, each rounded
  kAvx2,        ///< AVX2 and FMA
  kAvx512Bf16,  ///< AVX-512 with VDPBF16PS
  kAmxBf16,     ///< the same, products on AMX tiles
};

/// How a matrix lies in memory, by tiles of kTile rows and Width columns: in rows, or each tile in
/// one piece, which caches and address checks like better than rows 256 bytes apart.
template <std::int64_t Width>
struct TileLayout {
  std::int64_t row = 0;     ///< elements from row to row of a tile
  std::int64_t down = 0;    ///< from a tile to the one below
  std::int64_t across = 0;  ///< from a tile to the one beside

  static constexpr TileLayout rows(std::int64_t ld) { return {ld, kTile * ld, Width}; }
  /// Of a matrix whose `cols` are a multiple of Width, its rows padded to whole tiles.
  static constexpr TileLayout pieces(std::int64_t cols) {
    return {Width, kTile * cols, kTile * Width};
  }
  constexpr std::int64_t at(std::int64_t r, std::int64_t col = 0) const {
    return r / kTile * down + r % kTile * row + col / Width * across + col % Width;
  }
};
using LeftLayout = TileLayout<kTileDepth>;
using SumLayout = TileLayout<kTile>;
/// Of BF16 over the FP32 sums [m, cols] that it comes from, which lie in pieces: a tile takes the
/// place of the first of two tiles of sums, each row that of its own sums. cols: whole panels.
constexpr LeftLayout over_sums(std::int64_t cols) {
  return {kTileDepth, kTile * cols * 2, kTile * kTile * 4};
}

struct PanelProduct {
  std::int64_t m = 0;
  std::int64_t n = 0;  ///< a multiple of kPanel
  std::int64_t k = 0;  ///< even
  const std::uint16_t* a = nullptr;
  LeftLayout a_layout = {};
  std::int64_t a_pair = 2;  ///< elements from one pair of k to the next within a tile
  const std::uint16_t* b = nullptr;
  std::int64_t b_panel = 0;  ///< elements from panel to panel
  float* c = nullptr;        ///< [m, n]
  SumLayout c_layout = {};
  bool accumulate = false;       ///< c = c * alpha[row] + a b, else c = a b
  const float* alpha = nullptr;  ///< [m]; null: 1
};

/// How values become payload; all are rounded to nearest even.
enum class Rounding : std::uint8_t { kBf16, kE4M3 };

/// Online softmax of a tile of scores. Columns [begin, end) of a row are visible.
struct SoftmaxTile {
  std::int64_t rows = 0;
  std::int64_t cols = 0;  ///< a multiple of kPanel
  float* acc = nullptr;   ///< [rows, cols], raw sums; changed where scores are huge
  SumLayout acc_layout = {};
  std::uint16_t* p = nullptr;  ///< out: BF16 [rows, cols], 0 where masked; may lie over acc (below)
  LeftLayout p_layout = {};
  const std::int32_t* begin = nullptr;
  const std::int32_t* end = nullptr;
  float mult = 1;    ///< s = acc * mult, in log2 units
  float offset = 0;  ///< log2 of what the row maximum becomes
  Rounding rounding = Rounding::kE4M3;
  const float* fold = nullptr;  ///< kE4M3 only: [cols], added to x; null: none
  const float* undo = nullptr;  ///< [cols], 2^-fold, for the row sum
  bool fold_in_max = false;     ///< leak-free: the maximum is that of s + fold; p stays folded
  // State of each row, padded to whole tiles.
  float* max = nullptr;       ///< what P is taken against
  float* true_max = nullptr;  ///< of s alone
  float* sum = nullptr;       ///< of un-rounded, un-folded P
  float* alpha = nullptr;     ///< out: by how much older sums shrink
};

/// P and dS of a tile of the backward, transposed: rows are keys, columns queries. Queries
/// [begin, end) see the row's key.
struct ScoreTile {
  std::int64_t rows = 0;
  std::int64_t cols = 0;  ///< a multiple of kPanel
  float* s = nullptr;     ///< [rows, cols]: raw sums of S^T in, P' out
  float* dp = nullptr;    ///< [rows, cols]: raw sums of dP^T in, dS = P (dP - delta) out
  const std::int32_t* begin = nullptr;
  const std::int32_t* end = nullptr;
  float s_mult = 1;
  float dp_mult = 1;
  const float* bias = nullptr;    ///< [cols], x = s * s_mult + bias
  const float* delta = nullptr;   ///< [cols]
  const float* unfold = nullptr;  ///< [cols], P = P' * unfold; null: 1
};

/// How a rectangle of dS^T or P^T becomes BF16: out = round(v * row * col * inverse) * scale /
/// (row * col). Pairs of rows may be written interleaved as well.
struct RoundTile {
  std::int64_t rows = 0;  ///< even where `pairs` is wanted
  std::int64_t cols = 0;  ///< a multiple of 16
  const float* values = nullptr;
  std::int64_t ld = 0;              ///< of values
  const float* row_fold = nullptr;  ///< [rows] powers of two; null: 1
  const float* col_fold = nullptr;  ///< [cols] likewise
  const float* row_unfold = nullptr;
  const float* col_unfold = nullptr;
  float inverse = 1;  ///< 1 / scale; NaN poisons the rectangle
  float scale = 1;
  Rounding rounding = Rounding::kE4M3;
  bool saturates = true;         ///< kE4M3: whether v * row * col * inverse may lie beyond 448
  std::uint16_t* out = nullptr;  ///< [rows, cols]; null: not wanted
  LeftLayout out_layout = {};
  std::uint16_t* pairs = nullptr;  ///< [rows / 2][pair_ld][2]; null: not wanted
  std::int64_t pair_ld = 0;
};

/// One or two adjacent squares of up to 32 rows x 32 columns of RMSNorm's output, y = x * rstd *
/// weight.
struct NormSquares {
  std::int64_t rows = 0;
  int squares = 1;
  const std::uint16_t* x = nullptr;  ///< BF16 [rows, ld]
  std::int64_t ld = 0;               ///< of x and codes
  const float* rstd = nullptr;       ///< [rows]
  const float* weight = nullptr;     ///< [32 squares]
  std::uint8_t* codes = nullptr;     ///< out: E4M3 [rows, ld]
  std::uint8_t* scales = nullptr;    ///< out: [squares]
  bool stream = false;  ///< two squares, rows of codes on 64-byte lines: write past the caches
  const std::uint16_t* ahead = nullptr;  ///< [rows, ld] of x that will be read next; null: none
};

struct Kernels {
  Isa isa;
  std::string_view name;
  void (*product)(const PanelProduct&);
  /// Products between them, on one thread, share what each would set up by itself.
  void (*begin_products)();
  void (*end_products)();
  void (*softmax)(const SoftmaxTile&);
  void (*scores)(const ScoreTile&);
  /// Payload of P^T in blocks of 1 key x 32 queries, each with the scale of its largest value.
  void (*round_blocks)(const RoundTile&, bool floor_rule);
  void (*round)(const RoundTile&);
  /// FP32 bits of the largest |v * row * col| of a RoundTile; NaN above all.
  std::uint32_t (*magnitude)(const RoundTile&);
  void (*exp2)(const float* x, float* y, std::int64_t count);
  /// Two BF16 rows [n] to a row of pairs [n][2]; `odd` null: zeros.
  void (*interleave)(const std::uint16_t* even, const std::uint16_t* odd, std::uint16_t* out,
                     std::int64_t n);
  /// out[p][r][2] = in[r][2 p .. 2 p + 1]: a transpose of pairs of columns. `ld` elements from row
  /// to row of `in`, `out_ld` of `out`; rows is a multiple of 16.
  void (*transpose_pairs)(const std::uint16_t* in, std::int64_t ld, std::uint16_t* out,
                          std::int64_t out_ld, std::int64_t rows, std::int64_t pairs);
  void (*round_bf16)(const float* values, std::uint16_t* out, std::int64_t count);
  /// out[i] = BF16(decode_e4m3(codes[i]) * scales[i]); scales are powers of two.
  void (*decode_e4m3)(const std::uint8_t* codes, const float* scales, std::uint16_t* out,
                      std::int64_t count);
  /// Sum of squares of a row in the order of mx/row_sum.h, bit for bit on every machine.
  float (*sum_squares)(const float* values, std::int64_t count);
  float (*sum_squares_bf16)(const std::uint16_t* values, std::int64_t count);
  /// Squares of MXFP8, rounded-up scales, bit for bit mx::quantize_block().
  void (*norm_squares)(const NormSquares&);
  /// y[i] = x[i] * factor * weight[i], rounded twice.
  void (*normalize)(const float* x, float factor, const float* weight, float* y,
                    std::int64_t count);
};

/// The fastest table that this machine runs, unless force_isa() said otherwise.
const Kernels& kernels();

/// While it lives, this thread's products share their set-up. Not nested.
class Products {
 public:
  explicit Products(const Kernels& kernels) : kernels_(kernels) { kernels_.begin_products(); }
  ~Products() { kernels_.end_products(); }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

 private:
  const Kernels& kernels_;
};
/// Instruction sets that this machine runs, kPortable first.
std::span<const Isa> supported_isas();
/// Of a supported instruction set.
const Kernels& kernels_of(Isa isa);
/// For tests: nullopt restores the choice by machine. Not while calls run.
void force_isa(std::optional<Isa> isa);

// One table for each translation unit; null where the compiler cannot target it.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* amx_kernels();

/// The processor has AMX with BF16 and the system lets this process use it; asks for permission at
/// the first call.
bool amx_usable();

}  // namespace mxfa::cpu
