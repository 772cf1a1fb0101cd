#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/tensor_map.h"
#include "mxemu/emulator.h"

namespace mxfa::emu::cli {

/// One kernel argument, or a buffer that arguments point into. See kArgumentHelp.
struct ArgumentSpec {
  enum class Kind : std::uint8_t { kScalar, kBuffer, kPointer, kTensorMap, kStruct };
  Kind kind = Kind::kScalar;
  std::string text;  ///< as given
  std::string name;  ///< of a buffer; of a pointer or tensor map, the buffer's that it refers to
  std::string type;
  std::uint64_t count = 0;  ///< of a buffer
  std::string value;
  std::uint64_t offset = 0;  ///< of a pointer or tensor map, bytes into the buffer
  /// Of a tensor map, innermost dimension first; strides in bytes, of dimensions 1 and up.
  std::vector<std::uint64_t> dims, strides;
  std::vector<std::uint32_t> box, steps;
  std::uint32_t swizzle = 0;  ///< as cuTensorMapEncodeTiled numbers them
  bool fill_nan = false;
  std::vector<ArgumentSpec> members;  ///< of a struct

  std::uint64_t bytes() const;  ///< of a buffer
};

/// What `--arg` and `--buffer` take, for --help.
extern const char* const kArgumentHelp;

/// Both throw mxfa::Error that quotes the text.
ArgumentSpec parse_argument(const std::string& text);
ArgumentSpec parse_buffer(const std::string& text);

/// "random", ...; `timed`: also the policy for pictures.
Policy parse_policy(const std::string& name, bool timed);

/// The bytes of a scalar, or what a buffer holds before the launch (empty for "out").
std::vector<std::byte> initial_bytes(const ArgumentSpec& spec);

/// `address`: of the buffer that it refers to.
model::TensorMapRecord encode_map(const ArgumentSpec& spec, const std::byte* address);

}  // namespace mxfa::emu::cli
