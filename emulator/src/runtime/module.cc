#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "exec/kernel_table.h"
#include "ir/lower.h"
#include "mem/global.h"
#include "mxemu/emulator.h"
#include "ptx/module.h"
#include "ptx/opcode.h"
#include "runtime/launch.h"

namespace mxfa::emu {

struct Module::State {
  ptx::Module module;
  GlobalMemory* memory = nullptr;
  std::vector<std::uint64_t> addresses;  ///< of the module's variables
  std::vector<std::byte*> owned;
  std::string target;
  mutable std::mutex mutex;  ///< guards what follows
  mutable ptx::OpcodeFinder opcodes;
  mutable std::map<std::string, std::shared_ptr<const ir::Kernel>, std::less<>> kernels;

  ~State() {
    for (const std::byte* address : owned) memory->free(address);
  }
  void place_variables();
  void initialise();
  std::shared_ptr<const ir::Kernel> kernel(const std::string& name) const;
};

namespace {

std::shared_ptr<ptx::Source> make_source(const std::string& ptx, const std::string& name) {
  auto source = std::make_shared<ptx::Source>();
  source->name = name;
  source->text = ptx;
  return source;
}

bool in_memory(const ptx::Variable& variable) {
  return variable.space == ptx::Space::kGlobal || variable.space == ptx::Space::kConst;
}

}  // namespace

void Module::State::place_variables() {
  addresses.assign(module.variables.size(), 0);
  for (std::size_t i = 0; i < module.variables.size(); ++i) {
    const ptx::Variable& variable = module.variables[i];
    if (!in_memory(variable)) continue;
    if (variable.bytes > (std::uint64_t{1} << 32)) {
      module.source->fail(variable.line, "variable too large for the emulator");
    }
    std::byte* address = memory->allocate(variable.bytes, std::string(variable.name));
    owned.push_back(address);
    addresses[i] = reinterpret_cast<std::uint64_t>(address);
  }
}

// Variables without initialiser are zero, as in C++.
void Module::State::initialise() {
  for (std::size_t i = 0; i < module.variables.size(); ++i) {
    const ptx::Variable& variable = module.variables[i];
    if (!in_memory(variable)) continue;
    auto* to = reinterpret_cast<std::byte*>(addresses[i]);
    std::memset(to, 0, variable.bytes);
    if (!variable.init.empty()) std::memcpy(to, variable.init.data(), variable.init.size());
    for (const ptx::InitPointer& pointer : variable.pointers) {
      const std::uint64_t value =
          addresses[pointer.variable] + static_cast<std::uint64_t>(pointer.addend);
      std::memcpy(to + pointer.offset, &value, sizeof(value));
    }
    memory->mark_initialised(to, variable.bytes);
  }
}

std::shared_ptr<const ir::Kernel> Module::State::kernel(const std::string& name) const {
  const std::lock_guard lock(mutex);
  if (const auto it = kernels.find(name); it != kernels.end()) return it->second;
  const ptx::Function* function = module.find_entry(name);
  if (function == nullptr) {
    throw PtxError({module.source->name, 0, {}}, fmt::format("no entry '{}'", name));
  }
  auto kernel = std::make_shared<const ir::Kernel>(
      ir::lower(module, *function, addresses, exec::KernelTable::best(), opcodes));
  kernels.emplace(name, kernel);
  return kernel;
}

Module::Module(const std::string& ptx, const std::string& name, GlobalMemory& memory)
    : state_(std::make_unique<State>()) {
  state_->memory = &memory;
  state_->module = ptx::parse(make_source(ptx, name));
  state_->target = state_->module.target;
  state_->place_variables();
  state_->initialise();
}

Module::~Module() = default;
Module::Module(Module&&) noexcept = default;
Module& Module::operator=(Module&&) noexcept = default;

std::vector<std::string> Module::entries() const {
  std::vector<std::string> names;
  for (const ptx::Function& function : state_->module.functions) {
    if (function.is_entry && function.has_body) names.emplace_back(function.name);
  }
  return names;
}

EntryInfo Module::entry(const std::string& name) const {
  const auto kernel = state_->kernel(name);
  EntryInfo info;
  info.name = name;
  for (const ir::Param& param : kernel->params) {
    info.params.push_back({param.name, param.offset, param.bytes});
  }
  info.shared_bytes = kernel->shared_bytes;
  info.local_bytes = kernel->local_bytes;
  info.register_bytes = kernel->register_bytes;
  info.instructions = static_cast<std::uint32_t>(kernel->code.size());
  info.max_threads = kernel->max_threads;
  info.required_threads = kernel->required_threads;
  info.cluster = kernel->cluster;
  info.explicit_cluster = kernel->explicit_cluster;
  return info;
}

const std::string& Module::target() const { return state_->target; }

std::byte* Module::variable(const std::string& name) const {
  for (std::size_t i = 0; i < state_->module.variables.size(); ++i) {
    const ptx::Variable& variable = state_->module.variables[i];
    if (in_memory(variable) && variable.name == name) {
      return reinterpret_cast<std::byte*>(state_->addresses[i]);
    }
  }
  return nullptr;
}

void Module::check_launch(const std::string& entry, const LaunchConfig& config) const {
  runtime::check_launch(*state_->kernel(entry), config);
}

LaunchStats Module::launch(const std::string& entry, const LaunchConfig& config,
                           std::span<const std::byte> params, const LaunchOptions& options) const {
  return runtime::launch({state_->kernel(entry), state_->memory->snapshot(), config, params, {}},
                         options);
}

LaunchStats Module::launch(const std::string& entry, const LaunchConfig& config,
                           const Arguments& arguments, const LaunchOptions& options) const {
  const auto kernel = state_->kernel(entry);
  const auto& values = arguments.values();
  if (values.size() != kernel->params.size()) {
    throw PtxError({state_->module.source->name, 0, {}},
                   fmt::format("entry {}: expected {} arguments, got {}", entry,
                               kernel->params.size(), values.size()));
  }
  std::vector<std::byte> params(kernel->param_bytes);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ir::Param& param = kernel->params[i];
    if (values[i].size() != param.bytes) {
      throw PtxError({state_->module.source->name, 0, {}},
                     fmt::format("entry {}, argument {}: expected {} bytes, got {}", entry, i,
                                 param.bytes, values[i].size()));
    }
    std::memcpy(params.data() + param.offset, values[i].data(), param.bytes);
  }
  return launch(entry, config, params, options);
}

std::vector<LintFinding> lint(const std::string& ptx, const std::string& name) {
  const ptx::Module module = ptx::parse(make_source(ptx, name));
  ptx::OpcodeFinder opcodes;
  std::vector<LintFinding> findings;
  // Addresses do not matter: nothing runs.
  const std::vector<std::uint64_t> addresses(module.variables.size(), 256);
  for (const ptx::Function& function : module.functions) {
    if (!function.is_entry || !function.has_body) continue;
    const std::size_t known = findings.size();
    for (const ptx::Instruction& instruction : function.instructions) {
      if (opcodes.find(instruction.opcode) != nullptr) continue;
      findings.push_back(
          {instruction.line, std::string(instruction.opcode), "unknown opcode or qualifier"});
    }
    if (findings.size() > known) continue;
    try {
      ir::lower(module, function, addresses, exec::KernelTable::best(), opcodes);
    } catch (const PtxError& error) {
      findings.push_back({error.location().line, error.location().text, error.reason()});
    }
  }
  return findings;
}

}  // namespace mxfa::emu
