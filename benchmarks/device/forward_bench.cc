#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <numbers>
#include <numeric>

#include "bench.h"
#include "core/parallel.h"
#include "kernels/sm90/forward/launch.h"
#include "mx/jagged_scale.h"
#include "reference/attention.h"

/// Speed and accuracy of the Hopper forward, operand preparation beside it.
namespace mxfa::bench {
namespace {

using sm90::forward::Scores;

/// Elements that repeat: odd, so that heads and rows differ.
constexpr std::int64_t kPeriod = (1 << 24) + 1;

struct Case {
  const char* name;
  std::int32_t batch, num_heads;
  std::int64_t seqlen_q, seqlen_k;  ///< jagged: lengths of K are drawn from 1 .. seqlen_k
  bool causal = false;
  bool jagged = false;
  std::int32_t head_dim = 128;
};

/// Normal values in BF16, the same on every run.
std::vector<std::uint16_t> normal_noise() {
  std::vector<std::uint16_t> values(kPeriod);
  constexpr std::int64_t kChunk = 1 << 16;
  core::parallel_for((kPeriod + kChunk - 1) / kChunk, [&](std::int64_t chunk) {
    std::uint64_t state = static_cast<std::uint64_t>(chunk) * 0x9E3779B97F4A7C15u;
    const auto uniform = [&] {
      std::uint64_t z = state += 0x9E3779B97F4A7C15u;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
      return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
    };
    for (std::int64_t i = chunk * kChunk; i < std::min((chunk + 1) * kChunk, kPeriod); ++i) {
      const double radius = std::sqrt(-2 * std::log(1 - uniform()));
      values[i] =
          mx::encode_bf16(static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform())));
    }
  });
  return values;
}

/// A BF16 tensor on the device: element i is noise[(i + shift) % kPeriod].
class Tensor {
 public:
  Tensor(const Bench& bench, const std::vector<std::uint16_t>& noise, std::int64_t count,
         std::int64_t shift)
      : noise_(noise), shift_(shift), buffer_(bench.device, (count + kPeriod) * 2) {
    std::vector<std::uint16_t> rotated(noise.begin() + shift, noise.end());
    rotated.insert(rotated.end(), noise.begin(), noise.begin() + shift);
    buffer_.upload(rotated.data(), rotated.size() * 2);
    for (std::int64_t at = kPeriod; at < count; at += kPeriod) {
      const driver::CurrentDevice current(bench.device);
      bench.device.driver().check(
          bench.device.calls().cuMemcpyDtoDAsync(buffer_.address() + at * 2, buffer_.address(),
                                                 kPeriod * 2, bench.stream.handle()),
          "cuMemcpyDtoDAsync");
    }
    bench.stream.synchronize();
  }
  const void* data() const { return pointer<const void>(buffer_); }
  float at(std::int64_t index) const {
    const std::uint32_t bits = noise_[(index + shift_) % kPeriod];
    return mx::bits_float(bits << 16);
  }

 private:
  const std::vector<std::uint16_t>& noise_;
  std::int64_t shift_;
  driver::DeviceBuffer buffer_;
};

std::vector<std::int32_t> offsets_of(std::int32_t batch, std::int64_t seqlen, bool draw) {
  std::vector<std::int32_t> cu{0};
  std::uint64_t state = 2026;
  for (std::int32_t s = 0; s < batch; ++s) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const std::int64_t length =
        draw ? 1 + static_cast<std::int64_t>((state >> 33) % seqlen) : seqlen;
    cu.push_back(cu.back() + static_cast<std::int32_t>(length));
  }
  return cu;
}

double flops(const Case& shape, const std::vector<std::int32_t>& cu_k) {
  double pairs = 0;
  for (std::int32_t s = 0; s < shape.batch; ++s) {
    pairs += static_cast<double>(shape.seqlen_q) * (cu_k[s + 1] - cu_k[s]);
  }
  return 4.0 * pairs * shape.num_heads * shape.head_dim * (shape.causal ? 0.5 : 1.0);
}

/// SQNR of the last rows of the first head of the longest sequence, against BF16 inputs.
double sqnr(const Case& shape, const std::vector<std::int32_t>& cu_k, const Tensor& q,
            const Tensor& k, const Tensor& v, const std::vector<std::uint16_t>& o) {
  std::int32_t longest = 0;
  for (std::int32_t s = 0; s < shape.batch; ++s) {
    if (cu_k[s + 1] - cu_k[s] > cu_k[longest + 1] - cu_k[longest]) longest = s;
  }
  const std::int64_t rows = std::min<std::int64_t>(64, shape.seqlen_q);
  const std::int64_t width = std::int64_t{shape.num_heads} * shape.head_dim;
  const std::int64_t first = (longest + 1) * shape.seqlen_q - rows;
  const auto matrix = [&](const Tensor& x, std::int64_t row0, std::int64_t count) {
    reference::Matrix<float> result(count, shape.head_dim);
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t d = 0; d < shape.head_dim; ++d)
        result(row, d) = x.at((row0 + row) * width + d);
    }
    return result;
  };
  const std::int64_t keys = cu_k[longest + 1] - cu_k[longest];
  const reference::HeadInputs inputs{.q = matrix(q, first, rows),
                                     .k = matrix(k, cu_k[longest], keys),
                                     .v = matrix(v, cu_k[longest], keys),
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

io::Record run_case(const Bench& bench, const device::Queue& queue, const Case& shape,
                    const std::vector<std::uint16_t>& noise, Scores scores) {
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
  const auto input = [&](const Tensor& x, std::int64_t seqlen) {
    return device::OperandInput{.data = x.data(),
                                .token_stride = width,
                                .head_stride = shape.head_dim,
                                .batch_stride = seqlen * width};
  };
  const auto sequences = [&](const driver::DeviceBuffer& cu, std::int64_t seqlen,
                             std::int64_t total) {
    return device::Sequences{.cu_seqlens = shape.jagged ? pointer<const std::int32_t>(cu) : nullptr,
                             .seqlen = seqlen,
                             .batch = shape.batch,
                             .total = total};
  };
  const device::OperandsSpec spec{.q = input(q, shape.seqlen_q),
                                  .k = input(k, shape.seqlen_k),
                                  .v = input(v, shape.seqlen_k),
                                  .q_sequences = sequences(cu_q_d, shape.seqlen_q, total_q),
                                  .k_sequences = sequences(cu_k_d, shape.seqlen_k, total_k),
                                  .num_heads = shape.num_heads,
                                  .num_heads_kv = shape.num_heads,
                                  .head_dim = shape.head_dim,
                                  .half_scores = scores == Scores::kF16};
  const driver::DeviceBuffer memory(bench.device, device::operands_bytes(spec)),
      o(bench.device, total_q * width * 2), lse(bench.device, total_q * shape.num_heads * 4),
      workspace(bench.device, sm90::forward::forward_workspace_bytes(bench.device, shape.batch));
  o.fill(0xFF);
  device::AttentionOperands operands;
  const auto prepare =
      bench.time([&] { operands = device::prepare_operands(queue, spec, pointer<void>(memory)); });
  const sm90::forward::ForwardCall call{.q = operands.q,
                                        .k = operands.k,
                                        .v = operands.v,
                                        .mask = {.causal = shape.causal},
                                        .softmax_scale = 1 / std::sqrt(double(shape.head_dim)),
                                        .scores = scores,
                                        .o = pointer<std::uint16_t>(o),
                                        .o_token_stride = width,
                                        .o_head_stride = shape.head_dim,
                                        .lse = pointer<float>(lse),
                                        .lse_head_stride = total_q,
                                        .workspace = pointer<void>(workspace)};
  const auto timing = bench.time([&] { sm90::forward::attention_forward(queue, call); });
  std::vector<std::uint16_t> host(total_q * width);
  o.download(host.data(), host.size() * 2);
  io::Record record;
  record.routine = "attention_forward";
  record.impl = scores == Scores::kF16 ? "mxfa mxfp8 (half scores)" : "mxfa mxfp8";
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
  record.variant.qk = "mxfp8";
  record.variant.block_shape = "32xD";
  record.sqnr_db = {{"o", sqnr(shape, cu_k, q, k, v, host)}};
  record.extra = {{"prepare_ms_median", prepare.ms_median}};
  fmt::print("{:<22} {:<26} {:8.3f} ms {:7.1f} TFLOP/s  O {:5.2f} dB  prepare {:7.3f} ms\n",
             shape.name, record.impl, timing.ms_median, *record.tflops, record.sqnr_db[0].second,
             prepare.ms_median);
  return record;
}

constexpr Case kCases[] = {{"4x16x4096", 4, 16, 4096, 4096},
                           {"2x16x8192", 2, 16, 8192, 8192},
                           {"1x16x16384", 1, 16, 16384, 16384},
                           {"1x16x16384 causal", 1, 16, 16384, 16384, true},
                           {"cross 96x3x512x16384", 96, 3, 512, 16384},
                           {"jagged 768 .. 4096", 768, 3, 512, 4096, false, true},
                           {"jagged 768 .. 16384", 768, 3, 512, 16384, false, true},
                           {"4x16x4096 D=64", 4, 16, 4096, 4096, false, false, 64}};

int run(int argc, char** argv) {
  CLI::App app("Speed and accuracy of the Hopper forward");
  std::string json, commit, only;
  app.add_option("--json", json, "write result records to this file");
  app.add_option("--commit", commit, "the commit that was built, for the records");
  app.add_option("--case", only, "cases whose name holds this");
  CLI11_PARSE(app, argc, argv);
  const auto driver = std::make_shared<const driver::Driver>(driver::DriverOptions{});
  const Bench bench{driver::Device(driver, 0)};
  std::vector<driver::KernelImage> images(device::kernel_images().begin(),
                                          device::kernel_images().end());
  const auto own = sm90::kernel_images();
  images.insert(images.end(), own.begin(), own.end());
  driver::KernelCache kernels(bench.device, images);
  const device::Queue queue{bench.device, kernels, bench.stream.handle()};
  const auto noise = normal_noise();
  std::vector<io::Record> records;
  for (const Case& shape : kCases) {
    if (std::string_view(shape.name).find(only) == std::string_view::npos) continue;
    for (const Scores scores : {Scores::kF32, Scores::kF16}) {
      records.push_back(run_case(bench, queue, shape, noise, scores));
      io::Record& record = records.back();
      record.device = bench.device.name();
      record.driver = std::to_string(driver->version());
      record.commit = commit;
      record.date = io::utc_date();
    }
  }
  if (!json.empty()) io::write_records(json, records);
  return 0;
}

}  // namespace
}  // namespace mxfa::bench

int main(int argc, char** argv) {
  try {
    return mxfa::bench::run(argc, argv);
  } catch (const mxfa::Error& error) {
    fmt::print(stderr, "forward_bench: {}\n", error.what());
    return error.kind() == mxfa::ErrorKind::kDevice ? 3 : 2;
  }
}
