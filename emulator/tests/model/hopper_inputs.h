#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

/// Inputs of the recordings made on a Hopper GPU: hopper_probe.cu runs them there and prints a hash
/// of each result, hopper_recorded_test.cc computes the same hashes with the models.
namespace hopper {

struct Rng {
  std::uint32_t state;
  std::uint32_t next() {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
  }
};

inline std::vector<std::uint32_t> random_words(std::uint32_t seed, std::size_t count) {
  Rng rng{seed};
  std::vector<std::uint32_t> words(count);
  for (auto& word : words) word = rng.next();
  return words;
}

/// FNV-1a of the words' bytes.
inline std::uint64_t hash(const std::vector<std::uint32_t>& words) {
  std::uint64_t h = 0xCBF29CE484222325u;
  for (const std::uint32_t word : words) {
    for (int byte = 0; byte < 4; ++byte) {
      h = (h ^ ((word >> (8 * byte)) & 0xFFu)) * 0x100000001B3u;
    }
  }
  return h;
}

// ---- Arithmetic: m64n8, one instruction, A in 64 rows and B in 8 rows of 32 bytes.

enum Kind {
  kE4M3F32,
  kE5M2F32,
  kMixedF32,
  kE4M3F16,
  kE5M2F16,
  kBF16F32,
  kF16F32,
  kF16F16,
  kTF32F32,
  kS8,
  kU8S8,
  kS8Saturating,
  kKinds
};
inline const char* kind_name(int kind) {
  constexpr const char* kNames[] = {"e4m3_f32", "e5m2_f32", "e4m3e5m2_f32", "e4m3_f16",
                                    "e5m2_f16", "bf16_f32", "f16_f32",      "f16_f16",
                                    "tf32_f32", "s8",       "u8s8",         "s8sat"};
  return kNames[kind];
}
inline bool has_half_accumulator(int kind) {
  return kind == kE4M3F16 || kind == kE5M2F16 || kind == kF16F16;
}
/// Near 1; below 2 with subnormals; tiny and zeros; everything with NaN and infinity; A all zero
/// with tiny accumulators.
constexpr int kStyles = 5;
constexpr int kRuns = 4;
constexpr std::size_t kOperandBytes = 72 * 32;

inline Rng arithmetic_rng(int kind, int style) {
  return {0x9E3779B9u + 7919u * static_cast<std::uint32_t>(kind * 16 + style)};
}

inline std::vector<std::uint8_t> operand_bytes(int kind, int style, Rng& rng) {
  std::vector<std::uint8_t> bytes(kOperandBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::uint32_t r = rng.next() >> 8;
    bytes[i] = static_cast<std::uint8_t>(r);
    const bool top = kind <= kE5M2F16 || (kind <= kF16F16 ? i % 2 == 1 : i % 4 == 3);
    if (kind >= kS8 || !top) continue;
    if (style == 0) bytes[i] = static_cast<std::uint8_t>((r & 0x80) | 0x30 | (r & 0x0F));
    if (style == 1) bytes[i] = static_cast<std::uint8_t>(r & 0xBF);
    if (style == 2) bytes[i] = static_cast<std::uint8_t>((r & 0x80) | ((r >> 8) & 7));
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (style == 2 && kind <= kE5M2F16 && rng.next() >> 30 != 0) bytes[i] = 0;
    if (style == 4 && i < 64 * 32) bytes[i] = 0;
  }
  return bytes;
}

inline std::uint32_t accumulator_word(int kind, int style, Rng& rng) {
  const std::uint32_t r = rng.next();
  if (kind >= kS8) return style == 0 ? r : (r & 0x8000FFFF) ^ 0x7FFF0000;
  if (has_half_accumulator(kind)) {
    return r & (style == 3 ? 0xFFFFFFFF : style == 4 ? 0x83FF83FF : 0xBBFFBBFF);
  }
  const std::uint32_t e = r >> 23;
  const std::uint32_t exponent = style == 0   ? 120 + e % 14
                                 : style == 1 ? 100 + e % 40
                                 : style == 2 ? 90 + e % 30
                                 : style == 3 ? e % 256
                                              : e % 24;
  return (r & 0x807FFFFF) | exponent << 23;
}
/// [register][128 threads], four registers.
inline std::vector<std::uint32_t> accumulators(int kind, int style, Rng& rng) {
  std::vector<std::uint32_t> d(512);
  for (auto& word : d) word = accumulator_word(kind, style, rng);
  return d;
}

/// No swizzle, K-major: A at 0 with LBO 1024 and SBO 128, B at 2048 with LBO 128 and SBO 128.
inline std::vector<std::uint32_t> plain_image(const std::vector<std::uint8_t>& bytes) {
  std::vector<std::uint8_t> image(4096);
  for (std::size_t row = 0; row < 72; ++row) {
    for (std::size_t byte = 0; byte < 32; ++byte) {
      const std::size_t at = row < 64 ? byte / 16 * 1024 + row * 16 + byte % 16
                                      : 2048 + byte / 16 * 128 + (row - 64) * 16 + byte % 16;
      image[at] = bytes[row * 32 + byte];
    }
  }
  std::vector<std::uint32_t> words(1024);
  std::memcpy(words.data(), image.data(), image.size());
  return words;
}

// ---- Addresses: what lies behind a descriptor, read digit by digit through products with ones.

/// Descriptor swizzle codes of wgmma: 1, 2, 3 = 128, 64, 32 bytes; 0 none.
inline std::uint32_t row_width(int code) {
  return code == 0 ? 16 : code == 1 ? 128 : code == 2 ? 64 : 32;
}
struct Strides {
  std::uint32_t lbo, sbo;
};
/// Two choices for a 64 x 16 operand of 16-bit elements at kMajorBase.
inline Strides major_strides(int code, int variant) {
  if (code == 0) return variant == 0 ? Strides{2048, 128} : Strides{128, 1024};
  return variant == 0 ? Strides{8192, 8 * row_width(code)} : Strides{2048, 1024};
}
constexpr std::uint32_t kMajorBase = 4096;
constexpr std::uint32_t kLineBase = 2048;  ///< start of the line / base offset recordings

// ---- Tensor copies: 2-D maps over random_words(77, 16384), shared memory from random_words(78).

struct Load {
  std::string name;
  int type = 0;  ///< CUtensorMapDataType
  std::uint32_t elem_bytes = 1;
  std::uint32_t dims[2] = {200, 40};
  std::uint32_t stride = 208;
  std::uint32_t box[2] = {32, 6};
  std::uint32_t step = 1;  ///< of dimension 1
  int swizzle = 0;         ///< CUtensorMapSwizzle
  bool fill_nan = false;
  int coords[2] = {16, 2};
  std::uint32_t offset = 0;  ///< of the destination
  std::uint32_t bytes() const { return box[0] * ((box[1] + step - 1) / step) * elem_bytes; }
};
constexpr std::uint32_t kSharedWords = 2048;

inline std::vector<Load> loads() {
  std::vector<Load> all;
  for (int swizzle = 0; swizzle <= 3; ++swizzle) {
    for (const std::uint32_t inner : {16u, 48u, 64u, 128u}) {
      if (swizzle != 0 && inner > (16u << swizzle)) continue;
      for (const std::uint32_t line : {0u, 3u}) {
        Load load;
        load.name = "load_swizzle" + std::to_string(swizzle) + "_inner" + std::to_string(inner) +
                    "_line" + std::to_string(line);
        load.box[0] = inner;
        load.swizzle = swizzle;
        load.offset = 128 * line;
        all.push_back(load);
      }
    }
  }
  for (const int type : {6, 7, 8, 9}) {
    for (const bool left : {false, true}) {
      Load load;
      load.name = "load_nan_type" + std::to_string(type) + (left ? "_left" : "_above");
      load.type = type;
      load.elem_bytes = type == 7 ? 4 : type == 8 ? 8 : 2;
      load.dims[0] = 20;
      load.dims[1] = 3;
      load.stride = 256;
      load.box[0] = 64 / load.elem_bytes;
      load.box[1] = 4;
      load.fill_nan = true;
      load.coords[0] = left ? -static_cast<int>(16 / load.elem_bytes) : 0;
      load.coords[1] = left ? 1 : -1;
      all.push_back(load);
    }
  }
  Load step;
  step.name = "load_step4";
  step.box[1] = 9;
  step.step = 4;
  step.coords[0] = 0;
  step.coords[1] = 1;
  all.push_back(step);
  return all;
}

/// Stores of a 64 x 4 box of bytes, 64-byte swizzle, into 208 x 40 bytes filled with 0x11.
struct Store {
  int coords[2];
};
inline std::vector<Store> stores() { return {{{0, 0}}, {{192, 0}}, {{0, 38}}, {{192, 38}}}; }

struct Reduction {
  std::string name;
  int type;  ///< CUtensorMapDataType; -1: the 1-D form on f32
  int op;    ///< 0 add, 1 min, 2 max, 3 inc, 4 dec
};
inline std::vector<Reduction> reductions() {
  return {{"reduce_f32_add", 7, 0},  {"reduce_f32ftz_add", 10, 0},  {"reduce_f16_add", 6, 0},
          {"reduce_bf16_add", 9, 0}, {"reduce_f16_min", 6, 1},      {"reduce_f16_max", 6, 2},
          {"reduce_bf16_min", 9, 1}, {"reduce_bf16_max", 9, 2},     {"reduce_u32_inc", 2, 3},
          {"reduce_u32_dec", 2, 4},  {"bulk_reduce_f32_add", -1, 0}};
}
/// Old values and operands: subnormals, near cancellations, zeros, infinities and NaNs among them.
inline void reduction_inputs(const Reduction& reduction, std::vector<std::uint32_t>& old,
                             std::vector<std::uint32_t>& operand) {
  const std::uint32_t type =
      reduction.type < 0 || reduction.type == 10 ? 7u : static_cast<std::uint32_t>(reduction.type);
  const std::uint32_t seed = type * 8 + static_cast<std::uint32_t>(reduction.op) + 2;
  old = random_words(100 + seed, kSharedWords);
  operand = random_words(200 + seed, kSharedWords);
  const bool halves = reduction.type == 6 || reduction.type == 9;
  for (std::size_t i = 0; i < old.size(); ++i) {
    if (reduction.type == 2) {
      old[i] %= 16;
      operand[i] %= 16;
    } else if (!halves) {
      if (i % 4 == 0) old[i] &= 0x80FFFFFF;
      if (i % 4 == 0) operand[i] &= 0x80FFFFFF;
      if (i % 4 == 1) operand[i] = old[i] ^ 0x80000000 ^ (operand[i] & 3);
    } else {
      const std::uint32_t mask = i % 4 == 0 ? 0x83FF83FF : i % 4 == 1 ? 0x80008000 : 0xFFFFFFFF;
      old[i] &= mask;
      operand[i] &= mask;
      if (i % 4 == 2) old[i] |= 0x7C007C00;
    }
  }
}

// ---- Conversions: every upper half of an FP32 pattern, and random ones.

constexpr int kScalarInputs = 65536 + 16384;
inline std::vector<std::uint32_t> scalar_inputs() {
  std::vector<std::uint32_t> in(kScalarInputs);
  Rng rng{4242};
  for (std::uint32_t i = 0; i < in.size(); ++i) {
    const std::uint32_t low = (i & 3 ? 0x8000u : 0u) | ((i & 12) == 12 ? 1u : 0u);
    in[i] = i < 65536 ? i << 16 | low : rng.next();
  }
  return in;
}
/// The conversions in order; text of the probe, meaning in the test.
constexpr int kConversions = 16;
constexpr int kUnpackings = 5;
/// ex2 of f16, f16x2, bf16 and bf16x2.
constexpr int kExponentials = 4;
/// Every code in the lower half, every code in the upper one.
inline std::uint32_t code_pair(std::uint32_t code) { return (code ^ 0x5A5Au) << 16 | code; }

}  // namespace hopper
