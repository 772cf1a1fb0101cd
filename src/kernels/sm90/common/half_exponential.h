#pragma once

/// ex2.approx of halves cuts off what a half has no bits for, where other instructions round (an
/// H200, compared for all inputs; so does the emulator). A result of 2^n to 2^(n+1) loses half a
/// step in the mean, 2^-11 * 2^n. Where x has any fraction as often as any other, 2^n is ln 2 times
/// 2^x in the mean, so that a sum of 2^x lacks 2^-11 * ln 2 of itself.
namespace mxfa::sm90 {

inline constexpr float kHalfExp2Cut = 0x1p-11f * 0.693147181f;
/// Added to x puts it back.
inline constexpr float kHalfExp2Raise = 0x1p-11f;

}  // namespace mxfa::sm90
