#include "tcgen05_mma_harness.h"

/// tcgen05.mma from PTX: kinds, types, majors, swizzles, both CTA groups, operands in tensor
/// memory, scales, masks. Small numbers, so that sums are exact and every misplaced byte shows.
namespace mxfa::emu::test {
namespace {

struct Problem {
  const char* kind = "f8f6f4";
  Type a = Type::kE4M3;
  Type b = Type::kE4M3;
  U32 group = 1;
  U32 m = 128;
  U32 n = 64;
  U32 swizzle_a = 128;
  U32 swizzle_b = 128;
  bool mn_a = false;
  bool mn_b = false;
  bool a_in_tmem = false;
  bool accumulate = true;
  bool half_d = false;
  bool negate_b = false;
  U32 d_lane = 0;         ///< 16: the upper half of the quarters, M = 64 only
  U32 scale_input_d = 0;  ///< kinds f16, tf32
  std::vector<U32> disabled;

  bool scaled() const { return std::string_view(kind) == "mxf8f6f4"; }
  U32 k() const { return 32 / format_of(a).bytes; }
  U32 cta_m() const { return m / group; }
  U32 cta_n() const { return n / group; }
  bool folded() const { return group == 2 && m == 128; }
  std::string text() const {
    return fmt::format(
        "{} {}x{} group {} m {} n {} swizzle {} {} mn {} {} tmem {} accumulate {} half {} lane {}",
        kind, format_of(a).name, format_of(b).name, group, m, n, swizzle_a, swizzle_b, mn_a, mn_b,
        a_in_tmem, accumulate, half_d, d_lane);
  }
};

constexpr U32 kA = 0, kB = 48 * 1024, kScaleA = 128 * 1024, kScaleB = 132 * 1024;
constexpr U32 kATmemSource = 112 * 1024;
constexpr U32 kD = 256, kATmem = 64, kSfa = 128, kSfb = 144;  // columns
constexpr U32 kSfIdA = 1, kSfIdB = 2;

SmemLayout operand_layout(U32 start, bool mn_major, U32 swizzle, U32 rows, U32 k, U32 es) {
  SmemLayout layout;
  layout.mn_major = mn_major;
  layout.swizzle = swizzle;
  layout.start = start;
  const U32 width = swizzle == 129 ? 128 : swizzle;
  const auto pad = [](U32 bytes) { return (bytes + 1023) / 1024 * 1024; };
  if (swizzle == 0) {
    // Blocks of 8 x 16 bytes, not as close as they could be.
    layout.lbo = mn_major ? 144 : rows / 8 * 256 + 128;
    layout.sbo = mn_major ? k / 8 * 144 + 16 : 256;
  } else if (!mn_major) {
    layout.sbo = 8 * width + (width == 128 ? 1024 : 0);
    layout.start += width == 128 ? 64 : 0;  // K step 2 of the row
  } else {
    layout.sbo = 8 * width;
    layout.lbo = pad(k * width) + 1024;
  }
  (void)es;
  return layout;
}

/// Everything that the test knows about one run.
class Run {
 public:
  Run(const Problem& p, std::mt19937& rng) : p_(p), rng_(rng) {
    fa_ = &format_of(p.a);
    fb_ = &format_of(p.b);
    smem_.assign(p.group, std::vector<std::uint8_t>(kSharedBytes, 0));
    for (auto& bytes : smem_) {
      for (auto& byte : bytes) byte = static_cast<std::uint8_t>(rng() & 0x3F);
    }
    fill_operands();
    if (p.scaled()) fill_scales();
  }

  void check() {
    PairKernel kernel;
    kernel.ctas = p_.group;
    kernel.issue = issue();
    kernel.first_column = kD;
    const auto images = run_pair(kernel, smem_);
    for (U32 cta = 0; cta < p_.group; ++cta) {
      const TensorImage want = expected(cta);
      for (U32 lane = 0; lane < 128; ++lane) {
        for (U32 column = kD; column < 512; ++column) {
          ASSERT_EQ(images[cta][lane * 512 + column], want[lane * 512 + column])
              << p_.text() << ": CTA " << cta << " lane " << lane << " column " << column << " got "
              << std::bit_cast<float>(images[cta][lane * 512 + column]) << " want "
              << std::bit_cast<float>(want[lane * 512 + column]);
        }
      }
    }
  }

 private:
  void fill_operands() {
    const U32 k = p_.k();
    a_.resize(std::size_t{p_.m} * k);
    b_.resize(std::size_t{p_.n} * k);
    const double step = p_.half_d ? 1.0 : 1.0 / 16;
    for (U32& code : a_) code = small_code(*fa_, rng_, step);
    for (U32& code : b_) code = small_code(*fb_, rng_, step);
    layout_a_ = operand_layout(kA, p_.mn_a, p_.swizzle_a, p_.cta_m(), k, fa_->bytes);
    layout_b_ = operand_layout(kB, p_.mn_b, p_.swizzle_b, p_.cta_n(), k, fb_->bytes);
    for (U32 i = 0; i < a_.size(); ++i) put_a(i / k, i % k, a_[i]);
    for (U32 i = 0; i < b_.size(); ++i) {
      const U32 n = i / k;
      put_element(smem_[n / p_.cta_n()], layout_b_, *fb_, n % p_.cta_n(), i % k, b_[i]);
    }
  }

  /// In tensor memory, A is put there by a copy of 128 rows of 32 bytes.
  void put_a(U32 m, U32 k, U32 code) {
    auto& smem = smem_[m / p_.cta_m()];
    const U32 row = m % p_.cta_m();
    if (!p_.a_in_tmem) return put_element(smem, layout_a_, *fa_, row, k, code);
    const U32 lane = p_.cta_m() == 128 ? row
                     : p_.group == 2   ? row
                                       : row % 16 + 32 * (row / 16) + p_.d_lane;
    put_element(smem, tmem_source(), *fa_, lane, k, code);
    if (p_.folded()) put_element(smem, tmem_source(), *fa_, lane + 64, k, code);
  }
  static SmemLayout tmem_source() {
    SmemLayout layout;
    layout.start = kATmemSource;
    layout.sbo = 128;
    layout.lbo = 2048;
    return layout;
  }

  // One atom of 512 bytes holds 128 rows, byte sf_id of their words.
  void fill_scales() {
    sfa_.resize(p_.m);
    sfb_.resize(p_.n);
    for (auto* list : {&sfa_, &sfb_}) {
      for (int& e : *list) e = static_cast<int>(rng_() % 5) - 2;
    }
    for (U32 cta = 0; cta < p_.group; ++cta) {
      for (U32 row = 0; row < p_.cta_m(); ++row) {
        put_scale(cta, kScaleA, row, kSfIdA, sfa_[cta * p_.cta_m() + row]);
      }
      for (U32 n = 0; n < p_.n; ++n) {
        if (!p_.folded()) {
          put_scale(cta, kScaleB + n / 128 * 512, n % 128, kSfIdB, sfb_[n]);
        } else {
          // 64 rows of 16 bytes: the halves of N side by side, n % 32 in the rows.
          const U32 local = n % (p_.n / 2);
          const U32 row = n / (p_.n / 2) * 32 + local % 32;
          smem_[cta][kScaleB + row * 16 + local / 32 * 4 + kSfIdB] =
              static_cast<std::uint8_t>(127 + sfb_[n]);
        }
      }
    }
  }
  void put_scale(U32 cta, U32 atom, U32 row, U32 id, int exponent) {
    smem_[cta][atom + row % 32 * 16 + row / 32 * 4 + id] =
        static_cast<std::uint8_t>(127 + exponent);
  }

  U32 instruction_descriptor() const {
    U32 bits = fa_->code << 7 | fb_->code << 10 | (p_.negate_b ? 1u << 14 : 0u) |
               (p_.mn_a ? 1u << 15 : 0u) | (p_.mn_b ? 1u << 16 : 0u) | p_.n / 8 << 17 |
               p_.m / 16 << 24;
    if (p_.scaled()) return bits | 1u << 23 | kSfIdA << 29 | kSfIdB << 4;
    return bits | (p_.half_d ? 0u : 1u << 4);
  }

  std::string issue() const {
    std::string text;
    const auto copy = [&](const char* shape, U32 column, std::uint64_t descriptor) {
      text += fmt::format("  mov.b64 %d0, {};\n  tcgen05.cp.cta_group::{}.{} [%tmem+{}], %d0;\n",
                          descriptor, p_.group, shape, column);
    };
    if (p_.a_in_tmem) {
      const std::string format =
          fa_->narrow() ? (fa_->bits() == 4 ? ".b8x16.b4x16_p64" : ".b8x16.b6x16_p32") : "";
      copy(("128x256b" + format).c_str(), kATmem, tmem_source().descriptor());
    }
    if (p_.scaled()) {
      const std::uint64_t atom = 0x0000400800000000;
      copy("32x128b.warpx4", kSfa, atom | kScaleA >> 4);
      if (p_.folded()) {
        copy("64x128b.warpx2::01_23", kSfb, atom | kScaleB >> 4);
      } else {
        for (U32 first = 0; first < p_.n; first += 128) {
          copy("32x128b.warpx4", kSfb + first / 32, atom | (kScaleB + first * 4) >> 4);
        }
      }
    }
    std::string a = "%d0";
    if (p_.a_in_tmem) {
      text += fmt::format("  add.u32 %r2, %tmem, {};\n", kATmem + p_.d_lane * 65536);
      a = "[%r2]";
    } else {
      text += fmt::format("  mov.b64 %d0, {};\n", layout_a_.descriptor());
    }
    text += fmt::format(
        "  mov.b64 %d1, {};\n  mov.u32 %r3, {};\n  add.u32 %r4, %tmem, {};\n"
        "  setp.ne.u32 %p1, {}, 0;\n",
        layout_b_.descriptor(), instruction_descriptor(), kD + p_.d_lane * 65536,
        p_.accumulate ? 1 : 0);
    std::string rest;
    if (p_.scaled()) rest = fmt::format("[%tmem+{}], [%tmem+{}], ", kSfa, kSfb);
    if (!p_.disabled.empty()) {
      for (U32 i = 0; i < p_.disabled.size(); ++i) {
        text += fmt::format("  mov.u32 %w{}, {};\n", i, p_.disabled[i]);
      }
      rest = register_list("%w", static_cast<U32>(p_.disabled.size())) + ", ";
    }
    return text +
           fmt::format("  tcgen05.mma.cta_group::{}.kind::{}{} [%r4], {}, %d1, %r3, {}%p1{};\n",
                       p_.group, p_.kind, p_.scaled() ? ".block_scale" : "", a, rest,
                       p_.scale_input_d != 0 ? fmt::format(", {}", p_.scale_input_d) : "");
  }

  /// D of row m, column n: its CTA, lane and column.
  struct Place {
    U32 cta, lane, column;
  };
  Place place(U32 m, U32 n) const {
    const U32 row = m % p_.cta_m();
    if (p_.folded()) return {m / 64, row + 64 * (n / (p_.n / 2)), kD + n % (p_.n / 2)};
    const U32 lane = p_.cta_m() == 128 ? row : row % 16 + 32 * (row / 16) + p_.d_lane;
    return {m / p_.cta_m(), lane, kD + n};
  }

  TensorImage expected(U32 cta) const {
    TensorImage image = initial_image();
    const U32 k = p_.k();
    const std::vector<double> a = values(*fa_, a_);
    const std::vector<double> b = values(*fb_, b_);
    for (U32 m = 0; m < p_.m; ++m) {
      for (U32 n = 0; n < p_.n; ++n) {
        const Place at = place(m, n);
        if (at.cta != cta || is_disabled(at)) continue;
        U32& word = image[at.lane * 512 + at.column];
        double sum = 0;
        for (U32 i = 0; i < k; ++i) sum += a[m * k + i] * b[n * k + i];
        if (p_.negate_b) sum = -sum;
        if (p_.scaled()) sum = std::ldexp(sum, sfa_[m] + sfb_[n]);
        word = p_.half_d ? half_result(sum, word) : float_result(sum, word);
      }
    }
    return image;
  }
  static std::vector<double> values(const Format& f, const std::vector<U32>& codes) {
    std::vector<double> result;
    for (const U32 code : codes) result.push_back(value_of_code(f, code));
    return result;
  }
  bool is_disabled(const Place& at) const {
    if (p_.disabled.empty()) return false;
    return (p_.disabled[at.cta * 4 + at.lane / 32] >> (at.lane % 32) & 1u) != 0;
  }
  U32 float_result(double sum, U32 word) const {
    const double old = static_cast<double>(std::bit_cast<float>(word));
    if (p_.accumulate) sum += std::ldexp(old, -static_cast<int>(p_.scale_input_d));
    return std::bit_cast<U32>(static_cast<float>(sum));
  }
  // The low halves of the initial words are zero; sums are integers below 2048.
  static U32 half_result(double sum, U32) {
    if (sum == 0) return 0;
    int exponent;
    const double fraction = std::frexp(std::fabs(sum), &exponent);  // in [1/2, 1)
    const auto mantissa = static_cast<U32>(fraction * 2048) - 1024;
    return (sum < 0 ? 0x8000u : 0u) | static_cast<U32>(exponent - 1 + 15) << 10 | mantissa;
  }

  const Problem& p_;
  std::mt19937& rng_;
  const Format* fa_;
  const Format* fb_;
  SmemLayout layout_a_, layout_b_;
  std::vector<U32> a_, b_;
  std::vector<int> sfa_, sfb_;
  std::vector<std::vector<std::uint8_t>> smem_;
};

void check(const Problem& p) {
  std::mt19937 rng(7);
  Run(p, rng).check();
}

TEST(Tcgen05Mma, EverySwizzleAndMajor) {
  struct Kind {
    const char* kind;
    Type type;
  };
  for (const Kind& kind :
       {Kind{"f16", Type::kBF16}, Kind{"f8f6f4", Type::kE5M2}, Kind{"mxf8f6f4", Type::kE4M3}}) {
    for (const U32 swizzle : {0u, 32u, 64u, 128u}) {
      for (const bool mn : {false, true}) {
        Problem p;
        p.kind = kind.kind;
        p.a = p.b = kind.type;
        p.swizzle_a = swizzle;
        p.mn_a = mn;
        p.swizzle_b = 128 + 32 - (swizzle == 0 ? 128 : swizzle);  // another one
        if (p.swizzle_b == 96) p.swizzle_b = 64;
        p.mn_b = !mn;
        check(p);
        p.swizzle_b = swizzle;
        p.n = 256;
        p.accumulate = false;
        check(p);
      }
    }
  }
}

TEST(Tcgen05Mma, Tf32TransposedNeedsAtomsOf32Bytes) {
  for (const bool mn : {false, true}) {
    Problem p;
    p.kind = "tf32";
    p.a = p.b = Type::kTF32;
    p.mn_a = p.mn_b = mn;
    p.swizzle_a = p.swizzle_b = mn ? 129 : 64;
    check(p);
    p.scale_input_d = 3;
    p.mn_a = false;
    p.a_in_tmem = true;
    check(p);
  }
}

TEST(Tcgen05Mma, ShapesOfOneCta) {
  for (const U32 m : {64u, 128u}) {
    for (const bool in_tmem : {false, true}) {
      for (const U32 n : {16u, 8u, 48u, 240u}) {
        Problem p;
        p.m = m;
        p.n = m == 128 && n % 16 != 0 ? 32 : n;
        p.a_in_tmem = in_tmem;
        p.d_lane = m == 64 && n != 16 ? 16 : 0;
        check(p);
        if (m == 64) continue;
        p.kind = "mxf8f6f4";
        p.n = n;
        check(p);
      }
    }
  }
}

TEST(Tcgen05Mma, ShapesOfCtaPairs) {
  for (const U32 m : {128u, 256u}) {
    for (const bool in_tmem : {false, true}) {
      for (const U32 n : {32u, 96u, 256u}) {
        for (const char* kind : {"f8f6f4", "mxf8f6f4"}) {
          Problem p;
          p.kind = kind;
          p.group = 2;
          p.m = m;
          p.n = n;
          p.a_in_tmem = in_tmem;
          p.mn_a = !in_tmem && n == 96;
          p.mn_b = n == 256;
          check(p);
        }
      }
    }
  }
}

TEST(Tcgen05Mma, MixedAndNarrowTypes) {
  const Type types[] = {Type::kE4M3, Type::kE5M2, Type::kE2M3, Type::kE3M2, Type::kE2M1};
  for (const Type a : types) {
    for (const Type b : types) {
      Problem p;
      p.a = a;
      p.b = b;
      p.kind = a == b ? "f8f6f4" : "mxf8f6f4";
      p.swizzle_a = 128;
      p.swizzle_b = 32;
      check(p);
      p.a_in_tmem = true;
      check(p);
    }
  }
}

TEST(Tcgen05Mma, HalfAccumulatorsAndSigns) {
  for (const Type type : {Type::kF16, Type::kE4M3}) {
    for (const U32 group : {1u, 2u}) {
      Problem p;
      p.kind = type == Type::kF16 ? "f16" : "f8f6f4";
      p.a = p.b = type;
      p.group = group;
      p.half_d = true;
      p.negate_b = true;
      p.accumulate = type == Type::kF16;  // the low halves of the old words are 0
      check(p);
    }
  }
}

TEST(Tcgen05Mma, DisabledLanesKeepTheirWords) {
  Problem p;
  p.disabled = {0x80000001, 0, 0xFFFFFFFF, 0x00F00000};
  check(p);
  p.accumulate = false;
  p.group = 2;
  p.m = 256;
  p.disabled = {1, 2, 4, 8, 0x10, 0xFFFF0000, 0, 0x80000000};
  check(p);
  p.m = 128;
  check(p);
}

}  // namespace
}  // namespace mxfa::emu::test
