#include <cuda.h>

#include <cstring>

#include "model/tensor_map.h"
#include "state.h"

namespace mxfa::emu::driver {
namespace {

static_assert(sizeof(CUtensorMap) == model::kTensorMapBytes);
constexpr std::uintptr_t kMapAlignment = 64;

template <class T, class U>
std::span<const T> numbers(const U* values, std::size_t count) {
  static_assert(sizeof(T) == sizeof(U));
  return {reinterpret_cast<const T*>(values), values == nullptr ? 0 : count};
}

}  // namespace
}  // namespace mxfa::emu::driver

using namespace mxfa::emu::driver;  // the call below is the driver's, in the global namespace

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  namespace model = mxfa::emu::model;
  return call([&](State& s) {
    current_context(s);
    require(map != nullptr && reinterpret_cast<std::uintptr_t>(map) % kMapAlignment == 0,
            "tensorMap: expected a pointer that is a multiple of 64");
    const std::size_t count = std::min<std::size_t>(rank, model::kMaxTensorRank);
    try {
      const model::TensorMapRecord record = model::encode_tiled(
          {.data_type = static_cast<std::uint32_t>(type),
           .rank = rank,
           .global_address = reinterpret_cast<std::uint64_t>(address),
           .global_dim = numbers<std::uint64_t>(dims, count),
           .global_strides = numbers<std::uint64_t>(strides, count == 0 ? 0 : count - 1),
           .box_dim = numbers<std::uint32_t>(box, count),
           .element_strides = numbers<std::uint32_t>(element_strides, count),
           .interleave = static_cast<std::uint32_t>(interleave),
           .swizzle = static_cast<std::uint32_t>(swizzle),
           .l2_promotion = static_cast<std::uint32_t>(promotion),
           .oob_fill = static_cast<std::uint32_t>(fill),
           .sm_100 = s.settings.arch->major >= 10});
      std::memcpy(map, record.data(), record.size());
    } catch (const mxfa::Error& error) {
      fail(error.kind() == mxfa::ErrorKind::kUnsupported ? CUDA_ERROR_NOT_SUPPORTED
                                                         : CUDA_ERROR_INVALID_VALUE,
           error.what());
    }
  });
}
