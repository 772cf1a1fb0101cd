#include "common/accuracy.h"

#include <algorithm>
#include <cmath>

#include "mx/bits.h"
#include "reference/attention.h"

namespace mxfa::bench {
namespace {

using reference::Matrix;

/// Rows of one head of a packed tensor.
Matrix<float> gather(std::span<const std::uint16_t> tensor, std::int64_t heads, std::int64_t head,
                     std::int64_t first, std::int64_t rows, std::int64_t dim) {
  Matrix<float> result(rows, dim);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t from = ((first + r) * heads + head) * dim;
    for (std::int64_t c = 0; c < dim; ++c) {
      result(r, c) = mx::decode_bf16(tensor[static_cast<std::size_t>(from + c)]);
    }
  }
  return result;
}

struct Energy {
  double signal = 0, noise = 0;

  void add(const Matrix<double>& want, const Matrix<float>& got) {
    for (std::size_t i = 0; i < want.data.size(); ++i) {
      const double error = want.data[i] - static_cast<double>(got.data[i]);
      signal += want.data[i] * want.data[i];
      noise += error * error;
    }
  }
  double db() const { return 10 * std::log10(signal / noise); }
};

/// What is measured: rows [row, row + rows) of a sequence, against its first `keys` keys.
struct Part {
  std::int64_t sequence = 0;
  std::int64_t row = 0, rows = 0, keys = 0;
  bool whole = false;
};

Part choose(const AttentionCase& c, std::span<const std::int32_t> cu_seqlens_k,
            std::int64_t max_pairs) {
  Part best, shortest;
  for (std::int64_t s = 0; s < c.batch; ++s) {
    const std::int64_t keys = cu_seqlens_k[std::size_t(s + 1)] - cu_seqlens_k[std::size_t(s)];
    const Part part{.sequence = s, .row = 0, .rows = c.seqlen_q, .keys = keys, .whole = true};
    if (c.seqlen_q * keys <= max_pairs && keys > best.keys) best = part;
    if (shortest.keys == 0 || keys < shortest.keys) shortest = part;
  }
  if (best.keys > 0) return best;
  shortest.rows =
      std::clamp<std::int64_t>(max_pairs / std::max<std::int64_t>(shortest.keys, 1), 1, c.seqlen_q);
  shortest.row = c.seqlen_q - shortest.rows;  // their mask is the same without the others
  shortest.whole = false;
  return shortest;
}

}  // namespace

std::vector<std::pair<std::string, double>> sqnr_db(const AttentionCase& c,
                                                    const AttentionOperands& tensors,
                                                    std::int64_t max_pairs) {
  const std::vector<std::int32_t> cu_seqlens_k = c.cu_seqlens_k();
  const Part part = choose(c, cu_seqlens_k, max_pairs);
  const std::int64_t first_q = part.sequence * c.seqlen_q + part.row;
  const std::int64_t first_k = cu_seqlens_k[static_cast<std::size_t>(part.sequence)];
  const auto rows_q = [&](std::span<const std::uint16_t> tensor, std::int64_t head) {
    return gather(tensor, c.num_heads, head, first_q, part.rows, c.head_dim);
  };
  const auto rows_k = [&](std::span<const std::uint16_t> tensor) {
    return gather(tensor, c.num_heads_kv, 0, first_k, part.keys, c.head_dim);
  };
  const bool backward = !tensors.dq.empty() || (!tensors.dk.empty() && part.whole);
  Energy o, dq, dk, dv;
  Matrix<double> dk_sum(part.keys, c.head_dim), dv_sum(part.keys, c.head_dim);
  for (std::int64_t head = 0; head < c.num_heads / c.num_heads_kv; ++head) {
    reference::HeadInputs inputs{.q = rows_q(tensors.q, head),
                                 .k = rows_k(tensors.k),
                                 .v = rows_k(tensors.v),
                                 .dout = {},
                                 .mask = c.mask(),
                                 .softmax_scale = 1.0 / std::sqrt(double(c.head_dim))};
    const reference::ForwardResult forward = reference::attention_forward(inputs);
    if (!tensors.o.empty()) o.add(forward.o, rows_q(tensors.o, head));
    if (!backward) continue;
    inputs.dout = rows_q(tensors.dout, head);
    const reference::BackwardResult result = reference::attention_backward(inputs, forward);
    if (!tensors.dq.empty()) dq.add(result.dq, rows_q(tensors.dq, head));
    for (std::size_t i = 0; i < dk_sum.data.size(); ++i) {
      dk_sum.data[i] += result.dk.data[i];
      dv_sum.data[i] += result.dv.data[i];
    }
  }
  std::vector<std::pair<std::string, double>> result;
  if (!tensors.o.empty()) result.emplace_back("o", o.db());
  if (!tensors.dq.empty()) result.emplace_back("dq", dq.db());
  if (!part.whole || tensors.dk.empty()) return result;
  dk.add(dk_sum, rows_k(tensors.dk));
  dv.add(dv_sum, rows_k(tensors.dv));
  result.emplace_back("dk", dk.db());
  result.emplace_back("dv", dv.db());
  return result;
}

}  // namespace mxfa::bench
