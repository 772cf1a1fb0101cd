#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hopper_inputs.h"
#include "model/approx.h"
#include "model/convert.h"
#include "model/tma.h"
#include "model/warp_matrix.h"
#include "model/wgmma.h"
#include "mx/bits.h"

// The models against recordings from an H200, bit for bit, as hashes in data/hopper.txt.
// hopper_probe.cu records them anew; to see where a failing case differs, print its words there.
namespace mxfa::emu::model {
namespace {

using Words = std::vector<std::uint32_t>;

const std::map<std::string, std::uint64_t>& recorded() {
  static const auto table = [] {
    std::map<std::string, std::uint64_t> hashes;
    std::ifstream file(MXFA_MODEL_TEST_DATA_DIR "/hopper.txt");
    std::string name;
    std::uint64_t hash;
    while (file >> name >> std::hex >> hash) hashes[name] = hash;
    return hashes;
  }();
  return table;
}

void expect_recorded(const std::string& name, const Words& words) {
  const auto it = recorded().find(name);
  ASSERT_NE(it, recorded().end()) << name << " is not recorded";
  EXPECT_EQ(hopper::hash(words), it->second) << name;
}

std::vector<std::byte> bytes_of(const Words& words) {
  std::vector<std::byte> bytes(4 * words.size());
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}
Words words_of(std::span<const std::byte> bytes) {
  Words words(bytes.size() / 4);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

TEST(HopperRecorded, TheFileIsComplete) { EXPECT_EQ(recorded().size(), 140u); }

WgmmaOp operation(int kind) {
  using T = WgmmaType;
  constexpr T kA[] = {T::kE4M3, T::kE5M2, T::kE4M3, T::kE4M3, T::kE5M2, T::kBF16,
                      T::kF16,  T::kF16,  T::kTF32, T::kS8,   T::kU8,   T::kS8};
  WgmmaOp op;
  op.a = op.b = kA[kind];
  if (kind == hopper::kMixedF32) op.b = T::kE5M2;
  if (kind == hopper::kU8S8) op.b = T::kS8;
  if (hopper::has_half_accumulator(kind)) op.d = AccumulatorType::kF16;
  if (kind >= hopper::kS8) op.d = AccumulatorType::kS32;
  op.saturate = kind == hopper::kS8Saturating;
  return op;
}

TEST(HopperRecorded, Arithmetic) {
  MmaUnit unit(ArithmeticMode::kHopper);
  for (int kind = 0; kind < hopper::kKinds; ++kind) {
    for (int style = 0; style < hopper::kStyles; ++style) {
      const WgmmaOp op = operation(kind);
      const std::uint32_t regs = wgmma_d_regs(op);
      hopper::Rng rng = hopper::arithmetic_rng(kind, style);
      Words all;
      for (int run = 0; run < hopper::kRuns; ++run) {
        const auto operands = hopper::operand_bytes(kind, style, rng);
        Words d = hopper::accumulators(kind, style, rng);
        const auto smem = bytes_of(hopper::plain_image(operands));
        WgmmaOperands where;
        where.a = MatrixDescriptor{0, 1024, 128, Swizzle::kNone, 0};
        where.b = MatrixDescriptor{2048, 128, 128, Swizzle::kNone, 0};
        where.smem = smem;
        std::vector<std::uint32_t*> rows;
        for (std::uint32_t i = 0; i < 4 * regs; ++i) {
          rows.push_back(d.data() + 128 * (i % regs) + 32 * (i / regs));  // warp by warp
        }
        const std::vector<const std::uint32_t*> const_rows(rows.begin(), rows.end());
        wgmma(op, where, unit, const_rows, rows);
        d.resize(128 * regs);
        all.insert(all.end(), d.begin(), d.end());
      }
      expect_recorded("wgmma_" + std::string(hopper::kind_name(kind)) + "_" + std::to_string(style),
                      all);
    }
  }
}

constexpr Swizzle kWgmmaCodes[] = {Swizzle::kNone, Swizzle::k128B, Swizzle::k64B, Swizzle::k32B};

TEST(HopperRecorded, StartLinesAndBaseOffsets) {
  for (int code = 1; code <= 3; ++code) {
    Words all;
    for (std::uint32_t line = 0; line < 8; ++line) {
      for (std::uint32_t offset = 0; offset < 8; ++offset) {
        const MatrixDescriptor desc{hopper::kLineBase + 128 * line, 0, 8 * hopper::row_width(code),
                                    kWgmmaCodes[code], offset};
        for (std::uint32_t i = 0; i < 128; ++i) {
          const std::uint32_t row = i / 2, half = i % 2;
          all.push_back(element_address(desc, {Major::kK, 64, 32, 1}, row, 16 * half) / 16);
        }
      }
    }
    expect_recorded("lines_code" + std::to_string(code), all);
  }
}

TEST(HopperRecorded, MajorsOfBothOperands) {
  for (int test = 0; test < 3; ++test) {
    const OperandShape shape{test == 0 ? Major::kK : Major::kMN, 64, 16, 2};
    Words all;
    for (int code = 0; code < 4; ++code) {
      for (int variant = 0; variant < 2; ++variant) {
        const hopper::Strides strides = hopper::major_strides(code, variant);
        const MatrixDescriptor desc{hopper::kMajorBase, strides.lbo, strides.sbo, kWgmmaCodes[code],
                                    0};
        for (std::uint32_t i = 0; i < 32 * 128; ++i) {
          const FragmentCoord at = wgmma_d_coord(i % 128, i / 128);
          const std::uint32_t mn = test == 2 ? at.col : at.row;
          const std::uint32_t k = (test == 2 ? at.row : at.col) % 16;
          all.push_back(element_address(desc, shape, mn, k) / 2);
        }
      }
    }
    expect_recorded("majors_" + std::to_string(test), all);
  }
}

constexpr std::uint64_t kGmem = 0x10000;
constexpr std::uint32_t kSmem = 2048;

TensorMap map_of(const hopper::Load& load) {
  constexpr Swizzle kModes[] = {Swizzle::kNone, Swizzle::k32B, Swizzle::k64B, Swizzle::k128B};
  TensorMap map;
  map.type = static_cast<TensorType>(load.type);
  map.rank = 2;
  map.address = kGmem;
  map.dims = {load.dims[0], load.dims[1]};
  map.strides = {load.elem_bytes, load.stride};
  map.box = {load.box[0], load.box[1]};
  map.steps = {1, load.step, 1, 1, 1};
  map.swizzle = kModes[load.swizzle];
  map.fill_nan = load.fill_nan;
  return map;
}

/// Shared memory of the recordings at kSmem, as there.
struct Shared {
  std::vector<std::byte> bytes;
  explicit Shared(const Words& words) : bytes(bytes_of(words)) {}
  SpanMemory memory() { return {kSmem, bytes}; }
};

TEST(HopperRecorded, TensorLoads) {
  auto source = bytes_of(hopper::random_words(77, 16384));
  SpanMemory gmem(kGmem, source);
  for (const hopper::Load& load : hopper::loads()) {
    Shared shared(hopper::random_words(78, hopper::kSharedWords));
    SpanMemory smem = shared.memory();
    const std::int32_t coords[2] = {load.coords[0], load.coords[1]};
    const TensorMap map = map_of(load);
    EXPECT_EQ(tile_load({map, coords, gmem, smem, kSmem + load.offset}).bytes, load.bytes())
        << load.name << ": the barrier there waited for this many bytes";
    expect_recorded(load.name, words_of(shared.bytes));
  }
}

TEST(HopperRecorded, TensorStores) {
  for (const hopper::Store& store : hopper::stores()) {
    auto target = bytes_of(Words(2080, 0x11111111));
    SpanMemory gmem(kGmem, target);
    Shared shared(hopper::random_words(78, hopper::kSharedWords));
    SpanMemory smem = shared.memory();
    hopper::Load load;
    load.dims[0] = 208;
    load.box[0] = 64;
    load.box[1] = 4;
    load.swizzle = 2;
    const TensorMap map = map_of(load);
    const std::int32_t coords[2] = {store.coords[0], store.coords[1]};
    tile_store({map, coords, gmem, smem, kSmem});
    expect_recorded(
        "store_" + std::to_string(store.coords[0]) + "_" + std::to_string(store.coords[1]),
        words_of(target));
  }
}

TEST(HopperRecorded, Reductions) {
  constexpr ReduceOp kOps[] = {ReduceOp::kAdd, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kInc,
                               ReduceOp::kDec};
  for (const hopper::Reduction& reduction : hopper::reductions()) {
    Words old, operand;
    hopper::reduction_inputs(reduction, old, operand);
    auto target = bytes_of(old);
    SpanMemory gmem(kGmem, target);
    Shared shared(operand);
    SpanMemory smem = shared.memory();
    if (reduction.type < 0) {
      bulk_reduce({smem, kSmem, gmem, kGmem, 8192}, ReduceTarget::kGlobal, ReduceOp::kAdd,
                  ReduceType::kF32);
    } else {
      hopper::Load load;
      load.type = reduction.type;
      load.elem_bytes = reduction.type == 6 || reduction.type == 9 ? 2 : 4;
      load.dims[0] = 1024 / load.elem_bytes;
      load.dims[1] = 8;
      load.stride = 1024;
      load.box[0] = 256;
      load.box[1] = 8;
      const TensorMap map = map_of(load);
      const std::int32_t coords[2] = {0, 0};
      tile_reduce({map, coords, gmem, smem, kSmem}, kOps[reduction.op]);
    }
    expect_recorded(reduction.name, words_of(target));
  }
}

TEST(HopperRecorded, WarpMatrices) {
  Words image = hopper::random_words(55, 1024);
  auto bytes = bytes_of(image);
  SpanMemory smem(0, bytes);
  Words addresses(32);
  for (std::uint32_t lane = 0; lane < 32; ++lane) addresses[lane] = lane * 37 % 64 * 16;
  std::array<std::array<std::uint32_t, 32>, 4> regs;
  const std::vector<std::uint32_t*> rows{regs[0].data(), regs[1].data(), regs[2].data(),
                                         regs[3].data()};
  Words all;
  const auto append = [&](std::span<const std::uint32_t> words) {
    all.insert(all.end(), words.begin(), words.end());
  };
  ldmatrix({MatrixForm::kM8N8, 4, addresses}, smem, rows);
  for (const auto& row : regs) append(row);
  const auto moved = movmatrix(regs[0]);
  ldmatrix({MatrixForm::kM8N8Trans, 4, addresses}, smem, rows);
  for (const auto& row : regs) append(row);
  append(moved);
  const std::vector<const std::uint32_t*> source{&image[0], &image[32], &image[64], &image[96]};
  for (const MatrixForm form : {MatrixForm::kM8N8, MatrixForm::kM8N8Trans}) {
    std::vector<std::byte> blank(4096);
    SpanMemory target(0, blank);
    stmatrix({form, 4, addresses}, target, source);
    append(words_of(blank));
  }
  expect_recorded("warp_matrices", all);
}

TEST(HopperRecorded, Conversions) {
  using F = SmallFloat;
  using R = Rounding;
  const struct {
    F format;
    ConvertFlags flags;
  } conversions[hopper::kConversions] = {
      {F::kE4M3, {R::kNearestEven, true, false, false}},
      {F::kE5M2, {R::kNearestEven, true, false, false}},
      {F::kE4M3, {R::kNearestEven, true, true, false}},
      {F::kF16, {R::kNearestEven, false, false, false}},
      {F::kF16, {R::kZero, false, false, false}},
      {F::kF16, {R::kNearestEven, false, true, false}},
      {F::kF16, {R::kNearestEven, true, false, false}},
      {F::kBF16, {R::kNearestEven, false, false, false}},
      {F::kBF16, {R::kZero, false, false, false}},
      {F::kBF16, {R::kNearestEven, false, true, false}},
      {F::kBF16, {R::kNearestEven, true, false, false}},
      {F::kF16, {R::kDown, false, false, false}},
      {F::kF16, {R::kUp, false, false, false}},
      {F::kTF32, {R::kNearestEven, false, false, false}},
      {F::kTF32, {R::kZero, false, false, false}},
      {F::kTF32, {R::kNearestEven, false, true, false}},
  };
  const Words in = hopper::scalar_inputs();
  for (int which = 0; which < hopper::kConversions; ++which) {
    const auto& one = conversions[which];
    Words out;
    for (const std::uint32_t bits : in) {
      const std::uint32_t code = encode_small(one.format, mx::bits_float(bits), one.flags);
      const bool pair = one.format == F::kE4M3 || one.format == F::kE5M2;
      out.push_back(pair ? pack_8(code, code) : code);
    }
    expect_recorded("cvt_" + std::to_string(which), out);
  }
}

TEST(HopperRecorded, Unpackings) {
  for (int which = 0; which < hopper::kUnpackings; ++which) {
    const bool e5m2 = which == 1 || which == 4;
    const SmallFloat format = e5m2 ? SmallFloat::kE5M2 : SmallFloat::kE4M3;
    Words out;
    for (std::uint32_t code = 0; code < 65536; ++code) {
      if (which < 3) {
        out.push_back(pack_16(small_to_f16(format, code >> 8, which == 2),
                              small_to_f16(format, code & 0xFF, which == 2)));
      } else {
        const std::uint32_t byte =
            encode_small(format, mx::decode_f16(static_cast<std::uint16_t>(code)),
                         {Rounding::kNearestEven, true, false, false});
        out.push_back(pack_8(byte, byte));
      }
    }
    expect_recorded("unpack_" + std::to_string(which), out);
  }
}

TEST(HopperRecorded, ExponentialsOfShortFormats) {
  for (int which = 0; which < hopper::kExponentials; ++which) {
    const auto ex2 = which < 2 ? approx_f16 : approx_bf16;
    Words out;
    for (std::uint32_t code = 0; code < 65536; ++code) {
      const std::uint32_t pair = hopper::code_pair(code);
      const std::uint32_t low = ex2(Approx::kEx2, static_cast<std::uint16_t>(pair));
      const std::uint32_t high = ex2(Approx::kEx2, static_cast<std::uint16_t>(pair >> 16));
      out.push_back(which % 2 == 0 ? low : pack_16(high, low));
    }
    expect_recorded("ex2_" + std::to_string(which), out);
  }
}

}  // namespace
}  // namespace mxfa::emu::model
