#include "cpu/kernels.h"

#include <atomic>
#include <vector>

#include "core/check.h"

namespace mxfa::cpu {
namespace {

std::atomic<const Kernels*> forced{nullptr};

bool machine_runs(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == Isa::kAvx512Bf16 || isa == Isa::kAmxBf16) {
    return (isa != Isa::kAmxBf16 || amx_usable()) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bf16") &&
           __builtin_cpu_supports("fma");
  }
#endif
  return isa == Isa::kPortable;
}

const Kernels* table(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return portable_kernels();
    case Isa::kAvx2:
      return avx2_kernels();
    case Isa::kAvx512Bf16:
      return avx512_kernels();
    case Isa::kAmxBf16:
      return amx_kernels();
  }
  return nullptr;
}

}  // namespace

std::span<const Isa> supported_isas() {
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> result;
    for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512Bf16, Isa::kAmxBf16}) {
      if (machine_runs(isa) && table(isa) != nullptr) result.push_back(isa);
    }
    return result;
  }();
  return isas;
}

const Kernels& kernels_of(Isa isa) {
  const Kernels* const found = machine_runs(isa) ? table(isa) : nullptr;
  if (found == nullptr) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("instruction set: expected one that this machine runs, got number {}",
                            static_cast<int>(isa)));
  }
  return *found;
}

const Kernels& kernels() {
  static const Kernels& best = kernels_of(supported_isas().back());
  const Kernels* const chosen = forced.load();
  return chosen != nullptr ? *chosen : best;
}

void force_isa(std::optional<Isa> isa) { forced.store(isa ? &kernels_of(*isa) : nullptr); }

}  // namespace mxfa::cpu
