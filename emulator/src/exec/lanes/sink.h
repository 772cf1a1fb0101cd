#pragma once

#include "exec/context.h"

/// How lane kernels reach the table of the running process. Everything in this folder is compiled
/// once for each instruction set; nothing here may use inline functions of the standard library,
/// since the linker keeps one copy of those for the whole program, whatever it was compiled for.
namespace mxfa::emu::exec {

struct KernelSink {
  void* table = nullptr;
  /// The key is the non-empty parts of {name, modifiers, type}, joined by dots.
  void (*add_kernel)(void* table, const char* name, const char* modifiers, const char* type,
                     ir::ExecFn fn) = nullptr;

  void add(const char* name, const char* modifiers, const char* type, ir::ExecFn fn) const {
    add_kernel(table, name, modifiers, type, fn);
  }
};

}  // namespace mxfa::emu::exec
