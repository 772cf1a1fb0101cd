#include "model/approx.h"
#include "mx/bits.h"
#include "op_harness.h"

/// Float instructions against the host's arithmetic, and approximate ones against the model.
namespace mxfa::emu::test {
namespace {

using U32 = std::uint32_t;
using U64 = std::uint64_t;

float flush(float v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v; }
float clamp01(float v) { return std::isnan(v) || !(v > 0.0f) ? 0.0f : std::fmin(v, 1.0f); }

TEST(FloatOps, Arithmetic) {
  expect_binary<float, float, float>("add.f32", [](float a, float b) { return a + b; });
  expect_binary<float, float, float>("sub.rn.f32", [](float a, float b) { return a - b; });
  expect_binary<float, float, float>("mul.f32", [](float a, float b) { return a * b; });
  expect_binary<float, float, float>("div.rn.f32", [](float a, float b) { return a / b; });
  expect_ternary<float, float, float, float>(
      "fma.rn.f32", [](float a, float b, float c) { return std::fma(a, b, c); });
  expect_binary<double, double, double>("add.f64", [](double a, double b) { return a + b; });
  expect_binary<double, double, double>("mul.rn.f64", [](double a, double b) { return a * b; });
  expect_ternary<double, double, double, double>(
      "fma.rn.f64", [](double a, double b, double c) { return std::fma(a, b, c); });
  expect_unary<float, float>("sqrt.rn.f32", [](float a) { return std::sqrt(a); });
  expect_unary<float, float>("rcp.rn.f32", [](float a) { return 1.0f / a; });
}

TEST(FloatOps, FlushAndSaturate) {
  expect_binary<float, float, float>("add.ftz.f32",
                                     [](float a, float b) { return flush(flush(a) + flush(b)); });
  expect_binary<float, float, float>("mul.sat.f32",
                                     [](float a, float b) { return clamp01(a * b); });
  expect_binary<float, float, float>(
      "mul.ftz.sat.f32", [](float a, float b) { return clamp01(flush(flush(a) * flush(b))); });
  expect_ternary<float, float, float, float>("fma.rn.ftz.f32", [](float a, float b, float c) {
    return flush(std::fma(flush(a), flush(b), flush(c)));
  });
}

// The neighbour that the mode asks for, found from the exact value in long double. Sums of corners
// may need more than 64 bits; the sign of the rounding error is then that of the smaller addend.
float directed(long double high, long double low, char mode) {
  float r = static_cast<float>(high);
  if (std::isnan(r)) return r;
  const auto above = [&](float v) {
    const long double d = high - static_cast<long double>(v);
    return d != 0.0L ? d > 0.0L : low > 0.0L;
  };
  const auto below = [&](float v) {
    const long double d = high - static_cast<long double>(v);
    return d != 0.0L ? d < 0.0L : low < 0.0L;
  };
  if (std::isinf(high)) return r;
  const float infinity = std::numeric_limits<float>::infinity();
  const bool up = mode == 'p' || (mode == 'z' && high < 0.0L);
  if (up && above(r)) r = std::nextafter(r, infinity);
  if (!up && below(r)) r = std::nextafter(r, -infinity);
  return r;
}

TEST(FloatOps, DirectedRounding) {
  for (const char mode : {'z', 'm', 'p'}) {
    expect_binary<float, float, float>(fmt::format("mul.r{}.f32", mode), [&](float a, float b) {
      return directed(static_cast<long double>(a) * b, 0.0L, mode);
    });
    expect_binary<float, float, float>(fmt::format("add.r{}.f32", mode), [&](float a, float b) {
      const long double sum = static_cast<long double>(a) + b;
      if (sum == 0.0L && a == -b && a != 0.0f) return mode == 'm' ? -0.0f : 0.0f;
      if (a == 0.0f && b == 0.0f && std::signbit(a) != std::signbit(b)) {
        return mode == 'm' ? -0.0f : 0.0f;
      }
      const long double part = sum - a;
      return directed(sum, (a - (sum - part)) + (b - part), mode);
    });
  }
}

template <bool kMax>
float extreme(float a, float b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == 0.0f && b == 0.0f)
    return (std::signbit(a) && std::signbit(b)) || (!kMax && (std::signbit(a) || std::signbit(b)))
               ? -0.0f
               : 0.0f;
  return kMax ? std::fmax(a, b) : std::fmin(a, b);
}

TEST(FloatOps, MinMax) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_binary<float, float, float>("max.f32", extreme<true>);
  expect_binary<float, float, float>("min.f32", extreme<false>);
  expect_binary<float, float, float>("max.NaN.f32", [&](float a, float b) {
    return std::isnan(a) || std::isnan(b) ? nan : extreme<true>(a, b);
  });
  expect_binary<float, float, float>("min.xorsign.abs.f32", [](float a, float b) {
    const float r = extreme<false>(std::fabs(a), std::fabs(b));
    return std::isnan(r) ? r : std::copysign(r, std::signbit(a) != std::signbit(b) ? -1.0f : 1.0f);
  });
  expect_ternary<float, float, float, float>(
      "max.f32", [](float a, float b, float c) { return extreme<true>(extreme<true>(a, b), c); });
  expect_ternary<float, float, float, float>("max.NaN.abs.f32", [&](float a, float b, float c) {
    if (std::isnan(a) || std::isnan(b) || std::isnan(c)) return nan;
    return std::fmax(std::fmax(std::fabs(a), std::fabs(b)), std::fabs(c));
  });
}

TEST(FloatOps, CanonicalNan) {
  const auto pairs = corner_pairs<float, float>();
  const auto& a = pairs.first;
  const auto& b = pairs.second;
  for (const char* op : {"add.f32", "mul.f32", "max.f32", "sub.rz.f32"}) {
    for (const float r : run_op<float, float, float>(std::string(op) + " d, a, b;", a, b)) {
      if (!std::isnan(r)) continue;
      ASSERT_EQ(std::bit_cast<U32>(r), 0x7FFFFFFFu) << op;
    }
  }
}

TEST(FloatOps, Pairs) {
  std::vector<U64> a;
  std::vector<U64> b;
  for (const auto& [x, y] : {corner_pairs<float, float>()}) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      a.push_back(U64{std::bit_cast<U32>(x[i])} << 32 | std::bit_cast<U32>(y[i]));
      b.push_back(U64{std::bit_cast<U32>(y[x.size() - 1 - i])} << 32 | std::bit_cast<U32>(x[i]));
    }
  }
  const auto part = [](U64 v, int i) {
    return std::bit_cast<float>(static_cast<U32>(v >> (32 * i)));
  };
  const auto check = [&](const std::string& op, auto f) {
    const auto got = run_op<U64, U64, U64, U64>(op, a, b, b);
    for (std::size_t i = 0; i < a.size(); ++i) {
      for (int k = 0; k < 2; ++k) {
        ASSERT_TRUE(same(part(got[i], k), f(part(a[i], k), part(b[i], k)))) << op << " " << i;
      }
    }
  };
  check("add.rn.f32x2 d, a, b;", [](float x, float y) { return x + y; });
  check("mul.rn.ftz.f32x2 d, a, b;", [](float x, float y) { return flush(flush(x) * flush(y)); });
  check("fma.rn.f32x2 d, a, b, c;", [](float x, float y) { return std::fma(x, y, y); });
}

TEST(FloatOps, Approximations) {
  std::vector<float> x = corners<float>();
  std::mt19937 rng(9);
  for (int i = 0; i < 20000; ++i) {
    x.push_back(std::bit_cast<float>(static_cast<U32>(rng())));
    x.push_back(static_cast<float>(static_cast<int>(rng() % 300000) - 150000) / 1000.0f);
  }
  const auto check = [&](const std::string& op, model::Approx function, bool ftz) {
    const auto got = run_op<float, float>(op + " d, a;", x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float want = model::approx_f32(function, x[i], ftz);
      ASSERT_TRUE(same(got[i], want))
          << op << " of " << show(x[i]) << ": got " << show(got[i]) << ", want " << show(want);
    }
  };
  check("ex2.approx.f32", model::Approx::kEx2, false);
  check("ex2.approx.ftz.f32", model::Approx::kEx2, true);
  check("lg2.approx.f32", model::Approx::kLg2, false);
  check("rcp.approx.ftz.f32", model::Approx::kRcp, true);
  check("rsqrt.approx.f32", model::Approx::kRsqrt, false);
  check("sqrt.approx.f32", model::Approx::kSqrt, false);
  check("tanh.approx.f32", model::Approx::kTanh, false);
}

TEST(FloatOps, ExponentialsOfShortFormats) {
  std::vector<std::uint16_t> one(65536);
  std::vector<U32> two(one.size());
  for (U32 i = 0; i < one.size(); ++i) {
    one[i] = static_cast<std::uint16_t>(i);
    two[i] = (i ^ 0x5A5Au) << 16 | i;
  }
  const auto check = [&](const std::string& op, auto model) {
    const auto got = run_op<std::uint16_t, std::uint16_t>(op + " d, a;", one);
    const auto pair = run_op<U32, U32>(op + "x2 d, a;", two);
    for (U32 i = 0; i < one.size(); ++i) {
      const U32 want = model(model::Approx::kEx2, one[i]);
      const U32 upper = model(model::Approx::kEx2, static_cast<std::uint16_t>(i ^ 0x5A5Au));
      ASSERT_EQ(got[i], want) << op << " of " << i;
      ASSERT_EQ(pair[i], upper << 16 | want) << op << "x2 of " << i;
    }
  };
  check("ex2.approx.f16", model::approx_f16);
  check("ex2.approx.ftz.bf16", model::approx_bf16);
}

TEST(FloatOps, Comparisons) {
  const auto pairs = corner_pairs<float, float>();
  const auto& a = pairs.first;
  const auto& b = pairs.second;
  const auto check = [&](const std::string& op, auto f) {
    const auto got = run_op<U32, float, float>(
        "setp." + op + ".f32 p|q, a, b; selp.u32 d, 1, 0, p; @q add.u32 d, d, 2;", a, b);
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(got[i], f(a[i], b[i]) ? 1u : 2u) << op << " " << show(a[i]) << " " << show(b[i]);
    }
  };
  const auto nan = [](float x, float y) { return std::isnan(x) || std::isnan(y); };
  check("eq", [](float x, float y) { return x == y; });
  check("ne", [&](float x, float y) { return !nan(x, y) && x != y; });
  check("lt", [](float x, float y) { return x < y; });
  check("geu", [&](float x, float y) { return nan(x, y) || x >= y; });
  check("neu", [](float x, float y) { return x != y; });
  check("num", [&](float x, float y) { return !nan(x, y); });
  check("nan", nan);
}

TEST(FloatOps, HalfPrecision) {
  // All FP16 values with corners as the second operand; double holds sums and products exactly.
  std::vector<std::uint16_t> a(65536);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::uint16_t>(i);
  const auto value = [](std::uint16_t h) { return static_cast<double>(mx::decode_f16(h)); };
  for (const std::uint16_t with : {0x0001, 0x3C01, 0x8400, 0x7BFF, 0x5555}) {
    const std::vector<std::uint16_t> b(a.size(), with);
    const auto sum = run_op<std::uint16_t, std::uint16_t, std::uint16_t>("add.f16 d, a, b;", a, b);
    const auto product =
        run_op<std::uint16_t, std::uint16_t, std::uint16_t>("mul.rn.f16 d, a, b;", a, b);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto check = [&](std::uint16_t got, double exact, const char* what) {
        const std::uint16_t want =
            std::isnan(exact) ? 0x7FFF : mx::encode_f16(static_cast<float>(exact));
        // FP32 holds both operations on FP16 exactly or with enough bits for one more rounding.
        ASSERT_EQ(got, want) << what << " " << i << " " << with;
      };
      check(sum[i], value(a[i]) + value(with), "sum");
      check(product[i], value(a[i]) * value(with), "product");
    }
  }
}

}  // namespace
}  // namespace mxfa::emu::test
