// Vectors of the instruction set that the including translation unit targets: kV floats. Included
// inside its namespace, after MXFA_CPU_AVX512, MXFA_CPU_AVX2 or neither was defined; no standard
// header may be included here, since its inline functions would be compiled for that target.

#if defined(MXFA_CPU_AVX512)
inline constexpr int kV = 16;
#elif defined(MXFA_CPU_AVX2)
inline constexpr int kV = 8;
#else
inline constexpr int kV = 4;
#endif

typedef float VF __attribute__((vector_size(kV * 4)));
typedef std::int32_t VI __attribute__((vector_size(kV * 4)));
typedef std::uint32_t VU __attribute__((vector_size(kV * 4)));
typedef std::uint16_t VH __attribute__((vector_size(kV * 2)));
typedef std::uint8_t VB __attribute__((vector_size(kV)));

template <class V, class T>
MXFA_CPU_INLINE V load(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(V));
  return v;
}
template <class V, class T>
MXFA_CPU_INLINE void store(T* p, V v) {
  __builtin_memcpy(p, &v, sizeof(V));
}
MXFA_CPU_INLINE VF splat(float x) {
#if defined(MXFA_CPU_AVX512)
  return (VF)_mm512_set1_ps(x);
#elif defined(MXFA_CPU_AVX2)
  return (VF)_mm256_set1_ps(x);
#else
  return VF{x, x, x, x};
#endif
}
MXFA_CPU_INLINE VU splat_u(std::uint32_t x) { return VU{} + x; }
MXFA_CPU_INLINE VU bits(VF v) { return (VU)v; }
MXFA_CPU_INLINE VF floats(VU v) { return (VF)v; }
MXFA_CPU_INLINE VU select(VI mask, VU yes, VU no) { return mask ? yes : no; }
MXFA_CPU_INLINE VF select(VI mask, VF yes, VF no) { return mask ? yes : no; }

// GCC 12 converts bytes one by one, and 32-bit values by way of a table.
MXFA_CPU_INLINE VU widen(VB bytes) {
#if defined(MXFA_CPU_AVX512)
  return (VU)_mm512_cvtepu8_epi32((__m128i)bytes);
#elif defined(MXFA_CPU_AVX2)
  return (VU)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)&bytes));
#else
  return __builtin_convertvector(bytes, VU);
#endif
}
/// Of values whose upper halves are 0.
MXFA_CPU_INLINE VH low_halves(VU v) {
#if defined(MXFA_CPU_AVX512)
  return (VH)_mm512_cvtepi32_epi16((__m512i)v);
#elif defined(MXFA_CPU_AVX2)
  const __m256i packed = _mm256_packus_epi32((__m256i)v, (__m256i)v);
  return (VH)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  return __builtin_convertvector(v, VH);
#endif
}

/// a * b + c: rounded once, but on portable targets twice.
MXFA_CPU_INLINE VF fma(VF a, VF b, VF c) {
#if defined(MXFA_CPU_AVX512)
  return (VF)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(MXFA_CPU_AVX2)
  return (VF)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
/// a > b ? a : b, so b where either is NaN.
MXFA_CPU_INLINE VF max(VF a, VF b) {
#if defined(MXFA_CPU_AVX512)
  return (VF)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(MXFA_CPU_AVX2)
  return (VF)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return select((VI)(a > b), a, b);
#endif
}
/// a < b ? a : b, so b where either is NaN.
MXFA_CPU_INLINE VF min(VF a, VF b) {
#if defined(MXFA_CPU_AVX512)
  return (VF)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(MXFA_CPU_AVX2)
  return (VF)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return select((VI)(a < b), a, b);
#endif
}
MXFA_CPU_INLINE VU max_u(VU a, VU b) {
#if defined(MXFA_CPU_AVX512)
  return (VU)_mm512_max_epu32((__m512i)a, (__m512i)b);
#elif defined(MXFA_CPU_AVX2)
  return (VU)_mm256_max_epu32((__m256i)a, (__m256i)b);
#else
  return select((VI)(a > b), a, b);
#endif
}

/// a with those bits of b that the mask names.
MXFA_CPU_INLINE VF or_bits(VF a, VF b, std::uint32_t mask) {
#if defined(MXFA_CPU_AVX512)
  constexpr int kOrAnd = 0xF8;  // a | (b & mask)
  return (VF)_mm512_ternarylogic_epi32((__m512i)a, (__m512i)b, (__m512i)splat_u(mask), kOrAnd);
#else
  return floats(bits(a) | (bits(b) & mask));
#endif
}

// Lanes are folded by halves: one order for each vector length.
MXFA_CPU_INLINE float reduce_add(VF v) {
#if defined(MXFA_CPU_AVX512)
  const __m512 all = (__m512)v;
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
#else
  float lanes[kV];
  store(lanes, v);
  for (int step = kV / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  }
  return lanes[0];
#endif
}
MXFA_CPU_INLINE float reduce_max(VF v) {
#if defined(MXFA_CPU_AVX512)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float lanes[kV];
  store(lanes, v);
  float top = lanes[0];
  for (int i = 1; i < kV; ++i) top = lanes[i] > top ? lanes[i] : top;
  return top;
#endif
}
MXFA_CPU_INLINE std::uint32_t reduce_max_u(VU v) {
#if defined(MXFA_CPU_AVX512)
  return _mm512_reduce_max_epu32((__m512i)v);
#else
  std::uint32_t lanes[kV];
  store(lanes, v);
  std::uint32_t top = lanes[0];
  for (int i = 1; i < kV; ++i) top = lanes[i] > top ? lanes[i] : top;
  return top;
#endif
}

/// Lane indices from `first` on, all ones where they lie in [begin, end).
MXFA_CPU_INLINE VI lanes_within(std::int32_t first, std::int32_t begin, std::int32_t end) {
  VI index;
  for (int i = 0; i < kV; ++i) index[i] = i;
  index += first;
  return (VI)(index >= begin) & (VI)(index < end);
}

/// Vectors that a loop works on side by side: each operation's latency is hidden by the others.
#if defined(MXFA_CPU_AVX512)
inline constexpr int kGroup = 4;
#else
inline constexpr int kGroup = 1;
#endif
#define MXFA_CPU_EACH(i, N) _Pragma("GCC unroll 4") for (int i = 0; i < N; ++i)

/// x = whole + f with |f| <= 1/2; `whole` beyond what exp2 can tell apart.
template <bool Bounded>
MXFA_CPU_INLINE void split_exponent(VF x, VF& whole, VF& f) {
#if defined(MXFA_CPU_AVX512)
  constexpr int kNearestWhole = 0x08;
  f = (VF)_mm512_reduce_ps((__m512)x, kNearestWhole);  // 0 of an infinity
  whole = x - f;
#else
  x = max(splat(-200.0f), x);
  if constexpr (Bounded) x = min(splat(200.0f), x);
  const VF magic = splat(0x1.8p23f);
  whole = (x + magic) - magic;
  f = x - whole;
#endif
}
/// sum * 2^whole.
MXFA_CPU_INLINE VF scale_by(VF sum, VF whole) {
#if defined(MXFA_CPU_AVX512)
  return (VF)_mm512_scalef_ps((__m512)sum, (__m512)whole);
#else
  // In two steps: 2^whole alone may lie outside of FP32. The low bits of the sum are the integer.
  const VI n = (VI)bits(whole + splat(0x1.8p23f)) - 0x4B400000;
  const VI half = n >> 1;
  const VF low = (VF)((half + 127) << 23);
  const VF high = (VF)((n - half + 127) << 23);
  return sum * low * high;
#endif
}

/// 2^x within 1 ulp (1.3 without FMA) for results down to 2^-126; 0 below 2^-150, infinity from
/// 2^128 on, NaN for NaN. Without `Bounded` x is at most 200. A polynomial of degree 6 on
/// [-1/2, 1/2], relative error 2^-28.5 before rounding.
template <bool Bounded = true, int N>
MXFA_CPU_INLINE void exp2_group(VF (&x)[N]) {
  constexpr float kTerms[] = {0x1.5f7276p-10f, 0x1.3b270ep-7f, 0x1.c6ae72p-5f,
                              0x1.ebfbe2p-3f,  0x1.62e432p-1f, 1.0f};
  VF whole[N], f[N], sum[N];
  MXFA_CPU_EACH(i, N) split_exponent<Bounded>(x[i], whole[i], f[i]);
  MXFA_CPU_EACH(i, N) sum[i] = splat(0x1.470b4ap-13f);
#pragma GCC unroll 6
  for (const float term : kTerms) {
    MXFA_CPU_EACH(i, N) sum[i] = fma(sum[i], f[i], splat(term));
  }
  MXFA_CPU_EACH(i, N) x[i] = scale_by(sum[i], whole[i]);
}
MXFA_CPU_INLINE VF exp2_vector(VF x) {
  VF group[1] = {x};
  exp2_group(group);
  return group[0];
}

inline constexpr std::uint32_t kLeastNormal = 121u
                                              << 23;  // bits of E4M3's least normal number, 2^-6
/// The nearest E4M3 values of |v| <= 448, ties to even, without the sign of zero; NaN stays NaN.
/// What is added and taken away is 1.5 * 2^20 times a value's own power of two (at least that of
/// the least normal number): the sum keeps multiples of the last place, rounded to nearest even.
/// With another power of two as `least`, payload that has its scale; with NaN, NaN.
template <int N>
MXFA_CPU_INLINE void round_e4m3_places(VF (&v)[N], VU least) {
  const VF lift = splat(0x1.8p20f), lower = splat(-0x1.8p20f);
  VF power[N];
  MXFA_CPU_EACH(i, N) power[i] = floats(max_u(bits(v[i]) & 0x7F800000u, least));
  MXFA_CPU_EACH(i, N) v[i] = fma(power[i], lift, v[i]);
  MXFA_CPU_EACH(i, N) v[i] = fma(power[i], lower, v[i]);
}
template <int N>
MXFA_CPU_INLINE void round_e4m3_places(VF (&v)[N]) {
  round_e4m3_places(v, splat_u(kLeastNormal));
}
/// Of any value, saturating, zero with its sign.
template <int N>
MXFA_CPU_INLINE void round_e4m3_group(VF (&v)[N]) {
  VF clamped[N];
  MXFA_CPU_EACH(i, N) v[i] = min(splat(448.0f), max(splat(-448.0f), v[i]));
  MXFA_CPU_EACH(i, N) clamped[i] = v[i];
  round_e4m3_places(v);
  MXFA_CPU_EACH(i, N) v[i] = or_bits(v[i], clamped[i], 0x80000000u);
}

/// Where nothing saturates, zero has no sign, which no sum of products can tell.
template <bool Saturates, int N>
MXFA_CPU_INLINE void round_e4m3(VF (&v)[N]) {
  if constexpr (Saturates) {
    round_e4m3_group(v);
  } else {
    round_e4m3_places(v);
  }
}

/// BF16 bits in the upper halves, nearest even; NaN stays NaN.
MXFA_CPU_INLINE VU round_bf16_vector(VF v) {
  const VU b = bits(v);
  const VU rounded = b + 0x7FFFu + ((b >> 16) & 1u);
  return select((VI)((b & 0x7FFFFFFFu) > 0x7F800000u), b | 0x00400000u, rounded);
}
MXFA_CPU_INLINE VH upper_halves(VU v) { return low_halves(v >> 16); }

/// Upper halves of the group's vectors, one after the other.
template <int N>
MXFA_CPU_INLINE void store_upper_halves(std::uint16_t* out, const VF (&v)[N]) {
#if defined(MXFA_CPU_AVX512)
  if constexpr (N % 2 == 0) {
    alignas(64) static constexpr std::uint16_t kOdd[32] = {
        1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
        33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const __m512i odd = _mm512_load_si512(kOdd);
#pragma GCC unroll 2
    for (int i = 0; i < N; i += 2) {
      _mm512_storeu_si512(out + i * kV,
                          _mm512_permutex2var_epi16((__m512i)v[i], odd, (__m512i)v[i + 1]));
    }
    return;
  }
#endif
  MXFA_CPU_EACH(i, N) store(out + i * kV, upper_halves(bits(v[i])));
}
/// [i][0] = upper half of even, [i][1] = upper half of odd.
MXFA_CPU_INLINE VU pair_upper_halves(VF even, VF odd) {
#if defined(MXFA_CPU_AVX512)
  return (VU)_mm512_mask_blend_epi16(0xAAAAAAAAu, (__m512i)(bits(even) >> 16), (__m512i)odd);
#else
  return (bits(odd) & 0xFFFF0000u) | (bits(even) >> 16);
#endif
}

#if defined(MXFA_CPU_AVX512)
enum class Fold { kAdd, kMax };
template <Fold Op>
MXFA_CPU_INLINE __m512 fold(__m512 a, __m512 b) {
  return Op == Fold::kAdd ? _mm512_add_ps(a, b) : _mm512_max_ps(a, b);
}
/// Folds 16 vectors into one, whose lane i is Op over the lanes of v[i]: halves are folded first,
/// as reduce_add() does.
template <Fold Op>
MXFA_CPU_INLINE __m512 fold_each(const VF (&v)[16]) {
  __m512 eights[8], fours[4], pairs[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512 a = (__m512)v[i], b = (__m512)v[i + 8];
    eights[i] = fold<Op>(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // lanes of 128 bits: v[i], v[i + 8], v[i + 4], v[i + 12]
    const __m512 a = eights[i], b = eights[i + 4];
    fours[i] = fold<Op>(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512d a = _mm512_castps_pd(fours[2 * i]), b = _mm512_castps_pd(fours[2 * i + 1]);
    pairs[i] = fold<Op>(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                        _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const __m512 all = fold<Op>(_mm512_shuffle_ps(pairs[0], pairs[1], 0x88),
                              _mm512_shuffle_ps(pairs[0], pairs[1], 0xDD));
  const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15);
  return _mm512_permutexvar_ps(order, all);
}
#endif
/// out[i] = reduce_add(v[i]).
MXFA_CPU_INLINE void add_of_each(const VF (&v)[16], float* out) {
#if defined(MXFA_CPU_AVX512)
  _mm512_storeu_ps(out, fold_each<Fold::kAdd>(v));
#else
  for (int i = 0; i < 16; ++i) out[i] = reduce_add(v[i]);
#endif
}
/// out[i] = reduce_max(v[i]).
MXFA_CPU_INLINE void max_of_each(const VF (&v)[16], float* out) {
#if defined(MXFA_CPU_AVX512)
  _mm512_storeu_ps(out, fold_each<Fold::kMax>(v));
#else
  for (int i = 0; i < 16; ++i) out[i] = reduce_max(v[i]);
#endif
}

/// Lane i: the largest of the lanes of m[i].
MXFA_CPU_INLINE void max_of_each(const VU (&m)[16], std::uint32_t (&out)[16]) {
#if defined(MXFA_CPU_AVX512)
  // Halves as many vectors each time, until the 16 lanes are those of 16 vectors.
  __m512i pairs[8], fours[4], eights[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512i a = (__m512i)m[2 * i], b = (__m512i)m[2 * i + 1];
    pairs[i] = _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = pairs[2 * i], b = pairs[2 * i + 1];
    fours[i] = _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512i a = fours[2 * i], b = fours[2 * i + 1];
    eights[i] =
        _mm512_max_epu32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
  }
  _mm512_storeu_si512(out, _mm512_max_epu32(_mm512_shuffle_i32x4(eights[0], eights[1], 0x88),
                                            _mm512_shuffle_i32x4(eights[0], eights[1], 0xDD)));
#else
  for (int i = 0; i < 16; ++i) out[i] = reduce_max_u(m[i]);
#endif
}
