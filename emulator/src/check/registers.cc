#include "check/registers.h"

namespace mxfa::emu::check {

RegisterState::Result RegisterState::read(std::uint32_t reg) {
  if (fences_ == 0) return {Fault::kNoFirstFence, 0};
  const Register& r = registers_[reg];
  return since_fence(r.touched) ? Result{Fault::kNoFence, r.touched.line} : Result{};
}

RegisterState::Result RegisterState::accumulate(std::uint32_t reg, std::uint64_t shape,
                                                std::uint32_t line) {
  Result result = read(reg);
  Register& r = registers_[reg];
  if (result.fault == Fault::kNone && since_fence(r.accumulated) && r.shape != shape) {
    result = {Fault::kShape, r.accumulated.line};
  }
  r.accumulated = {fences_, line};
  r.shape = shape;
  return result;
}

}  // namespace mxfa::emu::check
