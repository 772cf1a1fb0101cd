// Softmax of a tile of scores, forward and backward; included by kernels_inl.h. Columns are taken
// kGroup vectors at a time, which kPanel is a multiple of; where they are several, each is the row
// of a tile of sums.

/// Largest raw sums of a row's lanes, and in leak-free form largest folded scores.
struct RowTop {
  VF value;
  VF folded;
};
template <bool Masked, bool LeakFree>
MXFA_CPU_INLINE RowTop row_top(const SoftmaxTile& t, std::int64_t row) {
  const float* acc = t.acc + t.acc_layout.at(row);
  const auto cols = static_cast<std::int32_t>(t.cols);
  const VF mult = splat(t.mult), lowest = splat(-__builtin_inff());
  VF top[kGroup], folded_top[kGroup];
  MXFA_CPU_EACH(i, kGroup) top[i] = folded_top[i] = lowest;
  for (std::int32_t j = 0; j < cols; j += kGroup * kV) {
    const float* const at = acc + t.acc_layout.at(0, j);
    MXFA_CPU_EACH(i, kGroup) {
      const std::int32_t col = j + i * kV;
      VF value = load<VF>(at + i * t.acc_layout.across);
      VF folded = LeakFree ? fma(value, mult, load<VF>(t.fold + col)) : value;
      if constexpr (Masked) {
        const VI visible = lanes_within(col, t.begin[row], t.end[row]);
        value = select(visible, value, lowest);
        if (LeakFree) folded = select(visible, folded, lowest);
      }
      top[i] = max(value, top[i]);
      if (LeakFree) folded_top[i] = max(folded, folded_top[i]);
    }
  }
  for (int i = 1; i < kGroup; ++i) {
    top[0] = max(top[0], top[i]);
    if (LeakFree) folded_top[0] = max(folded_top[0], folded_top[i]);
  }
  return {top[0], folded_top[0]};
}

/// P; returns the lanes of its sum.
template <Rounding To, bool Masked, bool Fold, bool LeakFree>
MXFA_CPU_INLINE VF row_weights(const SoftmaxTile& t, std::int64_t row, float exponent) {
  const float* acc = t.acc + t.acc_layout.at(row);
  std::uint16_t* p = t.p + t.p_layout.at(row);
  const float *const folds = t.fold, *const undos = t.undo;
  const auto cols = static_cast<std::int32_t>(t.cols);
  const VF mult = splat(t.mult), base = splat(exponent);
  VF sum = splat(0.0f);
  for (std::int32_t j = 0; j < cols; j += kGroup * kV) {
    const float* const from = acc + t.acc_layout.at(0, j);
    std::uint16_t* const to = p + t.p_layout.at(0, j);
    VF x[kGroup];
    MXFA_CPU_EACH(i, kGroup) {
      const std::int32_t col = j + i * kV;
      const VF value = load<VF>(from + i * t.acc_layout.across);
      if constexpr (LeakFree) {
        x[i] = fma(value, mult, load<VF>(folds + col)) + base;
      } else {
        x[i] = fma(value, mult, Fold ? base + load<VF>(folds + col) : base);
      }
    }
    exp2_group<false>(x);
    if constexpr (Masked) {
      MXFA_CPU_EACH(i, kGroup) {
        x[i] = floats(bits(x[i]) & (VU)lanes_within(j + i * kV, t.begin[row], t.end[row]));
      }
    }
    MXFA_CPU_EACH(i, kGroup) sum += Fold ? x[i] * load<VF>(undos + j + i * kV) : x[i];
    if constexpr (To == Rounding::kBf16) {
      MXFA_CPU_EACH(i, kGroup) x[i] = floats(round_bf16_vector(x[i]));
    } else {
      round_e4m3_places(x);
      if constexpr (Fold && !LeakFree) {
        MXFA_CPU_EACH(i, kGroup) x[i] = x[i] * load<VF>(undos + j + i * kV);
      }
    }
    constexpr int kPieces = kGroup > 1 ? 2 : 1;  // vectors of a tile's row
    MXFA_CPU_EACH(i, kGroup / kPieces) {
      VF piece[kPieces];
      MXFA_CPU_EACH(n, kPieces) piece[n] = x[i * kPieces + n];
      store_upper_halves(to + i * t.p_layout.across, piece);
    }
  }
  return sum;
}

/// What the rows of a tile take P against: maxima, and by how much older sums shrink.
template <bool LeakFree>
MXFA_CPU_INLINE void update_maxima(const SoftmaxTile& t, std::int64_t first, const float* top,
                                   const float* folded_top, float* exponent) {
  const VF lowest = splat(-__builtin_inff());
  for (std::int64_t i = 0; i < kTile; i += kV) {
    const VF value = load<VF>(top + i);
    // mult > 0 and rounding is monotonic: the largest product is the product of the largest.
    const VF tile_score = select((VI)(value == lowest), value, value * splat(t.mult));
    store(t.true_max + first + i, max(tile_score, load<VF>(t.true_max + first + i)));
    const VF old_max = load<VF>(t.max + first + i);
    const VF new_max = max(LeakFree ? load<VF>(folded_top + i) : tile_score, old_max);
    store(t.max + first + i, new_max);
    const VF safe_max = select((VI)(new_max == lowest), splat(0.0f), new_max);
    const VF alpha = exp2_vector(old_max - safe_max);
    store(t.alpha + first + i, select((VI)(new_max == old_max), splat(1.0f), alpha));
    store(exponent + i, splat(t.offset) - safe_max);
  }
}

/// Scores in log2 units whose own rounding in FP32 is a quarter of a binade, and more from there
/// on.
inline constexpr float kHugeScore = 0x1p22f;

/// Largest scores are rounded products, which row_weights() takes from exact ones: of huge scores
/// the difference may be many binades. So those of a row become relative to the tile's largest
/// before they are multiplied, which is exact near it. Returns row_weights()' exponent.
MXFA_CPU_INLINE float centre_row(const SoftmaxTile& t, std::int64_t row, float top) {
  float* const acc = t.acc + t.acc_layout.at(row);
  const auto cols = static_cast<std::int32_t>(t.cols);
  const VF centre = splat(top);
  for (std::int32_t j = 0; j < cols; j += kGroup * kV) {
    float* const at = acc + t.acc_layout.at(0, j);
    MXFA_CPU_EACH(i, kGroup) {
      float* const piece = at + i * t.acc_layout.across;
      store(piece, load<VF>(piece) - centre);
    }
  }
  return t.offset + (top * t.mult - t.max[row]);
}

/// Rows of a tile together, so that their lanes are folded and their maxima updated side by side.
template <Rounding To, bool Fold, bool LeakFree>
MXFA_CPU_INLINE void softmax_rows(const SoftmaxTile& t, std::int64_t first) {
  const int rows = static_cast<int>(t.rows - first < kTile ? t.rows - first : kTile);
  const auto all_visible = [&](int i) {
    return t.begin[first + i] <= 0 && t.end[first + i] >= t.cols;
  };
  alignas(64) float top[kTile], folded_top[kTile], exponent[kTile], sum[kTile];
  VF tops[kTile], folded_tops[kTile], sums[kTile];
  for (int i = 0; i < kTile; ++i) {
    tops[i] = folded_tops[i] = splat(-__builtin_inff());
    sums[i] = splat(0.0f);
  }
  for (int i = 0; i < rows; ++i) {
    const RowTop of_row = all_visible(i) ? row_top<false, LeakFree>(t, first + i)
                                         : row_top<true, LeakFree>(t, first + i);
    tops[i] = of_row.value;
    if (LeakFree) folded_tops[i] = of_row.folded;
  }
  max_of_each(tops, top);
  if (LeakFree) max_of_each(folded_tops, folded_top);
  update_maxima<LeakFree>(t, first, top, folded_top, exponent);
  for (int i = 0; i < rows; ++i) {
    const float size = __builtin_fabsf(t.max[first + i]);
    if (!LeakFree && size >= kHugeScore && size <= __FLT_MAX__) [[unlikely]] {
      exponent[i] = centre_row(t, first + i, top[i]);
    }
    sums[i] = all_visible(i) ? row_weights<To, false, Fold, LeakFree>(t, first + i, exponent[i])
                             : row_weights<To, true, Fold, LeakFree>(t, first + i, exponent[i]);
  }
  add_of_each(sums, sum);
  for (std::int64_t i = 0; i < kTile; i += kV) {
    const VF old_sum = load<VF>(t.sum + first + i), alpha = load<VF>(t.alpha + first + i);
    store(t.sum + first + i, fma(old_sum, alpha, load<VF>(sum + i)));
  }
}

template <Rounding To, bool Fold, bool LeakFree>
MXFA_CPU_INLINE void softmax_tiles(const SoftmaxTile& t) {
  for (std::int64_t first = 0; first < t.rows; first += kTile) {
    softmax_rows<To, Fold, LeakFree>(t, first);
  }
}

void softmax(const SoftmaxTile& t) {
  if (t.rounding == Rounding::kBf16) {
    softmax_tiles<Rounding::kBf16, false, false>(t);
  } else if (t.fold_in_max) {
    softmax_tiles<Rounding::kE4M3, true, true>(t);
  } else if (t.fold != nullptr) {
    softmax_tiles<Rounding::kE4M3, true, false>(t);
  } else {
    softmax_tiles<Rounding::kE4M3, false, false>(t);
  }
}

template <bool Masked, bool Unfold>
MXFA_CPU_INLINE void score_row(const ScoreTile& t, std::int64_t row) {
  float* s = t.s + row * t.cols;
  float* dp = t.dp + row * t.cols;
  const float *const biases = t.bias, *const deltas = t.delta, *const unfolds = t.unfold;
  const auto cols = static_cast<std::int32_t>(t.cols);
  const VF s_mult = splat(t.s_mult), dp_mult = splat(t.dp_mult);
  for (std::int32_t j = 0; j < cols; j += kGroup * kV) {
    VF p[kGroup], ds[kGroup];
    MXFA_CPU_EACH(i, kGroup) {
      p[i] = fma(load<VF>(s + j + i * kV), s_mult, load<VF>(biases + j + i * kV));
    }
    exp2_group(p);
    MXFA_CPU_EACH(i, kGroup) {
      const std::int32_t col = j + i * kV;
      ds[i] = fma(load<VF>(dp + col), dp_mult, -load<VF>(deltas + col));
      ds[i] = (Unfold ? p[i] * load<VF>(unfolds + col) : p[i]) * ds[i];
      if constexpr (Masked) {
        const VU visible = (VU)lanes_within(col, t.begin[row], t.end[row]);
        p[i] = floats(bits(p[i]) & visible);
        ds[i] = floats(bits(ds[i]) & visible);
      }
    }
    MXFA_CPU_EACH(i, kGroup) store(s + j + i * kV, p[i]);
    MXFA_CPU_EACH(i, kGroup) store(dp + j + i * kV, ds[i]);
  }
}

template <bool Unfold>
MXFA_CPU_INLINE void score_rows(const ScoreTile& t) {
  for (std::int64_t row = 0; row < t.rows; ++row) {
    if (t.begin[row] >= t.end[row]) {
      for (std::int64_t j = 0; j < t.cols; ++j) t.s[row * t.cols + j] = 0.0f;
      for (std::int64_t j = 0; j < t.cols; ++j) t.dp[row * t.cols + j] = 0.0f;
    } else if (t.begin[row] <= 0 && t.end[row] >= t.cols) {
      score_row<false, Unfold>(t, row);
    } else {
      score_row<true, Unfold>(t, row);
    }
  }
}

void scores(const ScoreTile& t) {
  if (t.unfold != nullptr) {
    score_rows<true>(t);
  } else {
    score_rows<false>(t);
  }
}
