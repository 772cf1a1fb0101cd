// The loops of RMSNorm+quantize; part of kernels_inl.h, for each instruction set.

#if defined(MXFA_CPU_AVX512)
#define MXFA_CPU_EVENS 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define MXFA_CPU_ODDS 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif defined(MXFA_CPU_AVX2)
#define MXFA_CPU_EVENS 0, 2, 4, 6, 8, 10, 12, 14
#define MXFA_CPU_ODDS 1, 3, 5, 7, 9, 11, 13, 15
#else
#define MXFA_CPU_EVENS 0, 2, 4, 6
#define MXFA_CPU_ODDS 1, 3, 5, 7
#endif
MXFA_CPU_INLINE VF evens_of(VF a, VF b) { return __builtin_shufflevector(a, b, MXFA_CPU_EVENS); }
MXFA_CPU_INLINE VF odds_of(VF a, VF b) { return __builtin_shufflevector(a, b, MXFA_CPU_ODDS); }

MXFA_CPU_INLINE VU evens_of(VU a, VU b) { return bits(evens_of(floats(a), floats(b))); }
MXFA_CPU_INLINE VU odds_of(VU a, VU b) { return bits(odds_of(floats(a), floats(b))); }

/// 2 kV adjacent BF16 values as those of even and of odd index: that needs no shuffle.
struct Split {
  VF even, odd;
};
MXFA_CPU_INLINE Split split(VU pairs) { return {floats(pairs << 16), floats(pairs & 0xFFFF0000u)}; }
MXFA_CPU_INLINE Split load_split(const float* p) {
  const VF low = load<VF>(p), high = load<VF>(p + kV);
  return {evens_of(low, high), odds_of(low, high)};
}

/// 4 kV adjacent values as those of index 0, 1, 2 and 3 modulo 4.
struct Quads {
  VF values[4];
};
MXFA_CPU_INLINE Quads load_quads(const float* p) {
  const Split low = load_split(p), high = load_split(p + 2 * kV);
  return {{evens_of(low.even, high.even), evens_of(low.odd, high.odd), odds_of(low.even, high.even),
           odds_of(low.odd, high.odd)}};
}
MXFA_CPU_INLINE Quads load_quads(const std::uint16_t* p) {
  const VU low = load<VU>(p), high = load<VU>(p + 2 * kV);
  const Split first = split(evens_of(low, high)), second = split(odds_of(low, high));
  return {{first.even, first.odd, second.even, second.odd}};
}

/// v * v + sum, rounded once whatever the target.
MXFA_CPU_INLINE VF add_square(VF v, VF sum) {
#if defined(MXFA_CPU_AVX512) || defined(MXFA_CPU_AVX2)
  return fma(v, v, sum);
#else
  for (int i = 0; i < kV; ++i) sum[i] = __builtin_fmaf(v[i], v[i], sum[i]);
  return sum;
#endif
}

/// Adds one step of kStep columns to its lanes, each of which adds four adjacent columns.
template <class T>
MXFA_CPU_INLINE void add_step(const T* values, VF lanes[mx::row_sum::kLanes / kV]) {
  for (int group = 0; group < mx::row_sum::kLanes / kV; ++group) {
    const Quads quads = load_quads(values + group * 4 * kV);
    for (const VF value : quads.values) lanes[group] = add_square(value, lanes[group]);
  }
}

template <class T>
MXFA_CPU_INLINE float row_sum_squares(const T* values, std::int64_t count) {
  namespace order = mx::row_sum;
  static_assert(order::kVector == 4);
  float total = 0.0f;
  for (std::int64_t first = 0; first < count; first += order::kChunk) {
    const std::int64_t end = first + order::kChunk < count ? first + order::kChunk : count;
    VF lanes[order::kLanes / kV] = {};
    std::int64_t col = first;
    for (; col + order::kStep <= end; col += order::kStep) add_step(values + col, lanes);
    if (col < end) {
      T rest[order::kStep] = {};  // fma(0, 0, lane) changes nothing
      for (std::int64_t i = col; i < end; ++i) rest[i - col] = values[i];
      add_step(rest, lanes);
    }
    for (int groups = order::kLanes / kV / 2; groups > 0; groups /= 2) {
      for (int group = 0; group < groups; ++group) lanes[group] += lanes[group + groups];
    }
    float sums[kV];
    store(sums, lanes[0]);
    for (int distance = kV / 2; distance > 0; distance /= 2) {
      for (int lane = 0; lane < distance; ++lane) sums[lane] += sums[lane + distance];
    }
    total += sums[0];
  }
  return total;
}
float sum_squares(const float* values, std::int64_t count) {
  return row_sum_squares(values, count);
}
float sum_squares_bf16(const std::uint16_t* values, std::int64_t count) {
  return row_sum_squares(values, count);
}

/// E4M3 codes of y * 2^-exponent where that does not exceed 448. Adding 2^20 times the value's own
/// power of two (at least that of the least normal code) leaves its multiple of the last place,
/// rounded to nearest even, in the low bits. Each power of two is 8 codes: counted from the least
/// one in the low 7 bits, which the even number `first_code` added beforehand does.
struct Encoder {
  VU least;   ///< bits of the power of two of the least normal code
  VU offset;  ///< 2^20 as a difference of bits, and first_code

  /// Of exponents for which neither power of two leaves FP32.
  static MXFA_CPU_INLINE Encoder of(int exponent) {
    const std::uint32_t least = static_cast<std::uint32_t>(121 + exponent);
    const std::uint32_t first_code = (0u - 8u * least) & 0x7Fu;
    return {splat_u(least << 23), splat_u((20u << 23) + first_code)};
  }
  static constexpr bool covers(int exponent) { return exponent > -121 && exponent < 112; }

  MXFA_CPU_INLINE VU codes(VF y) const {
    const VU abs = bits(y) & 0x7FFFFFFFu;
    const VU power = max_u(abs, least) & 0x7F800000u;
    const VU steps = bits(floats(abs) + floats(power + offset));
    const VU code = steps + (power >> 20);
    return (code & 0x7Fu) | ((bits(y) >> 24) & 0x80u);
  }
};

/// How the values of one square become codes. Other exponents than the encoder covers go the way
/// over a multiplication by 1 / scale, and so do NaN and infinity, whose square is all NaN.
struct SquareScale {
  std::uint8_t byte;
  bool direct;
  Encoder encoder;
  VF inverse;

  static MXFA_CPU_INLINE SquareScale of(std::uint32_t amax) {
    if (amax >= 0x7F800000u) return {0xFF, false, Encoder::of(0), splat(1.0f)};
    const BlockScale scale = block_scale(amax, false);
    const int byte = static_cast<int>(__builtin_bit_cast(std::uint32_t, scale.scale) >> 23);
    const bool direct = Encoder::covers(byte - 127);
    return {static_cast<std::uint8_t>(byte), direct, Encoder::of(direct ? byte - 127 : 0),
            splat(scale.inverse)};
  }
  template <bool AllDirect>
  MXFA_CPU_INLINE VU codes(VF y) const {
    if (AllDirect || direct) return encoder.codes(y);
    return byte == 0xFF ? splat_u(0x7F) : encoder.codes(y * inverse);
  }
};

inline constexpr int kPairSteps = kSquare / (2 * kV);  ///< vectors of pairs in a row of a square

/// A row of codes from pairs of them in the low halves of `pairs`: past the caches where asked to.
template <int Squares>
MXFA_CPU_INLINE void store_codes(const VU* pairs, std::uint8_t* to, bool stream) {
  constexpr int kSteps = Squares * kPairSteps;
#if defined(MXFA_CPU_AVX512)
  if constexpr (Squares == 2) {
    VH index;
    for (int i = 0; i < kV; ++i) index[i] = static_cast<std::uint16_t>(2 * i);
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)index),
                                            (__m256i)(index + std::uint16_t{32}), 1);
    const __m512i line = _mm512_permutex2var_epi16((__m512i)pairs[0], both, (__m512i)pairs[1]);
    if (stream) {
      _mm512_stream_si512((__m512i*)to, line);
    } else {
      _mm512_storeu_si512(to, line);
    }
    return;
  }
#elif defined(MXFA_CPU_AVX2)
  if (stream) {
    for (int i = 0; i < kSteps; ++i) {
      _mm_stream_si128((__m128i*)to + i, (__m128i)low_halves(pairs[i]));
    }
    return;
  }
#endif
  (void)stream;
  for (int i = 0; i < kSteps; ++i) store(to + i * 2 * kV, low_halves(pairs[i]));
}

template <bool AllDirect, int Squares>
MXFA_CPU_INLINE void encode_rows(const NormSquares& t, const VF (*y)[4 * kPairSteps],
                                 const SquareScale* scales) {
  const std::int64_t rows = t.rows, ld = t.ld;
  std::uint8_t* to = t.codes;
  const bool stream = t.stream;
  for (std::int64_t row = 0; row < rows; ++row, to += ld) {
    VU pairs[Squares * kPairSteps];
    for (int i = 0; i < Squares * kPairSteps; ++i) {
      const SquareScale& scale = scales[i / kPairSteps];
      const VU even = scale.codes<AllDirect>(y[row][2 * i]);
      const VU odd = scale.codes<AllDirect>(y[row][2 * i + 1]);
      pairs[i] = even | (odd << 8);
    }
    store_codes<Squares>(pairs, to, stream);
  }
}

template <int Squares>
MXFA_CPU_INLINE void quantize_squares(const NormSquares& t) {
  constexpr int kSteps = Squares * kPairSteps;
  Split weight[kSteps];
  for (int i = 0; i < kSteps; ++i) weight[i] = load_split(t.weight + i * 2 * kV);
  VF y[kSquare][4 * kPairSteps];
  VU top[Squares] = {};
  for (std::int64_t row = 0; row < t.rows; ++row) {
    const VF rstd = splat(t.rstd[row]);
    const std::uint16_t* const from = t.x + row * t.ld;
    if (t.ahead != nullptr) {
      for (int i = 0; i < Squares; ++i) {
        __builtin_prefetch(t.ahead + row * t.ld + i * kSquare, 0, 2);
      }
    }
    for (int i = 0; i < kSteps; ++i) {
      const Split x = split(load<VU>(from + i * 2 * kV));
      const VF even = x.even * rstd * weight[i].even, odd = x.odd * rstd * weight[i].odd;
      y[row][2 * i] = even;
      y[row][2 * i + 1] = odd;
      VU& most = top[i / kPairSteps];
      most = max_u(max_u(most, bits(even) & 0x7FFFFFFFu), bits(odd) & 0x7FFFFFFFu);
    }
  }
  SquareScale scales[Squares];
  bool direct = true;
  for (int i = 0; i < Squares; ++i) {
    scales[i] = SquareScale::of(reduce_max_u(top[i]));
    t.scales[i] = scales[i].byte;
    direct = direct && scales[i].direct;
  }
  if (direct) {
    encode_rows<true, Squares>(t, y, scales);
  } else {
    encode_rows<false, Squares>(t, y, scales);
  }
}

void norm_squares(const NormSquares& t) {
  if (t.squares == 2) {
    quantize_squares<2>(t);
  } else {
    quantize_squares<1>(t);
  }
}

void normalize(const float* x, float factor, const float* weight, float* y, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kV <= count; i += kV) {
    store(y + i, load<VF>(x + i) * splat(factor) * load<VF>(weight + i));
  }
  for (; i < count; ++i) y[i] = x[i] * factor * weight[i];
}
