#include "model/approx.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <string>

#include "expect_fault.h"
#include "mx/bits.h"

namespace mxfa::emu::model {
namespace {

long double truth(Approx f, float x) {
  const long double w = x;
  switch (f) {
    case Approx::kEx2:
      return std::exp2(w);
    case Approx::kLg2:
      return std::log2(w);
    case Approx::kRcp:
      return 1 / w;
    case Approx::kRsqrt:
      return 1 / std::sqrt(w);
    case Approx::kSqrt:
      return std::sqrt(w);
    case Approx::kTanh:
      return std::tanh(w);
    case Approx::kSin:
      return std::sin(w);
    case Approx::kCos:
      return std::cos(w);
  }
  return 0;
}

constexpr Approx kAll[] = {Approx::kEx2,  Approx::kLg2,  Approx::kRcp, Approx::kRsqrt,
                           Approx::kSqrt, Approx::kTanh, Approx::kSin, Approx::kCos};

float random_argument(Approx f, std::mt19937& rng) {
  const float u = static_cast<float>(rng()) * 0x1p-32f;
  switch (f) {
    case Approx::kEx2:
      return (u - 0.5f) * 280.0f;
    case Approx::kSin:
    case Approx::kCos:
      return (u - 0.5f) * 600.0f;
    case Approx::kTanh:
      return (u - 0.5f) * 20.0f;
    default:
      return mx::bits_float(static_cast<std::uint32_t>(rng()) & 0x7F7FFFFFu);
  }
}

/// The ISA's bound, as text here and not as code of the model.
long double bound(Approx f, float x, long double want) {
  const float r = static_cast<float>(std::fabs(want));
  const long double ulp = std::nextafterf(r, INFINITY) - r;
  const long double pi = 3.14159265358979323846L;
  switch (f) {
    case Approx::kEx2:
      return 2 * ulp;
    case Approx::kRcp:
      return ulp;
    case Approx::kLg2:
      return x > 0.5f && x < 2.0f ? 0x1p-22L : 0x1p-22L * std::fabs(want);
    case Approx::kRsqrt:
      return std::exp2(-22.9L) * std::fabs(want);
    case Approx::kSqrt:
      return std::max(0x1p-23L * std::fabs(want), ulp / 2);
    case Approx::kTanh:
      return 0x1p-11L * std::fabs(want);
    default:
      return std::fabs(x) <= 2 * pi ? std::exp2(-20.5L) : std::exp2(-14.7L);
  }
}

TEST(Approx, CorrectlyRounded) {
  std::mt19937 rng(1);
  for (const Approx f : kAll) {
    for (int i = 0; i < 4000; ++i) {
      const float x = random_argument(f, rng);
      const float got = approx_f32(f, x, false);
      ASSERT_EQ(mx::float_bits(got), mx::float_bits(static_cast<float>(truth(f, x))))
          << approx_name(f) << "(" << x << ")";
    }
  }
}

TEST(Approx, PerturbedResultsStayWithinTheBoundAndMove) {
  std::mt19937 rng(2);
  for (const Approx f : kAll) {
    int moved = 0;
    for (int i = 0; i < 4000; ++i) {
      const float x = random_argument(f, rng);
      const Perturbation p{true, static_cast<std::uint64_t>(i % 3)};
      const float got = approx_f32(f, x, false, p);
      const long double want = truth(f, x);
      if (std::isinf(got)) continue;  // beyond the range of the result
      ASSERT_LE(std::fabs(static_cast<long double>(got) - want), bound(f, x, want))
          << approx_name(f) << "(" << x << ") = " << got;
      ASSERT_EQ(got, approx_f32(f, x, false, p)) << "the seed decides, not the order of calls";
      moved += got != approx_f32(f, x, false) ? 1 : 0;
    }
    if (f != Approx::kSqrt) {  // whose bound is about half an ulp
      EXPECT_GT(moved, 400) << approx_name(f);
    }
  }
  const Perturbation a{true, 1}, b{true, 2};
  int differ = 0;
  for (int i = 1; i < 100; ++i) {
    const float x = static_cast<float>(i) * 0.37f;
    differ += approx_f32(Approx::kTanh, x, false, a) != approx_f32(Approx::kTanh, x, false, b);
  }
  EXPECT_GT(differ, 50);
}

TEST(Approx, SpecialValuesOfTheIsa) {
  const float inf = INFINITY;
  const std::uint32_t nan = 0x7FFFFFFF;
  const struct {
    Approx f;
    float x;
    std::uint32_t want;
  } table[] = {
      {Approx::kEx2, -inf, 0},
      {Approx::kEx2, -0.0f, 0x3F800000},
      {Approx::kEx2, 0.0f, 0x3F800000},
      {Approx::kEx2, inf, 0x7F800000},
      {Approx::kEx2, NAN, nan},
      {Approx::kLg2, -inf, nan},
      {Approx::kLg2, -1.0f, nan},
      {Approx::kLg2, -0.0f, 0xFF800000},
      {Approx::kLg2, 0.0f, 0xFF800000},
      {Approx::kLg2, inf, 0x7F800000},
      {Approx::kLg2, NAN, nan},
      {Approx::kRcp, -inf, 0x80000000},
      {Approx::kRcp, -0.0f, 0xFF800000},
      {Approx::kRcp, 0.0f, 0x7F800000},
      {Approx::kRcp, inf, 0},
      {Approx::kRcp, NAN, nan},
      {Approx::kRsqrt, -inf, nan},
      {Approx::kRsqrt, -2.0f, nan},
      {Approx::kRsqrt, -0.0f, 0xFF800000},
      {Approx::kRsqrt, 0.0f, 0x7F800000},
      {Approx::kRsqrt, inf, 0},
      {Approx::kSqrt, -inf, nan},
      {Approx::kSqrt, -0.0f, 0x80000000},
      {Approx::kSqrt, 0.0f, 0},
      {Approx::kSqrt, inf, 0x7F800000},
      {Approx::kTanh, -inf, 0xBF800000},
      {Approx::kTanh, -0.0f, 0x80000000},
      {Approx::kTanh, inf, 0x3F800000},
      {Approx::kTanh, NAN, nan},
      {Approx::kSin, inf, nan},
      {Approx::kSin, -0.0f, 0x80000000},
      {Approx::kSin, 0.0f, 0},
      {Approx::kCos, -inf, nan},
      {Approx::kCos, -0.0f, 0x3F800000},
      {Approx::kCos, 0.0f, 0x3F800000},
  };
  for (const auto& row : table) {
    for (const bool on : {false, true}) {
      EXPECT_EQ(mx::float_bits(approx_f32(row.f, row.x, false, {on, 3})), row.want)
          << approx_name(row.f) << "(" << row.x << ")";
    }
  }
}

TEST(Approx, FlushToZero) {
  const float tiny = mx::bits_float(0x00400000);
  EXPECT_EQ(approx_f32(Approx::kEx2, -126.5f, false), static_cast<float>(std::exp2(-126.5)));
  EXPECT_EQ(approx_f32(Approx::kEx2, -126.5f, true), 0.0f);
  EXPECT_EQ(approx_f32(Approx::kEx2, tiny, true), 1.0f);
  EXPECT_EQ(approx_f32(Approx::kRcp, tiny, true), INFINITY);
  EXPECT_EQ(mx::float_bits(approx_f32(Approx::kRcp, -tiny, true)), 0xFF800000u);
  EXPECT_EQ(approx_f32(Approx::kRcp, 0x1.8p127f, false), 1.0f / 0x1.8p127f);
  EXPECT_EQ(approx_f32(Approx::kRcp, 0x1.8p127f, true), 0.0f);
  EXPECT_EQ(approx_f32(Approx::kLg2, tiny, true), -INFINITY);
  EXPECT_EQ(approx_f32(Approx::kLg2, tiny, false), -127.0f);
  EXPECT_EQ(approx_f32(Approx::kTanh, tiny, false, {true, 1}), tiny) << "passes through";
}

TEST(Approx, Ex2LanesEqualTheScalarFunction) {
  std::mt19937 rng(5);
  for (int run = 0; run < 500; ++run) {
    std::array<float, 32> x, got;
    for (float& value : x) {
      value = run % 2 == 0 ? random_argument(Approx::kEx2, rng)
                           : mx::bits_float(static_cast<std::uint32_t>(rng()));
    }
    x[3] = std::ldexp(static_cast<float>(run) - 250.0f, -1);
    for (const bool ftz : {false, true}) {
      ex2_lanes(x.data(), got.data(), ftz);
      for (int i = 0; i < 32; ++i) {
        ASSERT_EQ(mx::float_bits(got[i]), mx::float_bits(approx_f32(Approx::kEx2, x[i], ftz)))
            << x[i];
      }
    }
  }
  for (int n = -149; n < 128; ++n) {
    EXPECT_EQ(approx_f32(Approx::kEx2, static_cast<float>(n), false), std::ldexp(1.0f, n));
  }
}

TEST(Approx, Division) {
  EXPECT_EQ(approx_div(1.0f, 3.0f, false, false), 1.0f / 3.0f);
  EXPECT_EQ(approx_div(3.0f, 0x1p127f, false, false), 0.0f);
  EXPECT_EQ(mx::float_bits(approx_div(-3.0f, 0x1p127f, false, false)), 0x80000000u);
  EXPECT_EQ(approx_div(3.0f, 0x1p127f, false, true), 3.0f * 0x1p-127f);
  EXPECT_TRUE(std::isnan(approx_div(INFINITY, 0x1p127f, false, false)));
  EXPECT_EQ(approx_div(1.0f, 0.0f, false, false), INFINITY);
  EXPECT_EQ(approx_div(0x1p-130f, 1.0f, true, true), 0.0f);
  std::mt19937 rng(8);
  int moved = 0;
  for (int i = 0; i < 1000; ++i) {
    const float a = static_cast<float>(rng()) + 1.0f, b = static_cast<float>(rng()) + 1.0f;
    const float got = approx_div(a, b, false, true, {true, 9});
    const float want = a / b;
    const float ulp = std::nextafterf(want, INFINITY) - want;
    ASSERT_LE(std::fabs(got - want), 2.5f * ulp);
    moved += got != want;
  }
  EXPECT_GT(moved, 100);
}

TEST(Approx, Halves) {
  EXPECT_EQ(approx_f16(Approx::kEx2, 0x3C00), 0x4000);
  EXPECT_EQ(approx_f16(Approx::kEx2, 0xFC00), 0x0000);
  EXPECT_EQ(approx_f16(Approx::kEx2, 0x7E00), 0x7FFF);
  EXPECT_EQ(approx_f16(Approx::kTanh, 0x7C00), 0x3C00);
  EXPECT_EQ(approx_bf16(Approx::kEx2, 0x3F80), 0x4000);
  EXPECT_EQ(approx_bf16(Approx::kEx2, 0x8001), 0x3F80) << "subnormal argument";
  EXPECT_EQ(approx_bf16(Approx::kEx2, 0xC2FE), 0x0000) << "subnormal result 2^-127";
  for (std::uint32_t code = 0; code < 65536; code += 7) {
    const float x = mx::decode_f16(static_cast<std::uint16_t>(code));
    if (std::isnan(x) || x > 15.9f || x < -13.0f) continue;
    const double want = std::exp2(static_cast<double>(x));
    const double got = mx::decode_f16(approx_f16(Approx::kEx2, static_cast<std::uint16_t>(code)));
    ASSERT_LE(std::fabs(got - want), std::exp2(-9.9) * want) << x;
  }
  expect_fault([] { approx_f16(Approx::kSin, 0); }, "ex2 or tanh, got sin");
}

}  // namespace
}  // namespace mxfa::emu::model
