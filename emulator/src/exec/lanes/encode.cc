#include "exec/lanes/short_float.h"
#include "mx/fp8.h"

/// Conversions to and from short floats that kernels use in their inner loops; the general ones are
/// in exec/convert.cc. What src/mx has is inlined here (flatten), see lanes/sink.h. PTX ISA 9.0,
/// section 9.7.9.21: the first source operand goes to the upper half.
namespace mxfa::emu::exec::MXEMU_ISA {
namespace {

using U16 = std::uint16_t;
using U8 = std::uint8_t;

constexpr U32 side_by_side(U32 high, U32 low, int bits) { return high << bits | low; }

template <class Code>
struct Encode8x2 {
  U16 operator()(float a, float b) const {
    return static_cast<U16>(side_by_side(encode_short<Code>(a), encode_short<Code>(b), 8));
  }
  U16 operator()(U32 halves) const {
    return (*this)(F16Number::decode(halves >> 16), F16Number::decode(halves & 0xFFFFu));
  }
};
template <class Format>
struct Decode8x2 {
  U32 operator()(U16 codes) const {
    return side_by_side(one(static_cast<U8>(codes >> 8)), one(static_cast<U8>(codes)), 16);
  }
  static U32 one(U8 code) { return F16Number::encode(mx::decode_fp8<Format>(code)); }
};
template <class Number>
struct Encode16x2 {
  U32 operator()(float a, float b) const {
    return side_by_side(Number::encode(a), Number::encode(b), 16);
  }
};
template <class Number>
struct Encode16 {
  U16 operator()(float a) const { return static_cast<U16>(Number::encode(a)); }
};
template <class Number>
struct Decode16 {
  float operator()(U16 a) const { return canonical(Number::decode(a)); }
};

}  // namespace

void add_encode_kernels(const KernelSink& s) {
  s.add("cvt", "rn.satfinite.e4m3x2", "f32",
        lane<U16(float, float)>(Encode8x2<Fp8Code<mx::E4M3>>{}));
  s.add("cvt", "rn.satfinite.e5m2x2", "f32",
        lane<U16(float, float)>(Encode8x2<Fp8Code<mx::E5M2>>{}));
  s.add("cvt", "rn.satfinite.e4m3x2", "f16x2", lane<U16(U32)>(Encode8x2<Fp8Code<mx::E4M3>>{}));
  s.add("cvt", "rn.satfinite.e5m2x2", "f16x2", lane<U16(U32)>(Encode8x2<Fp8Code<mx::E5M2>>{}));
  s.add("cvt", "rn.f16x2", "e4m3x2", lane<U32(U16)>(Decode8x2<mx::E4M3>{}));
  s.add("cvt", "rn.f16x2", "e5m2x2", lane<U32(U16)>(Decode8x2<mx::E5M2>{}));
  s.add("cvt", "rn.bf16x2", "f32", lane<U32(float, float)>(Encode16x2<BF16Number>{}));
  s.add("cvt", "rn.f16x2", "f32", lane<U32(float, float)>(Encode16x2<F16Number>{}));
  s.add("cvt", "rn.bf16", "f32", lane<U16(float)>(Encode16<BF16Number>{}));
  s.add("cvt", "rn.f16", "f32", lane<U16(float)>(Encode16<F16Number>{}));
  s.add("cvt", "f32", "bf16", lane<float(U16)>(Decode16<BF16Number>{}));
  s.add("cvt", "f32", "f16", lane<float(U16)>(Decode16<F16Number>{}));
}

}  // namespace mxfa::emu::exec::MXEMU_ISA
