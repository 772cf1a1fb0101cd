// Softmax of a tile of scores, forward and backward; included by kernels_inl.h. Columns are taken
// kGroup vectors at a time, which kPanel is a multiple of.

/// Largest raw sum of a row, and in leak-free form its largest folded score.
struct RowTop {
  float value;
  float folded;
};
template <bool Masked, bool LeakFree>
MXFA_CPU_INLINE RowTop row_top(const SoftmaxTile& t, std::int64_t row) {
  const float* acc = t.acc + row * t.cols;
  const auto cols = static_cast<std::int32_t>(t.cols);
  const VF mult = splat(t.mult), lowest = splat(-__builtin_inff());
  VF top[kGroup], folded_top[kGroup];
  MXFA_CPU_EACH(i, kGroup) top[i] = folded_top[i] = lowest;
  for (std::int32_t j = 0; j < cols; j += kGroup * kV) {
    MXFA_CPU_EACH(i, kGroup) {
      const std::int32_t col = j + i * kV;
      VF value = load<VF>(acc + col);
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
  return {reduce_max(top[0]), LeakFree ? reduce_max(folded_top[0]) : 0.0f};
}

/// P and its sum.
template <Rounding To, bool Masked, bool Fold, bool LeakFree>
MXFA_CPU_INLINE float row_weights(const SoftmaxTile& t, std::int64_t row, float exponent) {
  const float* acc = t.acc + row * t.cols;
  std::uint16_t* p = t.p + row * t.cols;
  const float *const folds = t.fold, *const undos = t.undo;
  const auto cols = static_cast<std::int32_t>(t.cols);
  const VF mult = splat(t.mult), base = splat(exponent);
  VF sum = splat(0.0f);
  for (std::int32_t j = 0; j < cols; j += kGroup * kV) {
    VF x[kGroup];
    MXFA_CPU_EACH(i, kGroup) {
      const std::int32_t col = j + i * kV;
      if constexpr (LeakFree) {
        x[i] = fma(load<VF>(acc + col), mult, load<VF>(folds + col)) + base;
      } else {
        x[i] = fma(load<VF>(acc + col), mult, Fold ? base + load<VF>(folds + col) : base);
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
    store_upper_halves(p + j, x);
  }
  return reduce_add(sum);
}

template <Rounding To, bool Masked, bool Fold, bool LeakFree>
MXFA_CPU_INLINE void softmax_row(const SoftmaxTile& t, std::int64_t row) {
  constexpr float kMinusInfinity = -__builtin_inff();
  const RowTop top = row_top<Masked, LeakFree>(t, row);
  // mult > 0 and rounding is monotonic: the largest product is the product of the largest.
  const float tile_score = top.value == kMinusInfinity ? top.value : top.value * t.mult;
  if (tile_score > t.true_max[row]) t.true_max[row] = tile_score;
  const float candidate = LeakFree ? top.folded : tile_score;
  const float old_max = t.max[row];
  const float new_max = candidate > old_max ? candidate : old_max;
  t.max[row] = new_max;
  const float safe_max = new_max == kMinusInfinity ? 0.0f : new_max;
  float alpha = 1.0f;  // exp2(0) is exactly 1: most rows keep their maximum
  if (new_max != old_max) alpha = exp2_vector(splat(old_max - safe_max))[0];
  const float sum = row_weights<To, Masked, Fold, LeakFree>(t, row, t.offset - safe_max);
  t.sum[row] = __builtin_fmaf(t.sum[row], alpha, sum);
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
