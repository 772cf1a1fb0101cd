#include "exec/kernel_table.h"

#include <algorithm>

#include "exec/baseline.h"
#include "exec/lanes/sink.h"

namespace mxfa::emu::exec {

#define MXEMU_DECLARE(isa)                      \
  namespace isa {                               \
  void add_integer_kernels(const KernelSink&);  \
  void add_carry_kernels(const KernelSink&);    \
  void add_float_kernels(const KernelSink&);    \
  void add_compare_kernels(const KernelSink&);  \
  void add_encode_kernels(const KernelSink&);   \
  void add_half_kernels(const KernelSink&);     \
  void add_pack_kernels(const KernelSink&);     \
  void add_together_kernels(const KernelSink&); \
  }
#define MXEMU_ADD_ALL(isa, sink)  \
  isa::add_integer_kernels(sink); \
  isa::add_carry_kernels(sink);   \
  isa::add_float_kernels(sink);   \
  isa::add_compare_kernels(sink); \
  isa::add_encode_kernels(sink);  \
  isa::add_half_kernels(sink);    \
  isa::add_pack_kernels(sink);    \
  isa::add_together_kernels(sink)

MXEMU_DECLARE(isa_default)
#ifdef MXEMU_X86_VARIANTS
MXEMU_DECLARE(isa_avx2)
MXEMU_DECLARE(isa_avx512)
#endif

namespace {

Isa most = Isa::kAvx512;

}  // namespace

KernelTable::KernelTable(Isa isa) {
  KernelSink sink;
  sink.table = &kernels_;
  sink.add_kernel = [](void* table, const char* name, const char* modifiers, const char* type,
                       ir::ExecFn fn) {
    std::string key(name);
    for (const char* part : {modifiers, type}) {
      if (part[0] != '\0') key.append(".").append(part);
    }
    static_cast<std::unordered_map<std::string, ir::ExecFn>*>(table)->insert_or_assign(key, fn);
  };
  add_directed_kernels(sink);
  switch (isa) {
    case Isa::kDefault:
      MXEMU_ADD_ALL(isa_default, sink);
      break;
#ifdef MXEMU_X86_VARIANTS
    case Isa::kAvx2:
      MXEMU_ADD_ALL(isa_avx2, sink);
      break;
    case Isa::kAvx512:
      MXEMU_ADD_ALL(isa_avx512, sink);
      break;
#else
    default:
      break;
#endif
  }
}

const KernelTable* KernelTable::of(Isa isa) {
#ifdef MXEMU_X86_VARIANTS
  if (isa == Isa::kAvx512) {
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
      return nullptr;
    }
    static const KernelTable table(isa);
    return &table;
  }
  if (isa == Isa::kAvx2) {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi2")) {
      return nullptr;
    }
    static const KernelTable table(isa);
    return &table;
  }
#else
  if (isa != Isa::kDefault) return nullptr;
#endif
  static const KernelTable table(Isa::kDefault);
  return &table;
}

bool KernelTable::limit(Isa isa) {
  most = isa;
  return of(isa) != nullptr;
}

const KernelTable& KernelTable::best() {
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    if (isa > most) continue;
    if (const KernelTable* table = of(isa)) return *table;
  }
  return *of(Isa::kDefault);
}

ir::ExecFn KernelTable::find(std::string_view key) const {
  const auto it = kernels_.find(std::string(key));
  return it == kernels_.end() ? nullptr : it->second;
}

std::vector<std::string> KernelTable::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, fn] : kernels_) keys.push_back(key);
  std::ranges::sort(keys);
  return keys;
}

}  // namespace mxfa::emu::exec
