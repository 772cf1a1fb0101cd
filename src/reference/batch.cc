#include "reference/batch.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/parallel.h"

namespace mxfa::reference {
namespace {

/// One head of a packed tensor [rows, heads, head_dim]: `rows` rows from `begin`.
struct HeadSlice {
  std::int64_t begin = 0;
  std::int64_t rows = 0;
  std::int64_t head = 0;
  std::int64_t heads = 1;
  std::int64_t head_dim = 0;

  std::int64_t offset(std::int64_t row) const { return ((begin + row) * heads + head) * head_dim; }
};

template <class T>
Matrix<T> gather(std::span<const T> packed, const HeadSlice& slice) {
  Matrix<T> result(slice.rows, slice.head_dim);
  for (std::int64_t i = 0; i < slice.rows; ++i) {
    const T* source = packed.data() + slice.offset(i);
    std::copy(source, source + slice.head_dim, result.row(i).data());
  }
  return result;
}

void scatter_add(const Matrix<double>& values, const HeadSlice& slice, const char* name,
                 std::vector<double>& packed) {
  core::expect(values.rows == slice.rows && values.cols == slice.head_dim, name,
               fmt::format("[{}, {}] from the head function", slice.rows, slice.head_dim),
               fmt::format("[{}, {}]", values.rows, values.cols));
  for (std::int64_t i = 0; i < slice.rows; ++i) {
    double* target = packed.data() + slice.offset(i);
    for (std::int64_t d = 0; d < slice.head_dim; ++d) target[d] += values(i, d);
  }
}

void scatter_rows(const std::vector<double>& values, std::int64_t count, std::int64_t offset,
                  const char* name, std::vector<double>& packed) {
  core::expect(std::int64_t(values.size()) == count, name,
               fmt::format("{} values from the head function", count),
               core::text(std::int64_t(values.size())));
  std::copy(values.begin(), values.end(), packed.begin() + offset);
}

std::int64_t q_size(const attention::AttentionProblem& problem, std::int64_t rows) {
  return rows * problem.num_heads * problem.head_dim;
}

std::int64_t k_size(const attention::AttentionProblem& problem) {
  return problem.total_k * problem.num_heads_kv * problem.head_dim;
}

template <class T>
bool has_dout(const BasicPackedInputs<T>& inputs) {
  return std::int64_t(inputs.dout.size()) == q_size(inputs.problem, inputs.problem.rows_o());
}

template <class T>
void validate_inputs(const BasicPackedInputs<T>& inputs) {
  const attention::AttentionProblem& problem = inputs.problem;
  attention::validate(problem);
  const auto expect_size = [](std::span<const T> values, const char* name, std::int64_t size) {
    core::expect(std::int64_t(values.size()) == size, name, fmt::format("{} elements", size),
                 core::text(std::int64_t(values.size())));
  };
  expect_size(inputs.q, "q", q_size(problem, problem.total_q));
  expect_size(inputs.k, "k", k_size(problem));
  expect_size(inputs.v, "v", k_size(problem));
  if (!inputs.dout.empty()) expect_size(inputs.dout, "dout", q_size(problem, problem.rows_o()));
}

template <class T>
BasicHeadInputs<T> gather_inputs(const BasicPackedInputs<T>& inputs, HeadIndex index) {
  const attention::AttentionProblem& problem = inputs.problem;
  const attention::Sequence sequence = problem.seqlens().at(index.sequence);
  const HeadSlice q{sequence.q_begin, sequence.seqlen_q, index.head, problem.num_heads,
                    problem.head_dim};
  HeadSlice dout = q;
  dout.begin = sequence.o_begin;
  const HeadSlice k{sequence.k_begin, sequence.seqlen_k, index.head / problem.heads_per_kv(),
                    problem.num_heads_kv, problem.head_dim};
  BasicHeadInputs<T> result{.q = gather(inputs.q, q),
                            .k = gather(inputs.k, k),
                            .v = gather(inputs.v, k),
                            .dout = {},
                            .mask = problem.mask,
                            .softmax_scale = problem.scale()};
  if (has_dout(inputs)) result.dout = gather(inputs.dout, dout);
  return result;
}

PackedOutputs allocate(const attention::AttentionProblem& problem, bool gradients) {
  PackedOutputs out;
  const std::size_t rows = problem.num_heads * problem.rows_o();
  out.o.assign(q_size(problem, problem.rows_o()), 0.0);
  out.lse.assign(rows, -std::numeric_limits<double>::infinity());
  if (!gradients) return out;
  out.delta.assign(rows, 0.0);
  out.dq.assign(q_size(problem, problem.total_q), 0.0);
  if (problem.broadcast_q) out.dq_seq.assign(out.o.size(), 0.0);
  out.dk.assign(k_size(problem), 0.0);
  out.dv.assign(k_size(problem), 0.0);
  return out;
}

void scatter_outputs(const HeadOutputs& head, const attention::AttentionProblem& problem,
                     HeadIndex index, bool gradients, PackedOutputs& out) {
  const attention::Sequence sequence = problem.seqlens().at(index.sequence);
  const HeadSlice o{sequence.o_begin, sequence.seqlen_q, index.head, problem.num_heads,
                    problem.head_dim};
  const std::int64_t row_offset = index.head * problem.rows_o() + sequence.o_begin;
  scatter_add(head.o, o, "o", out.o);
  scatter_rows(head.lse, sequence.seqlen_q, row_offset, "lse", out.lse);
  if (!gradients || sequence.seqlen_q == 0) return;
  const HeadSlice k{sequence.k_begin, sequence.seqlen_k, index.head / problem.heads_per_kv(),
                    problem.num_heads_kv, problem.head_dim};
  scatter_rows(head.delta, sequence.seqlen_q, row_offset, "delta", out.delta);
  scatter_add(head.dq, o, "dq", problem.broadcast_q ? out.dq_seq : out.dq);
  scatter_add(head.dk, k, "dk", out.dk);
  scatter_add(head.dv, k, "dv", out.dv);
}

/// A unit of work is one (sequence, kv head): it alone writes those rows of dk and dv.
template <class T>
PackedOutputs run(const BasicPackedInputs<T>& inputs, const HeadFunction<T>& function) {
  validate_inputs(inputs);
  const attention::AttentionProblem& problem = inputs.problem;
  const bool gradients = has_dout(inputs);
  PackedOutputs out = allocate(problem, gradients);
  const std::int64_t heads_per_kv = problem.heads_per_kv();
  core::parallel_for(problem.batch * problem.num_heads_kv, [&](std::int64_t unit) {
    HeadIndex index{.sequence = unit / problem.num_heads_kv,
                    .head = unit % problem.num_heads_kv * heads_per_kv};
    for (const std::int64_t end = index.head + heads_per_kv; index.head < end; ++index.head) {
      const HeadOutputs head = function(gather_inputs(inputs, index), index);
      scatter_outputs(head, problem, index, gradients, out);
    }
  });
  if (!problem.broadcast_q || !gradients) return out;
  const std::int64_t size = std::int64_t(out.dq.size());
  for (std::int64_t sequence = 0; sequence < problem.batch; ++sequence) {
    for (std::int64_t i = 0; i < size; ++i) out.dq[i] += out.dq_seq[sequence * size + i];
  }
  return out;
}

template <class T>
HeadOutputs forward_head(const BasicHeadInputs<T>& inputs, HeadIndex) {
  ForwardResult forward = attention_forward(inputs);
  return {.o = std::move(forward.o),
          .lse = std::move(forward.lse),
          .delta = {},
          .dq = {},
          .dk = {},
          .dv = {}};
}

template <class T>
HeadOutputs backward_head(const BasicHeadInputs<T>& inputs, HeadIndex) {
  ForwardResult forward = attention_forward(inputs);
  BackwardResult backward = attention_backward(inputs, forward);
  return {.o = std::move(forward.o),
          .lse = std::move(forward.lse),
          .delta = std::move(backward.delta),
          .dq = std::move(backward.dq),
          .dk = std::move(backward.dk),
          .dv = std::move(backward.dv)};
}

template <class T>
PackedOutputs run_forward(BasicPackedInputs<T> inputs) {
  inputs.dout = {};
  return run<T>(inputs, forward_head<T>);
}

template <class T>
PackedOutputs run_backward(const BasicPackedInputs<T>& inputs) {
  validate_inputs(inputs);
  core::expect(has_dout(inputs), "dout", "a gradient of o", "none");
  return run<T>(inputs, backward_head<T>);
}

}  // namespace

void validate(const PackedInputs& inputs) { validate_inputs(inputs); }
void validate(const PackedInputsF64& inputs) { validate_inputs(inputs); }

HeadInputs gather_head(const PackedInputs& inputs, HeadIndex index) {
  return gather_inputs(inputs, index);
}
HeadInputsF64 gather_head(const PackedInputsF64& inputs, HeadIndex index) {
  return gather_inputs(inputs, index);
}

PackedOutputs run_heads(const PackedInputs& inputs, const HeadFunction<float>& function) {
  return run(inputs, function);
}
PackedOutputs run_heads(const PackedInputsF64& inputs, const HeadFunction<double>& function) {
  return run(inputs, function);
}

PackedOutputs batched_forward(const PackedInputs& inputs) { return run_forward(inputs); }
PackedOutputs batched_forward(const PackedInputsF64& inputs) { return run_forward(inputs); }
PackedOutputs batched_backward(const PackedInputs& inputs) { return run_backward(inputs); }
PackedOutputs batched_backward(const PackedInputsF64& inputs) { return run_backward(inputs); }

}  // namespace mxfa::reference
