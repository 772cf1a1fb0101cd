#include "model/convert.h"

#include "mx/bits.h"
#include "op_harness.h"

/// cvt against the model of short formats, against the host's casts, and against exact rules.
namespace mxfa::emu::test {
namespace {

using U16 = std::uint16_t;
using U32 = std::uint32_t;
using U64 = std::uint64_t;
using I32 = std::int32_t;
using I64 = std::int64_t;

/// FP32 values around every rounding decision of the short formats, and random bits.
std::vector<float> inputs() {
  std::vector<float> x = corners<float>();
  for (int exponent = -30; exponent <= 20; ++exponent) {
    for (int eighth = 0; eighth < 64; ++eighth) {
      const float v = std::ldexp(1.0f + static_cast<float>(eighth) / 64.0f, exponent);
      for (const float w : {v, std::nextafter(v, 0.0f), std::nextafter(v, 1e30f)}) {
        x.push_back(w);
        x.push_back(-w);
      }
    }
  }
  std::mt19937 rng(4);
  for (int i = 0; i < 20000; ++i) x.push_back(std::bit_cast<float>(static_cast<U32>(rng())));
  return x;
}

struct SmallCase {
  const char* opcode;
  model::SmallFloat format;
  model::ConvertFlags flags;
};

TEST(Convert, ShortFormatsOneByOne) {
  using model::Rounding;
  using model::SmallFloat;
  const SmallCase cases[] = {
      {"cvt.rn.f16.f32", SmallFloat::kF16, {}},
      {"cvt.rz.f16.f32", SmallFloat::kF16, {Rounding::kZero}},
      {"cvt.rm.f16.f32", SmallFloat::kF16, {Rounding::kDown}},
      {"cvt.rp.f16.f32", SmallFloat::kF16, {Rounding::kUp}},
      {"cvt.rn.satfinite.f16.f32", SmallFloat::kF16, {Rounding::kNearestEven, true}},
      {"cvt.rn.bf16.f32", SmallFloat::kBF16, {}},
      {"cvt.rz.bf16.f32", SmallFloat::kBF16, {Rounding::kZero}},
      {"cvt.rn.relu.bf16.f32", SmallFloat::kBF16, {Rounding::kNearestEven, false, true}},
  };
  const std::vector<float> x = inputs();
  for (const SmallCase& test : cases) {
    const auto got = run_op<U16, float>(std::string(test.opcode) + " d, a;", x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(got[i], model::encode_small(test.format, x[i], test.flags))
          << test.opcode << " of " << show(x[i]);
    }
  }
}

TEST(Convert, ShortFormatsInPairs) {
  using model::Rounding;
  using model::SmallFloat;
  const SmallCase cases[] = {
      {"cvt.rn.satfinite.e4m3x2.f32", SmallFloat::kE4M3, {Rounding::kNearestEven, true}},
      {"cvt.rn.satfinite.relu.e4m3x2.f32", SmallFloat::kE4M3, {Rounding::kNearestEven, true, true}},
      {"cvt.rn.satfinite.e5m2x2.f32", SmallFloat::kE5M2, {Rounding::kNearestEven, true}},
      {"cvt.rn.satfinite.e2m3x2.f32", SmallFloat::kE2M3, {Rounding::kNearestEven, true}},
      {"cvt.rn.satfinite.e3m2x2.f32", SmallFloat::kE3M2, {Rounding::kNearestEven, true}},
  };
  const std::vector<float> a = inputs();
  const std::vector<float> b(a.rbegin(), a.rend());
  for (const SmallCase& test : cases) {
    const auto got = run_op<U16, float, float>(std::string(test.opcode) + " d, a, b;", a, b);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const U16 want = model::pack_8(model::encode_small(test.format, a[i], test.flags),
                                     model::encode_small(test.format, b[i], test.flags));
      ASSERT_EQ(got[i], want) << test.opcode << " of " << show(a[i]) << ", " << show(b[i]);
    }
  }
  const auto bf = run_op<U32, float, float>("cvt.rn.bf16x2.f32 d, a, b;", a, b);
  const auto f16 = run_op<U32, float, float>("cvt.rn.f16x2.f32 d, a, b;", a, b);
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(bf[i], model::pack_16(model::encode_small(SmallFloat::kBF16, a[i]),
                                    model::encode_small(SmallFloat::kBF16, b[i])));
    ASSERT_EQ(f16[i], model::pack_16(model::encode_small(SmallFloat::kF16, a[i]),
                                     model::encode_small(SmallFloat::kF16, b[i])));
  }
}

TEST(Convert, ScalesAndBack) {
  const std::vector<float> a = inputs();
  const std::vector<float> b(a.rbegin(), a.rend());
  const auto check = [&](const std::string& opcode, model::Rounding rounding, bool satfinite) {
    const auto got = run_op<U16, float, float>(opcode + " d, a, b;", a, b);
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(got[i], model::pack_8(model::encode_ue8m0(a[i], rounding, satfinite),
                                      model::encode_ue8m0(b[i], rounding, satfinite)))
          << opcode << " of " << show(a[i]) << ", " << show(b[i]);
    }
  };
  check("cvt.rp.satfinite.ue8m0x2.f32", model::Rounding::kUp, true);
  check("cvt.rp.ue8m0x2.f32", model::Rounding::kUp, false);
  check("cvt.rz.satfinite.ue8m0x2.f32", model::Rounding::kZero, true);
  check("cvt.rz.ue8m0x2.f32", model::Rounding::kZero, false);
  std::vector<U16> codes(65536);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<U16>(i);
  const auto scales = run_op<U32, U16>("cvt.rn.bf16x2.ue8m0x2 d, a;", codes);
  const auto e4m3 = run_op<U32, U16>("cvt.rn.f16x2.e4m3x2 d, a;", codes);
  const auto e5m2 = run_op<U32, U16>("cvt.rn.f16x2.e5m2x2 d, a;", codes);
  for (U32 i = 0; i < 65536; ++i) {
    const auto high = static_cast<std::uint8_t>(i >> 8);
    const auto low = static_cast<std::uint8_t>(i);
    using model::SmallFloat;
    ASSERT_EQ(scales[i], model::pack_16(model::ue8m0_to_bf16(high), model::ue8m0_to_bf16(low)));
    ASSERT_EQ(e4m3[i], model::pack_16(model::small_to_f16(SmallFloat::kE4M3, high),
                                      model::small_to_f16(SmallFloat::kE4M3, low)));
    ASSERT_EQ(e5m2[i], model::pack_16(model::small_to_f16(SmallFloat::kE5M2, high),
                                      model::small_to_f16(SmallFloat::kE5M2, low)));
  }
}

template <class To>
To clamp_to(long double v) {
  using L = std::numeric_limits<To>;
  if (v <= static_cast<long double>(L::min())) return L::min();
  if (v >= static_cast<long double>(L::max())) return L::max();
  return static_cast<To>(v);
}

template <class To, class From>
void check_to_integer(const std::string& types, const std::vector<From>& x, To nan_result) {
  const auto check = [&](const std::string& mode, auto round) {
    const std::string opcode = "cvt." + mode + "." + types;
    const auto got = run_op<To, From>(opcode + " d, a;", x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const To want =
          std::isnan(x[i]) ? nan_result : clamp_to<To>(round(static_cast<long double>(x[i])));
      ASSERT_EQ(got[i], want) << opcode << " of " << show(x[i]);
    }
  };
  check("rni", [](long double v) { return std::nearbyint(v); });
  check("rzi", [](long double v) { return std::trunc(v); });
  check("rmi", [](long double v) { return std::floor(v); });
  check("rpi", [](long double v) { return std::ceil(v); });
}

TEST(Convert, FloatsToIntegers) {
  std::vector<float> x = inputs();
  for (int i = -40; i < 40; ++i) x.push_back(static_cast<float>(i) / 4.0f);
  std::vector<double> y(x.begin(), x.end());
  y.push_back(2147483647.5);
  y.push_back(9223372036854775807.0);
  check_to_integer<I32>("s32.f32", x, I32{0});
  check_to_integer<U32>("u32.f32", x, U32{0});
  check_to_integer<I64>("s64.f32", x, std::numeric_limits<I64>::min());
  check_to_integer<U64>("u64.f64", y, U64{1} << 63);
  check_to_integer<I32>("s32.f64", y, std::numeric_limits<I32>::min());
}

TEST(Convert, IntegersToFloats) {
  expect_unary<float, I32>("cvt.rn.f32.s32", [](I32 a) { return static_cast<float>(a); });
  expect_unary<float, U32>("cvt.rn.f32.u32", [](U32 a) { return static_cast<float>(a); });
  expect_unary<float, I64>("cvt.rn.f32.s64", [](I64 a) { return static_cast<float>(a); });
  expect_unary<double, U64>("cvt.rn.f64.u64", [](U64 a) { return static_cast<double>(a); });
  expect_unary<float, U32>("cvt.rz.f32.u32", [](U32 a) {
    const auto r = static_cast<float>(a);
    return static_cast<double>(r) > a ? std::nextafter(r, 0.0f) : r;
  });
  expect_unary<float, I32>("cvt.rp.f32.s32", [](I32 a) {
    const auto r = static_cast<float>(a);
    return static_cast<double>(r) < a ? std::nextafter(r, 1e30f) : r;
  });
  expect_unary<float, double>("cvt.rn.f32.f64", [](double a) { return static_cast<float>(a); });
  expect_unary<double, float>("cvt.f64.f32", [](float a) { return static_cast<double>(a); });
}

TEST(Convert, IntegersToIntegers) {
  expect_unary<I64, I32>("cvt.s64.s32", [](I32 a) { return I64{a}; });
  expect_unary<U64, U32>("cvt.u64.u32", [](U32 a) { return U64{a}; });
  expect_unary<I32, U32>("cvt.s32.s8", [](U32 a) { return I32{static_cast<std::int8_t>(a)}; });
  expect_unary<U32, U32>("cvt.u32.u8", [](U32 a) { return a & 255u; });
  expect_unary<U32, I32>("cvt.sat.u8.s32",
                         [](I32 a) { return static_cast<U32>(std::clamp(a, 0, 255)); });
  expect_unary<I32, I64>("cvt.sat.s32.s64",
                         [](I64 a) { return clamp_to<I32>(static_cast<long double>(a)); });
  expect_unary<U16, U32>("cvt.u16.u32", [](U32 a) { return static_cast<U16>(a); });
}

TEST(Convert, FloatsToFloats) {
  expect_unary<float, float>("cvt.rni.f32.f32", [](float a) { return std::nearbyint(a); });
  expect_unary<float, float>("cvt.rmi.f32.f32", [](float a) { return std::floor(a); });
  expect_unary<float, float>("cvt.sat.f32.f32",
                             [](float a) { return a > 0.0f ? std::fmin(a, 1.0f) : 0.0f; });
  expect_unary<double, float>("cvt.ftz.f64.f32", [](float a) {
    return static_cast<double>(std::fpclassify(a) == FP_SUBNORMAL ? std::copysign(0.0f, a) : a);
  });
  expect_unary<I32, float>("cvt.rpi.ftz.s32.f32", [](float a) {
    if (std::isnan(a) || std::fpclassify(a) == FP_SUBNORMAL) return 0;
    return clamp_to<I32>(std::ceil(static_cast<long double>(a)));
  });
  expect_unary<float, U16>("cvt.f32.f16", [](U16 a) { return mx::decode_f16(a); });
  expect_unary<float, U16>("cvt.f32.bf16", [](U16 a) { return mx::decode_bf16(a); });
}

}  // namespace
}  // namespace mxfa::emu::test
