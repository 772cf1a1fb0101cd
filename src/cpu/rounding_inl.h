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
/// Where rounding needs neither a scale nor its inverse, since all products with them are normal
/// numbers: exponents of scales from kLeastDirect on.
inline constexpr std::uint32_t kLeastDirect = 27;  // 2^-100
/// 2^-6 times the scale, of blocks with rounded-up scales; NaN where a block holds NaN or infinity.
/// Whether they serve all blocks.
MXFA_CPU_INLINE bool block_places(const std::uint32_t (&amax)[16], std::uint32_t (&least)[16]) {
  VU serves = ~VU{};
  for (int b = 0; b < 16; b += kV) {
    const VU top = load<VU>(amax + b);
    VF scale, inverse;
    block_scales(top, false, scale, inverse);
    const VU normal = bits(scale) - (6u << 23);
    const VI finite = (VI)(top < 0x7F800000u), zero = (VI)(top == 0u);
    const VU places = select(zero, splat_u(kLeastNormal), normal);
    store(least + b, select(finite, places, splat_u(0x7FC00000u)));
    serves &= (VU)(zero | ~finite | (VI)(bits(scale) >= kLeastDirect << 23));
  }
  return reduce_max_u(~serves) == 0;
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
      to[count] = t.out_layout.at(row, col);
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
/// Eight rows of two blocks each, with rounded-up scales, where the short way serves.
MXFA_CPU_INLINE bool round_eight_rows(const RoundTile& t, std::int64_t row) {
  constexpr int kSteps = kSquare / kV;
  const float* const values = t.values + row * t.ld;
  VU top[16] = {};
#pragma GCC unroll 16
  for (int b = 0; b < 16; ++b) {
    MXFA_CPU_EACH(i, kSteps) {
      const VF v = load<VF>(values + b / 2 * t.ld + b % 2 * kSquare + i * kV);
      top[b] = max_u(top[b], bits(v) & 0x7FFFFFFFu);
    }
  }
  alignas(64) std::uint32_t amax[16], least[16];
  max_of_each(top, amax);
  if (!block_places(amax, least)) return false;
  for (int b = 0; b < 16; ++b) {
    VF v[kSteps];
    MXFA_CPU_EACH(i, kSteps) { v[i] = load<VF>(values + b / 2 * t.ld + b % 2 * kSquare + i * kV); }
    round_e4m3_places(v, splat_u(least[b]));
    store_upper_halves(t.out + t.out_layout.at(row + b / 2, b % 2 * kSquare), v);
  }
  return true;
}

void round_blocks(const RoundTile& t, bool floor_rule) {
  if (!floor_rule && t.cols == 2 * kSquare && t.rows % 8 == 0) {
    for (std::int64_t row = 0; row < t.rows; row += 8) {
      if (round_eight_rows(t, row)) continue;
      RoundTile rows = t;
      rows.rows = 8;
      rows.values += row * t.ld;
      rows.out += t.out_layout.at(row);
      round_all_blocks<false>(rows);
    }
  } else if (floor_rule) {
    round_all_blocks<true>(t);
  } else {
    round_all_blocks<false>(t);
  }
}

/// Rows x Cols vectors of a RoundTile as BF16 in the upper halves.
enum class Way { kDirect, kScaled, kSaturated };  ///< kDirect: see block_places()
template <bool Fold, Way By, int Rows, int Cols>
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
  if constexpr (By == Way::kDirect) {
    return round_e4m3_places(v, bits(scale * splat(0x1p-6f)));
  }
  MXFA_CPU_EACH(i, kN) v[i] *= inverse;
  round_e4m3<By == Way::kSaturated>(v);
  MXFA_CPU_EACH(i, kN) v[i] *= scale;
  if constexpr (Fold) {
    MXFA_CPU_EACH(i, kN) {
      if (t.row_fold != nullptr) v[i] *= splat(t.row_unfold[first_row + i / Cols]);
      if (t.col_fold != nullptr) v[i] *= load<VF>(t.col_unfold + first_col + i % Cols * kV);
    }
  }
}

template <bool Fold, Way By, int Cols>
MXFA_CPU_INLINE void round_columns(const RoundTile& t, std::int64_t row, std::int64_t col) {
  std::uint16_t* const out = t.out == nullptr ? nullptr : t.out + t.out_layout.at(row, col);
  if (t.pairs == nullptr) {
    VF v[Cols];
    round_lanes<Fold, By, 1, Cols>(t, row, col, v);
    return store_upper_halves(out, v);
  }
  VF v[2 * Cols], half[Cols];
  round_lanes<Fold, By, 2, Cols>(t, row, col, v);
  MXFA_CPU_EACH(i, Cols) {
    store(t.pairs + row * t.pair_ld + (col + i * kV) * 2, pair_upper_halves(v[i], v[Cols + i]));
  }
  if (out == nullptr) return;
  MXFA_CPU_EACH(i, Cols) half[i] = v[i];
  store_upper_halves(out, half);
  MXFA_CPU_EACH(i, Cols) half[i] = v[Cols + i];
  store_upper_halves(t.out + t.out_layout.at(row + 1, col), half);
}

template <bool Fold, Way By>
MXFA_CPU_INLINE void round_rows(const RoundTile& t) {
  constexpr int kCols = kGroup > 1 ? 2 : 1;
  for (std::int64_t row = 0; row < t.rows; row += t.pairs != nullptr ? 2 : 1) {
    std::int64_t col = 0;
    for (; col + kCols * kV <= t.cols; col += kCols * kV) {
      round_columns<Fold, By, kCols>(t, row, col);
    }
    for (; col < t.cols; col += kV) round_columns<Fold, By, 1>(t, row, col);
  }
}

void round(const RoundTile& t) {
  if (t.row_fold != nullptr || t.col_fold != nullptr) {
    round_rows<true, Way::kSaturated>(t);
  } else if (t.saturates) {
    round_rows<false, Way::kSaturated>(t);
  } else if (t.scale >= 0x1p-100f && t.scale <= 0x1p100f) {
    round_rows<false, Way::kDirect>(t);
  } else {
    round_rows<false, Way::kScaled>(t);
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
