#pragma once

#include <optional>
#include <string_view>

#include "exec/handlers.h"

namespace mxfa::emu::ir {

struct SpecialRegisterInfo {
  exec::SpecialRegister id;
  std::uint32_t bits;
};
/// By name, with its percent sign; PTX ISA 9.0, section 10.
std::optional<SpecialRegisterInfo> find_special_register(std::string_view name);

}  // namespace mxfa::emu::ir
