#pragma once

#include <cstdint>
#include <string_view>

/// The approximate functions. The ISA gives only bounds on their errors and no bits: here a result
/// is the correctly rounded one (from double), or, under Perturbation, any value within the bound.
/// Sources of bounds and special values: PTX ISA 9.0, sections 9.7.3.13 to .22, 9.7.4.9 and .10.
/// On an H200 all of them keep their bounds, and ex2 is exact at integers (Perturbation gives that
/// up except at 0, since the ISA does not promise it). Outside of [-100 pi, 100 pi] sin and cos
/// have no bound; here they are not perturbed.
namespace mxfa::emu::model {

enum class Approx : std::uint8_t { kEx2, kLg2, kRcp, kRsqrt, kSqrt, kTanh, kSin, kCos };
std::string_view approx_name(Approx function);

/// Moves finite results that are not special values, by an amount that depends on the seed, the
/// function and the argument only.
struct Perturbation {
  bool on = false;
  std::uint64_t seed = 0;
};

/// FUNCTION.approx{.ftz}.f32: with `ftz` subnormal arguments and results are zeros of the same
/// sign. NaN results are 0x7FFFFFFF.
float approx_f32(Approx function, float x, bool ftz, const Perturbation& perturbation = {});

/// div.approx{.ftz}.f32 and div.full{.ftz}.f32 (`full`).
float approx_div(float a, float b, bool ftz, bool full, const Perturbation& perturbation = {});

/// ex2 and tanh of f16 (no flush) and bf16 (ex2 flushes), codes in and out. ex2 cuts off where
/// others round, as an H200 does, bit for bit for all inputs: 2^x, x's bits below 2^-23 dropped, is
/// truncated to the format, so that it is never too large and in f16 3.6e-4 of itself too small in
/// the mean. tanh there is up to a code nearer to 0 than here.
std::uint16_t approx_f16(Approx function, std::uint16_t x);
std::uint16_t approx_bf16(Approx function, std::uint16_t x);

/// ex2.approx{.ftz}.f32 of 32 lanes, bit-equal to approx_f32 without perturbation.
void ex2_lanes(const float* x, float* out, bool ftz);

}  // namespace mxfa::emu::model
