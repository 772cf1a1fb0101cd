#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "exec/kernel_table.h"
#include "ir/lower.h"
#include "mxemu/error.h"
#include "ptx/module.h"
#include "ptx/opcode.h"

/// Any text either parses or is refused by a PtxError; what parses can also be lowered or refused.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mxfa::emu;
  auto source = std::make_shared<ptx::Source>();
  source->name = "fuzz.ptx";
  source->text.assign(reinterpret_cast<const char*>(data), size);
  static ptx::OpcodeFinder opcodes;
  try {
    const ptx::Module module = ptx::parse(source);
    const std::vector<std::uint64_t> addresses(module.variables.size(), 0x1000);
    for (const ptx::Function& function : module.functions) {
      if (!function.is_entry || !function.has_body) continue;
      ir::lower(module, function, addresses, exec::KernelTable::best(), opcodes);
    }
  } catch (const PtxError&) {
  }
  return 0;
}
