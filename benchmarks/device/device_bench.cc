#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "bench.h"
#include "mx/jagged_scale.h"
#include "mx/scale_layout.h"

/// Speed of the memory-bound kernels, against the device-to-device copy of the same run.
namespace mxfa::bench {
namespace {

void print(const io::Record& record, const std::string& shape) {
  fmt::print("{:<28} {:<22} {:8.3f} ms {:6.0f} GB/s {:5.1f}% of copy\n", record.routine, shape,
             record.timing->ms_median, *record.gbps, 100 * *record.fraction_of_ceiling);
}

io::Record rmsnorm(Bench& bench, std::int64_t rows, std::int32_t dim) {
  const mx::TiledScaleLayout along_dim{rows, dim / 32}, along_rows{dim, (rows + 31) / 32};
  const driver::DeviceBuffer x(bench.device, rows * dim * 2), weight(bench.device, dim * 2),
      codes(bench.device, rows * dim), dim_scales(bench.device, along_dim.size_bytes()),
      row_scales(bench.device, along_rows.size_bytes()), rstd(bench.device, rows * 4);
  const auto host = noise(rows * dim);
  x.upload(host.data(), host.size() * 2);
  weight.upload(host.data(), dim * 2);
  const device::RmsNormQuantizeParams params{.x = pointer<const std::uint16_t>(x),
                                             .weight = pointer<const std::uint16_t>(weight),
                                             .codes = pointer<std::uint8_t>(codes),
                                             .scales_dim = pointer<std::uint8_t>(dim_scales),
                                             .scales_rows = pointer<std::uint8_t>(row_scales),
                                             .rstd = pointer<float>(rstd),
                                             .rows = rows,
                                             .dim = dim,
                                             .eps = 1e-6f};
  const auto timing = bench.time([&] { device::rmsnorm_quantize(bench.queue(), params); });
  const double bytes = static_cast<double>(rows * dim) * 3 + along_dim.size_bytes() +
                       along_rows.size_bytes() + rows * 4.0 + dim * 2.0;
  io::Record record = bench.record("rmsnorm_quantize", bytes, timing);
  record.variant.block_shape = "32x32";
  record.extra = {{"rows", rows}, {"dim", dim}};
  print(record, fmt::format("[{}, {}]", rows, dim));
  return record;
}

struct QuantizeForm {
  const char* routine;
  BlockShape block_shape;
  bool tokens_axis;  ///< scales along tokens too
  bool transposed;
};

/// [tokens, heads, 128] in sequences of `seqlen`.
io::Record quantize(Bench& bench, const QuantizeForm& form, std::int64_t tokens, int heads,
                    std::int32_t seqlen) {
  constexpr std::int64_t kHeadDim = 128;
  const std::int64_t elements = tokens * heads * kHeadDim;
  std::vector<std::int32_t> cu_seqlens;
  for (std::int64_t t = 0; t <= tokens; t += seqlen) {
    cu_seqlens.push_back(static_cast<std::int32_t>(t));
  }
  const auto batch = static_cast<std::int32_t>(cu_seqlens.size() - 1);
  const std::int64_t tiles = mx::max_tiles(tokens, batch);
  const std::int64_t scale_bytes = tiles * heads * mx::kAtomBytes;
  const driver::DeviceBuffer x(bench.device, elements * 2), codes(bench.device, elements),
      dim_scales(bench.device, scale_bytes), token_scales(bench.device, scale_bytes),
      transposed(bench.device, form.transposed ? tiles * 128 * heads * kHeadDim : 0),
      offsets(bench.device, cu_seqlens.size() * 4), groups(bench.device, cu_seqlens.size() * 8),
      tile_offsets(bench.device, cu_seqlens.size() * 8);
  const auto host = noise(elements);
  x.upload(host.data(), host.size() * 2);
  offsets.upload(cu_seqlens.data(), cu_seqlens.size() * 4);
  device::jagged_offsets(bench.queue(), pointer<const std::int32_t>(offsets), batch,
                         pointer<std::int64_t>(groups), pointer<std::int64_t>(tile_offsets));
  const device::AtomStrides strides{.head_bytes = tiles * mx::kAtomBytes};
  const device::QuantizeParams params{
      .x = pointer<const std::uint16_t>(x),
      .row_stride = heads * kHeadDim,
      .head_stride = kHeadDim,
      .total = tokens,
      .codes = pointer<std::uint8_t>(codes),
      .tiled_dim = pointer<std::uint8_t>(dim_scales),
      .dim_strides = strides,
      .tiled_tokens = form.tokens_axis ? pointer<std::uint8_t>(token_scales) : nullptr,
      .token_strides = strides,
      .transposed = form.transposed ? pointer<std::uint8_t>(transposed) : nullptr,
      .transposed_pitch = tiles * 128,
      .offsets = {pointer<const std::int32_t>(offsets), pointer<const std::int64_t>(groups),
                  pointer<const std::int64_t>(tile_offsets), batch},
      .num_heads = heads,
      .head_dim = kHeadDim,
      .block_shape = form.block_shape,
      .order = device::TokenOrder::kPi};
  const auto timing = bench.time([&] { device::quantize(bench.queue(), params, tiles); });
  const double bytes = static_cast<double>(elements) * (form.transposed ? 4 : 3) +
                       static_cast<double>(scale_bytes) * (form.tokens_axis ? 2 : 1);
  io::Record record = bench.record(form.routine, bytes, timing);
  record.variant.block_shape = block_shape_name(form.block_shape);
  record.extra = {{"tokens", tokens}, {"num_heads", heads}, {"seqlen", seqlen}};
  print(record, fmt::format("[{}, {}, 128] {}", tokens, heads, record.variant.block_shape));
  return record;
}

std::vector<io::Record> run_all(Bench& bench) {
  std::vector<io::Record> records;
  constexpr std::pair<std::int64_t, std::int32_t> kNormShapes[] = {
      {2097152, 384}, {1048576, 512}, {1048576, 256}, {524288, 1024},
      {262144, 2048}, {131072, 4096}, {32768, 16384}};
  for (const auto& [rows, dim] : kNormShapes) records.push_back(rmsnorm(bench, rows, dim));
  constexpr QuantizeForm kForms[] = {{"quantize_dual", BlockShape::k32x32, true, false},
                                     {"quantize_dual_transposed", BlockShape::k32x32, true, true},
                                     {"quantize_dual_transposed", BlockShape::k32xD, true, true},
                                     {"quantize", BlockShape::k1x32, false, false},
                                     {"quantize", BlockShape::k1xD, false, false}};
  for (const QuantizeForm& form : kForms) {
    records.push_back(quantize(bench, form, 1048576, 4, 4096));
    records.push_back(quantize(bench, form, 1048576, 3, 500 + 12));
  }
  return records;
}

int run(int argc, char** argv) {
  CLI::App app("Speed of the memory-bound kernels");
  std::string json, commit;
  app.add_option("--json", json, "write result records to this file");
  app.add_option("--commit", commit, "the commit that was built, for the records");
  CLI11_PARSE(app, argc, argv);
  const auto driver = std::make_shared<const driver::Driver>(driver::DriverOptions{});
  Bench bench{driver::Device(driver, 0)};
  bench.copy_gbps = measure_copy_gbps(bench);
  fmt::print("{}: copy {:.0f} GB/s\n", bench.device.name(), bench.copy_gbps);
  std::vector<io::Record> records = run_all(bench);
  for (io::Record& record : records) {
    record.device = bench.device.name();
    record.driver = std::to_string(driver->version());
    record.commit = commit;
    record.date = io::utc_date();
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
    fmt::print(stderr, "device_bench: {}\n", error.what());
    return error.kind() == mxfa::ErrorKind::kDevice ? 3 : 2;
  }
}
