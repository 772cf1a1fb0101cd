#include "dispatch/validate.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/check.h"
#include "core/seqlens.h"
#include "dispatch/members.h"
#include "dispatch/refuse.h"

namespace mxfa::dispatch {
namespace {

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

bool is_empty(const TensorView& tensor) { return std::ranges::count(tensor.dims(), 0) > 0; }

/// So many elements or bytes no machine addresses, and sums of several such numbers fit 63 bits.
constexpr double kMost = 0x1p56;

/// What a checked tensor's shape and strides say, in one pass: in double, where products of extents
/// and strides do not overflow.
struct Extent {
  bool negative = false, empty = false;
  double elements = 1;  ///< of dimensions that are not empty
  double reach = 0;     ///< of the last element from the first

  explicit Extent(const TensorView& tensor) {
    for (int i = 0; i < tensor.rank; ++i) {
      const std::int64_t extent = tensor.shape[i];
      negative = negative || extent < 0;
      empty = empty || extent == 0;
      if (extent <= 1) continue;
      const auto steps = static_cast<double>(extent);
      elements *= steps;
      reach += (steps - 1) * std::fabs(static_cast<double>(tensor.strides[i]));
    }
  }
};

void check_reach(const TensorView& tensor, const Extent& extent, std::string_view name) {
  if (extent.reach * static_cast<double>(dtype_size(tensor.dtype)) < kMost) return;
  const std::span strides(tensor.strides.data(), std::size_t(tensor.rank));
  refuse(name, "elements that lie within 2^56 bytes",
         fmt::format("{} with strides {}", core::text(tensor), shape_text(strides)));
}

}  // namespace

bool has_countable_elements(std::span<const std::int64_t> shape) {
  double elements = 1;
  for (const std::int64_t extent : shape) elements *= std::max(static_cast<double>(extent), 1.0);
  return elements < kMost;
}

void check_tensor(const TensorView& tensor, std::string_view name) {
  core::expect(tensor.rank >= 0 && tensor.rank <= kMaxRank, name,
               core::later("0 to {} dimensions", kMaxRank), tensor.rank);
  check_member(tensor.dtype, name);
  const Extent extent(tensor);
  core::expect(!extent.negative, name, "extents of at least 0", tensor);
  core::expect(extent.elements < kMost, name, kCountableElements, tensor);
  check_reach(tensor, extent, name);
  core::expect(tensor.rank > 0 || tensor.data != nullptr, name, "a tensor", "none");
  if (!(extent.empty || tensor.data != nullptr))
    refuse(name, "data", "a null pointer for " + core::text(tensor));
  const std::size_t size = dtype_size(tensor.dtype);  // a power of two
  const std::size_t past = reinterpret_cast<std::uintptr_t>(tensor.data) & (size - 1);
  core::expect(past == 0, name, core::later("data aligned to {} bytes", size),
               core::later("an address {} bytes past that", past));
}

void check_output(const TensorView& tensor, std::string_view name) {
  check_tensor(tensor, name);
  if (is_empty(tensor)) return;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] == 1 || tensor.strides[i] != 0) continue;
    refuse(name, "an output whose elements do not share memory",
           fmt::format("stride 0 in dimension {} of {}", i, core::text(tensor)));
  }
}

void check_dtype(const TensorView& tensor, std::string_view name,
                 std::initializer_list<DType> allowed) {
  check_member(tensor.dtype, name);
  if (std::find(allowed.begin(), allowed.end(), tensor.dtype) != allowed.end()) return;
  std::string names;
  for (const DType dtype : allowed) {
    if (!names.empty()) names += dtype == *(allowed.end() - 1) ? " or " : ", ";
    names += dtype_name(dtype);
  }
  refuse(name, names, core::text(tensor));
}

void check_shape(const TensorView& tensor, std::string_view name,
                 std::span<const std::int64_t> shape) {
  const bool same = std::ranges::equal(tensor.dims(), shape);
  if (!(same)) refuse(name, "shape " + shape_text(shape), core::text(tensor));
}

void check_shape_at_least(const TensorView& tensor, std::string_view name,
                          std::span<const std::int64_t> shape, int slack) {
  bool fits = static_cast<std::size_t>(tensor.rank) == shape.size();
  for (int i = 0; fits && i < tensor.rank; ++i) {
    fits = i == slack ? tensor.shape[i] >= shape[i] : tensor.shape[i] == shape[i];
  }
  if (!(fits))
    refuse(name, fmt::format("shape {} (dimension {} or more)", shape_text(shape), slack),
           core::text(tensor));
}

void check_backend(Backend backend) {
  check_member(backend, "backend");
  if (backend == Backend::kCpu) return;
  throw Error(ErrorKind::kUnsupported,
              fmt::format("backend: expected cpu, got {} (no kernels of it in this build)",
                          backend == Backend::kHopper ? "hopper" : "blackwell"));
}

std::vector<std::int32_t> read_cu_seqlens(const TensorView& cu_seqlens, std::string_view name,
                                          const SeqlenLimits& limits) {
  check_tensor(cu_seqlens, name);
  check_dtype(cu_seqlens, name, {DType::kI32, DType::kI64});
  core::expect(cu_seqlens.rank == 1 && cu_seqlens.shape[0] >= 1, name, "shape [batch + 1]",
               cu_seqlens);
  core::expect(cu_seqlens.shape[0] <= INT32_MAX, name, "fewer than 2^31 sequences", cu_seqlens);
  if (limits.batch >= 0) {
    core::expect(cu_seqlens.shape[0] == limits.batch + 1, name,
                 core::later("shape [{}] (batch + 1)", limits.batch + 1), cu_seqlens);
  }
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(cu_seqlens.shape[0]));
  for (std::int64_t s = 0; s < cu_seqlens.shape[0]; ++s) {
    const std::int64_t index = s * cu_seqlens.strides[0];
    const std::int64_t value = cu_seqlens.dtype == DType::kI32
                                   ? static_cast<const std::int32_t*>(cu_seqlens.data)[index]
                                   : static_cast<const std::int64_t*>(cu_seqlens.data)[index];
    if (value != static_cast<std::int32_t>(value)) {
      refuse(fmt::format("{}[{}]", name, s), "a value of 32 bits", core::text(value));
    }
    offsets[s] = static_cast<std::int32_t>(value);
  }
  core::check_cu_seqlens(offsets, name, limits.total, limits.max_seqlen);
  return offsets;
}

}  // namespace mxfa::dispatch
