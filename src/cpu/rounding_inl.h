// Rounding of tiles to E4M3 and BF16; included by kernels_inl.h.

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

/// 16 blocks share a reduction.
void round_blocks(const RoundTile& t, bool floor_rule) {
  constexpr int kSteps = kSquare / kV;
  const std::int64_t row_blocks = t.cols / kSquare, blocks = t.rows * row_blocks;
  const auto offset = [&](std::int64_t block) {
    return block / row_blocks * t.ld + block % row_blocks * kSquare;
  };
  for (std::int64_t first = 0; first < blocks; first += 16) {
    const auto count = static_cast<int>(blocks - first < 16 ? blocks - first : 16);
    VU top[16] = {};
    for (int b = 0; b < count; ++b) {
      const float* values = t.values + offset(first + b);
      for (int i = 0; i < kSteps; ++i) {
        top[b] = max_u(top[b], bits(load<VF>(values + i * kV)) & 0x7FFFFFFFu);
      }
    }
    std::uint32_t amax[16];
    max_of_each(top, amax);
    BlockScale scales[16];
    for (int b = 0; b < 16; ++b) scales[b] = block_scale(amax[b], floor_rule);
    for (int b = 0; b < count; ++b) {
      const std::int64_t at = offset(first + b);
      const VF inverse = splat(scales[b].inverse), scale = splat(scales[b].scale);
      VF v[kSteps];
      MXFA_CPU_EACH(i, kSteps) v[i] = load<VF>(t.values + at + i * kV) * inverse;
      round_e4m3_group(v);
      MXFA_CPU_EACH(i, kSteps) v[i] *= scale;
      store_upper_halves(t.out + at, v);
    }
  }
}

/// Vectors of a RoundTile's row as BF16 in the upper halves.
template <bool Fold, int N>
MXFA_CPU_INLINE void round_lanes(const RoundTile& t, std::int64_t row, std::int64_t col,
                                 VF (&v)[N]) {
  const VF inverse = splat(t.inverse), scale = splat(t.scale);
  MXFA_CPU_EACH(i, N) v[i] = load<VF>(t.values + row * t.ld + col + i * kV);
  if (t.rounding == Rounding::kBf16) {
    MXFA_CPU_EACH(i, N) v[i] = floats(round_bf16_vector(v[i]));
    return;
  }
  if constexpr (Fold) {
    MXFA_CPU_EACH(i, N) {
      if (t.row_fold != nullptr) v[i] *= splat(t.row_fold[row]);
      if (t.col_fold != nullptr) v[i] *= load<VF>(t.col_fold + col + i * kV);
    }
  }
  MXFA_CPU_EACH(i, N) v[i] *= inverse;
  round_e4m3_group(v);
  MXFA_CPU_EACH(i, N) v[i] *= scale;
  if constexpr (Fold) {
    MXFA_CPU_EACH(i, N) {
      if (t.row_fold != nullptr) v[i] *= splat(t.row_unfold[row]);
      if (t.col_fold != nullptr) v[i] *= load<VF>(t.col_unfold + col + i * kV);
    }
  }
}

/// N vectors of a row, or of two where pairs are wanted.
template <bool Fold, int N>
MXFA_CPU_INLINE void round_columns(const RoundTile& t, std::int64_t row, std::int64_t col) {
  VF even[N], odd[N];
  round_lanes<Fold>(t, row, col, even);
  if (t.out != nullptr) store_upper_halves(t.out + row * t.ld + col, even);
  if (t.pairs == nullptr) return;
  round_lanes<Fold>(t, row + 1, col, odd);
  if (t.out != nullptr) store_upper_halves(t.out + (row + 1) * t.ld + col, odd);
  MXFA_CPU_EACH(i, N) {
    store(t.pairs + row * t.pair_ld + (col + i * kV) * 2, pair_upper_halves(even[i], odd[i]));
  }
}

template <bool Fold>
MXFA_CPU_INLINE void round_rows(const RoundTile& t) {
  constexpr int kTwo = kGroup > 1 ? 2 : 1;
  for (std::int64_t row = 0; row < t.rows; row += t.pairs != nullptr ? 2 : 1) {
    std::int64_t col = 0;
    for (; col + kTwo * kV <= t.cols; col += kTwo * kV) round_columns<Fold, kTwo>(t, row, col);
    for (; col < t.cols; col += kV) round_columns<Fold, 1>(t, row, col);
  }
}

void round(const RoundTile& t) {
  if (t.row_fold != nullptr || t.col_fold != nullptr) {
    round_rows<true>(t);
  } else {
    round_rows<false>(t);
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
