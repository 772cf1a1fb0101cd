#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/attention.h"
#include "cpu/attention_tiles.h"
#include "cpu/forward_keys.h"
#include "cpu/units.h"
#include "mx/bits.h"

namespace mxfa::cpu {
namespace {

using attention::KeyRange;
using attention::TileKind;

constexpr std::int64_t kTileRows = 96;  // that share a pass over the keys on AMX
constexpr std::int64_t kMostRows = 18 * kTileRows;

/// Consecutive query rows of one (sequence, head).
struct Unit {
  std::int64_t sequence;
  std::int64_t head;
  std::int64_t row;
  std::int64_t rows;
};

struct Scratch {
  Buffer<std::uint16_t> q;
  Buffer<std::byte> scores;                            ///< FP32, then P over them
  Buffer<std::uint16_t> key_rows, k_panels, v_panels;  ///< of keys, where they are not shared
  Buffer<float> o, o_rows, max, true_max, sum, alpha, fold, undo;
  Buffer<std::int32_t> begin, end;
  KeyTile keys;

  void reserve(std::int64_t rows, std::int64_t dim, std::int64_t panel_dim) {
    const std::int64_t padded = round_up(rows, kTile);
    q.resize(padded * round_up(dim, kTileDepth));
    keys.k_panels = k_panels.reserve(kTileKeys * dim);
    keys.v_panels = v_panels.reserve(kTileKeys * panel_dim);
    scores.resize(kTileRows * kTileKeys * std::int64_t{sizeof(float)});
    o.resize(padded * panel_dim);
    o_rows.resize(kScaleBlock * panel_dim);
    for (auto* values : {&max, &true_max, &sum}) values->resize(padded);
    alpha.resize(kTileRows);
    fold.resize(kTileKeys);
    undo.resize(kTileKeys);
    begin.resize(kTileRows);
    end.resize(kTileRows);
  }
};

class ForwardUnit {
 public:
  ForwardUnit(const ForwardCall& call, const Unit& unit, const SharedKeys& shared, Scratch& scratch)
      : call_(call),
        unit_(unit),
        shared_(shared),
        s_(scratch),
        kernel_(kernels()),
        sequence_(call.problem.seqlens().at(unit.sequence)),
        q_(call.q, unit.sequence, unit.head),
        head_kv_(unit.head / call.problem.heads_per_kv()),
        packer_(call, unit.sequence, head_kv_),
        dim_(call.problem.head_dim),
        panel_dim_(round_up(dim_, kPanel)),
        mult_(folded(static_cast<float>(call.problem.scale() * kLog2eDouble),
                     q_.anchor() + packer_.k().anchor())),
        offset_(call.arithmetic.bf16 ? 0.0f : 8.0f) {}

  void run();

 private:
  const KeyTile& read_keys(std::int64_t key0);
  void make_folds(std::int64_t key0);
  void mask_rows(std::int64_t first, std::int64_t rows, std::int64_t key0, std::int64_t cols);
  void run_tile(const KeyTile& keys, std::int64_t first, std::int64_t key0, bool begins);
  void finish();
  void finish_row(std::int64_t i, float* out);

  const ForwardCall& call_;
  const Unit& unit_;
  const SharedKeys& shared_;
  Scratch& s_;
  const Kernels& kernel_;
  attention::Sequence sequence_;
  HeadRows q_;
  std::int64_t head_kv_;
  KeyPacker packer_;
  std::int64_t dim_;
  std::int64_t panel_dim_;
  float mult_;
  float offset_;
  bool folds_ = false;
  int v_anchor_ = 0;  ///< Hopper: V's largest exponent so far
};

void ForwardUnit::run() {
  s_.reserve(unit_.rows, dim_, panel_dim_);
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const std::int64_t padded = round_up(unit_.rows, kTile);
  std::fill_n(s_.max.data(), padded, kMinusInfinity);
  std::fill_n(s_.true_max.data(), padded, kMinusInfinity);
  std::fill_n(s_.sum.data(), padded, 0.0f);
  q_.read_pieces(unit_.row, unit_.rows, s_.q.data());
  const attention::Mask& mask = call_.problem.mask;
  const KeyRange seen =
      visible_span(mask, sequence_.seqlen_q, sequence_.seqlen_k, unit_.row, unit_.row + unit_.rows);
  folds_ = !call_.arithmetic.bf16 && (call_.arithmetic.hopper || call_.arithmetic.leak_free);
  v_anchor_ = -127;
  if (call_.arithmetic.hopper && !call_.arithmetic.leak_free) {
    // The anchor counts every key from the sequence's start, seen or not.
    for (std::int64_t j = 0; j < seen.begin / kTileKeys * kTileKeys; ++j) {
      v_anchor_ = std::max(v_anchor_, packer_.v().exponent(j));
    }
  }
  const Products products(kernel_);
  std::vector<bool> started(static_cast<std::size_t>(mx::ceil_div(unit_.rows, kTileRows)));
  for (std::int64_t key0 = seen.begin / kTileKeys * kTileKeys; key0 < seen.end; key0 += kTileKeys) {
    const KeyTile& keys = read_keys(key0);
    for (std::int64_t first = 0; first < unit_.rows; first += kTileRows) {
      const std::int64_t row = unit_.row + first;
      const attention::Tile tile{row, row + std::min(kTileRows, unit_.rows - first), key0,
                                 key0 + kTileKeys};
      if (classify(mask, sequence_.seqlen_q, sequence_.seqlen_k, tile) == TileKind::kSkip) continue;
      const std::size_t index = static_cast<std::size_t>(first / kTileRows);
      run_tile(keys, first, key0, !started[index]);
      started[index] = true;
    }
  }
  finish();
}

const KeyTile& ForwardUnit::read_keys(std::int64_t key0) {
  if (folds_) make_folds(key0);
  if (!shared_.empty()) return shared_.at(unit_.sequence, head_kv_, key0);
  packer_.pack(key0, s_.key_rows, s_.keys);
  return s_.keys;
}

/// In leak-free form V's exponent itself; on Hopper relative to the largest one from the sequence's
/// start to the end of the tile.
void ForwardUnit::make_folds(std::int64_t key0) {
  const std::int64_t end = std::min(key0 + kTileKeys, sequence_.seqlen_k);
  std::fill_n(s_.fold.data(), kTileKeys, 0.0f);
  std::fill_n(s_.undo.data(), kTileKeys, 0.0f);
  for (std::int64_t j = key0; j < end; ++j)
    v_anchor_ = std::max(v_anchor_, packer_.v().exponent(j));
  for (std::int64_t j = key0; j < end; ++j) {
    const int exponent = packer_.v().exponent(j);
    const int fold = call_.arithmetic.leak_free ? std::max(exponent, kLeakFreeMinExponent)
                                                : std::max(exponent - v_anchor_, kLeastFold);
    s_.fold[j - key0] = static_cast<float>(fold);
    s_.undo[j - key0] = power_of_two(-fold);
  }
}

/// Visible keys of each row of a tile.
void ForwardUnit::mask_rows(std::int64_t first, std::int64_t rows, std::int64_t key0,
                            std::int64_t cols) {
  if (!hides_keys(call_.problem.mask)) {
    std::fill_n(s_.begin.data(), rows, 0);
    std::fill_n(s_.end.data(), rows,
                static_cast<std::int32_t>(std::min(cols, sequence_.seqlen_k - key0)));
    return;
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    const KeyRange keys = visible_keys(call_.problem.mask, sequence_.seqlen_q, sequence_.seqlen_k,
                                       unit_.row + first + i);
    const KeyRange local = within(keys, key0, cols);
    s_.begin[i] = static_cast<std::int32_t>(local.begin);
    s_.end[i] = static_cast<std::int32_t>(local.end);
  }
}

void ForwardUnit::run_tile(const KeyTile& keys, std::int64_t first, std::int64_t key0,
                           bool begins) {
  const std::int64_t rows = std::min(kTileRows, unit_.rows - first);
  const std::int64_t cols = padded_keys(sequence_.seqlen_k, key0);
  mask_rows(first, rows, key0, cols);
  const LeftLayout q_layout = LeftLayout::pieces(round_up(dim_, kTileDepth));
  const LeftLayout p_layout = over_sums(cols);
  const SumLayout s_layout = SumLayout::pieces(cols);
  const SumLayout o_layout = SumLayout::pieces(panel_dim_);
  auto* const scores = reinterpret_cast<float*>(s_.scores.data());
  auto* const p = reinterpret_cast<std::uint16_t*>(s_.scores.data());
  kernel_.product({.m = rows,
                   .n = cols,
                   .k = dim_,
                   .a = s_.q.data() + q_layout.at(first),
                   .a_layout = q_layout,
                   .b = keys.k_panels,
                   .b_panel = dim_ * kPanel,
                   .c = scores,
                   .c_layout = s_layout});
  const Arithmetic& arithmetic = call_.arithmetic;
  kernel_.softmax({.rows = rows,
                   .cols = cols,
                   .acc = scores,
                   .acc_layout = s_layout,
                   .p = p,
                   .p_layout = p_layout,
                   .begin = s_.begin.data(),
                   .end = s_.end.data(),
                   .mult = mult_,
                   .offset = offset_,
                   .rounding = arithmetic.bf16 ? Rounding::kBf16 : Rounding::kE4M3,
                   .fold = folds_ ? s_.fold.data() : nullptr,
                   .undo = folds_ ? s_.undo.data() : nullptr,
                   .fold_in_max = arithmetic.leak_free,
                   .max = s_.max.data() + first,
                   .true_max = s_.true_max.data() + first,
                   .sum = s_.sum.data() + first,
                   .alpha = s_.alpha.data()});
  kernel_.product({.m = rows,
                   .n = panel_dim_,
                   .k = cols,
                   .a = p,
                   .a_layout = p_layout,
                   .b = keys.v_panels,
                   .b_panel = cols * kPanel,
                   .c = s_.o.data() + o_layout.at(first),
                   .c_layout = o_layout,
                   .accumulate = !begins,
                   .alpha = s_.alpha.data()});
  keys.v_non_finite.add(
      s_.o.data() + o_layout.at(first), o_layout, rows,
      [&](std::int64_t row, std::int64_t key) { return s_.begin[row] <= key && key < s_.end[row]; },
      [&](std::int64_t row, std::int64_t key) {
        return mx::decode_bf16(p[p_layout.at(row, key)]);
      });
}

void ForwardUnit::finish() {
  for (std::int64_t first = 0; first < unit_.rows; first += kScaleBlock) {
    const std::int64_t rows = std::min<std::int64_t>(kScaleBlock, unit_.rows - first);
    for (std::int64_t i = 0; i < rows; ++i) {
      finish_row(first + i, s_.o_rows.data() + i * panel_dim_);
    }
    write_rows(call_.o, {unit_.sequence, unit_.head}, unit_.row + first, rows, s_.o_rows.data(),
               panel_dim_);
  }
}

/// LSE, and the row's sums divided by its own, which `out` takes.
void ForwardUnit::finish_row(std::int64_t i, float* out) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const std::int64_t row = unit_.row + i;
  const KeyRange keys =
      visible_keys(call_.problem.mask, sequence_.seqlen_q, sequence_.seqlen_k, row);
  const bool none = keys.empty() || s_.sum[i] == 0;
  float& lse = call_.lse.at(unit_.head, sequence_.o_begin + row);
  if (none) {
    std::fill_n(out, panel_dim_, 0.0f);
    lse = kNone;
  } else {
    const int o_exponent = call_.arithmetic.leak_free ? 0 : packer_.v().anchor();
    const float inverse = 1.0f / s_.sum[i];
    const float factor = power_of_two(std::clamp(o_exponent, -126, 126));
    const SumLayout layout = SumLayout::pieces(panel_dim_);
    const float* const o = s_.o.data() + layout.at(i);
    scale_row(o, layout, inverse, factor, panel_dim_, out);
    const float safe_max = s_.max[i] == kNone ? 0 : s_.max[i];
    const float log2_sum = static_cast<float>(std::log2(static_cast<double>(s_.sum[i])));
    lse = (log2_sum - (offset_ - safe_max)) * kLn2;
  }
  if (call_.row_max.data == nullptr) return;
  call_.row_max.at(unit_.head, sequence_.o_begin + row) = none ? kNone : s_.true_max[i];
}

/// Rows of a unit that packs its own keys: long units read keys less often, short ones keep all
/// threads busy. What takes the least time where all units are alike.
std::int64_t packing_rows(const attention::AttentionProblem& problem) {
  constexpr std::int64_t kPreparation = 64;  // reading keys costs about as much as so many rows
  const std::int64_t threads = core::num_threads();
  std::int64_t best = kMostRows, best_cost = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t rows = kMostRows; rows >= kTileRows; rows -= kScaleBlock) {
    std::int64_t units = 0;
    for (std::int64_t sequence = 0; sequence < problem.batch; ++sequence) {
      units += mx::ceil_div(problem.seqlens().at(sequence).seqlen_q, rows);
    }
    const std::int64_t rounds = mx::ceil_div(units * problem.num_heads, threads);
    const std::int64_t cost = rounds * (rows + kPreparation);
    if (cost >= best_cost) continue;
    best = rows;
    best_cost = cost;
  }
  return best;
}

/// Where keys are packed already: several units for each thread, since cores that share their units
/// with others are not equally fast.
std::int64_t sharing_rows(const attention::AttentionProblem& problem) {
  constexpr std::int64_t kUnitsOfThread = 8;
  const std::int64_t units = kUnitsOfThread * core::num_threads();
  const std::int64_t rows = mx::ceil_div(problem.rows_o() * problem.num_heads, units);
  return std::clamp(round_up(rows, kTileRows), kTileRows, kMostRows);
}

/// No result depends on how rows are cut into units. One head after the other: threads read the
/// same keys at a time.
std::vector<Unit> make_units(const attention::AttentionProblem& problem, bool shared) {
  const std::int64_t step = shared ? sharing_rows(problem) : packing_rows(problem);
  const std::int64_t all = problem.rows_o() * problem.num_heads;
  std::vector<Unit> units;
  for (std::int64_t sequence = 0, made = 0; sequence < problem.batch; ++sequence) {
    const std::int64_t seqlen = problem.seqlens().at(sequence).seqlen_q;
    for (std::int64_t head = 0; head < problem.num_heads; ++head, made += seqlen) {
      // Short ones at the end, so that threads end together.
      const bool ends = shared && 4 * made >= 3 * all;
      const std::int64_t rows = ends ? std::max(kTileRows, step / 2 / kTileRows * kTileRows) : step;
      // Later rows see more keys under a causal mask: longest first.
      for (std::int64_t row = (seqlen - 1) / rows * rows; row >= 0 && seqlen > 0; row -= rows) {
        units.push_back({sequence, head, row, std::min(rows, seqlen - row)});
      }
    }
  }
  return units;
}

}  // namespace

void attention_forward(const ForwardCall& call) {
  const SharedKeys shared(call);
  const std::vector<Unit> units = make_units(call.problem, !shared.empty());
  for_each_unit<Scratch>(std::ssize(units), [&](Scratch& scratch, std::int64_t i) {
    ForwardUnit(call, units[static_cast<std::size_t>(i)], shared, scratch).run();
  });
}

}  // namespace mxfa::cpu
