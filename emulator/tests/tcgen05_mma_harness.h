#pragma once

#include <bit>
#include <cmath>
#include <functional>

#include "tcgen05_harness.h"

/// Tests of tcgen05.cp and .mma: bytes go to shared memory, instructions run, all of tensor memory
/// comes back. Formats and layouts are written down here once more, from the ISA's tables.
namespace mxfa::emu::test {

inline constexpr U32 kSharedBytes = 160 * 1024;
inline constexpr U32 kBarrier = kSharedBytes + 8;
inline constexpr U32 kSecondBarrier = kSharedBytes + 16;
inline constexpr U32 kDumpWords = 128 * 512;

struct PairKernel {
  U32 ctas = 1;        ///< cta_group
  std::string issue;   ///< thread 0 of the even CTA, which then commits to the barrier of the dump
  std::string second;  ///< thread 32 of the even CTA; [smem + kSecondBarrier] takes one arrival
  std::string target = "sm_100a";
  U32 first_column = 0;  ///< what comes back: from here on; a multiple of 128
};

/// What tensor memory holds before: small integers as FP32.
inline float initial_value(U32 lane, U32 column) {
  return static_cast<float>((lane * 3 + column * 7) % 9) - 4.0f;
}

/// The text around what PairKernel says; see pair_kernel().
inline constexpr char kPairBegin[] = R"(.version 9.0
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 pi, .param .u64 po) .explicitcluster .reqnctapercluster {ctas}, 1, 1
{{
  .reg .b32 %tid, %warp, %lane, %taddr, %tmem, %smem, %rank, %r<8>; .reg .b16 %both;
  .reg .b64 %in, %out, %d<8>; .reg .pred %p<4>; .reg .b32 %v<128>, %w<64>;
  mov.u32 %tid, %tid.x;
  mov.u32 %rank, %cluster_ctarank;
  shr.u32 %warp, %tid, 5;
  and.b32 %lane, %tid, 31;
  mov.u32 %smem, smem;
  ld.param.u64 %in, [pi];
  ld.param.u64 %out, [po];
  mul.wide.u32 %d1, %rank, {bytes};
  add.u64 %in, %in, %d1;
  mul.wide.u32 %d1, %rank, {dump_bytes};
  add.u64 %out, %out, %d1;
  shl.b32 %r0, %tid, 4;
  COPY:
  cvt.u64.u32 %d1, %r0;
  add.u64 %d1, %in, %d1;
  ld.global.v4.u32 {{%w0, %w1, %w2, %w3}}, [%d1];
  add.u32 %r1, %smem, %r0;
  st.shared.v4.u32 [%r1], {{%w0, %w1, %w2, %w3}};
  add.u32 %r0, %r0, 2048;
  setp.lt.u32 %p1, %r0, {bytes};
  @%p1 bra COPY;
  fence.proxy.async.shared::cta;
  setp.ne.u32 %p0, %warp, 0;
  setp.ne.u32 %p2, %tid, 0;
  @!%p2 mbarrier.init.shared::cta.b64 [smem+{mbar}], 1;
  @!%p2 mbarrier.init.shared::cta.b64 [smem+{mbar2}], 1;
  @%p0 bra ALLOCATED;
  tcgen05.alloc.{group}.sync.aligned.shared::cta.b32 [smem+{base}], 512;
  ALLOCATED:
  bar.sync 0;
  ld.shared.u32 %tmem, [smem+{base}];
  and.b32 %r0, %warp, 3;
  shl.b32 %r0, %r0, 21;
  add.u32 %taddr, %tmem, %r0;
)";
inline constexpr char kPairEnd[] = R"(  tcgen05.wait::st.sync.aligned;
  tcgen05.fence::before_thread_sync;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  or.b32 %r0, %tid, %rank;
  setp.ne.u32 %p3, %r0, 32;
  @%p3 bra SECOND;
{second}
  SECOND:
  or.b32 %r0, %tid, %rank;
  setp.ne.u32 %p3, %r0, 0;
  @%p3 bra ISSUED;
  tcgen05.fence::after_thread_sync;
{issue}
  mov.u16 %both, {mask};
  tcgen05.commit.{group}.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64
    [smem+{mbar}], %both;
  ISSUED:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [smem+{mbar}], 0;
  @!%p1 bra ISSUED;
  tcgen05.fence::after_thread_sync;
{dump}
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  @%p0 bra FREED;
  tcgen05.dealloc.{group}.sync.aligned.b32 %tmem, 512;
  FREED:
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  ret;
}}
)";

inline std::string fill_with_initial_values() {
  std::string fill =
      "  shr.u32 %r1, %taddr, 16;\n  add.u32 %r1, %r1, %lane;\n"
      "  mul.lo.u32 %r1, %r1, 3;\n";
  for (U32 first = 0; first < 512; first += 128) {
    for (U32 i = 0; i < 128; ++i) {
      fill += fmt::format(
          "  add.u32 %v{0}, %r1, {1};\n  rem.u32 %v{0}, %v{0}, 9;\n"
          "  sub.u32 %v{0}, %v{0}, 4;\n  cvt.rn.f32.s32 %v{0}, %v{0};\n",
          i, (first + i) * 7);
    }
    fill += fmt::format("  tcgen05.st.sync.aligned.32x32b.x128.b32 [%taddr+{}], {};\n", first,
                        register_list("%v", 128));
  }
  return fill;
}

/// k(in, out): shared memory begins at offset 0, so that layouts hold absolute addresses. Each CTA
/// copies its kSharedBytes from `in`, fills tensor memory with initial_value(), runs the
/// instructions and writes its tensor memory to `out`.
inline std::string pair_kernel(const PairKernel& k) {
  const std::string group = fmt::format("cta_group::{}", k.ctas);
  const std::string begin =
      fmt::format(kPairBegin, fmt::arg("target", k.target), fmt::arg("ctas", k.ctas),
                  fmt::arg("bytes", kSharedBytes), fmt::arg("dump_bytes", 4 * kDumpWords),
                  fmt::arg("base", kSharedBytes), fmt::arg("mbar", kBarrier),
                  fmt::arg("mbar2", kSecondBarrier), fmt::arg("group", group));
  const std::string end =
      fmt::format(kPairEnd, fmt::arg("second", k.second), fmt::arg("issue", k.issue),
                  fmt::arg("mask", (1u << k.ctas) - 1u), fmt::arg("group", group),
                  fmt::arg("mbar", kBarrier), fmt::arg("dump", dump_tensor_memory(k.first_column)));
  return begin + fill_with_initial_values() + end;
}

/// Tensor memory of each CTA, [lane][column].
using TensorImage = std::vector<U32>;
inline std::vector<TensorImage> run_pair(const PairKernel& kernel,
                                         const std::vector<std::vector<std::uint8_t>>& smem,
                                         const LaunchOptions& options = {}) {
  GlobalMemory memory;
  const Module module(pair_kernel(kernel), "pair.ptx", memory);
  std::vector<std::uint8_t> all;
  for (const auto& bytes : smem) all.insert(all.end(), bytes.begin(), bytes.end());
  const Buffer<std::uint8_t> in(memory, all, "in");
  const Buffer<U32> out(memory, kernel.ctas * std::size_t{kDumpWords}, "out");
  module.launch("k", {{kernel.ctas, 1, 1}, {128, 1, 1}, {}, kSharedBytes + 32},
                Arguments().add(in.data()).add(out.data()), options);
  std::vector<TensorImage> images(kernel.ctas, TensorImage(kDumpWords));
  for (U32 cta = 0; cta < kernel.ctas; ++cta) {
    for (U32 lane = 0; lane < 128; ++lane) {
      for (U32 column = kernel.first_column; column < 512; ++column) {
        images[cta][lane * 512 + column] =
            out[cta * kDumpWords + (column / 128 * 128 + lane) * 128 + column % 128];
      }
    }
  }
  return images;
}

inline TensorImage initial_image() {
  TensorImage image(kDumpWords);
  for (U32 lane = 0; lane < 128; ++lane) {
    for (U32 column = 0; column < 512; ++column) {
      image[lane * 512 + column] = std::bit_cast<U32>(initial_value(lane, column));
    }
  }
  return image;
}

// ---- Formats ----------------------------------------------------------------------------------

enum class Type : std::uint8_t { kE4M3, kE5M2, kE2M3, kE3M2, kE2M1, kF16, kBF16, kTF32 };

struct Format {
  const char* name;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  U32 bytes;  ///< in memory, containers of narrow types
  U32 code;   ///< in the instruction descriptor
  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  bool narrow() const { return bits() < 8; }
};
inline const Format& format_of(Type type) {
  static const Format kFormats[] = {{"e4m3", 4, 3, 7, 1, 0},   {"e5m2", 5, 2, 15, 1, 1},
                                    {"e2m3", 2, 3, 1, 1, 3},   {"e3m2", 3, 2, 3, 1, 4},
                                    {"e2m1", 2, 1, 1, 1, 5},   {"f16", 5, 10, 15, 2, 0},
                                    {"bf16", 8, 7, 127, 2, 1}, {"tf32", 8, 23, 127, 4, 2}};
  return kFormats[static_cast<int>(type)];
}
/// Value of a finite code.
inline double value_of_code(const Format& f, U32 code) {
  const U32 mantissa = code & ((1u << f.mantissa_bits) - 1u);
  const int e = static_cast<int>(code >> f.mantissa_bits & ((1u << f.exponent_bits) - 1u));
  const double significand = std::ldexp(mantissa, -f.mantissa_bits) + (e > 0 ? 1.0 : 0.0);
  const double value = std::ldexp(significand, std::max(e, 1) - f.bias);
  return (code >> (f.exponent_bits + f.mantissa_bits) & 1u) != 0 ? -value : value;
}
/// A random code whose value is a multiple of `step` of at most 7.
inline U32 small_code(const Format& f, std::mt19937& rng, double step) {
  for (;;) {
    const U32 mask = f.bits() == 32 ? ~0u : (1u << f.bits()) - 1u;
    U32 code = static_cast<U32>(rng()) & mask;
    // Most of the exponents of wide formats are far off: aim.
    if (f.exponent_bits > 4) {
      const U32 e = static_cast<U32>(f.bias) - 2 + static_cast<U32>(rng() % 4);
      const U32 top_bits = f.mantissa_bits > 2 ? code >> (f.mantissa_bits - 2) & 3u : code & 3u;
      const U32 mantissa = f.mantissa_bits > 2 ? top_bits << (f.mantissa_bits - 2) : top_bits;
      code = (code >> (f.bits() - 1) << (f.bits() - 1)) | e << f.mantissa_bits | mantissa;
    }
    const double value = value_of_code(f, code);
    if (std::fabs(value) <= 7 && value / step == std::floor(value / step)) return code;
  }
}

// ---- Layouts in shared memory ------------------------------------------------------------------

/// How a matrix lies in shared memory, and its descriptor's numbers.
struct SmemLayout {
  bool mn_major = false;
  U32 swizzle = 0;  ///< 0, 32, 64, 128, or 129 for 128 with atoms of 32 bytes
  U32 start = 0;
  U32 lbo = 0;
  U32 sbo = 0;

  U32 width() const { return swizzle == 129 ? 128 : swizzle; }
  /// Byte of element (mn, k) of `es` bytes.
  U32 address(U32 mn, U32 k, U32 es) const {
    U32 linear = start;
    if (!mn_major) {
      const U32 kb = k * es;
      linear += swizzle == 0 ? (mn % 8) * 16 + mn / 8 * sbo + kb % 16 + kb / 16 * lbo
                             : (mn % 8) * width() + mn / 8 * sbo + kb;
    } else {
      const U32 nb = mn * es;
      linear += swizzle == 0 ? nb % 16 + nb / 16 * sbo + (k % 8) * 16 + k / 8 * lbo
                             : nb % width() + nb / width() * lbo + (k % 8) * width() + k / 8 * sbo;
    }
    switch (swizzle) {
      case 32:
        return linear ^ (linear >> 3 & 0x10);
      case 64:
        return linear ^ (linear >> 3 & 0x30);
      case 128:
        return linear ^ (linear >> 3 & 0x70);
      case 129:
        return linear ^ (linear >> 2 & 0x60);
      default:
        return linear;
    }
  }
  std::uint64_t descriptor() const {
    const std::uint64_t code = swizzle == 0     ? 0
                               : swizzle == 129 ? 1
                               : swizzle == 128 ? 2
                               : swizzle == 64  ? 4
                                                : 6;
    return std::uint64_t{start >> 4} | std::uint64_t{lbo >> 4} << 16 |
           std::uint64_t{sbo >> 4} << 32 | std::uint64_t{1} << 46 | code << 61;
  }
};

/// Writes one element; narrow types are packed into the low bytes of their 16.
inline void put_element(std::vector<std::uint8_t>& smem, const SmemLayout& layout, const Format& f,
                        U32 mn, U32 k, U32 code) {
  if (!f.narrow()) {
    std::memcpy(&smem[layout.address(mn, k, f.bytes)], &code, f.bytes);
    return;
  }
  const U32 chunk = layout.address(mn, k / 16 * 16, 1);
  for (int bit = 0; bit < f.bits(); ++bit) {
    const U32 at = k % 16 * static_cast<U32>(f.bits()) + static_cast<U32>(bit);
    std::uint8_t& byte = smem[chunk + at / 8];
    const auto mask = static_cast<std::uint8_t>(1u << (at % 8));
    byte = static_cast<std::uint8_t>((code >> bit & 1u) != 0 ? byte | mask : byte & ~mask);
  }
}

}  // namespace mxfa::emu::test
