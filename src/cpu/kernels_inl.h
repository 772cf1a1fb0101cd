// The loops of kernels.h over the vectors of vector_inl.h; included once by the translation unit of
// each instruction set, inside its namespace.

#if !defined(MXFA_CPU_AVX512)
/// R rows of 2 vectors of columns.
template <int R>
MXFA_CPU_INLINE void micro_product(const PanelProduct& g, std::int64_t row, std::int64_t col) {
  const std::uint16_t* a = g.a + row * g.a_row;
  const std::uint16_t* b = g.b + col / kPanel * g.b_panel + col % kPanel * 2;
  VF sums[R][2] = {};
  for (std::int64_t pair = 0; pair < g.k / 2; ++pair) {
    VF even[2], odd[2];
    for (int i = 0; i < 2; ++i) {
      const VU both = load<VU>(b + pair * kPanel * 2 + i * kV * 2);
      even[i] = floats(both << 16);
      odd[i] = floats(both & 0xFFFF0000u);
    }
    for (int r = 0; r < R; ++r) {
      std::uint32_t both;
      __builtin_memcpy(&both, a + r * g.a_row + pair * g.a_pair, 4);
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
      float* c = g.c + (row + r) * g.ldc + col + i * kV;
      store(c, g.accumulate ? fma(load<VF>(c), alpha, sums[r][i]) : sums[r][i]);
    }
  }
}

void product(const PanelProduct& g) {
  constexpr int kRows = 4;
  for (std::int64_t col = 0; col < g.n; col += 2 * kV) {
    std::int64_t row = 0;
    for (; row + kRows <= g.m; row += kRows) micro_product<kRows>(g, row, col);
    for (; row < g.m; ++row) micro_product<1>(g, row, col);
  }
}
#endif

template <Rounding To, bool Masked, bool Fold, bool LeakFree>
MXFA_CPU_INLINE void softmax_row(const SoftmaxTile& t, std::int64_t row) {
  const float* acc = t.acc + row * t.cols;
  std::uint16_t* p = t.p + row * t.cols;
  const std::int32_t begin = t.begin[row], end = t.end[row];
  const auto cols = static_cast<std::int32_t>(t.cols);
  const VF mult = splat(t.mult);
  constexpr float kMinusInfinity = -__builtin_inff();
  VF top = splat(kMinusInfinity);
  VF folded_top = top;
  for (std::int32_t j = 0; j < cols; j += kV) {
    VF value = load<VF>(acc + j);
    VF folded = LeakFree ? fma(value, mult, load<VF>(t.fold + j)) : value;
    if constexpr (Masked) {
      const VI visible = lanes_within(j, begin, end);
      value = select(visible, value, splat(kMinusInfinity));
      if (LeakFree) folded = select(visible, folded, splat(kMinusInfinity));
    }
    top = max(value, top);
    if (LeakFree) folded_top = max(folded, folded_top);
  }
  // mult > 0 and rounding is monotonic: the largest product is the product of the largest.
  const float tile_max = reduce_max(top);
  const float tile_score = tile_max == kMinusInfinity ? tile_max : tile_max * t.mult;
  if (tile_score > t.true_max[row]) t.true_max[row] = tile_score;
  const float candidate = LeakFree ? reduce_max(folded_top) : tile_score;
  const float old_max = t.max[row];
  const float new_max = candidate > old_max ? candidate : old_max;
  t.max[row] = new_max;
  const float safe_max = new_max == kMinusInfinity ? 0.0f : new_max;
  float alpha = 1.0f;  // exp2(0) is exactly 1: most rows keep their maximum
  if (new_max != old_max) alpha = exp2_vector(splat(old_max - safe_max))[0];
  const VF base = splat(t.offset - safe_max);
  VF sum = splat(0.0f);
  for (std::int32_t j = 0; j < cols; j += kV) {
    const VF value = load<VF>(acc + j);
    VF x;
    if constexpr (LeakFree) {
      x = fma(value, mult, load<VF>(t.fold + j)) + base;
    } else {
      x = fma(value, mult, Fold ? base + load<VF>(t.fold + j) : base);
    }
    VF weight = exp2_vector<false>(x);
    if constexpr (Masked) {
      weight = floats(bits(weight) & (VU)lanes_within(j, begin, end));
    }
    const VF undo = Fold ? load<VF>(t.undo + j) : splat(1.0f);
    sum += Fold ? weight * undo : weight;
    if constexpr (To == Rounding::kBf16) {
      store(p + j, upper_halves(round_bf16_vector(weight)));
    } else {
      const VF rounded = round_e4m3_positive(weight);
      store(p + j, exact_bf16(Fold && !LeakFree ? rounded * undo : rounded));
    }
  }
  t.sum[row] = __builtin_fmaf(t.sum[row], alpha, reduce_add(sum));
  t.alpha[row] = alpha;
}

template <Rounding To, bool Fold, bool LeakFree>
MXFA_CPU_INLINE void softmax_rows(const SoftmaxTile& t) {
  for (std::int64_t row = 0; row < t.rows; ++row) {
    if (t.begin[row] <= 0 && t.end[row] >= t.cols) {
      softmax_row<To, false, Fold, LeakFree>(t, row);
    } else {
      softmax_row<To, true, Fold, LeakFree>(t, row);
    }
  }
}

void softmax(const SoftmaxTile& t) {
  if (t.rounding == Rounding::kBf16) {
    softmax_rows<Rounding::kBf16, false, false>(t);
  } else if (t.fold_in_max) {
    softmax_rows<Rounding::kE4M3, true, true>(t);
  } else if (t.fold != nullptr) {
    softmax_rows<Rounding::kE4M3, true, false>(t);
  } else {
    softmax_rows<Rounding::kE4M3, false, false>(t);
  }
}

template <bool Masked>
MXFA_CPU_INLINE void score_row(const ScoreTile& t, std::int64_t row) {
  float* s = t.s + row * t.cols;
  float* dp = t.dp + row * t.cols;
  const VF s_mult = splat(t.s_mult), dp_mult = splat(t.dp_mult);
  for (std::int32_t j = 0; j < t.cols; j += kV) {
    VF p = exp2_vector(fma(load<VF>(s + j), s_mult, load<VF>(t.bias + j)));
    const VF unfolded = t.unfold != nullptr ? p * load<VF>(t.unfold + j) : p;
    VF ds = unfolded * fma(load<VF>(dp + j), dp_mult, -load<VF>(t.delta + j));
    if constexpr (Masked) {
      const VU visible = (VU)lanes_within(j, t.begin[row], t.end[row]);
      p = floats(bits(p) & visible);
      ds = floats(bits(ds) & visible);
    }
    store(s + j, p);
    store(dp + j, ds);
  }
}

void scores(const ScoreTile& t) {
  for (std::int64_t row = 0; row < t.rows; ++row) {
    if (t.begin[row] >= t.end[row]) {
      for (std::int64_t j = 0; j < t.cols; ++j) t.s[row * t.cols + j] = 0.0f;
      for (std::int64_t j = 0; j < t.cols; ++j) t.dp[row * t.cols + j] = 0.0f;
    } else if (t.begin[row] <= 0 && t.end[row] >= t.cols) {
      score_row<false>(t, row);
    } else {
      score_row<true>(t, row);
    }
  }
}

/// scale_from_amax() and its powers of two; NaN for both where the block holds NaN or infinity.
struct BlockScale {
  float scale;
  float inverse;
};
MXFA_CPU_INLINE BlockScale block_scale(std::uint32_t amax_bits, bool floor_rule) {
  if (amax_bits >= 0x7F800000u) return {__builtin_nanf(""), __builtin_nanf("")};
  const int carry = !floor_rule && (amax_bits & 0x7FFFFFu) > 0x600000u ? 1 : 0;
  const int exponent = static_cast<int>(amax_bits >> 23) - 8 + carry;
  const int byte = exponent < 0 ? 0 : exponent;
  const std::uint32_t scale = byte == 0 ? 0x00400000u : static_cast<std::uint32_t>(byte) << 23;
  return {__builtin_bit_cast(float, scale),
          __builtin_bit_cast(float, static_cast<std::uint32_t>(254 - byte) << 23)};
}

void round_blocks(const RoundTile& t, bool floor_rule) {
  constexpr int kSteps = kSquare / kV;
  for (std::int64_t row = 0; row < t.rows; ++row) {
    for (std::int64_t block = 0; block < t.cols; block += kSquare) {
      const float* values = t.values + row * t.ld + block;
      VF v[kSteps];
      VU top = {};
      for (int i = 0; i < kSteps; ++i) {
        v[i] = load<VF>(values + i * kV);
        top = max_u(top, bits(v[i]) & 0x7FFFFFFFu);
      }
      const BlockScale scale = block_scale(reduce_max_u(top), floor_rule);
      const VF inverse = splat(scale.inverse), factor = splat(scale.scale);
      for (int i = 0; i < kSteps; ++i) {
        const VF rounded = round_e4m3_vector(v[i] * inverse) * factor;
        store(t.out + row * t.ld + block + i * kV, upper_halves(bits(rounded)));
      }
    }
  }
}

/// One vector of a RoundTile's row as BF16 in the upper halves.
template <bool Fold>
MXFA_CPU_INLINE VU round_lanes(const RoundTile& t, std::int64_t row, std::int64_t col) {
  VF v = load<VF>(t.values + row * t.ld + col);
  if (t.rounding == Rounding::kBf16) return round_bf16_vector(v);
  if constexpr (Fold) {
    if (t.row_fold != nullptr) v *= splat(t.row_fold[row]);
    if (t.col_fold != nullptr) v *= load<VF>(t.col_fold + col);
  }
  v = round_e4m3_vector(v * splat(t.inverse)) * splat(t.scale);
  if constexpr (Fold) {
    if (t.row_fold != nullptr) v *= splat(t.row_unfold[row]);
    if (t.col_fold != nullptr) v *= load<VF>(t.col_unfold + col);
  }
  return bits(v);
}

template <bool Fold>
MXFA_CPU_INLINE void round_rows(const RoundTile& t) {
  if (t.pairs == nullptr) {
    for (std::int64_t row = 0; row < t.rows; ++row) {
      for (std::int64_t col = 0; col < t.cols; col += kV) {
        store(t.out + row * t.ld + col, upper_halves(round_lanes<Fold>(t, row, col)));
      }
    }
    return;
  }
  for (std::int64_t row = 0; row < t.rows; row += 2) {
    for (std::int64_t col = 0; col < t.cols; col += kV) {
      const VU even = round_lanes<Fold>(t, row, col);
      const VU odd = round_lanes<Fold>(t, row + 1, col);
      store(t.pairs + row * t.pair_ld + col * 2, (odd & 0xFFFF0000u) | (even >> 16));
      if (t.out == nullptr) continue;
      store(t.out + row * t.ld + col, upper_halves(even));
      store(t.out + (row + 1) * t.ld + col, upper_halves(odd));
    }
  }
}

void round(const RoundTile& t) {
  if (t.row_fold != nullptr || t.col_fold != nullptr) {
    round_rows<true>(t);
  } else {
    round_rows<false>(t);
  }
}

std::uint32_t magnitude(const RoundTile& t) {
  VU top = {};
  for (std::int64_t row = 0; row < t.rows; ++row) {
    for (std::int64_t col = 0; col < t.cols; col += kV) {
      VF v = load<VF>(t.values + row * t.ld + col);
      if (t.row_fold != nullptr) v *= splat(t.row_fold[row]);
      if (t.col_fold != nullptr) v *= load<VF>(t.col_fold + col);
      top = max_u(top, bits(v) & 0x7FFFFFFFu);
    }
  }
  return reduce_max_u(top);
}

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
                     std::int64_t rows, std::int64_t pairs) {
  for (std::int64_t p = 0; p < pairs; ++p) {
    for (std::int64_t r = 0; r < rows; ++r) {
      __builtin_memcpy(out + (p * rows + r) * 2, in + r * ld + p * 2, 4);
    }
  }
}
#endif

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

void decode_e4m3_row(const std::uint8_t* codes, const float* scales, std::uint16_t* out,
                     std::int64_t count) {
  std::int64_t i = 0;
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
