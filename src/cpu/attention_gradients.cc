#include <algorithm>
#include <span>
#include <vector>

#include "cpu/attention.h"
#include "cpu/attention_backward.h"

namespace mxfa::cpu {
namespace {

/// Tiles of chunk `index` of `chunks`.
KeyChunk make_chunk(const attention::Sequence& sequence, std::int64_t index, std::int64_t chunks) {
  const std::int64_t tiles = mx::ceil_div(sequence.seqlen_k, kTileKeys);
  return {.index = index,
          .tile_begin = index * tiles / chunks,
          .tile_end = (index + 1) * tiles / chunks};
}

/// One chunk always remains, so that its dQ and empty sequences are written.
bool is_empty(const KeyChunk& chunk) { return chunk.tile_begin == chunk.tile_end; }

std::vector<KeyChunk> make_chunks(const attention::AttentionProblem& problem) {
  const std::int64_t chunks = key_chunks(problem);
  std::vector<KeyChunk> result;
  std::vector<std::int64_t> cost;
  for (std::int64_t sequence = 0; sequence < problem.batch; ++sequence) {
    const attention::Sequence lengths = problem.seqlens().at(sequence);
    for (std::int64_t head = 0; head < problem.num_heads_kv; ++head) {
      for (std::int64_t index = 0; index < chunks; ++index) {
        KeyChunk chunk = make_chunk(lengths, index, chunks);
        if (is_empty(chunk) && chunks > 1) continue;
        chunk.sequence = sequence;
        chunk.head_kv = head;
        result.push_back(chunk);
      }
    }
  }
  // Longest first, so that threads end together; no result depends on the order.
  const auto work = [&](const KeyChunk& chunk) {
    return (chunk.tile_end - chunk.tile_begin) * problem.seqlens().at(chunk.sequence).seqlen_q;
  };
  std::stable_sort(result.begin(), result.end(),
                   [&](const KeyChunk& a, const KeyChunk& b) { return work(a) > work(b); });
  return result;
}

/// Of each (sequence, kv head) where several chunks read them; empty where one does.
std::vector<BackwardQueries> share_queries(const BackwardCall& call) {
  const attention::AttentionProblem& problem = call.problem;
  std::vector<BackwardQueries> shared;
  if (key_chunks(problem) == 1) return shared;
  struct Part {
    std::int64_t pair, h, row, rows;
  };
  std::vector<Part> parts;
  std::byte* memory = call.shared_queries;
  for (std::int64_t sequence = 0; sequence < problem.batch; ++sequence) {
    const attention::Sequence lengths = problem.seqlens().at(sequence);
    const std::int64_t bytes = BackwardQueries::bytes(problem, lengths.seqlen_q);
    for (std::int64_t head = 0; head < problem.num_heads_kv; ++head, memory += bytes) {
      shared.emplace_back(call, sequence, head, std::span(memory, static_cast<std::size_t>(bytes)));
      if (lengths.seqlen_k == 0) continue;
      constexpr std::int64_t kRows = 4 * kTileQueries;
      const std::int64_t rows = shared.back().rows();
      for (std::int64_t h = 0; h < problem.heads_per_kv(); ++h) {
        for (std::int64_t row = 0; row < rows; row += kRows) {
          parts.push_back({std::ssize(shared) - 1, h, row, std::min(kRows, rows - row)});
        }
      }
    }
  }
  core::parallel_for(std::ssize(parts), [&](std::int64_t i) {
    const Part& part = parts[static_cast<std::size_t>(i)];
    shared[static_cast<std::size_t>(part.pair)].prepare_rows(part.h, part.row, part.rows);
  });
  core::parallel_for(std::ssize(shared) * problem.heads_per_kv(), [&](std::int64_t i) {
    shared[static_cast<std::size_t>(i / problem.heads_per_kv())].finish_head(
        i % problem.heads_per_kv());
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

/// Adds the chunks' dQ, and the batch's where q is broadcast, in ascending order.
class DqSum {
 public:
  explicit DqSum(const BackwardCall& call)
      : call_(call), problem_(call.problem), chunks_(key_chunks(call.problem)) {}

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
    for (std::int64_t index = 0; index < chunks_; ++index) {
      if (is_empty(make_chunk(sequence, index, chunks_)) && chunks_ > 1) continue;
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t plane = index * problem_.num_heads + head;
        const std::int64_t at = plane * problem_.rows_o() + sequence.o_begin + row + r;
        const float* from = call_.dq_sums + at * ld;
        for (std::int64_t c = 0; c < dim; ++c) sums[r * dim + c] += from[c];
      }
    }
  }

  const BackwardCall& call_;
  const attention::AttentionProblem& problem_;
  std::int64_t chunks_;
};

}  // namespace

std::int64_t key_chunks(const attention::AttentionProblem& problem) {
  constexpr std::int64_t kWantedUnits = 32;  // enough for the cores of one socket
  constexpr std::int64_t kMostChunks = 8;    // bounds the scratch of dQ's sums
  constexpr std::int64_t kLeastTiles = 2;    // of a chunk: each reads all queries
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s < problem.batch; ++s) {
    longest = std::max(longest, problem.seqlens().at(s).seqlen_k);
  }
  const std::int64_t units = std::max<std::int64_t>(1, problem.batch * problem.num_heads_kv);
  const std::int64_t most = std::min(kMostChunks, mx::ceil_div(longest, kLeastTiles * kTileKeys));
  return std::clamp<std::int64_t>(mx::ceil_div(kWantedUnits, units), 1,
                                  std::max<std::int64_t>(most, 1));
}

std::int64_t dq_sums_elems(const attention::AttentionProblem& problem) {
  const std::int64_t chunks = key_chunks(problem);
  if (chunks == 1 && !problem.broadcast_q) return 0;
  return chunks * problem.num_heads * problem.rows_o() * round_up(problem.head_dim, kPanel);
}

std::int64_t shared_query_bytes(const attention::AttentionProblem& problem) {
  if (key_chunks(problem) == 1) return 0;
  std::int64_t bytes = 0;
  for (std::int64_t s = 0; s < problem.batch; ++s) {
    bytes += BackwardQueries::bytes(problem, problem.seqlens().at(s).seqlen_q);
  }
  return bytes * problem.num_heads_kv;
}

void attention_backward(const BackwardCall& call) {
  clear_delta(call);
  const std::vector<KeyChunk> chunks = make_chunks(call.problem);
  const std::vector<BackwardQueries> shared = share_queries(call);
  for_each_unit<BackwardScratch>(std::ssize(chunks), [&](BackwardScratch& scratch, std::int64_t i) {
    const KeyChunk& chunk = chunks[static_cast<std::size_t>(i)];
    const std::int64_t pair = chunk.sequence * call.problem.num_heads_kv + chunk.head_kv;
    if (!shared.empty()) {
      return BackwardUnit(call, chunk, shared[static_cast<std::size_t>(pair)], scratch).run();
    }
    const std::int64_t bytes =
        BackwardQueries::bytes(call.problem, call.problem.seqlens().at(chunk.sequence).seqlen_q);
    BackwardQueries own(call, chunk.sequence, chunk.head_kv,
                        {scratch.queries.reserve(bytes), static_cast<std::size_t>(bytes)});
    own.prepare();
    BackwardUnit(call, chunk, own, scratch).run();
  });
  // Of a broadcast q even where no sequence adds to it.
  const bool has_sums = call.dq_sums != nullptr || call.problem.broadcast_q;
  if (has_sums && call.dq.data != nullptr) DqSum(call).run();
}

}  // namespace mxfa::cpu
