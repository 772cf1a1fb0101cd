#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "attention_inputs.h"
#include "kernels/sm90/forward/launch.h"
#include "mx/jagged_scale.h"
#include "reference/attention.h"

/// Speed and accuracy of the Hopper forward, operand preparation beside it.
namespace mxfa::bench {
namespace {

using sm90::forward::Product;
using sm90::forward::Scores;

/// What is multiplied, and what scores are kept in.
struct Kind {
  const char* impl;
  const char* qk;
  const char* block_shape;
  Scores scores = Scores::kF32;
  Product product = Product::kGroupScales;
};

constexpr Kind kKinds[] = {
    {"mxfa mxfp8", "mxfp8", "32xD"},
    {"mxfa mxfp8 (half scores)", "mxfp8", "32xD", Scores::kF16},
    {"mxfa mxfp8 (qk bf16)", "bf16", "32xD", Scores::kF32, Product::kBf16},
    {"mxfa mxfp8 (leak-free)", "mxfp8", "1xD", Scores::kF32, Product::kTokenScales}};

/// SQNR of the last rows of the first head of the longest sequence, against BF16 inputs.
double sqnr(const AttentionCase& shape, const std::vector<std::int32_t>& cu_k, const Tensor& q,
            const Tensor& k, const Tensor& v, const std::vector<std::uint16_t>& o) {
  const std::int32_t longest = longest_of(cu_k);
  const std::int64_t rows = std::min<std::int64_t>(64, shape.seqlen_q);
  const std::int64_t width = std::int64_t{shape.num_heads} * shape.head_dim;
  const std::int64_t first = (longest + 1) * shape.seqlen_q - rows;
  const std::int64_t keys = cu_k[longest + 1] - cu_k[longest];
  const reference::HeadInputs inputs{.q = rows_of(q, shape, first, rows),
                                     .k = rows_of(k, shape, cu_k[longest], keys),
                                     .v = rows_of(v, shape, cu_k[longest], keys),
                                     .dout = {},
                                     .mask = {.causal = shape.causal},
                                     .softmax_scale = 1 / std::sqrt(double(shape.head_dim))};
  const auto want = reference::attention_forward(inputs);
  std::vector<double> got;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t d = 0; d < shape.head_dim; ++d) {
      got.push_back(mx::bits_float(std::uint32_t{o[(first + row) * width + d]} << 16));
    }
  }
  return reference::sqnr_db(want.o.data, got);
}

io::Record run_case(const Bench& bench, const device::Queue& queue, const AttentionCase& shape,
                    const std::vector<std::uint16_t>& noise, const Kind& kind) {
  const auto cu_q = offsets_of(shape.batch, shape.seqlen_q, false);
  const auto cu_k = offsets_of(shape.batch, shape.seqlen_k, shape.jagged);
  const std::int64_t total_q = cu_q.back(), total_k = cu_k.back();
  const std::int64_t width = std::int64_t{shape.num_heads} * shape.head_dim;
  const Tensor q(bench, noise, total_q * width, 0), k(bench, noise, total_k * width, 1234567),
      v(bench, noise, total_k * width, 7654321);
  const driver::DeviceBuffer cu_q_d(bench.device, cu_q.size() * 4),
      cu_k_d(bench.device, cu_k.size() * 4);
  cu_q_d.upload(cu_q.data(), cu_q.size() * 4);
  cu_k_d.upload(cu_k.data(), cu_k.size() * 4);
  const device::OperandsSpec spec{
      .q = operand_input(q, shape, shape.seqlen_q),
      .k = operand_input(k, shape, shape.seqlen_k),
      .v = operand_input(v, shape, shape.seqlen_k),
      .q_sequences = sequences_of(shape, cu_q_d, shape.seqlen_q, total_q),
      .k_sequences = sequences_of(shape, cu_k_d, shape.seqlen_k, total_k),
      .num_heads = shape.num_heads,
      .num_heads_kv = shape.num_heads,
      .head_dim = shape.head_dim,
      .leak_free = kind.product == Product::kTokenScales,
      .half_scores = kind.scores == Scores::kF16};
  const driver::DeviceBuffer memory(bench.device, device::operands_bytes(spec)),
      o(bench.device, total_q * width * 2), lse(bench.device, total_q * shape.num_heads * 4),
      workspace(bench.device, sm90::forward::forward_workspace_bytes(bench.device, shape.batch));
  o.fill(0xFF);
  device::AttentionOperands operands;
  const auto prepare =
      bench.time([&] { operands = device::prepare_operands(queue, spec, pointer<void>(memory)); });
  sm90::forward::ForwardCall call{.q = operands.q,
                                  .k = operands.k,
                                  .v = operands.v,
                                  .mask = {.causal = shape.causal},
                                  .softmax_scale = 1 / std::sqrt(double(shape.head_dim)),
                                  .scores = kind.scores,
                                  .o = pointer<std::uint16_t>(o),
                                  .o_token_stride = width,
                                  .o_head_stride = shape.head_dim,
                                  .lse = pointer<float>(lse),
                                  .lse_head_stride = total_q,
                                  .workspace = pointer<void>(workspace)};
  if (kind.product == Product::kBf16) {
    call.q_bf16 = {static_cast<const std::uint16_t*>(q.data()), width, shape.head_dim};
    call.k_bf16 = {static_cast<const std::uint16_t*>(k.data()), width, shape.head_dim};
  }
  const auto timing = bench.time([&] { sm90::forward::attention_forward(queue, call); });
  std::vector<std::uint16_t> host(total_q * width);
  o.download(host.data(), host.size() * 2);
  io::Record record;
  record.routine = "attention_forward";
  record.impl = kind.impl;
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
  record.timing = timing;
  record.tflops = flops(shape, cu_k) / timing.ms_median / 1e9;
  record.variant.qk = kind.qk;
  record.variant.block_shape = kind.block_shape;
  record.sqnr_db = {{"o", sqnr(shape, cu_k, q, k, v, host)}};
  record.extra = {{"prepare_ms_median", prepare.ms_median}};
  fmt::print("{:<22} {:<26} {:8.3f} ms {:7.1f} TFLOP/s  O {:5.2f} dB  prepare {:7.3f} ms\n",
             shape.name, record.impl, timing.ms_median, *record.tflops, record.sqnr_db[0].second,
             prepare.ms_median);
  return record;
}

int run(int argc, char** argv) {
  CLI::App app("Speed and accuracy of the Hopper forward");
  std::string only_kind;
  app.add_option("--kind", only_kind, "kinds whose name ends so");
  return run_cases(app, argc, argv,
                   [&](const Bench& bench, const device::Queue& queue, const AttentionCase& shape,
                       const std::vector<std::uint16_t>& noise) {
                     std::vector<io::Record> records;
                     for (const Kind& kind : kKinds) {
                       if (!std::string_view(kind.impl).ends_with(only_kind)) continue;
                       // A mask is what leak-free operands are for.
                       if (kind.product == Product::kTokenScales && !shape.causal) continue;
                       records.push_back(run_case(bench, queue, shape, noise, kind));
                     }
                     return records;
                   });
}

}  // namespace
}  // namespace mxfa::bench

int main(int argc, char** argv) {
  return mxfa::bench::run_program("forward_bench", mxfa::bench::run, argc, argv);
}
