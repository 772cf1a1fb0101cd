// The loops of kernels.h over the vectors of vector_inl.h; included once by the translation unit of
// each instruction set, inside its namespace.

#if !defined(MXFA_CPU_AVX512)
/// R rows of a tile, 2 vectors of columns.
template <int R>
MXFA_CPU_INLINE void micro_product(const PanelProduct& g, std::int64_t row, std::int64_t col) {
  const std::uint16_t* a = g.a + g.a_layout.at(row);
  const std::uint16_t* b = g.b + col / kPanel * g.b_panel + col % kPanel * 2;
  VF sums[R][2] = {};
  for (std::int64_t pair = 0; pair < g.k / 2; ++pair) {
    VF even[2], odd[2];
    for (int i = 0; i < 2; ++i) {
      const VU both = load<VU>(b + pair * kPanel * 2 + i * kV * 2);
      even[i] = floats(both << 16);
      odd[i] = floats(both & 0xFFFF0000u);
    }
    constexpr std::int64_t kPairs = kTileDepth / 2;
    const std::int64_t at = pair / kPairs * g.a_layout.across + pair % kPairs * g.a_pair;
    for (int r = 0; r < R; ++r) {
      std::uint32_t both;
      __builtin_memcpy(&both, a + r * g.a_layout.row + at, 4);
      const VF a_even = floats(splat_u(both << 16));
      const VF a_odd = floats(splat_u(both & 0xFFFF0000u));
      for (int i = 0; i < 2; ++i) {
        sums[r][i] = fma(a_odd, odd[i], fma(a_even, even[i], sums[r][i]));
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    const VF alpha = splat(g.alpha != nullptr ? g.alpha[row + r] : 1.0f);
    for (int i = 0; i < 2; ++i) {
      float* c = g.c + g.c_layout.at(row + r, col + i * kV);
      store(c, g.accumulate ? fma(load<VF>(c), alpha, sums[r][i]) : sums[r][i]);
    }
  }
}

void product(const PanelProduct& g) {
  constexpr int kRows = 4;  // of one tile, since they divide it
  for (std::int64_t col = 0; col < g.n; col += 2 * kV) {
    std::int64_t row = 0;
    for (; row + kRows <= g.m; row += kRows) micro_product<kRows>(g, row, col);
    for (; row < g.m; ++row) micro_product<1>(g, row, col);
  }
}
#endif

#include "cpu/rounding_inl.h"
#include "cpu/softmax_inl.h"  // inside the namespace of the instruction set

void exp2_row(const float* x, float* y, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kV <= count; i += kV) store(y + i, exp2_vector(load<VF>(x + i)));
  for (; i < count; ++i) y[i] = exp2_vector(splat(x[i]))[0];
}

void interleave(const std::uint16_t* even, const std::uint16_t* odd, std::uint16_t* out,
                std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kV <= n; i += kV) {
    const VU low = __builtin_convertvector(load<VH>(even + i), VU);
    const VU high = odd != nullptr ? __builtin_convertvector(load<VH>(odd + i), VU) : VU{};
    store(out + 2 * i, (high << 16) | low);
  }
  for (; i < n; ++i) {
    out[2 * i] = even[i];
    out[2 * i + 1] = odd != nullptr ? odd[i] : std::uint16_t{0};
  }
}

#if !defined(MXFA_CPU_AVX512)
void transpose_pairs(const std::uint16_t* in, std::int64_t ld, std::uint16_t* out,
                     std::int64_t out_ld, std::int64_t rows, std::int64_t pairs) {
  for (std::int64_t p = 0; p < pairs; ++p) {
    for (std::int64_t r = 0; r < rows; ++r) {
      __builtin_memcpy(out + p * out_ld + r * 2, in + r * ld + p * 2, 4);
    }
  }
}
#endif

void begin_products() {}
void end_products() {}

void round_bf16_row(const float* values, std::uint16_t* out, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kV <= count; i += kV) {
    store(out + i, upper_halves(round_bf16_vector(load<VF>(values + i))));
  }
  for (; i < count; ++i) {
    out[i] = static_cast<std::uint16_t>(round_bf16_vector(splat(values[i]))[0] >> 16);
  }
}

MXFA_CPU_INLINE VU decode_lanes(VU codes, VF scales) {
  const VU abs = codes & 0x7Fu;
  const VF steps = __builtin_convertvector((VI)abs, VF) * splat(0x1p-9f);
  const VF normal = floats((abs << 20) + (120u << 23));
  VF value = select((VI)(abs < 8u), steps, normal);
  value = select((VI)(abs == 0x7Fu), splat(__builtin_nanf("")), value) * scales;
  return bits(value) ^ ((codes & 0x80u) << 24);
}

#if defined(MXFA_CPU_AVX512)
/// 32 codes with one scale whose products are normal BF16 numbers: exponents are added as integers.
MXFA_CPU_INLINE void decode_32(const std::uint8_t* codes, std::uint32_t scale_bits,
                               std::uint16_t* out) {
  // BF16 of the codes 0 to 7, which are multiples of 2^-9.
  alignas(64) static constexpr std::uint16_t kSubnormal[32] = {0,      0x3B00, 0x3B80, 0x3BC0,
                                                               0x3C00, 0x3C20, 0x3C40, 0x3C60};
  const __m512i shift = _mm512_set1_epi16(static_cast<short>((scale_bits >> 16) - 0x3F80));
  const __m512i wide = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)codes));
  const __m512i abs = _mm512_and_si512(wide, _mm512_set1_epi16(0x7F));
  const __mmask32 subnormal = _mm512_cmplt_epu16_mask(abs, _mm512_set1_epi16(8));
  __m512i value = _mm512_add_epi16(_mm512_slli_epi16(abs, 4), _mm512_set1_epi16(120 << 7));
  value = _mm512_mask_permutexvar_epi16(value, subnormal, abs, _mm512_load_si512(kSubnormal));
  value = _mm512_maskz_add_epi16(_mm512_test_epi16_mask(abs, abs), value, shift);
  value = _mm512_mask_mov_epi16(value, _mm512_cmpeq_epi16_mask(abs, _mm512_set1_epi16(0x7F)),
                                _mm512_set1_epi16(0x7FC0));
  constexpr int kOrAnd = 0xF8;  // a | (b & c)
  _mm512_storeu_si512(out, _mm512_ternarylogic_epi32(value, _mm512_slli_epi16(wide, 8),
                                                     _mm512_set1_epi16(short(0x8000)), kOrAnd));
}
/// Whether 32 scales are one power of two, neither so large nor so small that a product leaves
/// BF16's normal numbers.
MXFA_CPU_INLINE bool is_plain(const float* scales) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, scales[0]);
  const __m512i first = _mm512_set1_epi32(static_cast<int>(bits));
  const __mmask16 differing = _mm512_cmpneq_epi32_mask(first, _mm512_loadu_si512(scales)) |
                              _mm512_cmpneq_epi32_mask(first, _mm512_loadu_si512(scales + kV));
  constexpr std::uint32_t kLeast = 27u << 23, kMost = 227u << 23;  // 2^-100 to 2^100
  return differing == 0 && bits >= kLeast && bits <= kMost && (bits & 0x7FFFFFu) == 0;
}
#endif

void decode_e4m3_row(const std::uint8_t* codes, const float* scales, std::uint16_t* out,
                     std::int64_t count) {
  std::int64_t i = 0;
#if defined(MXFA_CPU_AVX512)
  for (; i + 2 * kV <= count && is_plain(scales + i); i += 2 * kV) {
    decode_32(codes + i, __builtin_bit_cast(std::uint32_t, scales[i]), out + i);
  }
#endif
  for (; i + kV <= count; i += kV) {
    const VU wide = widen(load<VB>(codes + i));
    store(out + i, upper_halves(decode_lanes(wide, load<VF>(scales + i))));
  }
  for (; i < count; ++i) {
    out[i] = static_cast<std::uint16_t>(decode_lanes(splat_u(codes[i]), splat(scales[i]))[0] >> 16);
  }
}

#include "cpu/norm_inl.h"  // inside the namespace of the instruction set

inline constexpr Kernels make_table(Isa isa, std::string_view name) {
  return {isa,
          name,
          product,
          begin_products,
          end_products,
          softmax,
          scores,
          round_blocks,
          round,
          magnitude,
          exp2_row,
          interleave,
          transpose_pairs,
          round_bf16_row,
          decode_e4m3_row,
          sum_squares,
          sum_squares_bf16,
          norm_squares,
          normalize};
}
