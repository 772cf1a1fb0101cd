#include "check/registers.h"

namespace mxfa::emu::check {

RegisterState::Result RegisterState::use(std::uint32_t reg, std::uint64_t shape,
                                         std::uint32_t line) {
  Register& r = registers_[reg];
  Result result;
  const auto since_fence = [&](const Access& access) {
    return access.line != 0 && access.fences == fences_;
  };
  if (fences_ == 0) {
    result = {Fault::kNoFirstFence, 0};
  } else if (since_fence(r.touched)) {
    result = {Fault::kNoFence, r.touched.line};
  } else if (since_fence(r.used) && r.shape != shape) {
    result = {Fault::kShape, r.used.line};
  }
  r.touched = {};
  r.used = {fences_, line};
  r.shape = shape;
  return result;
}

}  // namespace mxfa::emu::check
