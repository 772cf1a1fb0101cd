#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "mxfa/tensor.h"

/// Checks of arguments that all operations share. Each throws Error(kInvalidArgument) that names
/// the argument, what was expected and what came; nothing is written before all checks have passed.
namespace mxfa::dispatch {

/// Whether byte counts of so many elements fit 63 bits, sums of several of them, too. Extents of 0
/// count as 1.
bool has_countable_elements(std::span<const std::int64_t> shape);
inline constexpr std::string_view kCountableElements = "fewer than 2^56 elements";

/// Rank within kMaxRank, a dtype, extents at least 0, so few elements so near each other that byte
/// counts and offsets fit 63 bits, data present where there are elements and aligned to the element
/// size.
void check_tensor(const TensorView& tensor, std::string_view name);
/// check_tensor, and no stride of 0 that would write several elements to one place.
void check_output(const TensorView& tensor, std::string_view name);
void check_dtype(const TensorView& tensor, std::string_view name,
                 std::initializer_list<DType> allowed);
void check_shape(const TensorView& tensor, std::string_view name,
                 std::span<const std::int64_t> shape);
/// As check_shape, but the extent of dimension `slack` may be larger than asked for.
void check_shape_at_least(const TensorView& tensor, std::string_view name,
                          std::span<const std::int64_t> shape, int slack);

/// Throws Error(kUnsupported) for a backend that the build does not have.
void check_backend(Backend backend);

struct SeqlenLimits {
  std::int64_t total = 0;        ///< rows of the packed tensor
  std::int64_t batch = -1;       ///< >= 0: the number of sequences that others agreed on
  std::int64_t max_seqlen = -1;  ///< >= 0: longest sequence
};

/// Offsets [batch + 1] in host memory, kI32 or kI64 (converted by value), any stride.
std::vector<std::int32_t> read_cu_seqlens(const TensorView& cu_seqlens, std::string_view name,
                                          const SeqlenLimits& limits);

}  // namespace mxfa::dispatch
