#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include "bench.h"
#include "core/parallel.h"
#include "device/operands.h"
#include "kernels/sm90/forward/launch.h"
#include "reference/matrix.h"

/// What the benchmarks of attention share: cases, inputs on the device that the host knows too.
namespace mxfa::bench {

/// Elements that repeat: odd, so that heads and rows differ.
inline constexpr std::int64_t kPeriod = (1 << 24) + 1;

struct AttentionCase {
  const char* name;
  std::int32_t batch, num_heads;
  std::int64_t seqlen_q, seqlen_k;  ///< jagged: lengths of K are drawn from 1 .. seqlen_k
  bool causal = false;
  bool jagged = false;
  std::int32_t head_dim = 128;
};

/// Normal values in BF16, the same on every run.
inline std::vector<std::uint16_t> normal_noise() {
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

inline std::vector<std::int32_t> offsets_of(std::int32_t batch, std::int64_t seqlen, bool draw) {
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

inline double flops(const AttentionCase& shape, const std::vector<std::int32_t>& cu_k) {
  double pairs = 0;
  for (std::int32_t s = 0; s < shape.batch; ++s) {
    pairs += static_cast<double>(shape.seqlen_q) * (cu_k[s + 1] - cu_k[s]);
  }
  return 4.0 * pairs * shape.num_heads * shape.head_dim * (shape.causal ? 0.5 : 1.0);
}

/// `count` rows from packed row `row0` on of head 0.
inline reference::Matrix<float> rows_of(const Tensor& x, const AttentionCase& shape,
                                        std::int64_t row0, std::int64_t count) {
  const std::int64_t width = std::int64_t{shape.num_heads} * shape.head_dim;
  reference::Matrix<float> result(count, shape.head_dim);
  for (std::int64_t row = 0; row < count; ++row) {
    for (std::int64_t d = 0; d < shape.head_dim; ++d) {
      result(row, d) = x.at((row0 + row) * width + d);
    }
  }
  return result;
}

/// Of several sequences the first of the longest.
inline std::int32_t longest_of(const std::vector<std::int32_t>& cu) {
  std::int32_t longest = 0;
  for (std::int32_t s = 0; s + 1 < std::ssize(cu); ++s) {
    if (cu[s + 1] - cu[s] > cu[longest + 1] - cu[longest]) longest = s;
  }
  return longest;
}

inline device::OperandInput operand_input(const Tensor& x, const AttentionCase& shape,
                                          std::int64_t seqlen) {
  const std::int64_t width = std::int64_t{shape.num_heads} * shape.head_dim;
  return {.data = x.data(),
          .token_stride = width,
          .head_stride = shape.head_dim,
          .batch_stride = seqlen * width};
}
inline device::Sequences sequences_of(const AttentionCase& shape, const driver::DeviceBuffer& cu,
                                      std::int64_t seqlen, std::int64_t total) {
  return {.cu_seqlens = shape.jagged ? pointer<const std::int32_t>(cu) : nullptr,
          .seqlen = seqlen,
          .batch = shape.batch,
          .total = total};
}

inline constexpr AttentionCase kAttentionCases[] = {
    {"4x16x4096", 4, 16, 4096, 4096},
    {"2x16x8192", 2, 16, 8192, 8192},
    {"1x16x16384", 1, 16, 16384, 16384},
    {"1x16x16384 causal", 1, 16, 16384, 16384, true},
    {"cross 96x3x512x16384", 96, 3, 512, 16384},
    {"jagged 768 .. 4096", 768, 3, 512, 4096, false, true},
    {"jagged 768 .. 16384", 768, 3, 512, 16384, false, true},
    {"4x16x4096 D=64", 4, 16, 4096, 4096, false, false, 64}};

using RunCase = std::function<std::vector<io::Record>(
    const Bench&, const device::Queue&, const AttentionCase&, const std::vector<std::uint16_t>&)>;

/// Parses the command line and runs, on the GPU, the cases that it asks for.
inline int run_cases(CLI::App& app, int argc, char** argv, const RunCase& run_case) {
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
  for (const AttentionCase& shape : kAttentionCases) {
    if (std::string_view(shape.name).find(only) == std::string_view::npos) continue;
    for (io::Record& record : run_case(bench, queue, shape, noise)) {
      records.push_back(std::move(record));
    }
  }
  stamp(records, bench.device, {}, commit);
  if (!json.empty()) io::write_records(json, records);
  return 0;
}

}  // namespace mxfa::bench
