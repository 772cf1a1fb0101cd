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

/// 2 kV adjacent values as those of even and of odd index; BF16 needs no shuffle for that.
struct Split {
  VF even, odd;
};
MXFA_CPU_INLINE Split load_split(const float* p) {
  const VF low = load<VF>(p), high = load<VF>(p + kV);
  return {evens_of(low, high), odds_of(low, high)};
}
MXFA_CPU_INLINE Split load_split(const std::uint16_t* p) {
  const VU pairs = load<VU>(p);
  return {floats(pairs << 16), floats(pairs & 0xFFFF0000u)};
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

/// Adds one step of kStep columns to its lanes.
template <class T>
MXFA_CPU_INLINE void add_step(const T* values, VF lanes[mx::row_sum::kLanes / kV]) {
  // A lane adds four adjacent columns: those equal 0, 1, 2, 3 modulo 4, one after another.
  for (int group = 0; group < mx::row_sum::kLanes / kV; ++group) {
    const Split low = load_split(values + group * 4 * kV);
    const Split high = load_split(values + group * 4 * kV + 2 * kV);
    VF& sum = lanes[group];
    sum = add_square(evens_of(low.even, high.even), sum);
    sum = add_square(evens_of(low.odd, high.odd), sum);
    sum = add_square(odds_of(low.even, high.even), sum);
    sum = add_square(odds_of(low.odd, high.odd), sum);
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
    float sums[order::kLanes];
    for (int group = 0; group < order::kLanes / kV; ++group) {
      store(sums + group * kV, lanes[group]);
    }
    for (int distance = order::kLanes / 2; distance > 0; distance /= 2) {
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

/// E4M3 codes of values that do not exceed 448. Adding 2^20 times the value's own power of two (at
/// least that of 2^-6) leaves its multiple of the last place, rounded to nearest even, in the low
/// bits; each power of two is 8 codes.
MXFA_CPU_INLINE VU encode_in_range(VF v) {
  constexpr std::uint32_t kLeast = 121u << 23;
  const VU abs = bits(v) & 0x7FFFFFFFu;
  const VU power = max_u(abs & 0x7F800000u, splat_u(kLeast));
  const VU magic = power + (20u << 23);
  const VU steps = bits(floats(abs) + floats(magic)) - magic;
  const VU code = steps + (power >> 20) - (kLeast >> 20);
  return code | ((bits(v) >> 24) & 0x80u);
}

std::uint8_t norm_square(const NormSquare& t) {
  constexpr int kSteps = kSquare / (2 * kV);
  Split weight[kSteps];
  for (int i = 0; i < kSteps; ++i) weight[i] = load_split(t.weight + i * 2 * kV);
  VF y[kSquare][2 * kSteps];
  VU top = {};
  for (std::int64_t row = 0; row < t.rows; ++row) {
    const VF rstd = splat(t.rstd[row]);
    for (int i = 0; i < kSteps; ++i) {
      const Split x = load_split(t.x + row * t.ld + i * 2 * kV);
      y[row][2 * i] = x.even * rstd * weight[i].even;
      y[row][2 * i + 1] = x.odd * rstd * weight[i].odd;
      top = max_u(top, bits(y[row][2 * i]) & 0x7FFFFFFFu);
      top = max_u(top, bits(y[row][2 * i + 1]) & 0x7FFFFFFFu);
    }
  }
  const std::uint32_t amax = reduce_max_u(top);
  if (amax >= 0x7F800000u) {
    for (std::int64_t row = 0; row < t.rows; ++row) {
      __builtin_memset(t.codes + row * t.ld, 0x7F, kSquare);
    }
    return 0xFF;
  }
  const BlockScale scale = block_scale(amax, false);
  const VF inverse = splat(scale.inverse);
  for (std::int64_t row = 0; row < t.rows; ++row) {
    for (int i = 0; i < kSteps; ++i) {
      const VU even = encode_in_range(y[row][2 * i] * inverse);
      const VU odd = encode_in_range(y[row][2 * i + 1] * inverse);
      store(t.codes + row * t.ld + i * 2 * kV, __builtin_convertvector(even | (odd << 8), VH));
    }
  }
  return static_cast<std::uint8_t>(__builtin_bit_cast(std::uint32_t, scale.scale) >> 23);
}

void normalize(const float* x, float factor, const float* weight, float* y, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kV <= count; i += kV) {
    store(y + i, load<VF>(x + i) * splat(factor) * load<VF>(weight + i));
  }
  for (; i < count; ++i) y[i] = x[i] * factor * weight[i];
}
