#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>

#include "attention_inputs.h"
#include "kernels/sm90/backward/launch.h"
#include "kernels/sm90/forward/launch.h"
#include "reference/attention.h"

/// Speed and accuracy of the Hopper backward: all of a call, pre-pass and dQ's conversion included.
namespace mxfa::bench {
namespace {

struct Variant {
  const char* name;
  sm90::backward::DqSums dq_sums = sm90::backward::DqSums::kF32;
  bool deterministic = false;
};
constexpr Variant kVariants[] = {
    {"fp32"}, {"fp16", sm90::backward::DqSums::kF16}, {"fp32", sm90::backward::DqSums::kF32, true}};

struct Inputs {
  const Tensor &q, &k, &v, &dout;
};

/// What the device made, by packed row of head 0 of num_heads.
struct Outputs {
  std::vector<std::uint16_t> o, dq, dk, dv;
  std::vector<float> lse;
};

template <class T>
std::vector<T> download(const driver::DeviceBuffer& from, std::int64_t count) {
  std::vector<T> to(static_cast<std::size_t>(count));
  from.download(to.data(), to.size() * sizeof(T));
  return to;
}

std::vector<double> rows_of(const std::vector<std::uint16_t>& codes, const AttentionCase& shape,
                            std::int64_t row0, std::int64_t rows) {
  std::vector<double> result;
  for (std::int64_t row = row0; row < row0 + rows; ++row) {
    for (std::int64_t d = 0; d < shape.head_dim; ++d) {
      const std::uint32_t bits = codes[row * shape.num_heads * shape.head_dim + d];
      result.push_back(mx::bits_float(bits << 16));
    }
  }
  return result;
}

/// SQNR against BF16 inputs, head 0 of the longest sequence: dQ of the last rows from the oracle;
/// dK and dV of the first keys by their definition, with LSE and O of the device.
std::vector<std::pair<std::string, double>> sqnr(const AttentionCase& shape,
                                                 const std::vector<std::int32_t>& cu_k,
                                                 const Inputs& in, const Outputs& out) {
  const std::int32_t s = longest_of(cu_k);
  const std::int64_t dim = shape.head_dim, keys = cu_k[s + 1] - cu_k[s];
  const double scale = 1 / std::sqrt(double(dim));
  const std::int64_t rows = std::min<std::int64_t>(64, shape.seqlen_q);
  const std::int64_t last = (s + 1) * shape.seqlen_q - rows, first = s * shape.seqlen_q;
  const reference::HeadInputs inputs{.q = rows_of(in.q, shape, last, rows),
                                     .k = rows_of(in.k, shape, cu_k[s], keys),
                                     .v = rows_of(in.v, shape, cu_k[s], keys),
                                     .dout = rows_of(in.dout, shape, last, rows),
                                     .mask = {.causal = shape.causal},
                                     .softmax_scale = scale};
  const auto oracle = reference::attention_backward(inputs, reference::attention_forward(inputs));
  const std::int64_t few = std::min<std::int64_t>(16, keys);
  const auto q = rows_of(in.q, shape, first, shape.seqlen_q);
  const auto dout = rows_of(in.dout, shape, first, shape.seqlen_q);
  const auto o = rows_of(out.o, shape, first, shape.seqlen_q);
  std::vector<double> dk(few * dim), dv(few * dim);
  for (std::int64_t i = 0; i < shape.seqlen_q; ++i) {
    double delta = 0;
    for (std::int64_t d = 0; d < dim; ++d) delta += dout(i, d) * o[i * dim + d];
    for (std::int64_t j = 0; j < few; ++j) {
      if (shape.causal && j > i + keys - shape.seqlen_q) continue;
      double score = 0, dp = 0;
      for (std::int64_t d = 0; d < dim; ++d) {
        score += double{q(i, d)} * inputs.k(j, d);
        dp += double{dout(i, d)} * inputs.v(j, d);
      }
      const double p = std::exp(score * scale - out.lse[first + i]);
      for (std::int64_t d = 0; d < dim; ++d) {
        dv[j * dim + d] += p * dout(i, d);
        dk[j * dim + d] += scale * p * (dp - delta) * q(i, d);
      }
    }
  }
  return {{"dq", reference::sqnr_db(oracle.dq.data, rows_of(out.dq, shape, last, rows))},
          {"dk", reference::sqnr_db(dk, rows_of(out.dk, shape, cu_k[s], few))},
          {"dv", reference::sqnr_db(dv, rows_of(out.dv, shape, cu_k[s], few))}};
}

io::Record record_of(const AttentionCase& shape, const Variant& variant, std::int64_t total_q,
                     std::int64_t total_k) {
  io::Record record;
  record.routine = "attention_backward";
  record.impl = "mxfa mxfp8";
  record.shape = {.batch = shape.batch,
                  .num_heads = shape.num_heads,
                  .num_heads_kv = shape.num_heads,
                  .seqlen_q = shape.seqlen_q,
                  .seqlen_k = shape.seqlen_k,
                  .total_q = total_q,
                  .total_k = total_k,
                  .head_dim = shape.head_dim,
                  .causal = shape.causal,
                  .jagged = shape.jagged};
  record.variant.dq_accum = variant.name;
  record.variant.deterministic = variant.deterministic;
  record.variant.qk = "mxfp8";
  record.variant.block_shape = "32xD";
  return record;
}

void print(const AttentionCase& shape, const Variant& variant, const io::Record& record) {
  fmt::print("{:<22} {} {:<8} {:8.3f} ms {:7.1f} TFLOP/s ", shape.name, variant.name,
             variant.deterministic ? "in order" : "", record.timing->ms_median, *record.tflops);
  for (const auto& [name, db] : record.sqnr_db) fmt::print(" {} {:5.2f} dB", name, db);
  fmt::print("\n");
  std::fflush(stdout);
}

std::vector<io::Record> run_case(const Bench& bench, const device::Queue& queue,
                                 const AttentionCase& shape,
                                 const std::vector<std::uint16_t>& noise) {
  const auto cu_q = offsets_of(shape.batch, shape.seqlen_q, false);
  const auto cu_k = offsets_of(shape.batch, shape.seqlen_k, shape.jagged);
  const std::int64_t total_q = cu_q.back(), total_k = cu_k.back();
  const std::int64_t width = std::int64_t{shape.num_heads} * shape.head_dim;
  const Tensor q(bench, noise, total_q * width, 0), k(bench, noise, total_k * width, 1234567),
      v(bench, noise, total_k * width, 7654321), dout(bench, noise, total_q * width, 3333333);
  const driver::DeviceBuffer cu_q_d(bench.device, cu_q.size() * 4),
      cu_k_d(bench.device, cu_k.size() * 4);
  cu_q_d.upload(cu_q.data(), cu_q.size() * 4);
  cu_k_d.upload(cu_k.data(), cu_k.size() * 4);
  const device::OperandsSpec spec{
      .q = operand_input(q, shape, shape.seqlen_q),
      .k = operand_input(k, shape, shape.seqlen_k),
      .v = operand_input(v, shape, shape.seqlen_k),
      .dout = operand_input(dout, shape, shape.seqlen_q),
      .q_sequences = sequences_of(shape, cu_q_d, shape.seqlen_q, total_q),
      .k_sequences = sequences_of(shape, cu_k_d, shape.seqlen_k, total_k),
      .num_heads = shape.num_heads,
      .num_heads_kv = shape.num_heads,
      .head_dim = shape.head_dim,
      .backward = true};
  const driver::DeviceBuffer memory(bench.device, device::operands_bytes(spec)),
      o(bench.device, total_q * width * 2), lse(bench.device, total_q * shape.num_heads * 4),
      row_max(bench.device, total_q * shape.num_heads * 4),
      forward_workspace(bench.device,
                        sm90::forward::forward_workspace_bytes(bench.device, shape.batch)),
      dq(bench.device, total_q * width * 2), dk(bench.device, total_k * width * 2),
      dv(bench.device, total_k * width * 2);
  for (const auto* output : {&o, &dq, &dk, &dv}) output->fill(0xFF);
  const device::AttentionOperands operands =
      device::prepare_operands(queue, spec, pointer<void>(memory));
  const double scale = 1 / std::sqrt(double(shape.head_dim));
  sm90::forward::attention_forward(queue, {.q = operands.q,
                                           .k = operands.k,
                                           .v = operands.v,
                                           .mask = {.causal = shape.causal},
                                           .softmax_scale = scale,
                                           .o = pointer<std::uint16_t>(o),
                                           .o_token_stride = width,
                                           .o_head_stride = shape.head_dim,
                                           .lse = pointer<float>(lse),
                                           .row_max = pointer<float>(row_max),
                                           .lse_head_stride = total_q,
                                           .workspace = pointer<void>(forward_workspace)});
  const auto gradient = [&](const driver::DeviceBuffer& x) {
    return sm90::backward::GradientOut{
        .data = pointer<std::uint16_t>(x), .token_stride = width, .head_stride = shape.head_dim};
  };
  sm90::backward::BackwardCall call{.q = operands.q,
                                    .k = operands.k,
                                    .v = operands.v,
                                    .dout = operands.dout,
                                    .mask = {.causal = shape.causal},
                                    .softmax_scale = scale,
                                    .o = pointer<const std::uint16_t>(o),
                                    .o_token_stride = width,
                                    .o_head_stride = shape.head_dim,
                                    .lse = pointer<const float>(lse),
                                    .row_max = pointer<const float>(row_max),
                                    .lse_head_stride = total_q,
                                    .dq = gradient(dq),
                                    .dk = gradient(dk),
                                    .dv = gradient(dv)};
  std::vector<io::Record> records;
  for (const Variant& variant : kVariants) {
    call.dq_sums = variant.dq_sums;
    call.deterministic = variant.deterministic;
    const driver::DeviceBuffer workspace(
        bench.device, sm90::backward::backward_workspace_bytes(bench.device, call));
    call.workspace = pointer<void>(workspace);
    io::Record record = record_of(shape, variant, total_q, total_k);
    record.timing = bench.time([&] { sm90::backward::attention_backward(queue, call); });
    record.tflops = 2.5 * flops(shape, cu_k) / record.timing->ms_median / 1e9;
    const Outputs host{.o = download<std::uint16_t>(o, total_q * width),
                       .dq = download<std::uint16_t>(dq, total_q * width),
                       .dk = download<std::uint16_t>(dk, total_k * width),
                       .dv = download<std::uint16_t>(dv, total_k * width),
                       .lse = download<float>(lse, total_q)};
    record.sqnr_db = sqnr(shape, cu_k, {q, k, v, dout}, host);
    print(shape, variant, record);
    records.push_back(std::move(record));
  }
  return records;
}

int run(int argc, char** argv) {
  CLI::App app("Speed and accuracy of the Hopper backward");
  return run_cases(app, argc, argv, run_case);
}

}  // namespace
}  // namespace mxfa::bench

int main(int argc, char** argv) {
  return mxfa::bench::run_program("backward_bench", mxfa::bench::run, argc, argv);
}
