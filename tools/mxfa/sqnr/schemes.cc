#include "sqnr/schemes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace mxfa::cli::sqnr {
namespace {

using reference::recipe::DqAccum;
using reference::recipe::Machine;
using reference::recipe::PScale;
using reference::recipe::RecipeConfig;

/// GEMMs of one step: S and O; S, dP, dV, dK and dQ.
constexpr double kGemms = 7;

RecipeConfig per_row_1x32() {
  RecipeConfig config = RecipeConfig::blackwell();
  config.qk_shape = config.v_shape = config.dout_shape = BlockShape::k1x32;
  return config;
}

struct Base {
  const char* name;
  const char* label;
  const char* help;
  RecipeConfig (*config)();
  bool is_mx;
};

constexpr Base kBases[] = {
    {"32x32", "MXFP8 32x32", "Blackwell, one scale for each 32x32 square (the default base)",
     RecipeConfig::blackwell, true},
    {"1x32", "MXFP8 1x32", "Blackwell, one scale for each 32 values along a GEMM's K", per_row_1x32,
     true},
    {"32xD", "MXFP8 32xD (Hopper)", "Hopper, one scale for 32 tokens x head_dim",
     RecipeConfig::hopper, true},
    {"fp8-per-tensor", "FP8 per tensor", "one FP32 scale for each tensor",
     RecipeConfig::fp8_per_tensor, false},
    {"bf16", "BF16", "the yardstick: BF16 attention", RecipeConfig::bf16, false},
};

struct Dial {
  const char* name;
  const char* label;
  const char* help;
  void (*apply)(RecipeConfig&);
  double bf16_gemms;           ///< GEMMs of the step that it moves to BF16
  const char* advice;          ///< empty where nobody would switch it on for accuracy
  const char* sets = nullptr;  ///< what at most one dial of a scheme may set
};

constexpr Dial kDials[] = {
    {"smooth-k", "K smoothing", "quantize K minus its mean; exact, softmax does not see it",
     [](RecipeConfig& c) { c.smooth_k = true; }, 0,
     "the producer subtracts a constant vector from K before quantizing"},
    {"smooth-v", "V smoothing", "quantize V minus its mean and add it to O; exact",
     [](RecipeConfig& c) { c.smooth_v = true; }, 0,
     "the producer subtracts a constant vector from V, and O adds it back"},
    {"smooth-kv", "K and V smoothing", "both",
     [](RecipeConfig& c) { c.smooth_k = c.smooth_v = true; }, 0,
     "the producer subtracts constant vectors from K and V, and O adds V's back"},
    {"qk-bf16", "QK in BF16", "S = Q K^T from BF16 in both passes",
     [](RecipeConfig& c) { c.qk_bf16 = true; }, 2,
     "the two S GEMMs run in BF16, and Q and K are kept in BF16 for them"},
    {"dp-bf16", "dP in BF16", "dP = dO V^T from BF16", [](RecipeConfig& c) { c.dp_bf16 = true; }, 1,
     "the dP GEMM runs in BF16, and dO and V are kept in BF16 for it"},
    {"dkq-bf16", "dK, dQ in BF16", "dS, dK and dQ in BF16",
     [](RecipeConfig& c) { c.dkq_bf16 = true; }, 2, "the dK and dQ GEMMs run in BF16"},
    {"p-per-block", "P scaled per block", "P with a scale for each 32 keys instead of 2^8",
     [](RecipeConfig& c) {
       c.p_scale = PScale::kBlockRowMax;
       c.p_offset = 0;
     },
     0, "", "P's scale"},
    {"p-unscaled", "P unscaled", "P <= 1 straight to E4M3: to see what 2^8 is worth",
     [](RecipeConfig& c) { c.p_offset = 0; }, 0, "", "P's scale"},
    {"dq-fp16", "dQ in FP16", "dQ summed in FP16 times 2^9",
     [](RecipeConfig& c) { c.dq_accum = DqAccum::kF16; }, 0, "", "dQ's sum"},
    {"dq-fp16-dynamic", "dQ in FP16, own exponent", "likewise, the exponent from a bound",
     [](RecipeConfig& c) { c.dq_accum = DqAccum::kF16Dynamic; }, 0, "", "dQ's sum"},
    {"dq-bf16", "dQ in BF16", "dQ summed in BF16",
     [](RecipeConfig& c) { c.dq_accum = DqAccum::kBf16; }, 0, "", "dQ's sum"},
    {"floor", "floor rule", "scales by the OCP floor rule instead of rounding up",
     [](RecipeConfig& c) { c.scale_rule = ScaleRule::kFloor; }, 0, ""},
    {"leak-free", "leak-free", "no scale is shared by two tokens, so no future token leaks",
     [](RecipeConfig& c) { c = RecipeConfig::leak_free_of(c); }, 0,
     "scales for each token, about two more operations a score"},
};

template <class Rows>
std::string known_names(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

void append(std::string& text, std::string_view separator, std::string_view more) {
  if (more.empty()) return;
  if (!text.empty()) text += separator;
  text += more;
}

/// Null where no dial has this name.
const Dial* find_dial(std::string_view name) {
  const Dial* dial = std::find_if(std::begin(kDials), std::end(kDials),
                                  [&](const Dial& d) { return name == d.name; });
  return dial == std::end(kDials) ? nullptr : dial;
}

/// Refuses a dial that would change nothing, or undo another one.
void expect_effect(const Dial& dial, const Scheme& scheme, std::string_view name,
                   std::string_view option) {
  const auto refuse = [&](const std::string& fault) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{}: '{}': {} {}", option, name, dial.name, fault));
  };
  for (const std::string& earlier : split(scheme.name, '+')) {
    if (earlier == dial.name) refuse("is there twice");
    const Dial* other = find_dial(earlier);
    if (other == nullptr || dial.sets == nullptr || other->sets == nullptr) continue;
    if (std::string_view(dial.sets) == other->sets) refuse(fmt::format("undoes {}", earlier));
  }
  if (dial.bf16_gemms > 0 && scheme.config.machine == Machine::kBf16) {
    refuse("changes nothing: every GEMM of this base is in BF16");
  }
  if (std::string_view(dial.name) == "floor" && !scheme.is_mx) {
    refuse("changes nothing: this base has no block scales");
  }
}

}  // namespace

Scheme parse_scheme(std::string_view name, std::string_view option) {
  std::vector<std::string> parts = split(name, '+');
  const auto find_base = [](const std::string& part) {
    return std::find_if(std::begin(kBases), std::end(kBases),
                        [&](const Base& base) { return part == base.name; });
  };
  const Base* base = find_base(parts.front());
  if (base == std::end(kBases)) {
    base = &kBases[0];
  } else {
    parts.erase(parts.begin());
  }
  Scheme scheme{.name = base->name,
                .label = base->label,
                .config = base->config(),
                .matmul_time = base->config().machine == Machine::kBf16 ? 2.0 : 1.0,
                .num_dials = static_cast<int>(parts.size()),
                .advice = {},
                .is_mx = base->is_mx};
  for (const std::string& part : parts) {
    const Dial* dial = find_dial(part);
    core::expect(dial != nullptr, option,
                 fmt::format("a base ({}) and dials ({}) joined by '+'", known_names(kBases),
                             known_names(kDials)),
                 fmt::format("'{}'", name));
    expect_effect(*dial, scheme, name, option);
    dial->apply(scheme.config);
    scheme.name += fmt::format("+{}", dial->name);
    append(scheme.label, ", ", dial->label);
    append(scheme.advice, "; ", dial->advice);
    scheme.matmul_time += dial->bf16_gemms / kGemms;
  }
  try {
    scheme.config.check();
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: '{}': {}", option, name, error.what()));
  }
  return scheme;
}

std::vector<std::string> default_schemes(bool causal) {
  std::vector<std::string> names = {"bf16",     "fp8-per-tensor", "32x32",     "32xD",
                                    "smooth-k", "smooth-v",       "smooth-kv", "qk-bf16"};
  if (causal) names.emplace_back("leak-free");
  return names;
}

std::vector<std::string> all_schemes(bool causal) {
  std::vector<std::string> names;
  for (const Base& base : kBases) names.emplace_back(base.name);
  for (const Dial& dial : kDials) {
    if (causal || std::string_view(dial.name) != "leak-free") names.emplace_back(dial.name);
  }
  return names;
}

std::string scheme_help() {
  std::string text = "Bases:\n";
  for (const Base& base : kBases) text += fmt::format("  {:<16} {}\n", base.name, base.help);
  text += "Dials:\n";
  for (const Dial& dial : kDials) text += fmt::format("  {:<16} {}\n", dial.name, dial.help);
  return text;
}

io::VariantRecord variant_of(const RecipeConfig& config) {
  io::VariantRecord variant;
  const bool mx = config.machine == Machine::kBlackwell || config.machine == Machine::kHopper;
  const std::string operand = mx ? "mxfp8" : (config.machine == Machine::kBf16 ? "bf16" : "fp8");
  variant.qk = config.qk_bf16 ? "bf16" : operand;
  variant.dp = config.dp_bf16 ? "bf16" : operand;
  switch (config.dq_accum) {
    case DqAccum::kF32:
      variant.dq_accum = "fp32";
      break;
    case DqAccum::kF16:
    case DqAccum::kF16Dynamic:
      variant.dq_accum = "fp16";
      break;
    case DqAccum::kBf16:
      variant.dq_accum = "bf16";
      break;
  }
  if (mx) {
    variant.p_scale = config.p_scale == PScale::kConstant ? "constant" : "per_block";
    variant.block_shape = block_shape_name(config.qk_shape);
  }
  variant.deterministic = true;
  return variant;
}

}  // namespace mxfa::cli::sqnr
