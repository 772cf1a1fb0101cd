#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "model/tensor_map.h"

/// Element operations of bulk and tensor reductions. Source: PTX ISA 9.0, sections 9.7.9.25.4.2
/// and 9.7.9.25.5.3 (valid combinations, rounding, flushing); inc and dec as in atom (9.7.13.6).
/// All additions round to nearest even; an f16 overflow is infinity; f16 and bf16 keep subnormals.
/// Measured on an H200: f32 add keeps subnormals too, in the 1-D form and for FLOAT32 maps,
/// although the ISA says that the 1-D form flushes them; maps of type FLOAT32_FTZ flush inputs and
/// results to zeros of the same sign. Portable programs depend on neither. Measured likewise: min
/// and max of f16 and bf16 take the operand that is not NaN (canonical NaN where both are), and -0
/// < +0.
namespace mxfa::emu::model {

enum class ReduceOp : std::uint8_t { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };
enum class ReduceType : std::uint8_t {
  kU32,
  kS32,
  kU64,
  kS64,
  kB32,
  kB64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF32Ftz,  ///< of tensor maps only
};
enum class ReduceTarget : std::uint8_t {
  kGlobal,         ///< cp.reduce.async.bulk to global memory
  kSharedCluster,  ///< cp.reduce.async.bulk to another CTA's shared memory
  kTensor,         ///< cp.reduce.async.bulk.tensor
};

std::string_view reduce_op_name(ReduceOp op);
std::string_view reduce_type_name(ReduceType type);
std::size_t reduce_type_bytes(ReduceType type);

/// The type that a tensor map's elements have for `op`; bitwise operations take any 32 or 64-bit
/// integer type. Errors name types without reductions.
ReduceType reduce_type_of(TensorType type, ReduceOp op);

/// Error unless the ISA's table lists the combination.
void check_reduction(ReduceTarget target, ReduceOp op, ReduceType type);

/// destination[i] = op(destination[i], source[i]). Both have the same size, a multiple of the
/// element's.
void reduce_elements(ReduceOp op, ReduceType type, std::span<std::byte> destination,
                     std::span<const std::byte> source);

}  // namespace mxfa::emu::model
