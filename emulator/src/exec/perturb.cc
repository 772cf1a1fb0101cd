#include "exec/perturb.h"

#include <bit>
#include <set>
#include <string>

#include "exec/handlers.h"
#include "exec/machine.h"
#include "model/approx.h"

namespace mxfa::emu::exec {
namespace {

using model::Approx;

struct Function {
  std::string_view base;
  Approx function;
  bool qualified;  ///< .approx must be there: other forms are exact
};
constexpr Function kFunctions[] = {
    {"ex2", Approx::kEx2, false},     {"lg2", Approx::kLg2, false},  {"rcp", Approx::kRcp, true},
    {"rsqrt", Approx::kRsqrt, false}, {"sqrt", Approx::kSqrt, true}, {"tanh", Approx::kTanh, false},
    {"sin", Approx::kSin, false},     {"cos", Approx::kCos, false},
};

// Inst::a: bits of the function, from 1 on, and whether it flushes subnormals.
constexpr std::uint8_t kDivision = 0x20;
constexpr std::uint8_t kFullDivision = 0x21;
constexpr std::uint8_t kFlushes = 0x40;

}  // namespace

std::uint8_t approximation(std::string_view base, std::string_view key, bool approx, bool full) {
  if (!key.ends_with(".f32")) return 0;
  const std::uint8_t flushes = key.find(".ftz") == std::string_view::npos ? 0 : kFlushes;
  if (base == "div" && (approx || full)) {
    return static_cast<std::uint8_t>((full ? kFullDivision : kDivision) | flushes);
  }
  for (const Function& known : kFunctions) {
    if (known.base != base || (known.qualified && !approx)) continue;
    return static_cast<std::uint8_t>((1 + static_cast<int>(known.function)) | flushes);
  }
  return 0;
}

ir::Kernel with_perturbation(const ir::Kernel& kernel, const KernelTable& kernels) {
  std::set<ir::ExecFn> functions;
  const auto add = [&](std::string_view base) {
    for (const char* rest : {".f32", ".ftz.f32"}) {
      functions.insert(kernels.find(std::string(base) + rest));
    }
  };
  for (const Function& known : kFunctions) add(known.base);
  add("div");
  functions.erase(nullptr);
  ir::Kernel result = kernel;
  for (ir::Inst& in : result.code) {
    if (in.a != 0 && functions.contains(in.exec)) in.exec = &approximate;
  }
  return result;
}

void approximate(Context& c, const ir::Inst& in, std::uint32_t mask) {
  const model::Perturbation& perturbation = static_cast<Warp&>(c).cta().launch.perturbation;
  const bool flushes = (in.a & kFlushes) != 0;
  const auto function = static_cast<std::uint8_t>(in.a & ~kFlushes);
  const auto* a = c.row<const float>(in.op[1]);
  auto* result = c.row<float>(in.op[0]);
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    result[lane] =
        function >= kDivision
            ? model::approx_div(a[lane], c.row<const float>(in.op[2])[lane], flushes,
                                function == kFullDivision, perturbation)
            : model::approx_f32(static_cast<Approx>(function - 1), a[lane], flushes, perturbation);
  }
}

}  // namespace mxfa::emu::exec
