// Rounding of tiles to E4M3 and BF16; included by kernels_inl.h.

/// scale_from_amax() of FP32 bits as powers of two, and their inverses; NaN for both where a block
/// holds NaN or infinity.
MXFA_CPU_INLINE void block_scales(VU amax, bool floor_rule, VF& scale, VF& inverse) {
  const VI carry = (VI)((amax & 0x7FFFFFu) > 0x600000u) & (floor_rule ? 0 : 1);
  const VI exponent = (VI)(amax >> 23) - 8 + carry;
  const VU byte = (VU)(exponent & (VI)(exponent > 0));
  const VI finite = (VI)(amax < 0x7F800000u);
  const VU nan = splat_u(0x7FC00000u);
  const VU subnormal = splat_u(0x00400000u);  // 2^-127
  scale = floats(select(finite, select((VI)(byte == 0u), subnormal, byte << 23), nan));
  inverse = floats(select(finite, (254u - byte) << 23, nan));
}
struct BlockScale {
  float scale;
  float inverse;
};
MXFA_CPU_INLINE BlockScale block_scale(std::uint32_t amax, bool floor_rule) {
  VF scale, inverse;
  block_scales(splat_u(amax), floor_rule, scale, inverse);
  return {scale[0], inverse[0]};
}

/// Blocks of 1 x 32, of which 16 share a reduction.
template <bool Floor>
MXFA_CPU_INLINE void round_all_blocks(const RoundTile& t) {
  constexpr int kSteps = kSquare / kV, kShared = 16;
  std::int64_t row = 0, col = 0;
  while (row < t.rows) {
    std::int64_t at[kShared], to[kShared];
    int count = 0;
    for (; count < kShared && row < t.rows; ++count) {
      at[count] = row * t.ld + col;
      to[count] = row * t.out_ld + col;
      col += kSquare;
      if (col < t.cols) continue;
      col = 0;
      ++row;
    }
    VU top[kShared] = {};
    for (int b = 0; b < count; ++b) {
      MXFA_CPU_EACH(i, kSteps) {
        top[b] = max_u(top[b], bits(load<VF>(t.values + at[b] + i * kV)) & 0x7FFFFFFFu);
      }
    }
    alignas(64) std::uint32_t amax[kShared];
    alignas(64) float scales[kShared], inverses[kShared];
    max_of_each(top, amax);
    for (int b = 0; b < kShared; b += kV) {
      VF scale, inverse;
      block_scales(load<VU>(amax + b), Floor, scale, inverse);
      store(scales + b, scale);
      store(inverses + b, inverse);
    }
    for (int b = 0; b < count; ++b) {
      const VF inverse = splat(inverses[b]), scale = splat(scales[b]);
      VF v[kSteps];
      MXFA_CPU_EACH(i, kSteps) v[i] = load<VF>(t.values + at[b] + i * kV) * inverse;
      round_e4m3<Floor>(v);
      MXFA_CPU_EACH(i, kSteps) v[i] *= scale;
      store_upper_halves(t.out + to[b], v);
    }
  }
}
void round_blocks(const RoundTile& t, bool floor_rule) {
  if (floor_rule) {
    round_all_blocks<true>(t);
  } else {
    round_all_blocks<false>(t);
  }
}

/// Rows x Cols vectors of a RoundTile as BF16 in the upper halves.
template <bool Fold, bool Saturates, int Rows, int Cols>
MXFA_CPU_INLINE void round_lanes(const RoundTile& t, std::int64_t first_row, std::int64_t first_col,
                                 VF (&v)[Rows * Cols]) {
  constexpr int kN = Rows * Cols;
  const VF inverse = splat(t.inverse), scale = splat(t.scale);
  MXFA_CPU_EACH(i, kN) {
    v[i] = load<VF>(t.values + (first_row + i / Cols) * t.ld + first_col + i % Cols * kV);
  }
  if (t.rounding == Rounding::kBf16) {
    MXFA_CPU_EACH(i, kN) v[i] = floats(round_bf16_vector(v[i]));
    return;
  }
  if constexpr (Fold) {
    MXFA_CPU_EACH(i, kN) {
      if (t.row_fold != nullptr) v[i] *= splat(t.row_fold[first_row + i / Cols]);
      if (t.col_fold != nullptr) v[i] *= load<VF>(t.col_fold + first_col + i % Cols * kV);
    }
  }
  MXFA_CPU_EACH(i, kN) v[i] *= inverse;
  round_e4m3<Saturates>(v);
  MXFA_CPU_EACH(i, kN) v[i] *= scale;
  if constexpr (Fold) {
    MXFA_CPU_EACH(i, kN) {
      if (t.row_fold != nullptr) v[i] *= splat(t.row_unfold[first_row + i / Cols]);
      if (t.col_fold != nullptr) v[i] *= load<VF>(t.col_unfold + first_col + i % Cols * kV);
    }
  }
}

template <bool Fold, bool Saturates, int Cols>
MXFA_CPU_INLINE void round_columns(const RoundTile& t, std::int64_t row, std::int64_t col) {
  std::uint16_t* const out = t.out == nullptr ? nullptr : t.out + row * t.out_ld + col;
  if (t.pairs == nullptr) {
    VF v[Cols];
    round_lanes<Fold, Saturates, 1, Cols>(t, row, col, v);
    return store_upper_halves(out, v);
  }
  VF v[2 * Cols], half[Cols];
  round_lanes<Fold, Saturates, 2, Cols>(t, row, col, v);
  MXFA_CPU_EACH(i, Cols) {
    store(t.pairs + row * t.pair_ld + (col + i * kV) * 2, pair_upper_halves(v[i], v[Cols + i]));
  }
  if (out == nullptr) return;
  MXFA_CPU_EACH(i, Cols) half[i] = v[i];
  store_upper_halves(out, half);
  MXFA_CPU_EACH(i, Cols) half[i] = v[Cols + i];
  store_upper_halves(out + t.out_ld, half);
}

template <bool Fold, bool Saturates>
MXFA_CPU_INLINE void round_rows(const RoundTile& t) {
  constexpr int kCols = kGroup > 1 ? 2 : 1;
  for (std::int64_t row = 0; row < t.rows; row += t.pairs != nullptr ? 2 : 1) {
    std::int64_t col = 0;
    for (; col + kCols * kV <= t.cols; col += kCols * kV) {
      round_columns<Fold, Saturates, kCols>(t, row, col);
    }
    for (; col < t.cols; col += kV) round_columns<Fold, Saturates, 1>(t, row, col);
  }
}

void round(const RoundTile& t) {
  if (t.row_fold != nullptr || t.col_fold != nullptr) {
    round_rows<true, true>(t);
  } else if (t.saturates) {
    round_rows<false, true>(t);
  } else {
    round_rows<false, false>(t);
  }
}

template <bool Fold>
MXFA_CPU_INLINE std::uint32_t magnitude_of(const RoundTile& t) {
  VU top = {};
  for (std::int64_t row = 0; row < t.rows; ++row) {
    for (std::int64_t col = 0; col < t.cols; col += kV) {
      VF v = load<VF>(t.values + row * t.ld + col);
      if constexpr (Fold) {
        if (t.row_fold != nullptr) v *= splat(t.row_fold[row]);
        if (t.col_fold != nullptr) v *= load<VF>(t.col_fold + col);
      }
      top = max_u(top, bits(v) & 0x7FFFFFFFu);
    }
  }
  return reduce_max_u(top);
}

std::uint32_t magnitude(const RoundTile& t) {
  return t.row_fold != nullptr || t.col_fold != nullptr ? magnitude_of<true>(t)
                                                        : magnitude_of<false>(t);
}
