#!/usr/bin/env python3
"""Writes tests/data/mx_golden.bin: what ml_dtypes (0.6.0) says about the MX number formats.

    pip install ml_dtypes==0.6.0 numpy
    python tools/golden/make_mx_golden.py tests/data/mx_golden.bin

Little endian, without gaps:
  1. for E4M3 and then E5M2:
       256 x f32     value of each code
       2 x 4864 x u8 code of the BF16 values with bits 0x3580..0x487F (2^-20 up to 2^18), first
                     positive, then negative
  2. 256 x f32       value of each E8M0 byte
  3. 128 blocks of 32 x f32 values, then 1 scale byte and 32 E4M3 codes (round-up rule), then
     1 scale byte and 32 E4M3 codes (floor rule)

ml_dtypes differs from mxfa by design in two ways, which the test allows for: what rounds beyond the
largest finite value becomes NaN (E4M3) or infinity (E5M2) where mxfa saturates, and NaN keeps its
sign and has its own payload where mxfa has the single code 0x7F. Block values here stay in range.
"""

import sys

import ml_dtypes
import numpy as np

FORMATS = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
MAX_VALUE = 448.0
MAX_EXPONENT = 8


def code_table(dtype):
    return np.arange(256, dtype=np.uint8).view(dtype).astype("<f4")


def codes_of_bf16(dtype, sign):
    bits = np.arange(0x3580, 0x4880, dtype=np.uint16) | np.uint16(sign << 15)
    return bits.view(ml_dtypes.bfloat16).astype(np.float32).astype(dtype).view(np.uint8)


def scale_byte(amax, round_up):
    """The scale from exact arithmetic on integers: no logarithm, no rounding."""
    if amax == 0:
        return 0
    mantissa, exponent = np.frexp(np.float64(amax))  # amax = mantissa * 2^exponent, 0.5 <= mantissa
    scale = int(exponent) - 1 - MAX_EXPONENT + 127
    if round_up and float(mantissa) * 2 > MAX_VALUE / 2.0**MAX_EXPONENT:
        scale += 1
    return max(scale, 0)


def quantized(values, round_up):
    scale = scale_byte(np.max(np.abs(values)), round_up)
    scaled = np.ldexp(values.astype(np.float64), 127 - scale)
    clipped = np.clip(scaled, -MAX_VALUE, MAX_VALUE)
    return bytes([scale]) + clipped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8).tobytes()


def blocks():
    rng = np.random.default_rng(20)
    for index in range(128):
        values = rng.standard_normal(32) * np.exp2(rng.uniform(-index / 16, index / 16, 32))
        values *= 2.0 ** int(rng.integers(-130, 110))
        if index % 8 == 0:
            values[rng.integers(0, 32, 5)] = 0.0
        values = values.astype("<f4")
        yield values.tobytes() + quantized(values, True) + quantized(values, False)


def main():
    parts = []
    for dtype in FORMATS:
        parts.append(code_table(dtype).tobytes())
        parts += [codes_of_bf16(dtype, sign).tobytes() for sign in (0, 1)]
    parts.append(code_table(ml_dtypes.float8_e8m0fnu).tobytes())
    parts += blocks()
    with open(sys.argv[1], "wb") as out:
        out.write(b"".join(parts))


if __name__ == "__main__":
    main()
