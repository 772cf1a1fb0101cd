#pragma once

#include "exec/lanes/lane.h"

/// The comparisons of floats. PTX ISA 9.0, section 9.7.6: ordered ones are false for NaN, the ...u
/// ones true.
namespace mxfa::emu::exec::MXEMU_ISA {
namespace {

/// visit(name, name with .ftz, F) for each.
template <class Visit>
void each_float_order(const Visit& visit) {
  visit("eq", "eq.ftz", [](auto a, auto b) { return a == b; });
  visit("ne", "ne.ftz", [](auto a, auto b) { return a == a && b == b && a != b; });
  visit("lt", "lt.ftz", [](auto a, auto b) { return a < b; });
  visit("le", "le.ftz", [](auto a, auto b) { return a <= b; });
  visit("gt", "gt.ftz", [](auto a, auto b) { return a > b; });
  visit("ge", "ge.ftz", [](auto a, auto b) { return a >= b; });
  visit("equ", "equ.ftz", [](auto a, auto b) { return a != a || b != b || a == b; });
  visit("neu", "neu.ftz", [](auto a, auto b) { return a != b; });
  visit("ltu", "ltu.ftz", [](auto a, auto b) { return !(a >= b); });
  visit("leu", "leu.ftz", [](auto a, auto b) { return !(a > b); });
  visit("gtu", "gtu.ftz", [](auto a, auto b) { return !(a <= b); });
  visit("geu", "geu.ftz", [](auto a, auto b) { return !(a < b); });
  visit("num", "num.ftz", [](auto a, auto b) { return a == a && b == b; });
  visit("nan", "nan.ftz", [](auto a, auto b) { return a != a || b != b; });
}

}  // namespace
}  // namespace mxfa::emu::exec::MXEMU_ISA
