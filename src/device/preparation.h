#pragma once

#include <string_view>

#include "core/arena.h"
#include "device/operands.h"
#include "device/ops.h"

/// Parts of what lays operands out in memory and, given a queue, launches what fills them.
namespace mxfa::device {

/// Throws where an input is none that can be quantized, or no payload as operands.h says.
void check_operand_input(const OperandInput& input, const OperandsSpec& spec,
                         const Sequences& sequences, std::string_view name);

/// `memory` as the caller promises it: of any size. Null: the arena only counts.
core::Arena operand_arena(void* memory, std::int64_t align);

/// Offsets of dense sequences, or groups and tiles of jagged ones in memory of the arena.
JaggedOffsetsView place_offsets(const Queue* queue, const Sequences& sequences,
                                core::Arena& memory);

QuantizeInput quantize_input(const OperandInput& input, const JaggedOffsetsView& offsets,
                             const Sequences& sequences, std::int32_t head_dim);

}  // namespace mxfa::device
