#include <functional>

#include "fixture.h"

namespace mxfa::emu::test {
namespace {

/// The arguments of a good call; tests spoil them one by one.
struct MapArguments {
  alignas(64) CUtensorMap map = {};
  CUtensorMap* target = &map;
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  cuuint32_t rank = 2;
  std::uint64_t address = 0x1000;
  cuuint64_t dims[5] = {256, 100, 1, 1, 1};
  cuuint64_t strides[4] = {512, 51200, 51200, 51200};
  cuuint32_t box[5] = {64, 32, 1, 1, 1};
  cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_NONE;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;

  CUresult encode() {
    return cuTensorMapEncodeTiled(target, type, rank, reinterpret_cast<void*>(address), dims,
                                  strides, box, steps, interleave, swizzle, promotion, fill);
  }
};

struct Spoiled {
  const char* name;
  std::function<void(MapArguments&)> spoil;
};

TEST_F(DriverTest, TensorMapsAreCheckedArgumentByArgument) {
  MapArguments good;
  EXPECT_CU(CUDA_SUCCESS, good.encode());
  const Spoiled cases[] = {
      {"tensorMap", [](auto& a) { a.target = nullptr; }},
      {"tensorMap",
       [](auto& a) {
         a.target = reinterpret_cast<CUtensorMap*>(reinterpret_cast<std::uintptr_t>(&a.map) + 16);
       }},
      {"tensorDataType", [](auto& a) { a.type = static_cast<CUtensorMapDataType>(99); }},
      {"tensorRank", [](auto& a) { a.rank = 0; }},
      {"tensorRank", [](auto& a) { a.rank = 6; }},
      {"globalAddress", [](auto& a) { a.address = 0x1008; }},
      {"globalDim[0]", [](auto& a) { a.dims[0] = 0; }},
      {"globalDim[1]", [](auto& a) { a.dims[1] = (1ull << 32) + 1; }},
      {"globalStrides[0]", [](auto& a) { a.strides[0] = 520; }},
      {"globalStrides[0]", [](auto& a) { a.strides[0] = 1ull << 40; }},
      {"boxDim[1]", [](auto& a) { a.box[1] = 0; }},
      {"boxDim[1]", [](auto& a) { a.box[1] = 257; }},
      {"boxDim[0]", [](auto& a) { a.box[0] = 65; }},
      {"boxDim[0]", [](auto& a) { a.box[0] = 128; }},  // 256 bytes under a swizzle of 128
      {"elementStrides[1]", [](auto& a) { a.steps[1] = 9; }},
      {"interleave", [](auto& a) { a.interleave = static_cast<CUtensorMapInterleave>(3); }},
      {"swizzle", [](auto& a) { a.swizzle = static_cast<CUtensorMapSwizzle>(9); }},
      {"swizzle", [](auto& a) { a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B; }},  // sm_100
      {"l2Promotion", [](auto& a) { a.promotion = static_cast<CUtensorMapL2promotion>(4); }},
      {"oobFill", [](auto& a) { a.fill = static_cast<CUtensorMapFloatOOBfill>(2); }},
  };
  for (const Spoiled& spoiled : cases) {
    MapArguments arguments;
    spoiled.spoil(arguments);
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, arguments.encode());
    EXPECT_NE(last_report().find(spoiled.name), std::string::npos)
        << spoiled.name << " is not in: " << last_report();
  }
  EXPECT_CU(
      CUDA_ERROR_INVALID_VALUE,
      cuTensorMapEncodeTiled(good.target, good.type, 2, nullptr, nullptr, good.strides, good.box,
                             good.steps, good.interleave, good.swizzle, good.promotion, good.fill));
}

TEST_F(DriverTest, TensorMapsOfBlackwell) {
  close();
  ASSERT_CU(mxemuSetArch("sm_100a"));
  open();
  MapArguments arguments;
  arguments.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B;
  EXPECT_CU(CUDA_SUCCESS, arguments.encode());
}

}  // namespace
}  // namespace mxfa::emu::test
