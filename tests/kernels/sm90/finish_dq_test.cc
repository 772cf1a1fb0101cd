#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <optional>
#include <ostream>

#include "kernels/sm90/backward/launch.h"
#include "mx/block.h"
#include "support/device_batch.h"
#include "support/rng.h"

namespace mxfa::testing {
namespace {

using sm90::backward::DqSums;

struct DqCase {
  std::string name;
  std::vector<std::int32_t> cu_seqlens;
  std::int64_t head_dim = 128;
  std::int64_t columns = 128;
  DqSums kind = DqSums::kF32;
  std::optional<BlockShape> shape = {};  ///< of MXFP8; none: BF16
  std::size_t misplaced = 0;             ///< bytes by which the rows' address is off

  friend std::ostream& operator<<(std::ostream& out, const DqCase& test) {
    return out << test.name;
  }
};

/// Sums as the backward leaves them, and the values they stand for.
struct Sums {
  static constexpr std::int64_t kHeads = 2;
  static constexpr int kExponent = 5;
  const DqCase& test;
  const mx::JaggedOffsets& offsets;
  std::int64_t tiles;  ///< of 64 rows
  std::vector<std::uint8_t> bytes;
  std::vector<float> values;  ///< [total, heads, columns]
  std::vector<float> lse;     ///< [heads, total], NaN in one row
  std::uint64_t overflows = 0;

  Sums(const DqCase& dq, const mx::JaggedOffsets& where)
      : test(dq), offsets(where), tiles(2 * mx::max_tiles(where.tokens.back(), where.batch())) {
    const std::int64_t total = offsets.tokens.back();
    // What no row of a sequence stands for is NaN.
    bytes.assign(
        kHeads * tiles * sm90::backward::dq_tile_bytes(static_cast<int>(test.head_dim), test.kind),
        0xFF);
    values.resize(total * kHeads * test.columns);
    lse.resize(kHeads * total, 1.0f);
    if (total > 1) lse[1] = std::nanf("");
    Rng rng(11);
    for (std::int64_t head = 0; head < kHeads; ++head) {
      for (std::int64_t s = 0; s < offsets.batch(); ++s) {
        for (std::int64_t row = 0; row < offsets.seqlen(s); ++row) {
          for (std::int64_t column = 0; column < test.head_dim; ++column) {
            place(rng, head, s, row, column);
          }
        }
      }
    }
  }

  void place(Rng& rng, std::int64_t head, std::int64_t s, std::int64_t row, std::int64_t column) {
    const std::int64_t packed = offsets.tokens[s] + row;
    // Columns that the gradient lacks have sums of 0.
    float value = column < test.columns ? static_cast<float>(100 * rng.normal()) : 0.0f;
    const bool f16 = test.kind == DqSums::kF16;
    if (column < test.columns && rng.integer(0, f16 ? 300 : 9000) == 0) {
      value = rng.integer(0, 1) == 0 ? -std::numeric_limits<float>::infinity() : std::nanf("");
    }
    const std::int64_t at = offset(head, 2 * offsets.tiles[s] + row / 64, row % 64, column);
    if (f16) {
      const std::uint16_t code = mx::encode_f16(value);
      std::memcpy(bytes.data() + at, &code, 2);
      value = mx::decode_f16(code);
      if (!mx::is_finite(value) && !mx::is_nan(lse[head * offsets.tokens.back() + packed])) {
        value = !mx::is_nan(value) && value < 0 ? -65504.0f : 65504.0f;
        ++overflows;
      }
      value = std::ldexp(value, -kExponent);
    } else {
      std::memcpy(bytes.data() + at, &value, 4);
    }
    if (column < test.columns) values[(packed * kHeads + head) * test.columns + column] = value;
  }

  /// Of a sum in a tile of 64 rows: half of head_dim is a warpgroup's, whose threads have 16 bytes
  /// in turn: two columns of a row and of the row eight further on, in FP16 of two such pieces.
  std::int64_t offset(std::int64_t head, std::int64_t tile, std::int64_t row,
                      std::int64_t column) const {
    const std::int64_t width = test.head_dim / 2, half = column / width, piece = column % width / 8;
    const std::int64_t thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
    const std::int64_t value = row % 16 / 8 * 2 + column % 2;
    const bool f16 = test.kind == DqSums::kF16;
    const std::int64_t pieces = f16 ? width / 16 : width / 8;
    const std::int64_t word = half * pieces + (f16 ? piece / 2 : piece);
    return (head * tiles + tile) *
               sm90::backward::dq_tile_bytes(static_cast<int>(test.head_dim), test.kind) +
           (word * 128 + thread) * 16 + (f16 ? piece % 2 * 8 + value * 2 : value * 4);
  }
};

/// Block by block, by mx/block.h.
struct Mxfp8 {
  const Sums& sums;
  BlockShape shape;
  std::int64_t columns, cols;  ///< of values, of scales
  std::vector<std::uint8_t> codes, scales;

  Mxfp8(const Sums& of, BlockShape block_shape)
      : sums(of),
        shape(block_shape),
        columns(of.test.columns),
        cols(mx::ceil_div(columns, kScaleBlock)),
        codes(of.values.size()),
        scales(of.offsets.scale_rows_total(shape) * Sums::kHeads * cols) {
    for (std::int64_t s = 0; s < sums.offsets.batch(); ++s) {
      for (std::int64_t row = 0; row < sums.offsets.seqlen(s); row += mx::block_rows(shape)) {
        for (std::int64_t block = 0; block < Sums::kHeads * cols; ++block) quantize(s, row, block);
      }
    }
  }

 private:
  /// The elements of the block that begins at `row` of a sequence.
  std::vector<std::int64_t> elements(std::int64_t sequence, std::int64_t row,
                                     std::int64_t block) const {
    const std::int64_t length = sums.offsets.seqlen(sequence), height = mx::block_rows(shape);
    const std::int64_t first = block % cols * kScaleBlock, head = block / cols;
    std::vector<std::int64_t> result;
    for (std::int64_t r = row; r < std::min(length, row + height); ++r) {
      for (std::int64_t c = first; c < std::min<std::int64_t>(columns, first + kScaleBlock); ++c) {
        result.push_back(((sums.offsets.tokens[sequence] + r) * Sums::kHeads + head) * columns + c);
      }
    }
    return result;
  }
  void quantize(std::int64_t sequence, std::int64_t row, std::int64_t block) {
    std::vector<float> values;
    const auto places = elements(sequence, row, block);
    for (const std::int64_t at : places) values.push_back(sums.values[at]);
    const std::uint8_t scale =
        mx::scale_from_amax<mx::E4M3>(mx::block_amax(values), ScaleRule::kRoundUp);
    scales[sums.offsets.scale_row(shape, sequence, row) * Sums::kHeads * cols + block] = scale;
    for (const std::int64_t at : places) {
      codes[at] = mx::encode_scaled<mx::E4M3>(sums.values[at], scale);
    }
  }
};

/// What lies behind the first `bytes`, which nobody wrote.
template <class T>
std::vector<T> behind(const Guarded& memory, std::size_t bytes) {
  std::vector<T> all = memory.download<T>();
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(bytes / sizeof(T));
  for (auto at = all.begin(); at != begin; ++at) EXPECT_EQ(*at, static_cast<T>(-1));
  return {begin, all.end()};
}

class FinishDq : public ::testing::TestWithParam<DqCase> {};

TEST_P(FinishDq, BitEqualToTheDefinition) {
  const DqCase& test = GetParam();
  Machine& machine = testing::machine();
  const DeviceBatch batch(test.cu_seqlens);
  const Sums sums(test, batch.offsets);
  const Guarded data = machine.upload(std::span<const std::uint8_t>(sums.bytes));
  const Guarded lse = machine.upload(std::span<const float>(sums.lse));
  const std::uint64_t before = 3;
  const Guarded count = machine.upload(std::span<const std::uint64_t>(&before, 1));
  const Mxfp8 want(sums, test.shape.value_or(BlockShape::k1x32));
  const Guarded out = machine.poisoned(test.misplaced + sums.values.size() * (test.shape ? 1 : 2));
  std::uint8_t* const rows = out.as<std::uint8_t>() + test.misplaced;
  const Guarded scales = machine.poisoned(want.scales.size());
  const std::int64_t heads = Sums::kHeads, columns = test.columns, cols = want.cols;
  sm90::backward::DqParams params{.q = batch.view,
                                  .num_heads = Sums::kHeads,
                                  .head_dim = static_cast<std::int32_t>(test.head_dim),
                                  .sums = data.as<const std::uint8_t>(),
                                  .kind = test.kind,
                                  .scaled = {.exponent = Sums::kExponent,
                                             .lse = lse.as<const float>(),
                                             .head_stride = batch.total(),
                                             .overflows = count.as<unsigned long long>()},
                                  .head_stride = sums.tiles,
                                  .dq = {},
                                  .columns = static_cast<std::int32_t>(columns)};
  if (test.shape) {
    params.dq_mxfp8 = {.codes = rows,
                       .token_stride = heads * columns,
                       .head_stride = columns,
                       .scales = scales.as<std::uint8_t>(),
                       .scale_row_stride = heads * cols,
                       .scale_head_stride = cols,
                       .block_shape = *test.shape};
  } else {
    params.dq = {.data = reinterpret_cast<std::uint16_t*>(rows),
                 .token_stride = heads * columns,
                 .head_stride = columns};
  }
  sm90::backward::finish_dq(machine.queue(), params);
  machine.synchronize();
  EXPECT_TRUE(out.guards_intact());
  if (test.shape) {
    EXPECT_TRUE(bitwise_equal(behind<std::uint8_t>(out, test.misplaced), want.codes,
                              {.label = "codes", .cols = columns}));
    expect_same(scales, want.scales, "scales", cols);
  } else {
    std::vector<std::uint16_t> rounded;
    for (const float value : sums.values) rounded.push_back(mx::encode_bf16(value));
    EXPECT_TRUE(bitwise_equal(canonical_bf16(behind<std::uint16_t>(out, test.misplaced)),
                              canonical_bf16(rounded), {.label = "bf16", .cols = columns}));
  }
  EXPECT_EQ(count.download<std::uint64_t>()[0], before + sums.overflows);
  EXPECT_EQ(sums.overflows > 0, test.kind == DqSums::kF16 && batch.total() > 0);
}

std::vector<DqCase> dq_cases() {
  std::vector<DqCase> cases;
  const std::vector<std::int32_t> lengths = {0, 1, 1, 130, 163, 227, 260};
  for (const DqSums kind : {DqSums::kF32, DqSums::kF16}) {
    for (const int output : {0, 1, 2}) {
      const std::string name =
          std::string(kind == DqSums::kF16 ? "f16" : "f32") + (output == 0   ? "_bf16"
                                                               : output == 1 ? "_1x32"
                                                                             : "_32x32");
      DqCase test{.name = name, .cu_seqlens = lengths, .kind = kind};
      if (output != 0) test.shape = output == 1 ? BlockShape::k1x32 : BlockShape::k32x32;
      cases.push_back(test);
      test.name += "_narrow";
      test.head_dim = 64;
      test.columns = kind == DqSums::kF16 ? 64 : 40;
      test.misplaced = 4;
      cases.push_back(test);
      test.misplaced = 0;
      if (output != 2) continue;
      test.name = name + "_padded";
      test.head_dim = 128;
      test.columns = 72;
      cases.push_back(test);
      test.name = name + "_empty";
      test.cu_seqlens = {0, 0};
      cases.push_back(test);
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Cases, FinishDq, ::testing::ValuesIn(dq_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace mxfa::testing
