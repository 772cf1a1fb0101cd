#include "exec/lanes/float_math.h"
#include "exec/lanes/float_order.h"

/// setp, set, selp, mov and the common conversions. PTX ISA 9.0, sections 9.7.6 and 9.7.9.
namespace mxfa::emu::exec::MXEMU_ISA {
namespace {

template <class T, class F>
void add_one(const KernelSink& s, const char* op, const char* type, F f) {
  s.add("setp", op, type, compare<T>(f));
}

template <class T>
void add_order(const KernelSink& s, const char* type) {
  add_one<T>(s, "eq", type, [](auto a, auto b) { return a == b; });
  add_one<T>(s, "ne", type, [](auto a, auto b) { return a != b; });
  add_one<T>(s, "lt", type, [](auto a, auto b) { return a < b; });
  add_one<T>(s, "le", type, [](auto a, auto b) { return a <= b; });
  add_one<T>(s, "gt", type, [](auto a, auto b) { return a > b; });
  add_one<T>(s, "ge", type, [](auto a, auto b) { return a >= b; });
}

template <class T>
void add_unsigned_names(const KernelSink& s, const char* type) {
  add_one<T>(s, "lo", type, [](auto a, auto b) { return a < b; });
  add_one<T>(s, "ls", type, [](auto a, auto b) { return a <= b; });
  add_one<T>(s, "hi", type, [](auto a, auto b) { return a > b; });
  add_one<T>(s, "hs", type, [](auto a, auto b) { return a >= b; });
}

template <class T>
void add_equality(const KernelSink& s, const char* type) {
  add_one<T>(s, "eq", type, [](auto a, auto b) { return a == b; });
  add_one<T>(s, "ne", type, [](auto a, auto b) { return a != b; });
}

template <class F>
struct OfFlushed {
  bool operator()(float a, float b) const { return F{}(flush(a), flush(b)); }
};

void add_float_orders(const KernelSink& s) {
  each_float_order([&](const char* name, const char* ftz, auto f) {
    add_one<float>(s, name, "f32", f);
    add_one<float>(s, ftz, "f32", OfFlushed<decltype(f)>{});
    add_one<double>(s, name, "f64", f);
  });
}

void add_test(const KernelSink& s) {
  // The second operand of the comparison is not used.
  using T = float;
  const auto add = [&](const char* name, auto f) { s.add("testp", name, "f32", compare<T>(f)); };
  add("finite", [](T a, T) { return (bits_of(a) & 0x7F800000u) != 0x7F800000u; });
  add("infinite", [](T a, T) { return (bits_of(a) & 0x7FFFFFFFu) == 0x7F800000u; });
  add("number", [](T a, T) { return a == a; });
  add("notanumber", [](T a, T) { return a != a; });
  add("normal", [](T a, T) {
    const U32 e = bits_of(a) & 0x7F800000u;
    return e != 0 && e != 0x7F800000u;
  });
  add("subnormal",
      [](T a, T) { return (bits_of(a) & 0x7F800000u) == 0 && (bits_of(a) & 0x7FFFFFu) != 0; });
}

void add_test64(const KernelSink& s) {
  using T = double;
  constexpr U64 kExponent = 0x7FF0000000000000u;
  const auto add = [&](const char* name, auto f) { s.add("testp", name, "f64", compare<T>(f)); };
  add("finite", [](T a, T) { return (bits_of(a) & kExponent) != kExponent; });
  add("infinite", [](T a, T) { return bits_of(a) << 1 == kExponent << 1; });
  add("number", [](T a, T) { return a == a; });
  add("notanumber", [](T a, T) { return a != a; });
  add("normal", [](T a, T) {
    const U64 e = bits_of(a) & kExponent;
    return e != 0 && e != kExponent;
  });
  add("subnormal", [](T a, T) { return (bits_of(a) & kExponent) == 0 && bits_of(a) << 1 != 0; });
}

/// d = p ? a : b; op[3] is the predicate.
template <class T>
void select(Context& c, const Inst& in, std::uint32_t mask) {
  auto* d = c.result_row<Slot<T>>(in.op[0]);
  const auto* a = c.row<const Slot<T>>(in.op[1]);
  const auto* b = c.row<const Slot<T>>(in.op[2]);
  const std::uint32_t p = c.pred(in.op[3]);
  alignas(64) Slot<T> result[kLanes];
  for (int i = 0; i < kLanes; ++i) result[i] = (p & kLaneBit[i]) != 0 ? a[i] : b[i];
  if (mask == kFullMask) {
    __builtin_memcpy(d, result, sizeof(result));
  } else {
    blend(d, result, mask);
  }
}

/// d = p ? one : 0: selects between all ones or 1.0 and zero; op[1] is the predicate.
void expand_predicate(Context& c, const Inst& in, std::uint32_t mask) {
  auto* d = c.result_row<Row32>(in.op[0]);
  const std::uint32_t p = c.pred(in.op[1]);
  const auto one = static_cast<U32>(in.imm);
  alignas(64) Row32 result[kLanes];
  for (int i = 0; i < kLanes; ++i) result[i] = (p & kLaneBit[i]) != 0 ? one : 0u;
  blend(d, result, mask);
}

void add_conversions(const KernelSink& s) {
  using I32 = std::int32_t;
  s.add("cvt", "u64", "u32", lane<U64(U32)>([](U32 a) { return U64{a}; }));
  s.add("cvt", "s64", "u32", lane<U64(U32)>([](U32 a) { return U64{a}; }));
  s.add("cvt", "s64", "s32", lane<I64(I32)>([](I32 a) { return I64{a}; }));
  s.add("cvt", "u64", "s32", lane<I64(I32)>([](I32 a) { return I64{a}; }));
  s.add("cvt", "u32", "u64", lane<U32(U64)>([](U64 a) { return static_cast<U32>(a); }));
  s.add("cvt", "s32", "s64", lane<U32(U64)>([](U64 a) { return static_cast<U32>(a); }));
  s.add("cvt", "u32", "u16", lane<U32(std::uint16_t)>([](std::uint16_t a) { return U32{a}; }));
  s.add("cvt", "s32", "s16", lane<I32(std::int16_t)>([](std::int16_t a) { return I32{a}; }));
  s.add("cvt", "u32", "u8", lane<U32(std::uint8_t)>([](std::uint8_t a) { return U32{a}; }));
  s.add("cvt", "u16", "u32",
        lane<std::uint16_t(U32)>([](U32 a) { return static_cast<std::uint16_t>(a); }));
  s.add("cvt", "rn.f32", "s32", lane<float(I32)>([](I32 a) { return static_cast<float>(a); }));
  s.add("cvt", "rn.f32", "u32", lane<float(U32)>([](U32 a) { return static_cast<float>(a); }));
  s.add("cvt", "f64", "f32", lane<double(float)>([](float a) { return static_cast<double>(a); }));
}

}  // namespace

void add_compare_kernels(const KernelSink& sink) {
  add_order<std::uint16_t>(sink, "u16");
  add_order<std::int16_t>(sink, "s16");
  add_order<std::uint32_t>(sink, "u32");
  add_order<std::int32_t>(sink, "s32");
  add_order<std::uint64_t>(sink, "u64");
  add_order<std::int64_t>(sink, "s64");
  add_unsigned_names<std::uint16_t>(sink, "u16");
  add_unsigned_names<std::uint32_t>(sink, "u32");
  add_unsigned_names<std::uint64_t>(sink, "u64");
  add_equality<std::uint16_t>(sink, "b16");
  add_equality<std::uint32_t>(sink, "b32");
  add_equality<std::uint64_t>(sink, "b64");
  add_float_orders(sink);
  add_test(sink);
  add_test64(sink);
  sink.add("selp", "", "b32", &select<std::uint32_t>);
  sink.add("selp", "", "b64", &select<std::uint64_t>);
  sink.add("set", "", "expand", &expand_predicate);
  sink.add("mov", "", "b32", lane<U32(U32)>([](U32 a) { return a; }));
  sink.add("mov", "", "b64", lane<U64(U64)>([](U64 a) { return a; }));
  add_conversions(sink);
}

}  // namespace mxfa::emu::exec::MXEMU_ISA
