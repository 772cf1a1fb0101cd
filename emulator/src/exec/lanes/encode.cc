#include "exec/lanes/float_math.h"
#include "mx/fp8.h"

/// Conversions to and from short floats that kernels use in their inner loops; the general ones are
/// in exec/convert.cc. The encoders are inlined here (flatten), see lanes/sink.h. PTX ISA 9.0,
/// section 9.7.9.21: the first source operand goes to the upper half.
namespace mxfa::emu::exec::MXEMU_ISA {
namespace {

using U16 = std::uint16_t;

constexpr U32 side_by_side(U32 high, U32 low, int bits) { return high << bits | low; }
constexpr U32 kShortNan = 0x7FFFu;  ///< NaN of FP16 and BF16 results

// Not short-circuit code: it has to become vector selects.
template <class Format>
[[gnu::always_inline]] inline U32 encode8(float value) {
  return mx::encode_fp8<Format>(value);
}
[[gnu::always_inline]] inline U32 encode_bf16(float value) {
  return value != value ? kShortNan : U32{mx::encode_bf16(value)};
}
[[gnu::always_inline]] inline U32 encode_f16(float value) {
  return value != value ? kShortNan : U32{mx::encode_f16(value)};
}

}  // namespace

void add_encode_kernels(const KernelSink& s) {
  s.add("cvt", "rn.satfinite.e4m3x2", "f32", lane<U16(float, float)>([](float a, float b) {
          return static_cast<U16>(side_by_side(encode8<mx::E4M3>(a), encode8<mx::E4M3>(b), 8));
        }));
  s.add("cvt", "rn.satfinite.e5m2x2", "f32", lane<U16(float, float)>([](float a, float b) {
          return static_cast<U16>(side_by_side(encode8<mx::E5M2>(a), encode8<mx::E5M2>(b), 8));
        }));
  s.add("cvt", "rn.bf16x2", "f32", lane<U32(float, float)>([](float a, float b) {
          return side_by_side(encode_bf16(a), encode_bf16(b), 16);
        }));
  s.add("cvt", "rn.f16x2", "f32", lane<U32(float, float)>([](float a, float b) {
          return side_by_side(encode_f16(a), encode_f16(b), 16);
        }));
  s.add("cvt", "rn.bf16", "f32",
        lane<U16(float)>([](float a) { return static_cast<U16>(encode_bf16(a)); }));
  s.add("cvt", "rn.f16", "f32",
        lane<U16(float)>([](float a) { return static_cast<U16>(encode_f16(a)); }));
  s.add("cvt", "f32", "bf16",
        lane<float(U16)>([](U16 a) { return canonical(mx::decode_bf16(a)); }));
  s.add("cvt", "f32", "f16", lane<float(U16)>([](U16 a) { return canonical(mx::decode_f16(a)); }));
}

}  // namespace mxfa::emu::exec::MXEMU_ISA
