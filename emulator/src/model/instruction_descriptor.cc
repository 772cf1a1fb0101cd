#include "model/instruction_descriptor.h"

#include <string>

#include "model/fault.h"

namespace mxfa::emu::model {
namespace {

std::uint32_t field(std::uint32_t bits, int low, int width) {
  return (bits >> low) & ((1u << width) - 1u);
}

void check_zero(std::uint32_t bits, int low, int width, std::string_view what) {
  if (field(bits, low, width) != 0) {
    fault(fmt::format("instruction descriptor bits {}:{} ({})", low + width - 1, low, what), "0",
          fmt::format("{:#x} in {:#010x}", field(bits, low, width), bits));
  }
}

mx::MmaType format(MmaKind kind, std::uint32_t code, std::string_view which) {
  using mx::MmaType;
  if (kind == MmaKind::kF16) {
    if (code == 0) return MmaType::kF16;
    if (code == 1) return MmaType::kBF16;
  } else if (kind == MmaKind::kTF32) {
    if (code == 2) return MmaType::kTF32;
  } else {
    switch (code) {
      case 0:
        return MmaType::kE4M3;
      case 1:
        return MmaType::kE5M2;
      case 3:
        return MmaType::kE2M3;
      case 4:
        return MmaType::kE3M2;
      case 5:
        return MmaType::kE2M1;
      default:
        break;
    }
  }
  fault(fmt::format("instruction descriptor format of {}", which),
        fmt::format("a code of kind::{}", mma_kind_name(kind)), code);
}

void check_shape(const InstructionDescriptor& desc, int cta_group) {
  const bool scaled = desc.kind == MmaKind::kMxF8F6F4;
  bool m_ok = false;
  std::uint32_t step = 16;
  if (cta_group == 1) {
    m_ok = scaled ? desc.m == 128 : desc.m == 64 || desc.m == 128;
    if (scaled || desc.m == 64) step = 8;
  } else {
    m_ok = desc.m == 128 || desc.m == 256;
  }
  const bool transposed_bytes = desc.major_b == Major::kMN && mma_type_bytes(desc.b) == 1;
  if (transposed_bytes) step = cta_group == 1 ? 16 : 32;
  if (!m_ok) {
    fault(
        "instruction descriptor M",
        fmt::format("a shape of kind::{} with cta_group::{}", mma_kind_name(desc.kind), cta_group),
        desc.m);
  }
  if (desc.n < step || desc.n > 256 || desc.n % step != 0) {
    fault("instruction descriptor N", fmt::format("{}..256 in steps of {}", step, step), desc.n);
  }
}

// 4 and 6-bit types have no transposed form.
void check_major(std::string_view which, mx::MmaType type, Major major) {
  if (major == Major::kMN && is_packed_type(type)) {
    fault(fmt::format("instruction descriptor transpose of {}", which), "0 for 4 and 6-bit types",
          1);
  }
}

}  // namespace

std::string_view mma_kind_name(MmaKind kind) {
  constexpr std::string_view kNames[] = {"f16", "tf32", "f8f6f4", "mxf8f6f4"};
  return kNames[static_cast<int>(kind)];
}

InstructionDescriptor decode_instruction_descriptor(MmaKind kind, std::uint32_t bits,
                                                    int cta_group) {
  if (cta_group != 1 && cta_group != 2) fault("cta_group", "1 or 2", cta_group);
  if (field(bits, 2, 1) != 0) unsupported("instruction descriptor", "sparsity");
  check_zero(bits, 0, 2, "sparsity selector");
  check_zero(bits, 3, 1, "integer saturation");
  check_zero(bits, 6, 1, "reserved");
  InstructionDescriptor desc;
  desc.kind = kind;
  desc.cta_group = static_cast<std::uint32_t>(cta_group);
  desc.a = format(kind, field(bits, 7, 3), "A");
  desc.b = format(kind, field(bits, 10, 3), "B");
  desc.negate_a = field(bits, 13, 1) != 0;
  desc.negate_b = field(bits, 14, 1) != 0;
  desc.major_a = field(bits, 15, 1) != 0 ? Major::kMN : Major::kK;
  desc.major_b = field(bits, 16, 1) != 0 ? Major::kMN : Major::kK;
  desc.n = field(bits, 17, 6) * 8;
  desc.m = field(bits, 24, 5) * 16;
  if (kind == MmaKind::kMxF8F6F4) {
    desc.sf_id_b = field(bits, 4, 2);
    desc.sf_id_a = field(bits, 29, 2);
    if (field(bits, 23, 1) != 1) {
      fault("instruction descriptor scale type", "1 (UE8M0)", field(bits, 23, 1));
    }
    check_zero(bits, 31, 1, "K size");
  } else {
    const std::uint32_t d = field(bits, 4, 2);
    if (d > 1) fault("instruction descriptor format of D", "0 (f16) or 1 (f32)", d);
    desc.d = d == 0 ? AccumulatorType::kF16 : AccumulatorType::kF32;
    const auto wide = [](mx::MmaType type) {
      return type == mx::MmaType::kBF16 || type == mx::MmaType::kTF32;
    };
    if (desc.d == AccumulatorType::kF16 && (wide(desc.a) || wide(desc.b))) {
      fault("instruction descriptor format of D", "1 (f32) for bf16 and tf32 operands", d);
    }
    check_zero(bits, 23, 1, "reserved");
    check_zero(bits, 29, 1, "reserved");
    check_zero(bits, 30, 2, "maximum shift of .ws");
  }
  check_major("A", desc.a, desc.major_a);
  check_major("B", desc.b, desc.major_b);
  check_shape(desc, cta_group);
  return desc;
}

}  // namespace mxfa::emu::model
