#include "common/key_gradients.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/parallel.h"

namespace mxfa::bench {
namespace {

using reference::HeadInputs;
using reference::Matrix;

/// Keys whose sums are kept in registers, and queries that read a tile while it is cached.
constexpr std::int64_t kTile = 8;
constexpr std::int64_t kChunk = 64;

/// Rows in tiles of kTile, each [cols, kTile]; 0 behind the last row.
std::vector<double> tiles_of(const Matrix<float>& rows) {
  const std::int64_t tiles = (rows.rows + kTile - 1) / kTile;
  std::vector<double> result(static_cast<std::size_t>(tiles * kTile * rows.cols));
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    for (std::int64_t d = 0; d < rows.cols; ++d) {
      result[(row / kTile * rows.cols + d) * kTile + row % kTile] = rows(row, d);
    }
  }
  return result;
}

/// A row's products with a tile.
std::array<double, kTile> products(std::span<const float> row, const double* tile) {
  std::array<double, kTile> sums{};
  for (const float value : row) {
    for (std::int64_t j = 0; j < kTile; ++j) sums[j] += double{value} * tile[j];
    tile += kTile;
  }
  return sums;
}

/// A query's softmax over the keys so far.
struct RowSums {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;  ///< of exp(s - max)
  double dp = 0;   ///< of exp(s - max) * dp

  void add(double score, double dp_of_key) {
    if (score > max) {
      const double rescale = std::exp(max - score);
      sum *= rescale;
      dp *= rescale;
      max = score;
    }
    const double weight = std::exp(score - max);
    sum += weight;
    dp += weight * dp_of_key;
  }
  double lse() const { return max + std::log(sum); }
  double delta() const { return dp / sum; }
};

struct Problem {
  const HeadInputs& inputs;
  const std::vector<double> k, v;  ///< in tiles

  attention::KeyRange visible(std::int64_t query) const {
    return attention::visible_keys(inputs.mask, inputs.q.rows, inputs.k.rows, query);
  }
};

/// Of queries [begin, end).
std::vector<RowSums> row_sums(const Problem& problem, std::int64_t begin, std::int64_t end) {
  const HeadInputs& in = problem.inputs;
  std::vector<RowSums> rows(static_cast<std::size_t>(end - begin));
  for (std::int64_t first = 0; first < in.k.rows; first += kTile) {
    for (std::int64_t i = begin; i < end; ++i) {
      const attention::KeyRange visible = problem.visible(i);
      const std::int64_t from = std::max<std::int64_t>(visible.begin, first);
      const std::int64_t to = std::min<std::int64_t>(visible.end, first + kTile);
      if (from >= to) continue;
      const auto scores = products(in.q.row(i), problem.k.data() + first * in.q.cols);
      const auto dp = products(in.dout.row(i), problem.v.data() + first * in.q.cols);
      for (std::int64_t j = from; j < to; ++j) {
        rows[i - begin].add(in.softmax_scale * scores[j - first], dp[j - first]);
      }
    }
  }
  return rows;
}

KeyGradients chunk_gradients(const Problem& problem, std::int64_t begin, std::int64_t end,
                             std::int64_t count) {
  const HeadInputs& in = problem.inputs;
  const std::int64_t dim = in.q.cols;
  const auto zeros = std::vector<double>(static_cast<std::size_t>(count * dim));
  KeyGradients sums{zeros, zeros};
  const std::vector<RowSums> rows = row_sums(problem, begin, end);
  for (std::int64_t i = begin; i < end; ++i) {
    const attention::KeyRange visible = problem.visible(i);
    for (std::int64_t j = visible.begin; j < std::min(visible.end, count); ++j) {
      const std::int64_t tile = j / kTile * kTile * dim;
      const double score = products(in.q.row(i), problem.k.data() + tile)[j % kTile];
      const double dp = products(in.dout.row(i), problem.v.data() + tile)[j % kTile];
      const RowSums& row = rows[i - begin];
      const double p = std::exp(in.softmax_scale * score - row.lse());
      const double ds = in.softmax_scale * p * (dp - row.delta());
      for (std::int64_t d = 0; d < dim; ++d) {
        sums.dv[j * dim + d] += p * in.dout(i, d);
        sums.dk[j * dim + d] += ds * in.q(i, d);
      }
    }
  }
  return sums;
}

}  // namespace

KeyGradients first_key_gradients(const HeadInputs& inputs, std::int64_t count) {
  const Problem problem{inputs, tiles_of(inputs.k), tiles_of(inputs.v)};
  const std::int64_t chunks = (inputs.q.rows + kChunk - 1) / kChunk;
  std::vector<KeyGradients> parts(static_cast<std::size_t>(chunks));
  core::parallel_for(chunks, [&](std::int64_t chunk) {
    const std::int64_t begin = chunk * kChunk;
    parts[chunk] = chunk_gradients(problem, begin, std::min(begin + kChunk, inputs.q.rows), count);
  });
  const auto zeros = std::vector<double>(static_cast<std::size_t>(count * inputs.q.cols));
  KeyGradients sums{zeros, zeros};
  for (const KeyGradients& part : parts) {
    for (std::size_t i = 0; i < zeros.size(); ++i) {
      sums.dk[i] += part.dk[i];
      sums.dv[i] += part.dv[i];
    }
  }
  return sums;
}

}  // namespace mxfa::bench
