#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "core/simd_clones.h"
#include "cpu/attention.h"
#include "cpu/attention_backward.h"
#include "cpu/key_pieces.h"

namespace mxfa::cpu {
namespace {

bool shares_queries(const attention::AttentionProblem& problem) {
  return key_chunks(problem) * key_groups(problem) > 1;
}

/// Of each (sequence, kv head) where several chunks read them; empty where one does.
std::vector<BackwardQueries> share_queries(const BackwardCall& call) {
  const attention::AttentionProblem& problem = call.problem;
  std::vector<BackwardQueries> shared;
  if (!shares_queries(problem)) return shared;
  struct Part {
    std::int64_t pair, h, row, rows;
  };
  std::vector<Part> parts;
  const std::int64_t heads = problem.heads_per_kv();
  std::vector<std::atomic<std::int64_t>> left(  // parts of a head that are not done
      static_cast<std::size_t>(problem.batch * problem.num_heads_kv * heads));
  const auto left_of = [&](const Part& part) -> std::atomic<std::int64_t>& {
    return left[static_cast<std::size_t>(part.pair * heads + part.h)];
  };
  std::byte* memory = call.shared_queries;
  for (std::int64_t sequence = 0; sequence < problem.batch; ++sequence) {
    const attention::Sequence lengths = problem.seqlens().at(sequence);
    const std::int64_t bytes = BackwardQueries::bytes(problem, lengths.seqlen_q);
    for (std::int64_t head = 0; head < problem.num_heads_kv; ++head, memory += bytes) {
      shared.emplace_back(call, sequence, head, std::span(memory, static_cast<std::size_t>(bytes)));
      if (lengths.seqlen_k == 0) continue;
      constexpr std::int64_t kRows = 2 * kTileQueries;
      const std::int64_t rows = shared.back().rows();
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t row = 0; row < rows; row += kRows) {
          parts.push_back({std::ssize(shared) - 1, h, row, std::min(kRows, rows - row)});
          ++left_of(parts.back());
        }
      }
    }
  }
  core::parallel_for(std::ssize(parts), [&](std::int64_t i) {
    const Part& part = parts[static_cast<std::size_t>(i)];
    BackwardQueries& queries = shared[static_cast<std::size_t>(part.pair)];
    queries.prepare_rows(part.h, part.row, part.rows);
    if (--left_of(part) == 0) queries.finish_head(part.h);
  });
  return shared;
}

/// 0 in sequences without keys, which may have no chunk.
void clear_delta(const BackwardCall& call) {
  if (call.delta.data == nullptr) return;
  for (std::int64_t s = 0; s < call.problem.batch; ++s) {
    const attention::Sequence sequence = call.problem.seqlens().at(s);
    if (sequence.seqlen_k > 0) continue;
    for (std::int64_t head = 0; head < call.problem.num_heads; ++head) {
      for (std::int64_t i = 0; i < sequence.seqlen_q; ++i) {
        call.delta.at(head, sequence.o_begin + i) = 0;
      }
    }
  }
}

/// sums += values * factor, rounded twice.
MXFA_SIMD_CLONES void add_scaled(const float* values, float factor, float* sums,
                                 std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sums[i] += values[i] * factor;
}

/// Adds the chunks' dQ, and the batch's where q is broadcast, in ascending order.
class DqSum {
 public:
  explicit DqSum(const BackwardCall& call)
      : call_(call), problem_(call.problem), chunks_(key_chunks(call.problem)) {
    factors_.resize(static_cast<std::size_t>(problem_.batch * problem_.num_heads_kv));
    core::parallel_for(std::ssize(factors_), [&](std::int64_t i) {
      factors_[static_cast<std::size_t>(i)] =
          dq_factor(call_, i / problem_.num_heads_kv, i % problem_.num_heads_kv);
    });
  }

  void run() {
    constexpr std::int64_t kRows = kScaleBlock;
    struct Part {
      std::int64_t sequence;
      std::int64_t row;
    };
    std::vector<Part> parts;
    const std::int64_t destinations = problem_.broadcast_q ? 1 : problem_.batch;
    for (std::int64_t sequence = 0; sequence < destinations; ++sequence) {
      const std::int64_t seqlen =
          problem_.broadcast_q ? problem_.total_q : problem_.seqlens().at(sequence).seqlen_q;
      for (std::int64_t row = 0; row < seqlen; row += kRows) parts.push_back({sequence, row});
    }
    struct Scratch {
      std::vector<float> rows, sequence;
    };
    for_each_unit<Scratch>(std::ssize(parts), [&](Scratch& scratch, std::int64_t i) {
      const Part& part = parts[static_cast<std::size_t>(i)];
      const std::int64_t seqlen =
          problem_.broadcast_q ? problem_.total_q : problem_.seqlens().at(part.sequence).seqlen_q;
      const std::int64_t rows = std::min(kRows, seqlen - part.row);
      for (std::int64_t head = 0; head < problem_.num_heads; ++head) {
        const std::int64_t count = rows * problem_.head_dim;
        scratch.rows.assign(static_cast<std::size_t>(count), 0.0f);
        if (problem_.broadcast_q) {
          for (std::int64_t s = 0; s < problem_.batch; ++s) {
            scratch.sequence.assign(static_cast<std::size_t>(count), 0.0f);
            add(s, head, part.row, rows, scratch.sequence);
            write_rows(call_.dq_seq, {s, head}, part.row, rows, scratch.sequence.data(),
                       problem_.head_dim);
            for (std::int64_t c = 0; c < count; ++c) scratch.rows[c] += scratch.sequence[c];
          }
        } else {
          add(part.sequence, head, part.row, rows, scratch.rows);
        }
        write_rows(call_.dq, {part.sequence, head}, part.row, rows, scratch.rows.data(),
                   problem_.head_dim);
      }
    });
  }

 private:
  void add(std::int64_t s, std::int64_t head, std::int64_t row, std::int64_t rows,
           std::vector<float>& sums) const {
    const std::int64_t dim = problem_.head_dim, ld = round_up(dim, kPanel);
    const attention::Sequence sequence = problem_.seqlens().at(s);
    const float factor = factors_[static_cast<std::size_t>(s * problem_.num_heads_kv +
                                                           head / problem_.heads_per_kv())];
    for (std::int64_t index = 0; index < chunks_; ++index) {
      if (chunk_tiles(sequence, index, chunks_).empty() && chunks_ > 1) continue;
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t plane = index * problem_.num_heads + head;
        const std::int64_t at = plane * problem_.rows_o() + sequence.o_begin + row + r;
        const float* from = call_.dq_sums + at * ld;
        add_scaled(from, factor, sums.data() + r * dim, dim);
      }
    }
  }

  const BackwardCall& call_;
  const attention::AttentionProblem& problem_;
  std::int64_t chunks_;
  std::vector<float> factors_;  ///< [batch, num_heads_kv]
};

/// Adds the groups' dK and dV in ascending order.
void sum_key_gradients(const BackwardCall& call, const std::vector<BackwardQueries>& queries) {
  const attention::AttentionProblem& problem = call.problem;
  const std::int64_t groups = key_groups(problem), ld = round_up(problem.head_dim, kPanel);
  struct Part {
    std::int64_t sequence, head_kv, row;
  };
  std::vector<Part> parts;
  for (std::int64_t sequence = 0; sequence < problem.batch; ++sequence) {
    const std::int64_t seqlen = problem.seqlens().at(sequence).seqlen_k;
    for (std::int64_t head = 0; head < problem.num_heads_kv; ++head) {
      for (std::int64_t row = 0; row < seqlen; row += kTileKeys) {
        parts.push_back({sequence, head, row});
      }
    }
  }
  core::parallel_for(std::ssize(parts), [&](std::int64_t i) {
    const Part& part = parts[static_cast<std::size_t>(i)];
    const attention::Sequence sequence = problem.seqlens().at(part.sequence);
    const std::int64_t rows = std::min(kTileKeys, sequence.seqlen_k - part.row);
    const BackwardQueries& from =
        queries[static_cast<std::size_t>(part.sequence * problem.num_heads_kv + part.head_kv)];
    const auto add = [&](const Target& target, KeyGradient which, float factor) {
      if (target.data == nullptr) return;
      const auto group_rows = [&](std::int64_t group) {
        return key_sums_at(call, which, group, part.head_kv, sequence.k_begin + part.row);
      };
      float* const sums = group_rows(0);
      for (std::int64_t group = 1; group < groups; ++group) {
        add_scaled(group_rows(group), 1.0f, sums, rows * ld);
      }
      for (std::int64_t c = 0; c < rows * ld; ++c) sums[c] *= factor;
      write_rows(target, {part.sequence, part.head_kv}, part.row, rows, sums, ld);
    };
    add(call.dk, KeyGradient::kDk, dk_factor(call, from));
    add(call.dv, KeyGradient::kDv, dv_factor(from));
  });
}

}  // namespace

std::int64_t dq_sums_elems(const attention::AttentionProblem& problem) {
  const std::int64_t chunks = key_chunks(problem);
  if (chunks == 1 && !problem.broadcast_q) return 0;
  return chunks * problem.num_heads * problem.rows_o() * round_up(problem.head_dim, kPanel);
}

std::int64_t key_sums_elems(const attention::AttentionProblem& problem) {
  const std::int64_t groups = key_groups(problem);
  if (groups == 1) return 0;
  constexpr std::int64_t kGradients = 2;
  return kGradients * groups * problem.num_heads_kv * problem.total_k *
         round_up(problem.head_dim, kPanel);
}

std::int64_t shared_query_bytes(const attention::AttentionProblem& problem) {
  if (!shares_queries(problem)) return 0;
  std::int64_t bytes = 0;
  for (std::int64_t s = 0; s < problem.batch; ++s) {
    bytes += BackwardQueries::bytes(problem, problem.seqlens().at(s).seqlen_q);
  }
  return bytes * problem.num_heads_kv;
}

void attention_backward(const BackwardCall& call) {
  clear_delta(call);
  KeyPieces pieces(call.problem);
  const std::vector<BackwardQueries> shared = share_queries(call);
  const auto run_piece = [&](BackwardScratch& scratch, const KeyPiece& piece) {
    if (!shared.empty()) {
      const std::int64_t pair = piece.sequence * call.problem.num_heads_kv + piece.head_kv;
      return BackwardUnit(call, piece, shared[static_cast<std::size_t>(pair)], scratch).run();
    }
    const std::int64_t bytes =
        BackwardQueries::bytes(call.problem, call.problem.seqlens().at(piece.sequence).seqlen_q);
    // Not of the kept scratch: it grows with the sequence.
    Buffer<std::byte> memory(bytes);
    BackwardQueries own(call, piece.sequence, piece.head_kv,
                        {memory.data(), static_cast<std::size_t>(bytes)});
    own.prepare();
    BackwardUnit(call, piece, own, scratch).run();
  };
  for_each_unit<BackwardScratch>(pieces.size(), [&](BackwardScratch& scratch, std::int64_t i) {
    pieces.run(i, [&](const KeyPiece& piece) { run_piece(scratch, piece); });
  });
  if (call.key_sums != nullptr) sum_key_gradients(call, shared);
  // Of a broadcast q even where no sequence adds to it.
  const bool has_sums = call.dq_sums != nullptr || call.problem.broadcast_q;
  if (has_sums && call.dq.data != nullptr) DqSum(call).run();
}

}  // namespace mxfa::cpu
